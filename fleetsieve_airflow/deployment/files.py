"""All forms of a plan as files, as a campaign keeps them beside its certificate."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fleetsieve_airflow.deployment.commands import render_commands, replica_command
from fleetsieve_airflow.deployment.kubernetes import render_kubernetes
from fleetsieve_airflow.deployment.options import ExportOptions
from fleetsieve_airflow.deployment.plan import FleetPlan, plan_document
from fleetsieve_airflow.deployment.production_stack import render_values
from fleetsieve_airflow.errors import DeploymentError, FleetsieveError

Render = Callable[[FleetPlan, ExportOptions], str]


def render_json(plan: FleetPlan, options: ExportOptions) -> str:
    """Return the plan as JSON; whole replicas of vLLM carry their command and image too."""
    document = plan_document(plan)
    for row, kind in zip(document["kinds"], plan.kinds, strict=True):
        if kind.config.engine == "vllm" and not kind.config.disaggregated:
            row["command"] = list(replica_command(kind))
            row["image"] = ":".join(options.image_of(kind))
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


#: Format -> (name of its file, how it is written).
FORMATS: Mapping[str, tuple[str, Render]] = {
    "commands": ("commands.sh", lambda plan, _: render_commands(plan)),
    "kubernetes": ("kubernetes.yaml", render_kubernetes),
    "production-stack": ("values.yaml", render_values),
    "json": ("plan.json", render_json),
}


def deployment_files(plan: FleetPlan, options: ExportOptions | None = None) -> dict[str, str]:
    """Return every form by file name; a form that the plan cannot have says why instead."""
    chosen = options or ExportOptions()
    files: dict[str, str] = {}
    for name, render in FORMATS.values():
        try:
            files[name] = render(plan, chosen)
        except FleetsieveError as error:
            files[name] = f"# Not exported. {error}\n"
    return files


def load_json(text: str, what: str) -> dict[str, Any]:
    """Read a JSON object.

    :raises DeploymentError: it is none.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise DeploymentError(f"{what} is not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise DeploymentError(f"{what} is not a JSON object.")
    return document
