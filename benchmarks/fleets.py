"""Turn recorded grids into fleets with a known truth.

A fleet is several workloads on one hardware and engine: each is one grid with its own SLO (a multiple of that
grid's best tail) and a demand. Demands are scaled so that the fleet's best plan serves exactly
``demand_scale`` of what it could. Everything is drawn from the fleet's own seed; nothing depends on a model
or a GPU by name.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.grids import Grid, Run
from fleetsieve_airflow.core.allocation import problem_of
from fleetsieve_airflow.core.bounds import value_of
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.records import (
    Candidate,
    DecisionSettings,
    EngineConfig,
    FleetSpec,
    LatencyLimit,
    MeasurementSettings,
    Model,
    Pool,
    Slo,
    Trace,
    Workload,
)

TIGHTNESS = (1.25, 1.5, 2.0, 3.0, 5.0)
DEMAND_SCALES = (0.7, 1.0, 1.3)
WORKLOADS = (2, 3, 5, 8, 12, 20)
GPUS = (16, 32, 64, 128, 256, 512)
NODE = 8
WINDOW_S = 300.0
STARTUP_S = 180.0
LIMIT = "e2e_p99_s"


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet to plan, with what every point would show.

    :param truth: (workload, config, load) -> the run that a noise-free measurement shows.
    :param runs: the same cells with all recorded runs, for the noisy evaluation.
    """

    family: str
    name: str
    spec: FleetSpec
    truth: dict[tuple[str, str, float], Run]
    runs: dict[tuple[str, str, float], tuple[Run, ...]]

    def capacities(self) -> list[list[float]]:
        """Return each candidate's true capacity in req/s, in the order of the allocation problem."""
        return true_capacities(self.spec, self.truth)

    def measure(self, point: MeasurementPoint, run: Run | None = None) -> Measurement:
        """Return what measuring a point shows: the truth, or the given run."""
        shown = run if run is not None else self.truth[point.workload, point.config, point.load]
        return Measurement(
            point=point,
            served_rps=shown.served_rps,
            success_rate=shown.success_rate,
            sent=shown.sent,
            percentiles=tuple(pair for pair in shown.percentiles if pair[0].startswith("e2e_")),
            gpu_seconds_window=point.gpu_seconds_window,
            gpu_seconds_billed=point.gpu_seconds_window + point.gpus * self.spec.measurement.startup_s,
        )


def real_fleets(grids: Sequence[Grid], per_family: int, seed: int = 0) -> list[Fleet]:
    """Build ``per_family`` fleets for each hardware and engine from recorded grids, demand scales in turn."""
    families: dict[str, list[Grid]] = defaultdict(list)
    for grid in grids:
        families[f"{grid.hardware} {grid.engine.split('(')[0]}"].append(grid)
    fleets = []
    for family in sorted(families):
        for index in range(per_family):
            rng = random.Random(f"{seed}|{family}|{index}")  # noqa: S311 (drawn fleets are no secret)
            fleets.append(drawn_fleet(family, index, families[family], rng))
    return fleets


def drawn_fleet(family: str, index: int, grids: Sequence[Grid], rng: random.Random) -> Fleet:
    """Draw a fleet's grids, SLOs, demands and size; the index cycles through workload counts, then scales."""
    count = WORKLOADS[index % len(WORKLOADS)]
    scale = DEMAND_SCALES[(index // len(WORKLOADS)) % len(DEMAND_SCALES)]
    sizes = [gpus for gpus in GPUS if gpus >= max(16, 4 * count)]
    total = rng.choice(sizes)
    chosen = [rng.choice(list(grids)) for _ in range(count)]
    tightness = [rng.choice(TIGHTNESS) for _ in range(count)]
    weights = [rng.uniform(0.3, 1.7) for _ in range(count)]
    return fleet_of(family, f"{family} #{index}", chosen, tightness, weights, total, scale)


def fleet_of(
    family: str,
    name: str,
    grids: Sequence[Grid],
    tightness: Sequence[float],
    weights: Sequence[float],
    gpus: int,
    demand_scale: float,
) -> Fleet:
    """Build one fleet: workload i is grid i with an SLO of ``tightness[i]`` times its best tail."""
    degrees = sorted({degree for grid in grids for degree in grid.degrees})
    workloads, candidates = [], []
    truth: dict[tuple[str, str, float], Run] = {}
    runs: dict[tuple[str, str, float], tuple[Run, ...]] = {}
    for i, (grid, slack) in enumerate(zip(grids, tightness, strict=True)):
        label = f"w{i:02d}"
        cells = grid.truth((LIMIT,))
        limit_s = slack * min(run.percentile(LIMIT) for run in cells.values())
        slo = Slo(limits=(LatencyLimit(metric="e2e", percentile=99, limit_s=limit_s),))
        best = max(run.served_rps / d for (d, _), run in cells.items() if meets(run, slo))
        demand = best * weights[i] * gpus / sum(weights)
        workloads.append(
            Workload(name=label, model=f"m{i:02d}", demand_rps=demand, slo=slo, trace=Trace(name=grid.name))
        )
        for degree in grid.degrees:
            loads = tuple(grid.loads(degree))
            config = f"TP{degree}"
            candidates.append(Candidate(workload=label, config=config, load_kind=grid.load_kind, loads=loads))
            for load in loads:
                truth[label, config, load] = cells[degree, load]
                runs[label, config, load] = grid.cells[degree, load]
    spec = FleetSpec(
        fleet="benchmark",
        pools=(Pool(name="pool", gpu=grids[0].hardware, gpus=gpus, gpus_per_node=NODE),),
        models=tuple(Model(name=f"m{i:02d}", revision=grid.name) for i, grid in enumerate(grids)),
        configs=tuple(EngineConfig(label=f"TP{d}", pool="pool", tensor_parallel=d) for d in degrees),
        workloads=tuple(workloads),
        candidates=tuple(candidates),
        decision=DecisionSettings(tolerance=0.01),
        measurement=MeasurementSettings(
            device="benchmark", duration_s=WINDOW_S, startup_s=STARTUP_S, profiling_gpus=1, repeats=1
        ),
    )
    return Fleet(family, name, scaled_to(spec, truth, demand_scale), truth, runs)


def scaled_to(spec: FleetSpec, truth: dict[tuple[str, str, float], Run], demand_scale: float) -> FleetSpec:
    """Scale all demands so that the best plan serves exactly all of them, then by ``demand_scale``."""
    capacities = true_capacities(spec, truth)
    for _ in range(60):  # the level is capped at 1: raise the demands until they cannot be met
        if value_of(problem_of(spec), capacities) < 1.0:
            break
        spec = _with_demands(spec, 1.5)
    level = value_of(problem_of(spec), capacities)
    for _ in range(8):  # whole replicas: the level times the demand is a fixed point after a few steps
        spec = _with_demands(spec, level)
        level = value_of(problem_of(spec), capacities)
        if level >= 1.0 - 1e-12:
            break
    return _with_demands(spec, demand_scale)


def _with_demands(spec: FleetSpec, factor: float) -> FleetSpec:
    scaled = tuple(replace(workload, demand_rps=workload.demand_rps * factor) for workload in spec.workloads)
    return replace(spec, workloads=scaled)


def true_capacities(spec: FleetSpec, truth: dict[tuple[str, str, float], Run]) -> list[list[float]]:
    """Return each candidate's true capacity in req/s, in the order of the allocation problem."""
    return [
        [true_capacity(spec, workload, candidate, truth) for candidate in spec.candidates_of(workload.name)]
        for workload in spec.workloads
    ]


def meets(run: Run, slo: Slo) -> bool:
    """Say whether a run meets an SLO of one latency limit; failed requests count as infinitely late."""
    limit = slo.limits[0]
    failed = 0.0 if run.success_rate is None else 1.0 - run.success_rate
    return failed <= limit.allowed_miss_share and run.percentile(limit.name) <= limit.limit_s


def true_capacity(
    spec: FleetSpec, workload: Workload, candidate: Candidate, truth: dict[tuple[str, str, float], Run]
) -> float:
    """Return the rate at the highest load up to which every load meets the SLO."""
    capacity = 0.0
    for load in candidate.loads:
        run = truth[workload.name, candidate.config, load]
        if not meets(run, workload.slo):
            break
        rate = load if candidate.load_kind == "offered_load_rps" else run.served_rps
        capacity = max(capacity, rate)
    return capacity
