"""Small fleets as they are deployed."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from fleetsieve_airflow.campaign import run_campaign
from fleetsieve_airflow.deployment.plan import FleetPlan, ReplicaKind, plan_of_certificate
from fleetsieve_airflow.records import EngineConfig, Model
from tests.builders import paper_spec

#: What one replica of the published fleet serves within its SLO, in req/s.
CAPACITY_RPS = {"chat TP4": 6.6, "chat TP8": 11.27, "code TP4": 3.6, "code TP8": 6.0}


@lru_cache(maxsize=1)
def paper_certificate() -> dict[str, Any]:
    """Plan the fleet that ships with the project and return its certificate: 2 x TP4 for each workload."""
    from fleetsieve_airflow.backends.base import backend_for

    return run_campaign(paper_spec(), backend_for(paper_spec())).certificate


def make_kind(workload: str = "chat", label: str = "TP4", replicas: int = 2, **fields: Any) -> ReplicaKind:
    """Build replicas of a workload; fields of the config, the model or the kind itself by their names."""
    degree = int(label.removeprefix("TP")) if label.startswith("TP") else 1
    config = EngineConfig(label=label, pool="h100", tensor_parallel=degree)
    model = Model(name="m", revision="r1", source="org/m")
    for name, value in fields.pop("config", {}).items():
        config = replace(config, **{name: value})
    for name, value in fields.pop("model", {}).items():
        model = replace(model, **{name: value})
    defaults: dict[str, Any] = {
        "gpu": "NVIDIA H100 80GB HBM3",
        "gpus_per_node": 8,
        "capacity_rps": CAPACITY_RPS.get(f"{workload} {label}", 5.0),
    }
    return ReplicaKind(
        workload=workload, config=config, model=model, replicas=replicas, **{**defaults, **fields}
    )


def make_plan(*kinds: ReplicaKind, **fields: Any) -> FleetPlan:
    """Build a certified plan of the published fleet's demand."""
    defaults: dict[str, Any] = {
        "fleet": "chat-and-code-h100",
        "state": "certified_feasible",
        "demand_rps": (("chat", 12.0), ("code", 6.5)),
        "scenarios": (0.7, 1.0, 1.3),
        "min_fulfilment": 1.0,
        "certificate_sha256": "ab" * 32,
    }
    return FleetPlan(kinds=kinds or (make_kind(),), **{**defaults, **fields})


def paper_plan() -> FleetPlan:
    """Return the plan of that certificate as it is deployed."""
    return plan_of_certificate(paper_certificate())
