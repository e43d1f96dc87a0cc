"""The exact allocation for fleets whose workloads each draw on one pool, without side constraints.

``f_w(g)``, the best capacity workload w gets from g GPUs, is an unbounded knapsack over its configs; the
fulfilment level is found by bisection over these curves. Equal to the general model in :mod:`.milp` (a
property test holds it so) and about a thousand times faster, which is what makes look-ahead affordable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fleetsieve_airflow.records import EngineConfig, FleetSpec

Array = NDArray[np.float64]
#: Engines of one kind in a replica: index of their pool, GPUs of one engine, how many of them.
Part = tuple[int, int, int]
#: Relative slack that absorbs rounding of sums of capacities; far below any measured difference.
SLACK = 1e-9
#: Most curves that a problem remembers.
MAX_CURVES = 4096
#: Largest table, in cells, that the knapsack over left-over GPUs fills.
MAX_TABLE = 2e8


@dataclass(frozen=True, slots=True)
class Problem:
    """A fleet reduced to numbers. Candidates are those that can run, grouped by workload in the spec's order.

    :param demands: req/s per workload.  # (workloads,)
    :param gpus: per workload, GPUs of one replica of each candidate, over all pools.
    :param pools: per workload, pool index of each candidate; of one in two pools, that of its first part.
    :param labels: per workload, config label of each candidate.
    :param totals: usable GPUs of each pool.  # (pools,)
    :param parts: per workload, what each candidate's replica is placed as; empty where all are one engine.
    """

    names: tuple[str, ...]
    demands: Array
    gpus: tuple[tuple[int, ...], ...]
    pools: tuple[tuple[int, ...], ...]
    labels: tuple[tuple[str, ...], ...]
    totals: tuple[int, ...]
    prices: tuple[float | None, ...]
    node_sizes: tuple[int, ...]
    objective: str
    required: float
    min_replicas: tuple[int, ...]
    max_replicas: tuple[int | None, ...]
    cost_per_hour_max: float | None
    home: tuple[int, ...] | None  # pool of each workload, where the exact programme applies
    parts: tuple[tuple[tuple[Part, ...], ...], ...] = ()
    _curves: dict[tuple[int, bytes], Array] = field(default_factory=dict, repr=False, compare=False)

    @property
    def homes(self) -> tuple[int, ...]:
        """Return the pool of each workload.

        :raises ValueError: a workload has no pool of its own, or there are side constraints.
        """
        if self.home is None:
            raise ValueError(
                "The exact programme needs workloads that each draw on one pool without side constraints."
            )
        return self.home

    @property
    def ceiling(self) -> float:
        """Fulfilment above which nothing counts."""
        return 1.0 if self.objective == "max_min_fulfilment" else self.required

    @property
    def counts_need(self) -> bool:
        """Whether plans that serve what is required are compared by what they need: GPUs or money."""
        return self.objective != "max_min_fulfilment"

    @property
    def most_needed(self) -> float:
        """GPUs of all pools, or what they cost per hour: no plan needs more."""
        if self.objective != "lowest_cost":
            return float(sum(self.totals))
        return sum((price or 0.0) * total for price, total in zip(self.prices, self.totals, strict=True))

    def parts_of(self, w: int, c: int) -> tuple[Part, ...]:
        """Return the engines that one replica of a candidate is placed as."""
        return self.parts[w][c] if self.parts else ((self.pools[w][c], self.gpus[w][c], 1),)

    def price_of(self, w: int, c: int) -> float:
        """Return what one replica of a candidate costs per hour; a pool without a price costs nothing."""
        return sum(((self.prices[k] or 0.0) * size * n for k, size, n in self.parts_of(w, c)), 0.0)

    def gpus_of(self, counts: Sequence[Sequence[int]]) -> int:
        """Return the GPUs of a plan."""
        return sum(
            g * n for row, got in zip(self.gpus, counts, strict=True) for g, n in zip(row, got, strict=True)
        )

    def cost_of(self, counts: Sequence[Sequence[int]]) -> float:
        """Return what a plan costs per hour."""
        return sum((self.price_of(w, c) * n for w, row in enumerate(counts) for c, n in enumerate(row)), 0.0)

    def need_of(self, counts: Sequence[Sequence[int]]) -> float:
        """Return what a plan needs in the objective's unit: GPUs, or money per hour."""
        return self.cost_of(counts) if self.objective == "lowest_cost" else float(self.gpus_of(counts))

    def cap(self, w: int, capacity: float | None) -> float:
        """Return an upper capacity as a finite number: no replica counts for more than its workload asks."""
        limit = float(self.demands[w]) * max(1.0, self.required)
        return limit if capacity is None or capacity > limit else capacity


def problem_of(spec: FleetSpec, demand_scale: float = 1.0) -> Problem:
    """Reduce a fleet spec to the numbers of its allocation problem."""
    pool_index = {pool.name: k for k, pool in enumerate(spec.pools)}
    configs = {config.label: config for config in spec.configs}
    running: dict[str, list[EngineConfig]] = {workload.name: [] for workload in spec.workloads}
    for candidate in spec.candidates:
        if not candidate.excluded:
            running[candidate.workload].append(configs[candidate.config])
    rows = [running[workload.name] for workload in spec.workloads]
    parts = tuple(
        tuple(
            tuple((pool_index[part.engine.pool], part.engine.gpus, part.engines) for part in config.parts)
            for config in row
        )
        for row in rows
    )
    pools = tuple(tuple(engines[0][0] for engines in row) for row in parts)
    gpus = tuple(tuple(config.gpus for config in row) for row in rows)
    split = any(config.disaggregated for row in rows for config in row)
    plain = (
        not split
        and all(len(set(row)) == 1 for row in pools)
        and all(workload.min_replicas == 0 and workload.max_replicas is None for workload in spec.workloads)
        and spec.decision.cost_per_hour_max is None
        and _packs_by_sum(spec, gpus, pools)
        and (spec.decision.objective == "max_min_fulfilment" or len(spec.pools) == 1)
    )
    return Problem(
        names=tuple(workload.name for workload in spec.workloads),
        demands=np.array([workload.demand_rps * demand_scale for workload in spec.workloads]),
        gpus=gpus,
        pools=pools,
        labels=tuple(tuple(config.label for config in row) for row in rows),
        totals=tuple(pool.usable_gpus for pool in spec.pools),
        prices=tuple(pool.price_per_gpu_hour for pool in spec.pools),
        node_sizes=tuple(pool.gpus_per_node for pool in spec.pools),
        objective=spec.decision.objective,
        required=spec.decision.required_fulfilment,
        min_replicas=tuple(workload.min_replicas for workload in spec.workloads),
        max_replicas=tuple(workload.max_replicas for workload in spec.workloads),
        cost_per_hour_max=spec.decision.cost_per_hour_max,
        home=tuple(row[0] for row in pools) if plain else None,
        parts=parts if split else (),
    )


def _packs_by_sum(spec: FleetSpec, gpus: Sequence[Sequence[int]], pools: Sequence[Sequence[int]]) -> bool:
    """Say whether replicas fit into nodes whenever they fit the pool: sizes that divide each other do."""
    for k, pool in enumerate(spec.pools):
        sizes = {
            g for row, home in zip(gpus, pools, strict=True) for g, p in zip(row, home, strict=True) if p == k
        }
        chain = sorted({*sizes, pool.gpus_per_node})
        if any(high % low for low, high in pairwise(chain)):
            return False
    return True


def curve(problem: Problem, w: int, capacities: Sequence[float]) -> Array:
    """Return ``f_w``, non-decreasing: the best capacity of workload w from 0, 1, ... GPUs of its pool.

    :param capacities: req/s of one replica of each candidate of w.
    :return: req/s, shape (usable GPUs + 1,).
    """
    total = problem.totals[problem.homes[w]]
    key = (w, np.asarray(capacities, dtype=np.float64).tobytes())
    if (known := problem._curves.get(key)) is not None:
        return known
    best: dict[int, float] = {}
    for size, capacity in zip(problem.gpus[w], capacities, strict=True):
        best[size] = max(best.get(size, 0.0), capacity)
    values = np.zeros(total + 1)
    for size in sorted(best, reverse=True):
        if best[size] > 0.0:
            values = _unbounded(values, size, best[size])
    values = np.maximum.accumulate(values)
    if len(problem._curves) > MAX_CURVES:
        problem._curves.clear()
    problem._curves[key] = values
    return values


def _unbounded(values: Array, size: int, capacity: float) -> Array:
    """Add any number of items of one size to a knapsack curve: a running maximum along each residue class."""
    length = len(values)
    rows = -(-length // size)
    padded = np.full(rows * size, -np.inf)
    padded[:length] = values
    table = padded.reshape(rows, size)  # (multiples, residues)
    bonus = capacity * np.arange(rows)[:, None]
    filled = np.maximum.accumulate(table - bonus, axis=0) + bonus
    result: Array = filled.reshape(-1)[:length]
    return result


def curves(problem: Problem, capacities: Sequence[Sequence[float]]) -> list[Array]:
    """Return every workload's curve."""
    return [curve(problem, w, row) for w, row in enumerate(capacities)]


def gpus_needed(problem: Problem, rows: Sequence[Array], level: float) -> NDArray[np.int64]:
    """Return the fewest GPUs of each workload at a fulfilment level; one more than its pool has if none do.

    :return: shape (workloads,).
    """
    targets = problem.demands * level * (1.0 - SLACK)
    return np.array(
        [np.searchsorted(row, target) for row, target in zip(rows, targets, strict=True)], dtype=np.int64
    )


def fits(problem: Problem, needed: NDArray[np.int64]) -> bool:
    """Say whether every pool has the GPUs its workloads need."""
    used = np.bincount(problem.homes, weights=needed, minlength=len(problem.totals))
    return bool(np.all(used <= np.array(problem.totals)))


def best_level(problem: Problem, rows: Sequence[Array]) -> float:
    """Return the highest fulfilment of the worst workload, at most the ceiling; exact up to :data:`SLACK`."""
    ceiling = problem.ceiling
    if fits(problem, gpus_needed(problem, rows, ceiling)):
        return ceiling
    low, high = 0.0, ceiling
    while high - low > 4 * SLACK:
        level = (low + high) / 2
        needed = gpus_needed(problem, rows, level)
        if not fits(problem, needed):
            high = level
            continue
        # What these GPUs reach is a level of the curves themselves: jump to it, and test just above it.
        reached = min(row[n] / demand for row, n, demand in zip(rows, needed, problem.demands, strict=True))
        low = max(level, min(ceiling, float(reached)))
        if not fits(problem, gpus_needed(problem, rows, low * (1 + 4 * SLACK) + SLACK * 4)):
            return low
    needed = gpus_needed(problem, rows, low)
    reached = min(row[n] / demand for row, n, demand in zip(rows, needed, problem.demands, strict=True))
    return min(ceiling, float(reached))


def allocate_exact(problem: Problem, capacities: Sequence[Sequence[float]]) -> list[list[int]]:
    """Return the optimal replica counts, per workload and candidate, in the documented order of preference.

    Highest worst fulfilment, then the highest served rate, then the fewest GPUs; within a workload's GPUs the
    largest replicas first, then the spec's order.
    """
    rows = curves(problem, capacities)
    level = best_level(problem, rows)
    needed = np.minimum(gpus_needed(problem, rows, level), [len(row) - 1 for row in rows])
    if level < problem.ceiling or problem.counts_need:
        reaches = level >= problem.required * (1 - SLACK)
        if not (problem.counts_need and reaches):
            needed = _spend_rest(problem, rows, needed)
    return [mix(problem, w, capacities[w], rows[w], int(needed[w])) for w in range(len(rows))]


def _spend_rest(problem: Problem, rows: Sequence[Array], needed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Spend each pool's left-over GPUs where they serve most, then as few of them as that takes."""
    result = needed.copy()
    for k, total in enumerate(problem.totals):
        members = [w for w, pool in enumerate(problem.homes) if pool == k]
        rest = int(total - sum(int(needed[w]) for w in members))
        if rest <= 0 or not members:
            continue
        gains = [_steps(problem, rows[w], w, int(needed[w]), rest) for w in members]
        small = rest * sum(map(len, gains)) <= MAX_TABLE
        extra = _knapsack(gains, rest) if small else _greedy(gains, rest)
        for w, more in zip(members, extra, strict=True):
            result[w] += more
    return result


def _steps(problem: Problem, row: Array, w: int, start: int, rest: int) -> list[tuple[int, float]]:
    """Return (extra GPUs, extra served req/s) where the served rate of one workload steps up."""
    served = np.minimum(row[start : start + rest + 1], problem.demands[w])
    rises = np.flatnonzero(np.diff(served) > SLACK * problem.demands[w]) + 1
    return [(int(extra), float(served[extra] - served[0])) for extra in rises]


def _knapsack(gains: Sequence[Sequence[tuple[int, float]]], rest: int) -> list[int]:
    best = np.zeros(rest + 1)
    choices = []
    for steps in gains:
        improved, choice = best.copy(), np.zeros(rest + 1, dtype=np.int64)
        for extra, gain in steps:
            offer = best[: rest + 1 - extra] + gain
            better = offer > improved[extra:] * (1 + SLACK) + 1e-15
            improved[extra:][better] = offer[better]
            choice[extra:][better] = extra
        best = improved
        choices.append(choice)
    left = int(np.argmax(best >= best[-1] * (1 - SLACK)))  # the fewest GPUs that serve as much
    extras = []
    for choice in reversed(choices):
        extras.append(int(choice[left]))
        left -= extras[-1]
    return extras[::-1]


def _greedy(gains: Sequence[Sequence[tuple[int, float]]], rest: int) -> list[int]:
    """Spend GPUs by best rate per GPU: used only where the knapsack's table would be too large to fill."""
    extras = [0] * len(gains)
    offers = sorted(
        ((-gain / extra, w, extra) for w, steps in enumerate(gains) for extra, gain in steps[-1:]),
    )
    for _, w, extra in offers:
        if extra <= rest:
            extras[w], rest = extra, rest - extra
    return extras


def mix(problem: Problem, w: int, capacities: Sequence[float], row: Array, gpus: int) -> list[int]:
    """Return the replica counts that give ``f_w(gpus)``: largest replicas first, then the spec's order."""
    counts = [0] * len(capacities)
    order = sorted(range(len(capacities)), key=lambda c: (-problem.gpus[w][c], c))
    kinds = [(c, problem.gpus[w][c], capacities[c]) for c in order if capacities[c] > 0.0]
    served: list[float] = row[: gpus + 1].tolist()  # plain numbers: many single look-ups follow
    while gpus > 0 and served[gpus] > 0.0:
        slack = SLACK * max(1.0, served[gpus])
        for c, size, capacity in kinds:
            if size <= gpus and abs(served[gpus] - served[gpus - size] - capacity) <= slack:
                counts[c] += 1
                gpus -= size
                break
        else:
            gpus -= 1  # this GPU adds nothing
    return counts
