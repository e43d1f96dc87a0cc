"""Files that a fleet file refers to, read for what identifies and limits: traces, tables, models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleetsieve_airflow import __version__
from fleetsieve_airflow.records import Model, Trace
from fleetsieve_airflow.serialization import sha256
from fleetsieve_airflow.spec_problems import Problems
from fleetsieve_airflow.spec_schema import ModelSection, TraceSection

#: Names under which config.json files keep the number of attention heads and of key-value heads.
_HEADS = ("num_attention_heads", "n_head", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")


def read_model(name: str, section: ModelSection, base_dir: Path, problems: Problems) -> Model:
    """Return a model; its head counts come from its config.json where the file names one."""
    heads = {
        "num_attention_heads": section.num_attention_heads,
        "num_key_value_heads": section.num_key_value_heads,
    }
    if section.config_json:
        for key, count in _head_counts(name, base_dir / section.config_json, problems).items():
            if heads[key] not in (None, count):
                problems.add_value(
                    ("models", name, key),
                    f"must agree with config_json, which says {count}",
                    heads[key],
                    "Remove one.",
                )
            heads[key] = count
    return Model(
        name=name,
        revision=section.revision,
        source=section.source.replace("{revision}", section.revision),
        registered_model=section.registered_model or "",
        weights_gib=section.weights_gib,
        **heads,
    )


def simulated_device(options: dict[str, str], base_dir: Path) -> str:
    """Name the device that simulates: another release, other options or other tables are another device.

    A path of own tables becomes absolute in ``options``.
    """
    tables, content = base_dir / options.get("tables", ""), ""
    if tables.is_file():
        options["tables"], content = str(tables), hashlib.sha256(tables.read_bytes()).hexdigest()
    named = {name: text for name, text in options.items() if not (name == "tables" and content)}
    return f"simulate:{sha256([__version__, named, content])[:16]}"


def read_trace(workload: str, section: TraceSection, base_dir: Path, problems: Problems) -> Trace:
    """Return a trace with the digest of its content.

    A path that is not readable here may be one of the GPU nodes: it stays as written and needs a digest.
    """
    path, digest, place = section.path, section.digest, ("workloads", workload, "trace")
    local = base_dir / path
    if path and local.is_file():
        with local.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if digest not in ("", found):
            problems.add_value(
                (*place, "digest"), f"must be the file's SHA-256 {found}", digest, "Is it the right file?"
            )
        path, digest = str(local), found
    elif path and not digest:
        problems.add_value(
            (*place, "path"),
            "must be readable here, or be given with its digest",
            path,
            "Correct the path, or add trace.digest with the file's SHA-256.",
        )
    return Trace(
        name=section.name or workload,
        digest=digest,
        path=path,
        format=section.format,
        isl_mean_tokens=section.isl_mean_tokens,
        osl_mean_tokens=section.osl_mean_tokens,
    )


def _head_counts(name: str, path: Path, problems: Problems) -> dict[str, int]:
    """Return the head counts of a Hugging Face config.json; multimodal models have a ``text_config``."""
    place = ("models", name, "config_json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problems.add_value(place, f"must be a readable JSON file ({error})", str(path), "Correct the path.")
        return {}
    sections = [config, config.get("text_config", {})] if isinstance(config, dict) else []
    for section in sections:
        heads = _first_count(section, _HEADS)
        if heads:
            # Not counted apart, key-value heads are as many as attention heads, or one that all share.
            kv_heads = 1 if section.get("multi_query") else _first_count(section, _KV_HEADS) or heads
            return {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    problems.add_value(
        place, f"must hold {_HEADS[0]}", str(path), "Give num_attention_heads in the fleet file instead."
    )
    return {}


def _first_count(section: Any, names: tuple[str, ...]) -> int | None:
    if not isinstance(section, Mapping):
        return None
    return next(
        (section[key] for key in names if isinstance(section.get(key), int) and section[key] > 0), None
    )
