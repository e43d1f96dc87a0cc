"""Both ends of the allocation: conservative and optimistic plan, their gap, and the regret of the former.

With ``V(C)`` the best objective value at capacities C: gap = V(upper) - V(lower). The regret of the
conservative plan P is ``max over C in [lower, upper] of V(C) - V_P(C)``; it is at most the gap, because
V_P(C) >= V(lower), and often zero while the gap is not: two plans that share an uncertain replica share its
uncertainty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fleetsieve_airflow.core import milp
from fleetsieve_airflow.core.allocation import (
    SLACK,
    Problem,
    allocate_exact,
    best_level,
    curve,
    curves,
    problem_of,
)
from fleetsieve_airflow.evidence import Allocation, CapacityInterval, Plan, Scenario
from fleetsieve_airflow.records import FleetSpec

Capacities = list[list[float]]
Counts = list[list[int]]
#: Most combinations of uncertain replicas of one workload that the regret looks at one by one; more are
#: grouped.
MAX_COMBINATIONS = 64


@dataclass(frozen=True, slots=True)
class Box:
    """All capacities that remain possible, in the order of a :class:`Problem`; upper ends are finite.

    ``ranges`` lists, per candidate, (low, high) pairs that cover every possible capacity; for a ladder of
    offered loads each pair is a single load.
    """

    lower: Capacities
    upper: Capacities
    ranges: list[list[tuple[tuple[float, float], ...]]]


def box_of(spec: FleetSpec, problem: Problem, intervals: Sequence[CapacityInterval]) -> Box:
    """Turn capacity intervals into a box."""
    found = {(interval.workload, interval.config): interval for interval in intervals}
    loads = {
        (candidate.workload, candidate.config): candidate.loads
        for candidate in spec.candidates
        if candidate.load_kind == "offered_load_rps"
    }
    lower: Capacities = []
    upper: Capacities = []
    ranges: list[list[tuple[tuple[float, float], ...]]] = []
    for w, (name, labels) in enumerate(zip(problem.names, problem.labels, strict=True)):
        row = [found[name, label] for label in labels]
        lower.append([problem.cap(w, interval.lower.value_rps or 0.0) for interval in row])
        upper.append([problem.cap(w, interval.upper.value_rps) for interval in row])
        ranges.append(
            [
                ranges_between(low, high, loads.get((name, label)))
                for low, high, label in zip(lower[w], upper[w], labels, strict=True)
            ]
        )
    return Box(lower, upper, ranges)


def ranges_between(low: float, high: float, loads: Sequence[float] | None) -> tuple[tuple[float, float], ...]:
    """Cover [low, high] with ranges: single loads of a ladder, or (``loads`` None) eight geometric steps."""
    if high <= low:
        return ((low, low),)
    if loads is not None:
        inside = sorted({low, high, *(load for load in loads if low < load < high)})
        return tuple((value, value) for value in inside)
    start = max(low, high / 256.0)
    if start == 0.0:  # so small that its 256th part vanishes
        return ((low, low), (low, high))
    cuts = [start * (high / start) ** (part / 8) for part in range(9)]
    cuts[0], cuts[-1] = low, high
    return ((low, low), *itertools.pairwise(cuts))


def value_of(problem: Problem, capacities: Capacities) -> float:
    """Return ``V(C)``: the worst fulfilment, or minus the GPUs, or the money per hour, that are needed.

    A fleet that cannot reach the required fulfilment counts as needing everything plus that much again times
    its shortfall, so that the value stays finite and never falls as capacities grow.
    """
    if problem.home is None:
        counts, _ = milp.solve(problem, capacities)
        return _value(problem, capacities, counts)
    level = best_level(problem, curves(problem, capacities))
    if not problem.counts_need:
        return level
    return _value(problem, capacities, allocate_exact(problem, capacities))


def _value(problem: Problem, capacities: Capacities, counts: Counts) -> float:
    level = min(fulfilments(problem, capacities, counts))
    if not problem.counts_need:
        return min(level, problem.ceiling)
    if level >= problem.required * (1 - SLACK):
        return -problem.need_of(counts)
    # Pools that all are free must not make every shortfall look alike.
    return -max(problem.most_needed, 1.0) * (2.0 - level / problem.required)


def fulfilments(problem: Problem, capacities: Capacities, counts: Counts) -> list[float]:
    """Return each workload's served share of its demand under a plan, not capped at 1."""
    return [
        sum(c * n for c, n in zip(row, got, strict=True)) / float(demand)
        for row, got, demand in zip(capacities, counts, problem.demands, strict=True)
    ]


def solve(problem: Problem, capacities: Capacities) -> tuple[Counts, str, str]:
    """Return the optimal counts, the solver's name and its status."""
    if problem.home is None:
        counts, status = milp.solve(problem, capacities)
        return counts, "PuLP HiGHS", status
    return allocate_exact(problem, capacities), "exact dynamic programme", "Optimal"


def allocate_both(spec: FleetSpec, intervals: Sequence[CapacityInterval]) -> tuple[Plan, Plan]:
    """Solve the allocation at both ends of the intervals.

    :return: (conservative plan, optimistic plan).
    """
    problem = problem_of(spec)
    box = box_of(spec, problem, intervals)
    return plan_at(problem, box.lower), plan_at(problem, box.upper)


def plan_at(problem: Problem, capacities: Capacities) -> Plan:
    """Solve the allocation at given capacities."""
    counts, solver, status = solve(problem, capacities)
    return plan_of(problem, capacities, counts, solver, status)


def plan_of(problem: Problem, capacities: Capacities, counts: Counts, solver: str, status: str) -> Plan:
    """Write replica counts as a plan with its objective values."""
    shares = [min(1.0, share) for share in fulfilments(problem, capacities, counts)]
    allocations = tuple(
        Allocation(
            workload=problem.names[w],
            config=problem.labels[w][c],
            replicas=n,
            gpus=n * problem.gpus[w][c],
            capacity_rps=capacities[w][c],
        )
        for w, row in enumerate(counts)
        for c, n in enumerate(row)
        if n
    )
    return Plan(
        allocations=allocations,
        fulfilment=tuple(zip(problem.names, shares, strict=True)),
        min_fulfilment=min(shares),
        served_rps=sum(share * float(demand) for share, demand in zip(shares, problem.demands, strict=True)),
        gpus=problem.gpus_of(counts),
        cost_per_hour=None if None in problem.prices else problem.cost_of(counts),
        value=_value(problem, capacities, counts),
        solver=solver,
        solver_status=status,
    )


def counts_of(problem: Problem, plan: Plan) -> Counts:
    """Read a plan back into replica counts."""
    replicas = plan.replicas()
    return [
        [replicas.get(name, {}).get(label, 0) for label in labels]
        for name, labels in zip(problem.names, problem.labels, strict=True)
    ]


def regret_of(problem: Problem, box: Box, counts: Counts, *, enough: float = math.inf) -> float:
    """Return the most a plan can lose against the best plan under any single truth inside the box.

    The worst truth has every candidate at its upper end except the plan's own replicas of one workload, the
    one that ends up worst off; those are tried at every value they may take. Never below 0, never above the
    gap.

    :param enough: stop looking once the regret is known to exceed this; the value returned is then a lower
        bound of it.
    """
    best = value_of(problem, box.upper)
    gap = max(0.0, best - _value(problem, box.lower, counts))
    if problem.counts_need or gap <= SLACK:
        return gap  # the cost of a plan does not depend on the truth, so nothing is shared
    worst = 0.0
    lows = fulfilments(problem, box.lower, counts)
    for w in sorted(range(len(lows)), key=lambda w: (lows[w], w)):
        if best - lows[w] <= worst:
            break  # the order is by lows: no later workload can lose more
        worst = max(worst, _worst_for(problem, box, counts, w, best))
        if worst > enough:
            break
    return min(gap, worst)


def _worst_for(problem: Problem, box: Box, counts: Counts, w: int, best: float) -> float:
    """Return the regret over the truths in which workload ``w`` is the worst off under the plan."""
    shared = [c for c, n in enumerate(counts[w]) if n and box.upper[w][c] > box.lower[w][c]]
    fixed = sum(n * box.lower[w][c] for c, n in enumerate(counts[w]) if n and c not in shared)
    if not shared:
        return best - fixed / float(problem.demands[w])
    worst = 0.0
    for combination in itertools.product(*_grouped([box.ranges[w][c] for c in shared])):
        held = fixed + sum(counts[w][c] * low for c, (low, _) in zip(shared, combination, strict=True))
        share = held / float(problem.demands[w])
        if best - share <= worst:
            continue
        row = list(box.upper[w])
        for c, (_, high) in zip(shared, combination, strict=True):
            row[c] = high
        worst = max(worst, _value_with(problem, box, w, row) - share)
    return worst


def _value_with(problem: Problem, box: Box, w: int, row: list[float]) -> float:
    """Return V at the upper ends with workload ``w``'s capacities replaced."""
    if problem.home is None:
        return value_of(problem, [*box.upper[:w], row, *box.upper[w + 1 :]])
    rows = curves(problem, box.upper)
    rows[w] = curve(problem, w, row)
    return best_level(problem, rows)


def _grouped(choices: Sequence[Sequence[tuple[float, float]]]) -> list[list[tuple[float, float]]]:
    """Merge neighbouring ranges until the combinations are few: coarser, still covering, never too low."""
    grouped = [list(ranges) for ranges in choices]
    while math.prod(map(len, grouped)) > MAX_COMBINATIONS:
        longest = max(grouped, key=len)
        merged = [
            (pair[0][0], pair[-1][1]) for pair in (longest[i : i + 2] for i in range(0, len(longest), 2))
        ]
        grouped[grouped.index(longest)] = merged
    return grouped


def scenarios_of(spec: FleetSpec, counts: Counts, capacities: Capacities) -> tuple[Scenario, ...]:
    """Say what a plan does when every demand is scaled, at given capacities."""
    rows = []
    for scale in spec.decision.demand_scenarios:
        problem = problem_of(spec, scale)
        shares = [min(1.0, share) for share in fulfilments(problem, capacities, counts)]
        lost = sum(
            (1.0 - share) * float(demand) for share, demand in zip(shares, problem.demands, strict=True)
        )
        rows.append(Scenario(demand_scale=scale, min_fulfilment=min(shares), lost_rps=lost))
    return tuple(rows)
