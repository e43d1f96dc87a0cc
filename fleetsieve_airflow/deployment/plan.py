"""A plan as it is deployed: which replicas of what, read from a certificate or from its own JSON.

It keeps what a deployment needs and nothing of how it was decided; :func:`plan_document` and
:func:`read_plan` are its written form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleetsieve_airflow.errors import DeploymentError, FleetsieveError
from fleetsieve_airflow.evidence import Plan
from fleetsieve_airflow.records import EngineConfig, FleetSpec, Model
from fleetsieve_airflow.serialization import SCHEMA_VERSION, from_plain, to_plain
from fleetsieve_airflow.serving.options import job_options

KIND = "DeploymentPlan"
CERTIFIED = ("certified_feasible", "certified_infeasible")
#: Backends whose options say how a real server is started.
_SERVED = ("slurm", "local")
DEFAULT_READY_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaKind:
    """The replicas of one workload that are built alike; ``capacity_rps`` is what one surely serves."""

    workload: str
    config: EngineConfig
    model: Model
    gpu: str
    gpus_per_node: int
    replicas: int
    capacity_rps: float

    @property
    def label(self) -> str:
        """Readable name, e.g. ``chat TP4``."""
        return f"{self.workload} {self.config.label}"

    @property
    def gpus(self) -> int:
        """GPUs of all its replicas."""
        return self.replicas * self.config.gpus

    @property
    def spans_nodes(self) -> bool:
        """Whether one engine has more GPUs than a node."""
        return any(part.engine.gpus > self.gpus_per_node for part in self.config.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Everything of a plan that its deployment needs.

    :param demand_rps: workload -> demand, in the fleet file's order.
    :param scenarios: multiples of the demand that the plan is compared at.
    :param engine_env: variables every server was measured with.
    :param ready_s: how long a server may take to start.
    """

    fleet: str
    state: str
    kinds: tuple[ReplicaKind, ...]
    demand_rps: tuple[tuple[str, float], ...]
    scenarios: tuple[float, ...] = (1.0,)
    min_fulfilment: float = 0.0
    engine_env: tuple[tuple[str, str], ...] = ()
    ready_s: float = DEFAULT_READY_S
    campaign_id: str = ""
    certificate_sha256: str = ""

    @property
    def gpus(self) -> int:
        """GPUs of the whole plan."""
        return sum(kind.gpus for kind in self.kinds)

    @property
    def certified(self) -> bool:
        """Whether a certificate stands behind it."""
        return self.state in CERTIFIED

    def kinds_of(self, workload: str) -> tuple[ReplicaKind, ...]:
        """Return the replicas of one workload."""
        return tuple(kind for kind in self.kinds if kind.workload == workload)

    def served_rps(self, workload: str, demand_rps: float) -> float:
        """Return the rate that a workload's replicas surely serve of a demand."""
        return min(demand_rps, sum(kind.replicas * kind.capacity_rps for kind in self.kinds_of(workload)))


def deployed(
    spec: FleetSpec, plan: Plan, *, state: str, campaign_id: str = "", certificate_sha256: str = ""
) -> FleetPlan:
    """Return a plan of a fleet as it is deployed.

    :param state: how the decision ended, e.g. ``certified_feasible``.
    :raises RecordError: the plan names what the spec does not know.
    :raises SpecError: the spec's options for starting servers cannot be read.
    """
    kinds = []
    for item in plan.allocations:
        if not item.replicas:
            continue
        config = spec.config(item.config)
        pools = [spec.pool(part.engine.pool) for part in config.parts]
        kinds.append(
            ReplicaKind(
                workload=item.workload,
                config=config,
                model=spec.model(spec.workload(item.workload).model),
                gpu=" + ".join(dict.fromkeys(pool.gpu for pool in pools)),
                gpus_per_node=min(pool.gpus_per_node for pool in pools),
                replicas=item.replicas,
                capacity_rps=item.capacity_rps,
            )
        )
    options = job_options(spec.measurement) if spec.measurement.backend in _SERVED else None
    return FleetPlan(
        fleet=spec.fleet,
        state=state,
        kinds=tuple(kinds),
        demand_rps=tuple((workload.name, workload.demand_rps) for workload in spec.workloads),
        scenarios=tuple(sorted({1.0, *spec.decision.demand_scenarios})),
        min_fulfilment=plan.min_fulfilment,
        engine_env=options.engine_env if options else (),
        ready_s=options.ready_s if options else DEFAULT_READY_S,
        campaign_id=campaign_id,
        certificate_sha256=certificate_sha256,
    )


def plan_of_certificate(document: Mapping[str, Any]) -> FleetPlan:
    """Return the conservative plan of a certificate: the one that it certifies.

    The certificate is read, not checked: that is what ``verify_certificate`` is for.

    :raises DeploymentError: it is not a certificate, or cannot be read.
    """
    if document.get("kind") != "Certificate" or document.get("schema_version") != SCHEMA_VERSION:
        raise DeploymentError(
            f"Expected a certificate of schema version {SCHEMA_VERSION}, got {document.get('kind')!r} of "
            f"version {document.get('schema_version')!r}.",
            hint="Give the certificate.json of a campaign.",
        )
    try:
        return deployed(
            from_plain(FleetSpec, document["spec"]),
            from_plain(Plan, document["conservative"]),
            state=document["state"],
            campaign_id=document["campaign_id"],
            certificate_sha256=document["certificate_sha256"],
        )
    except (FleetsieveError, KeyError, TypeError) as error:
        raise DeploymentError(f"The certificate cannot be read: {error}") from error


def plan_document(plan: FleetPlan) -> dict[str, Any]:
    """Return a plan as a JSON-able document."""
    return {"schema_version": SCHEMA_VERSION, "kind": KIND, **to_plain(plan)}


def read_plan(document: Any) -> FleetPlan:
    """Read a certificate, or what :func:`plan_document` wrote.

    :raises DeploymentError: it is neither, or cannot be read.
    """
    if not isinstance(document, dict):
        raise DeploymentError(f"Expected a JSON object, got {type(document).__name__}.")
    if document.get("kind") != KIND:
        return plan_of_certificate(document)
    try:
        fields = {name: value for name, value in document.items() if name not in ("schema_version", "kind")}
        kinds = [
            ReplicaKind(
                **{
                    **{name: value for name, value in row.items() if name not in ("command", "image")},
                    "config": from_plain(EngineConfig, row["config"]),
                    "model": from_plain(Model, row["model"]),
                }
            )
            for row in fields.pop("kinds")
        ]
        demand = tuple((name, rate) for name, rate in fields.pop("demand_rps"))
        env = tuple((name, value) for name, value in fields.pop("engine_env"))
        scenarios = tuple(fields.pop("scenarios"))
        return FleetPlan(kinds=tuple(kinds), demand_rps=demand, engine_env=env, scenarios=scenarios, **fields)
    except (FleetsieveError, KeyError, TypeError, ValueError) as error:
        raise DeploymentError(f"The plan cannot be read: {type(error).__name__}: {error}") from error
