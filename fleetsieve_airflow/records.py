"""Frozen records of what is asked: the fleet, its workloads, its engine configs and their ladders of loads.

Imports nothing of ours but errors and :mod:`.engine_config`, whose records it passes on. Every record
validates on construction, holds tuples instead of lists, and no number that JSON cannot hold (no NaN, no
infinity: ``None`` means "no bound yet"). What comes out of measuring and deciding is in :mod:`.evidence`; how
records become JSON is in :mod:`.serialization`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeVar

# "as" passes a name on to those who import it from here.
from fleetsieve_airflow.engine_config import EngineConfig as EngineConfig  # noqa: PLC0414
from fleetsieve_airflow.engine_config import EngineGroup as EngineGroup  # noqa: PLC0414
from fleetsieve_airflow.errors import RecordError

Item = TypeVar("Item")

LATENCY_METRICS = ("ttft", "tpot", "e2e")
PERCENTILES = (50, 90, 95, 99)
#: Rounds of a campaign whose fleet file names no limit: with and without Airflow it ends.
ROUNDS_MAX = 100
#: Names of latency percentiles as they appear in specs, grids, MLflow and reports.
PERCENTILE_NAMES = tuple(
    f"{metric}_p{percentile}_s" for metric in LATENCY_METRICS for percentile in PERCENTILES
)

LoadKind = Literal["offered_load_rps", "concurrency"]
LOAD_KINDS: tuple[LoadKind, ...] = ("offered_load_rps", "concurrency")
Objective = Literal["max_min_fulfilment", "fewest_gpus", "lowest_cost"]
OBJECTIVES: tuple[Objective, ...] = ("max_min_fulfilment", "fewest_gpus", "lowest_cost")
StopRule = Literal["regret", "gap"]
Source = Literal[
    "measured",
    "monotone",
    "closed_loop",
    "interpolated",
    "interior_peak",
    "simulator",
    "earlier_release",
    "ladder",
    "none",
]
#: Sources a spec may name under ``certify_on``. ``ladder`` (the end of the ladder) and ``none`` are not
#: evidence.
CERTIFIABLE_SOURCES: tuple[Source, ...] = (
    "measured",
    "monotone",
    "closed_loop",
    "interpolated",
    "interior_peak",
    "simulator",
    "earlier_release",
)


def require_finite(
    name: str, value: float, *, minimum: float | None = None, above: float | None = None
) -> None:
    """Refuse NaN, infinity and values outside a range.

    :raises RecordError: naming the field, its value and the allowed range.
    """
    if not math.isfinite(value):
        raise RecordError(f"{name} must be a finite number, got {value}.")
    if minimum is not None and value < minimum:
        raise RecordError(f"{name} must be at least {minimum}, got {value}.")
    if above is not None and value <= above:
        raise RecordError(f"{name} must be greater than {above}, got {value}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLimit:
    """An upper limit on one percentile of one latency, e.g. TTFT p99 at most 2 s."""

    metric: str
    percentile: int
    limit_s: float

    def __post_init__(self) -> None:
        if self.metric not in LATENCY_METRICS or self.percentile not in PERCENTILES:
            raise RecordError(f"Unknown latency limit {self.name!r}; allowed: {', '.join(PERCENTILE_NAMES)}.")
        require_finite(self.name, self.limit_s, above=0.0)

    @property
    def name(self) -> str:
        """The spec's key for this limit, e.g. ``ttft_p99_s``."""
        return f"{self.metric}_p{self.percentile}_s"

    @property
    def allowed_miss_share(self) -> float:
        """Share of sent requests that may fail or be later than the limit, e.g. 0.01 for p99."""
        return round(1.0 - self.percentile / 100.0, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a workload's requests must get: a least success rate and limits on latency percentiles."""

    success_rate: float | None = None
    limits: tuple[LatencyLimit, ...] = ()

    def __post_init__(self) -> None:
        if self.success_rate is None and not self.limits:
            raise RecordError("An SLO needs at least one limit: success_rate or a latency percentile.")
        if self.success_rate is not None:
            require_finite("success_rate", self.success_rate, above=0.0)
            if self.success_rate > 1.0:
                raise RecordError(f"success_rate must be at most 1, got {self.success_rate}.")
        names = [limit.name for limit in self.limits]
        if len(set(names)) != len(names):
            raise RecordError(f"An SLO names each limit once, got {', '.join(names)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """GPUs of one kind, in nodes of one size.

    ``spare_nodes`` whole nodes are kept free, so that the replicas of any lost node can start again
    elsewhere.
    """

    name: str
    gpu: str
    gpus: int
    gpus_per_node: int
    spare_nodes: int = 0
    gpu_memory_gib: float | None = None
    price_per_gpu_hour: float | None = None
    driver: str = ""

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.gpus_per_node < 1:
            raise RecordError(f"Pool {self.name!r}: gpus and gpus_per_node must be at least 1.")
        if self.spare_nodes < 0 or self.usable_gpus < 1:
            raise RecordError(
                f"Pool {self.name!r}: spare_nodes {self.spare_nodes} leaves no GPU of {self.gpus} "
                "to plan with."
            )
        if self.price_per_gpu_hour is not None:
            require_finite(f"pool {self.name!r} price_per_gpu_hour", self.price_per_gpu_hour, minimum=0.0)

    @property
    def usable_gpus(self) -> int:
        """GPUs a plan may use: all but the spare nodes."""
        return self.gpus - self.spare_nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A served model at one revision; the optional facts exclude engine configs that cannot run.

    ``registered_model`` is its name in the MLflow model registry; empty: the same as here.
    """

    name: str
    revision: str
    source: str = ""
    registered_model: str = ""
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    weights_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The request profile a workload is measured with. ``digest`` identifies its content, not its place."""

    name: str
    digest: str = ""
    path: str = ""
    format: str = ""
    isl_mean_tokens: float | None = None
    osl_mean_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests for one model with one length profile, one arrival profile and one SLO."""

    name: str
    model: str
    demand_rps: float
    slo: Slo
    trace: Trace
    min_replicas: int = 0
    max_replicas: int | None = None

    def __post_init__(self) -> None:
        require_finite(f"workload {self.name!r} demand_rps", self.demand_rps, above=0.0)
        if self.min_replicas < 0 or (
            self.max_replicas is not None and self.max_replicas < max(1, self.min_replicas)
        ):
            raise RecordError(
                f"Workload {self.name!r}: replicas from {self.min_replicas} to {self.max_replicas} "
                "leave no choice."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A workload on an engine config, with the ladder of loads at which a replica may be measured and run.

    ``loads`` strictly increase. A candidate with an ``excluded`` reason can never run and is never measured.
    """

    workload: str
    config: str
    load_kind: LoadKind
    loads: tuple[float, ...]
    excluded: str = ""

    def __post_init__(self) -> None:
        if self.load_kind not in LOAD_KINDS:
            raise RecordError(
                f"Candidate {self.label}: load_kind {self.load_kind!r} is not one of {LOAD_KINDS}."
            )
        if not self.loads:
            raise RecordError(f"Candidate {self.label}: needs at least one load.")
        for load in self.loads:
            require_finite(f"candidate {self.label} load", load, above=0.0)
        if any(low >= high for low, high in zip(self.loads, self.loads[1:], strict=False)):
            raise RecordError(
                f"Candidate {self.label}: loads must strictly increase, got {list(self.loads)}."
            )

    @property
    def label(self) -> str:
        """Readable name, e.g. ``chat TP4``."""
        return f"{self.workload} {self.config}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a campaign may spend at most; ``None`` is no limit. Reused measurements are free."""

    gpu_seconds: float | None = None
    rounds: int | None = None
    points: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSettings:
    """How points are measured.

    ``device`` identifies what measures (``live``, or a recorded grid by its digest): it is part of every
    point's key, so that a replayed number is never taken for a measured one. ``repeats`` is how often one
    load may be measured when its verdict is in doubt; ``failed_attempts`` is after how many failures in a row
    a point is given up.
    """

    backend: str = "replay"
    device: str = ""
    duration_s: float = 300.0
    startup_s: float = 0.0
    profiling_gpus: int | None = None
    repeats: int = 3
    failed_attempts: int = 3
    seed: int = 0
    reuse_max_age_s: float | None = None
    options: tuple[tuple[str, str], ...] = ()

    def option(self, name: str, default: str = "") -> str:
        """Return one backend option as text."""
        return dict(self.options).get(name, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorSettings:
    """What may steer the first measurements; none of it proves anything unless ``certify_on`` says so.

    ``simulator`` names the operator tables of simulated capacities, empty for none. ``widening`` is the share
    by which a release is expected to move a capacity at most.
    """

    earlier_release: bool = True
    simulator: str = ""
    widening: float = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """What counts as settled. ``tolerance`` is in the objective's unit: fulfilment, GPUs, or money per hour.

    ``closed_loop_slack`` is the relative spread of served rates between runs that closed-loop bounds must
    survive.
    """

    objective: Objective = "max_min_fulfilment"
    required_fulfilment: float = 1.0
    tolerance: float = 0.01
    stop_on: StopRule = "regret"
    confidence: float | None = None
    run_to_run_cv: float = 0.0
    closed_loop_slack: float = 0.1
    certify_on: tuple[Source, ...] = ("measured", "monotone", "closed_loop")
    interior_peak: bool = False
    demand_scenarios: tuple[float, ...] = (1.0,)
    cost_per_hour_max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """A whole fleet as it is planned: what exists, what is asked, how to measure, when to stop."""

    fleet: str
    pools: tuple[Pool, ...]
    models: tuple[Model, ...]
    configs: tuple[EngineConfig, ...]
    workloads: tuple[Workload, ...]
    candidates: tuple[Candidate, ...]
    decision: DecisionSettings = field(default_factory=DecisionSettings)
    measurement: MeasurementSettings = field(default_factory=MeasurementSettings)
    budget: Budget = field(default_factory=Budget)
    prior: PriorSettings = field(default_factory=PriorSettings)

    def __post_init__(self) -> None:
        for what, names in (
            ("pool", [pool.name for pool in self.pools]),
            ("model", [model.name for model in self.models]),
            ("engine config", [config.label for config in self.configs]),
            ("workload", [workload.name for workload in self.workloads]),
            ("candidate", [candidate.label for candidate in self.candidates]),
        ):
            doubles = sorted(name for name, times in Counter(names).items() if times > 1)
            if doubles:
                raise RecordError(f"Duplicate {what} name: {', '.join(doubles)}.")

    def pool(self, name: str) -> Pool:
        """Return the pool of that name."""
        return _by_name("pool", name, {pool.name: pool for pool in self.pools})

    def model(self, name: str) -> Model:
        """Return the model of that name."""
        return _by_name("model", name, {model.name: model for model in self.models})

    def config(self, label: str) -> EngineConfig:
        """Return the engine config of that label."""
        return _by_name("engine config", label, {config.label: config for config in self.configs})

    def workload(self, name: str) -> Workload:
        """Return the workload of that name."""
        return _by_name("workload", name, {workload.name: workload for workload in self.workloads})

    def candidate(self, workload: str, config: str) -> Candidate:
        """Return the candidate of that workload and engine config."""
        return _by_name("candidate", f"{workload} {config}", {item.label: item for item in self.candidates})

    @property
    def bound_confidence(self) -> float | None:
        """The one-sided confidence of each verdict and each rate, so that all together keep the promised one.

        What may be wrong is shared equally among two bounds of each candidate that can run, each of which
        rests on a verdict (of a closed loop: and on a rate) and is looked at after every repeat.
        """
        if self.decision.confidence is None:
            return None
        claims = sum(
            2 if candidate.load_kind == "offered_load_rps" else 4
            for candidate in self.candidates
            if not candidate.excluded
        )
        return 1.0 - (1.0 - self.decision.confidence) / max(1, claims * self.measurement.repeats)

    def candidates_of(self, workload: str) -> tuple[Candidate, ...]:
        """Return a workload's candidates that can run, in the spec's order."""
        return tuple(item for item in self.candidates if item.workload == workload and not item.excluded)


def _by_name(what: str, name: str, items: dict[str, Item]) -> Item:
    try:
        return items[name]
    except KeyError:
        raise RecordError(f"Unknown {what} {name!r}; known: {', '.join(sorted(items)) or 'none'}.") from None
