"""Fleets with a known truth, a server that obeys it, and the best plan found by trying every one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fleetsieve_airflow.core.allocation import Problem, problem_of
from fleetsieve_airflow.core.bounds import allocate_both
from fleetsieve_airflow.core.intervals import fit_intervals
from fleetsieve_airflow.evidence import Evidence, EvidenceItem, Measurement, MeasurementPoint
from fleetsieve_airflow.records import Candidate, FleetSpec
from fleetsieve_airflow.serialization import point_of
from tests.builders import make_measurement, make_spec

Capacities = list[list[float]]
Counts = tuple[tuple[int, ...], ...]
#: Candidate label -> index of the highest load it meets, -1 where it meets none.
Highest = Mapping[str, int]


def closed_loop_rate(candidate: Candidate, gpus: int, load: float) -> float:
    """Return a served rate that rises with concurrency, and ever slower: it obeys Little's law."""
    return gpus * load / (load + 4.0 * gpus)


@dataclass
class TrueServer:
    """A measuring device whose feasibility never comes back as load grows."""

    spec: FleetSpec
    highest: Highest
    asked: list[str] = field(default_factory=list)

    def check(self, spec: FleetSpec) -> None:
        """Accept every spec."""

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        """Meet the SLO up to the highest load that the truth names."""
        self.asked.append(point.label)
        candidate = spec.candidate(point.workload, point.config)
        j = candidate.loads.index(point.load)
        met = j <= self.highest[candidate.label]
        rate = (
            self.rate(candidate, j)
            if candidate.load_kind == "concurrency"
            else point.load * (1 if met else 0.8)
        )
        return make_measurement(
            spec,
            point.workload,
            point.config,
            point.load,
            met=met,
            repeat=point.seed - spec.measurement.seed,
            served_rps=rate,
        )

    def rate(self, candidate: Candidate, j: int) -> float:
        """Return the rate one replica serves at its j-th load."""
        if candidate.load_kind == "offered_load_rps":
            return candidate.loads[j]
        return closed_loop_rate(candidate, self.spec.config(candidate.config).gpus, candidate.loads[j])

    def capacity(self, candidate: Candidate) -> float:
        """Return the rate at the highest load that meets the SLO."""
        highest = self.highest[candidate.label]
        return self.rate(candidate, highest) if highest >= 0 else 0.0

    def capacities(self) -> Capacities:
        """Return the true capacities in the order of the allocation problem."""
        spec = self.spec
        return [[self.capacity(item) for item in spec.candidates_of(w.name)] for w in spec.workloads]

    def evidence(self, places: Sequence[tuple[str, str, int]]) -> Evidence:
        """Measure the given (workload, config, index of the load), in this order."""
        items = []
        for workload, config, j in places:
            candidate = self.spec.candidate(workload, config)
            point = point_of(self.spec, candidate, candidate.loads[j])
            items.append(EvidenceItem(measurement=self.measure(self.spec, point), round=1))
        return Evidence(items=tuple(items), rounds_done=1 if items else 0)

    def everything(self) -> list[tuple[str, str, int]]:
        """Return every place of every ladder."""
        return [
            (item.workload, item.config, j)
            for item in self.spec.candidates
            if not item.excluded
            for j in range(len(item.loads))
        ]


@st.composite
def servers(  # a fleet is drawn whole, so that a failing example prints as one
    draw: Callable[..., object],
    *,
    kinds: Sequence[str] = ("offered_load_rps", "concurrency"),
    workloads: int = 2,
    objective: str = "max_min_fulfilment",
    **decision: object,
) -> TrueServer:
    """Draw a small fleet of one pool with its truth."""
    kind = draw(st.sampled_from(list(kinds)))
    configs = draw(
        st.sampled_from([{"TP2": 2, "TP4": 4}, {"TP2": 2, "TP4": 4, "TP8": 8}, {"TP1": 1, "TP8": 8}])
    )
    names = ["chat", "code", "rank"][: draw(st.integers(1, workloads))]
    loads = draw(st.lists(st.integers(1, 24).map(float), min_size=2, max_size=4, unique=True).map(sorted))
    spec = make_spec(
        demand={name: draw(st.integers(2, 60)) / 2 for name in names},
        configs=configs,
        loads=loads,
        load_kind=kind,
        gpus=draw(st.sampled_from([8, 16])),
        decision={"objective": objective, "closed_loop_slack": 0.0, **decision},
        measurement={"profiling_gpus": draw(st.sampled_from([1, 8, 16]))},
    )
    highest = {item.label: draw(st.integers(-1, len(loads) - 1)) for item in spec.candidates}
    return TrueServer(spec, highest)


def places(server: TrueServer) -> st.SearchStrategy[list[tuple[str, str, int]]]:
    """Draw some places to measure, in some order."""
    return st.lists(st.sampled_from(server.everything()), unique=True, max_size=8)


def gaps_of(server: TrueServer, order: Sequence[tuple[str, str, int]]) -> list[float]:
    """Return the gap with nothing measured, and after each of the measurements in this order."""
    gaps = []
    for count in range(len(order) + 1):
        conservative, optimistic = allocate_both(
            server.spec, fit_intervals(server.spec, server.evidence(order[:count]))
        )
        gaps.append(optimistic.value - conservative.value)
    return gaps


def all_plans(problem: Problem) -> list[Counts]:
    """List every plan whose replicas fit into the pools by their sum."""
    parts = [(w, problem.parts_of(w, c)) for w, row in enumerate(problem.gpus) for c in range(len(row))]
    most = [min(problem.totals[k] // (size * n) for k, size, n in placed) for _, placed in parts]
    plans = []
    for counts in itertools.product(*(range(count + 1) for count in most)):
        used = [0] * len(problem.totals)
        for replicas, (_, placed) in zip(counts, parts, strict=True):
            for k, size, n in placed:
                used[k] += replicas * size * n
        if all(have <= total for have, total in zip(used, problem.totals, strict=True)):
            rows: list[list[int]] = [[] for _ in problem.gpus]
            for replicas, (w, _) in zip(counts, parts, strict=True):
                rows[w].append(replicas)
            plans.append(tuple(tuple(row) for row in rows))
    return plans


def shares(problem: Problem, capacities: Capacities, plan: Sequence[Sequence[int]]) -> list[float]:
    """Return each workload's served share of its demand."""
    return [
        min(1.0, sum(n * c for n, c in zip(got, row, strict=True)) / float(demand))
        for got, row, demand in zip(plan, capacities, problem.demands, strict=True)
    ]


def gpus_of(problem: Problem, plan: Sequence[Sequence[int]]) -> int:
    """Return the GPUs of a plan."""
    return sum(
        n * g for got, row in zip(plan, problem.gpus, strict=True) for n, g in zip(got, row, strict=True)
    )


def rank(problem: Problem, capacities: Capacities, plan: Sequence[Sequence[int]]) -> tuple[float, float, int]:
    """Return what plans are compared by, greatest first: worst share, served rate, GPUs saved."""
    got = shares(problem, capacities, plan)
    served = sum(share * float(demand) for share, demand in zip(got, problem.demands, strict=True))
    return min(got), served, -gpus_of(problem, plan)


def best_rank(problem: Problem, capacities: Capacities, plans: Sequence[Counts]) -> tuple[float, float, int]:
    """Return the rank of the best plan by trying them all, with the slack of 1e-9 that allocation allows."""
    ranks = [rank(problem, capacities, plan) for plan in plans]
    level = max(worst for worst, _, _ in ranks)
    ranks = [row for row in ranks if row[0] >= level - 1e-8]
    served = max(row[1] for row in ranks)
    return max((row for row in ranks if row[1] >= served - 1e-7), key=lambda row: row[2])


def fewest_gpus(problem: Problem, capacities: Capacities, plans: Sequence[Counts]) -> int | None:
    """Return the fewest GPUs of a plan that gives every workload its required share, None where none does."""
    enough = [
        gpus_of(problem, plan)
        for plan in plans
        if min(shares(problem, capacities, plan)) >= problem.required * (1 - 1e-9)
    ]
    return min(enough, default=None)


def truths_in(lower: Capacities, upper: Capacities, count: int, seed: int) -> list[Capacities]:
    """Draw truths inside a box, its corners among the likelier ones."""
    rng = np.random.default_rng(seed)

    def draw(low: float, high: float) -> float:
        return float(rng.choice([low, high, low + (high - low) * rng.random()]))

    return [
        [[draw(a, b) for a, b in zip(low, high, strict=True)] for low, high in zip(lower, upper, strict=True)]
        for _ in range(count)
    ]


def loss(
    problem: Problem, capacities: Capacities, plan: Sequence[Sequence[int]], plans: Sequence[Counts]
) -> float:
    """Return what a plan loses in worst fulfilment against the best plan, had these capacities been true."""
    table: NDArray[np.float64] = np.array([shares(problem, capacities, other) for other in plans])
    return float(table.min(axis=1).max()) - min(shares(problem, capacities, plan))


def problem_from(server: TrueServer) -> Problem:
    """Return the allocation problem of a server's fleet."""
    return problem_of(server.spec)


def with_decision(spec: FleetSpec, **fields: object) -> FleetSpec:
    """Return the spec with other decision settings."""
    return replace(spec, decision=replace(spec.decision, **fields))  # type: ignore[arg-type]
