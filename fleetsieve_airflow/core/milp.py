"""The general allocation model, solved by HiGHS through PuLP: several pools and side constraints.

Stages are solved one after the other, each holding what the earlier ones reached: worst fulfilment, served
rate, fewest GPUs. Where the demand can be met, ``fewest_gpus`` and ``lowest_cost`` compare what plans need
instead, then the smallest headroom. A replica of several engines takes GPUs of several pools, and each engine
a place of its own. Counts are integers; what they reach is recomputed from them, so the solver's tolerances
never enter a certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pulp

from fleetsieve_airflow.core.allocation import SLACK, Problem
from fleetsieve_airflow.errors import SolverError

Counts = list[list[int]]

#: How far the solver may be off in a constraint or in whether a count is whole. Its own default, 1e-6, is
#: wide enough to take a served rate that is short by that much for one that holds an earlier stage.
TOLERANCE = 1e-9
#: How much of what a stage reached the next may give away: above the tolerance, so that it stays solvable.
HELD = 4 * TOLERANCE


@dataclass(slots=True)
class _Model:
    """The variables and constraints shared by all stages."""

    problem: Any
    counts: list[list[Any]]
    served: list[Any]


def solve(problem: Problem, capacities: Sequence[Sequence[float]]) -> tuple[Counts, str]:
    """Return optimal replica counts per workload and candidate, and the solver's status of the last stage.

    :param capacities: req/s of one replica of each candidate, finite.
    :raises SolverError: no stage could be solved to a proven optimum.
    """
    if problem.counts_need and (found := _least_needed(problem, capacities)) is not None:
        return found, "Optimal"
    model = _model(problem, capacities)
    level = pulp.LpVariable("level", 0.0, problem.ceiling)
    _require_level(model, problem, level)
    counts = _optimise(model, -level)
    reached = min(*_fulfilments(problem, capacities, counts), problem.ceiling)
    model.problem += level >= reached * (1 - HELD)
    counts = _optimise(model, -pulp.lpSum(model.served))
    total = sum(_served(problem, capacities, counts))
    model.problem += pulp.lpSum(model.served) >= total * (1 - HELD)
    return _optimise(model, _need(problem, model.counts)), "Optimal"


def _least_needed(problem: Problem, capacities: Sequence[Sequence[float]]) -> Counts | None:
    """Return the smallest, or cheapest, plan that reaches the required fulfilment; None where none does."""
    model = _model(problem, capacities)
    _require_level(model, problem, problem.required * (1 - SLACK))
    try:
        counts = _optimise(model, _need(problem, model.counts))
    except SolverError:
        return None
    if problem.objective == "lowest_cost":
        model.problem += _need(problem, model.counts) <= problem.cost_of(counts) * (1 + HELD)
        counts = _optimise(model, _gpus(problem, model.counts))
    model.problem += _gpus(problem, model.counts) <= problem.gpus_of(counts)
    headroom = pulp.LpVariable("headroom", 0.0)
    for w, row in enumerate(capacities):
        model.problem += _capacity(model.counts[w], row) >= float(problem.demands[w]) * headroom
    return _optimise(model, -headroom)


def _model(problem: Problem, capacities: Sequence[Sequence[float]]) -> _Model:
    lp = pulp.LpProblem("fleet", pulp.LpMinimize)
    counts = [
        [
            pulp.LpVariable(
                f"n_{w}_{c}",
                0,
                min(problem.totals[k] // (size * n) for k, size, n in problem.parts_of(w, c)),
                cat="Integer",
            )
            for c in range(len(row))
        ]
        for w, row in enumerate(problem.gpus)
    ]
    served = [pulp.LpVariable(f"served_{w}", 0.0, float(demand)) for w, demand in enumerate(problem.demands)]
    for w, row in enumerate(capacities):
        lp += served[w] <= _capacity(counts[w], row)
        lp += pulp.lpSum(counts[w]) >= problem.min_replicas[w]
        if (most := problem.max_replicas[w]) is not None:
            lp += pulp.lpSum(counts[w]) <= most
    for k, total in enumerate(problem.totals):
        members = [
            (size, n * counts[w][c])
            for w, row in enumerate(problem.gpus)
            for c in range(len(row))
            for pool, size, n in problem.parts_of(w, c)
            if pool == k
        ]
        lp += pulp.lpSum(size * count for size, count in members) <= total
        _pack_nodes(lp, k, total, problem.node_sizes[k], members)
    if problem.cost_per_hour_max is not None:
        lp += _cost(problem, counts) <= problem.cost_per_hour_max
    return _Model(lp, counts, served)


def _pack_nodes(lp: Any, k: int, total: int, node: int, members: Sequence[tuple[int, Any]]) -> None:
    """Make replicas fit into whole nodes, by counting how many nodes hold which pattern of sizes."""
    sizes = tuple(sorted({size for size, _ in members if size < node}))
    chain = [*sizes, node]
    if all(high % low == 0 for low, high in pairwise(chain)):
        return  # sizes that divide each other fit whenever their sum does
    patterns = _patterns(sizes, node)
    whole = pulp.lpSum((size // node) * count for size, count in members if size >= node)
    uses = [
        pulp.LpVariable(f"pattern_{k}_{i}", 0, total // node, cat="Integer") for i in range(len(patterns))
    ]
    rest = total % node
    partial = _patterns(sizes, rest) if rest and sizes and rest >= sizes[0] else ()
    last = [pulp.LpVariable(f"partial_{k}_{i}", 0, 1, cat="Integer") for i in range(len(partial))]
    lp += pulp.lpSum(uses) + whole <= total // node
    if last:
        lp += pulp.lpSum(last) <= 1
    for s, size in enumerate(sizes):
        room = pulp.lpSum(pattern[s] * use for pattern, use in zip(patterns, uses, strict=True))
        room += pulp.lpSum(pattern[s] * use for pattern, use in zip(partial, last, strict=True))
        lp += pulp.lpSum(count for member, count in members if member == size) <= room


@lru_cache(maxsize=256)
def _patterns(sizes: tuple[int, ...], node: int) -> tuple[tuple[int, ...], ...]:
    """Return the maximal ways to fill a node with replicas of these sizes, as counts per size."""

    def fill(index: int, room: int) -> list[tuple[int, ...]]:
        if index < 0:
            return [()]
        return [
            (*rest, count)
            for count in range(room // sizes[index] + 1)
            for rest in fill(index - 1, room - count * sizes[index])
        ]

    found = fill(len(sizes) - 1, node)
    left = [node - sum(size * count for size, count in zip(sizes, pattern, strict=True)) for pattern in found]
    return tuple(pattern for pattern, room in zip(found, left, strict=True) if room < sizes[0])


def _require_level(model: _Model, problem: Problem, level: Any) -> None:
    # served_w is capped at the demand, so this also holds the ceiling
    for w, demand in enumerate(problem.demands):
        model.problem += model.served[w] >= float(demand) * level


def _capacity(counts: Sequence[Any], row: Sequence[float]) -> Any:
    return pulp.lpSum(float(capacity) * count for capacity, count in zip(row, counts, strict=True))


def _gpus(problem: Problem, counts: Sequence[Sequence[Any]]) -> Any:
    return pulp.lpSum(
        size * n
        for row, got in zip(problem.gpus, counts, strict=True)
        for size, n in zip(row, got, strict=True)
    )


def _cost(problem: Problem, counts: Sequence[Sequence[Any]]) -> Any:
    return pulp.lpSum(problem.price_of(w, c) * n for w, row in enumerate(counts) for c, n in enumerate(row))


def _need(problem: Problem, counts: Sequence[Sequence[Any]]) -> Any:
    return _cost(problem, counts) if problem.objective == "lowest_cost" else _gpus(problem, counts)


def _fulfilments(problem: Problem, capacities: Sequence[Sequence[float]], counts: Counts) -> list[float]:
    return [
        sum(c * n for c, n in zip(row, got, strict=True)) / float(demand)
        for row, got, demand in zip(capacities, counts, problem.demands, strict=True)
    ]


def _served(problem: Problem, capacities: Sequence[Sequence[float]], counts: Counts) -> list[float]:
    shares = _fulfilments(problem, capacities, counts)
    return [min(1.0, share) * float(demand) for share, demand in zip(shares, problem.demands, strict=True)]


def _optimise(model: _Model, objective: Any) -> Counts:
    model.problem.setObjective(pulp.lpSum(objective))
    model.problem.solve(
        pulp.HiGHS(
            msg=False,
            threads=1,
            gapRel=0.0,
            gapAbs=0.0,
            mip_feasibility_tolerance=TOLERANCE,
            primal_feasibility_tolerance=TOLERANCE,
        )
    )
    status = pulp.LpStatus[model.problem.status]
    if status != "Optimal":
        raise SolverError(
            f"The allocation model ended {status!r}, not optimal.",
            hint="Check min_replicas, max_replicas and cost_per_hour_max against the pools' GPUs.",
        )
    return [[round(count.value() or 0.0) for count in row] for row in model.counts]
