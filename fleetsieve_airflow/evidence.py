"""Frozen records of what is known and decided: points, measurements, intervals, plans, rounds.

Imports only :mod:`.records` and :mod:`.errors`. These records cross every seam (XCom, MLflow artifacts,
certificates); :mod:`.serialization` is the only module that turns them into JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fleetsieve_airflow.errors import RecordError
from fleetsieve_airflow.records import PERCENTILE_NAMES, LoadKind, Source, require_finite

DecisionState = Literal["measure", "certified_feasible", "certified_infeasible", "undetermined"]
FailureKind = Literal["infrastructure", "invalid_run", "missing_in_grid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPoint:
    """A thing that can be measured: a candidate at one load, for one window of its trace, with one seed.

    ``profile`` identifies everything else that can change the outcome (see
    :func:`fleetsieve_airflow.serialization.profile_digest`), so that :attr:`key` never mixes two releases,
    GPU kinds, engine versions or measuring devices. The SLO and the demand are not part of it: a measurement
    can be judged again.
    """

    workload: str
    config: str
    load_kind: LoadKind
    load: float
    duration_s: float
    seed: int
    gpus: int
    profile: str
    key: str

    def __post_init__(self) -> None:
        require_finite("point load", self.load, above=0.0)
        require_finite("point duration_s", self.duration_s, above=0.0)
        if self.gpus < 1 or self.seed < 0:
            raise RecordError(f"Point {self.label}: gpus must be at least 1 and seed at least 0.")

    @property
    def label(self) -> str:
        """Readable name, e.g. ``chat TP4 6.6 req/s`` or ``chat TP4 32 users``; a seed but 0 is said."""
        unit = "req/s" if self.load_kind == "offered_load_rps" else "users"
        repeat = f" seed {self.seed}" if self.seed else ""
        return f"{self.workload} {self.config} {self.load:g} {unit}{repeat}"

    @property
    def gpu_seconds_window(self) -> float:
        """GPU-seconds of the window alone, as the paper counts."""
        return self.gpus * self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MissShare:
    """Share of sent requests that failed or exceeded one limit; a limit is judged by it where it is known."""

    limit: str
    limit_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What came out of measuring one point once.

    ``percentiles`` are over all sent requests with failed ones counted as infinitely late; a percentile that
    is therefore infinite is left out. ``refused`` holds the engine's words where it would not start: evidence
    that the config serves nothing. ``curtailed`` windows ended early because their verdict was already
    certain.
    """

    point: MeasurementPoint
    served_rps: float
    success_rate: float | None = None
    sent: int | None = None
    failed: int | None = None
    percentiles: tuple[tuple[str, float], ...] = ()
    miss_shares: tuple[MissShare, ...] = ()
    refused: str = ""
    curtailed: bool = False
    gpu_seconds_window: float = 0.0
    gpu_seconds_billed: float = 0.0
    samples_sha256: str = ""
    versions: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        require_finite(f"{self.point.label} served_rps", self.served_rps, minimum=0.0)
        require_finite(f"{self.point.label} gpu_seconds_window", self.gpu_seconds_window, minimum=0.0)
        require_finite(f"{self.point.label} gpu_seconds_billed", self.gpu_seconds_billed, minimum=0.0)
        if self.success_rate is not None and not 0.0 <= self.success_rate <= 1.0:
            raise RecordError(f"{self.point.label}: success_rate must be in [0, 1], got {self.success_rate}.")
        if self.sent is not None and (self.sent < 0 or not 0 <= (self.failed or 0) <= self.sent):
            raise RecordError(f"{self.point.label}: sent {self.sent}, failed {self.failed} cannot be counts.")
        for name, value in self.percentiles:
            if name not in PERCENTILE_NAMES:
                raise RecordError(f"{self.point.label}: unknown percentile {name!r}.")
            require_finite(f"{self.point.label} {name}", value, minimum=0.0)

    def percentile(self, name: str) -> float | None:
        """Return a latency percentile in seconds, or None where it is infinite or was not recorded."""
        return dict(self.percentiles).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceItem:
    """A measurement as one campaign knows it: the round that asked for it (0: known before), where it is."""

    measurement: Measurement
    round: int
    reused: bool = False
    run_id: str = ""
    measured_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFailure:
    """A point that was asked for and not measured: never read as "missed its SLO"."""

    key: str
    label: str
    round: int
    kind: FailureKind
    message: str
    gpu_seconds_billed: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorLoad:
    """What an earlier release showed at one load: ln(worst metric / limit of today's SLO), and its rate.

    ``releases_back`` counts from the release that is planned: 1 is the one before it.
    """

    load: float
    margin: float
    rate_rps: float
    releases_back: int = 1

    def __post_init__(self) -> None:
        require_finite("prior load", self.load, above=0.0)
        require_finite("prior margin", self.margin)
        require_finite("prior rate_rps", self.rate_rps, minimum=0.0)
        if self.releases_back < 1:
            raise RecordError(f"A prior is at least 1 release back, got {self.releases_back}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorCapacity:
    """What is believed of a capacity before it is measured: guides, and certifies only if the spec says.

    ``upper_rps`` None is no bound. ``loads`` is what an earlier release showed load by load.
    """

    workload: str
    config: str
    source: Source
    lower_rps: float
    upper_rps: float | None
    loads: tuple[PriorLoad, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a campaign knows when it decides: measurements in the order they came, failures, priors."""

    items: tuple[EvidenceItem, ...] = ()
    failures: tuple[PointFailure, ...] = ()
    priors: tuple[PriorCapacity, ...] = ()
    rounds_done: int = 0

    def __post_init__(self) -> None:
        keys = [item.measurement.point.key for item in self.items]
        if len(set(keys)) != len(keys):
            raise RecordError("Evidence holds a point twice; a repeat is a point of its own (another seed).")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One end of a capacity interval and the evidence it rests on. ``value_rps`` None: no bound yet."""

    value_rps: float | None
    source: Source
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TailInterval:
    """Bounds in seconds on one latency percentile at one load of a candidate."""

    load: float
    metric: str
    lower_s: float | None
    upper_s: float | None
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityInterval:
    """Bounds on the capacity of one replica of a candidate, in requests per second, with their sources.

    ``operating_load`` is the highest load measured as met: where the plan would run a replica.
    ``contradiction`` names loads whose verdicts contradict each other; the span between them is unknown
    again.
    """

    workload: str
    config: str
    lower: Bound
    upper: Bound
    operating_load: float | None = None
    contradiction: tuple[float, ...] = ()
    tails: tuple[TailInterval, ...] = ()

    @property
    def label(self) -> str:
        """Readable name, e.g. ``chat TP4``."""
        return f"{self.workload} {self.config}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Replicas of one candidate in a plan. ``capacity_rps`` is what one replica counts for in this plan."""

    workload: str
    config: str
    replicas: int
    gpus: int
    capacity_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An allocation of replicas with its objective values and the solver's word on it."""

    allocations: tuple[Allocation, ...]
    fulfilment: tuple[tuple[str, float], ...]
    min_fulfilment: float
    served_rps: float
    gpus: int
    cost_per_hour: float | None
    value: float
    solver: str
    solver_status: str

    def replicas(self) -> dict[str, dict[str, int]]:
        """Return workload -> {engine config label -> replicas}."""
        plan: dict[str, dict[str, int]] = {}
        for item in self.allocations:
            plan.setdefault(item.workload, {})[item.config] = item.replicas
        return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """A point chosen for the next round: why, what it may settle, and what it costs.

    ``probability_met`` is the belief that the load meets its SLO; ``expected_fall_per_gpu_second`` the
    expected fall of the regret over its outcomes, per billed GPU-second; ``job`` groups points that share one
    server start.
    """

    point: MeasurementPoint
    reason: str
    probability_met: float
    expected_fall_per_gpu_second: float
    gpu_seconds_billed: float
    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedPoint:
    """A load of a candidate that was not measured, and why that is safe."""

    workload: str
    config: str
    load: float
    reason: str
    gpu_seconds_window: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """What the campaign has spent so far, and what every point of every ladder would have cost."""

    gpu_seconds_window: float
    gpu_seconds_billed: float
    points_measured: int
    points_reused: int
    points_all: int
    gpu_seconds_window_all: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What the conservative plan does when every demand is scaled: worst served share, and lost rate."""

    demand_scale: float
    min_fulfilment: float
    lost_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One round's outcome: what is known, both plans, and what to do next.

    ``gap`` = optimistic value minus conservative value, >= 0. ``regret`` = the most the conservative plan can
    lose under any single truth inside the intervals, <= gap. Both are in the objective's unit (fulfilment,
    GPUs, or money per hour).
    """

    state: DecisionState
    round: int
    reason: str
    intervals: tuple[CapacityInterval, ...]
    conservative: Plan
    optimistic: Plan
    gap: float
    regret: float
    points: tuple[PlannedPoint, ...] = ()
    skipped: tuple[SkippedPoint, ...] = ()
    warnings: tuple[str, ...] = ()
    spend: Spend
    scenarios: tuple[Scenario, ...] = ()
