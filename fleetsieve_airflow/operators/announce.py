"""Write a certified plan to the versions of MLflow's model registry that it is for.

Where a model's revision is a version there (``v7``), that version is tagged ``fleetsieve.plan.<fleet>`` with
the plan of the workloads that it serves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fleetsieve_airflow.errors import TrackingError
from fleetsieve_airflow.releases import version_of

if TYPE_CHECKING:
    from fleetsieve_airflow.hooks.mlflow import MlflowHook
    from fleetsieve_airflow.records import FleetSpec

#: With the fleet's name, the tag that holds the plan.
PLAN_TAG = "fleetsieve.plan."


def tag_versions(hook: MlflowHook, spec: FleetSpec, summary: Mapping[str, Any], alias: str) -> Iterator[str]:
    """Write the plan to the registered versions it is for, and yield what came of it in words.

    A registry that refuses takes nothing from the plan: its certificate and its event stand.
    """
    told = ("campaign_id", "run_id", "state", "certificate_sha256", "certificate")
    for model in spec.models:
        version, name = version_of(model.revision), model.registered_model or model.name
        if version is None:
            continue
        served = {workload.name for workload in spec.workloads if workload.model == model.name}
        plan = {workload: replicas for workload, replicas in summary["plan"].items() if workload in served}
        text = json.dumps({**{key: summary[key] for key in told}, "plan": plan}, sort_keys=True)
        try:
            there = hook.registry.tag_version(name, version, {PLAN_TAG + spec.fleet: text}, alias=alias)
        except TrackingError as error:
            yield f"The plan is not written to version {version} of model {name}: {error}"
        else:
            found = "has its plan" if there else "is not in the registry"
            yield f"Version {version} of model {name} {found}."
