"""Artifacts of MLflow runs as texts: written in one go and replaced as a whole, read back one by one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetsieve_airflow.errors import EvidenceError
from fleetsieve_airflow.hooks.mlflow_client import TrackingClient
from fleetsieve_airflow.reporting import layout

if TYPE_CHECKING:
    from mlflow import MlflowClient


def json_text(value: Any) -> str:
    """Return JSON for people to open: indented; NaN and infinity are refused."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_files(client: TrackingClient, run_id: str, files: Mapping[str, str | bytes]) -> None:
    """Store artifacts by path; writing the same again changes nothing."""
    with tempfile.TemporaryDirectory(prefix="fleetsieve-") as folder:
        for path, content in files.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content if isinstance(content, bytes) else content.encode())
        client.call(f"store {_named(files)}", lambda mlflow: mlflow.log_artifacts(run_id, folder))


def write_tables(client: TrackingClient, run_id: str, tables: Mapping[str, dict[str, Any]]) -> None:
    """Store tables and tell MLflow's browser that they are tables."""
    write_files(client, run_id, {path: json_text(table) for path, table in tables.items()})
    wanted = [{"path": path, "type": "table"} for path in tables]

    def announce(mlflow: MlflowClient) -> None:
        said = json.loads(mlflow.get_run(run_id).data.tags.get(layout.TAG_LOGGED_TABLES, "[]"))
        if more := [entry for entry in wanted if entry not in said]:
            mlflow.set_tag(run_id, layout.TAG_LOGGED_TABLES, json.dumps(said + more))

    client.call(f"announce {_named(tables)}", announce)


def find_text(client: TrackingClient, run_id: str, path: str) -> str | None:
    """Return an artifact's text, or None where the run has no such artifact."""

    def read(mlflow: MlflowClient) -> str | None:
        # Asked by listing: what a missing file raises differs between artifact stores.
        folder = str(Path(path).parent)
        listed = mlflow.list_artifacts(run_id, None if folder == "." else folder)
        if all(entry.path != path for entry in listed):
            return None
        with tempfile.TemporaryDirectory(prefix="fleetsieve-") as target:
            return Path(mlflow.download_artifacts(run_id, path, target)).read_text(encoding="utf-8")

    return client.call(f"read {path}", read)


def read_text(client: TrackingClient, run_id: str, path: str) -> str:
    """Return an artifact's text.

    :raises EvidenceError: the run has no such artifact.
    """
    text = find_text(client, run_id, path)
    if text is None:
        raise EvidenceError(
            f"MLflow run {run_id} has no artifact {path}.", hint="It was deleted, or never written."
        )
    return text


def _named(files: Mapping[str, Any]) -> str:
    return ", ".join(files) or "nothing"
