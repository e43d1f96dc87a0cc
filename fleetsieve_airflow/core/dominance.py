"""Which replicas can no longer matter: their GPUs provably serve as much in other replicas."""

from __future__ import annotations

from collections.abc import Sequence

from fleetsieve_airflow.core.allocation import SLACK, Problem
from fleetsieve_airflow.core.bounds import Box
from fleetsieve_airflow.core.ladder import Ladder


def dominated(problem: Problem, ladders: Sequence[Ladder], box: Box) -> list[bool]:
    """Say for each ladder whether its replica's GPUs do provably as well in other replicas.

    Of a replica of several engines: the places of all of them together, each with replicas of its own.
    """
    result = []
    for i, (w, c) in enumerate(places_of(problem, ladders)):
        if ladders[i].met_upto >= 0:
            # an equal is only dominated by what is itself kept: strictly better, or smaller
            result.append(False)
            continue
        single = problem.max_replicas[w] is not None
        served = [
            (n, _best_within(_in_pool(problem, box, w, c, k), size, problem.node_sizes[k], single=single))
            for k, size, n in problem.parts_of(w, c)
        ]
        known = max(best for _, best in served) if single else sum(n * best for n, best in served)
        result.append(known >= box.upper[w][c] * (1 - SLACK) and known > 0.0)
    return result


def _in_pool(problem: Problem, box: Box, w: int, c: int, pool: int) -> list[tuple[int, float]]:
    """Return GPUs and proved capacity of the replicas of one engine that may run in a candidate's place."""
    return [
        (problem.gpus[w][o], lower)
        for o, lower in enumerate(box.lower[w])
        if o != c and lower > 0 and len(problem.parts_of(w, o)) == 1 and problem.pools[w][o] == pool
    ]


def _best_within(items: Sequence[tuple[int, float]], size: int, node: int, *, single: bool) -> float:
    """Return the most that replicas of these sizes serve in the place of one of ``size`` GPUs.

    :param single: only one of them may take its place, because replicas are limited in number.
    """
    if single:
        return max((v for g, v in items if g <= size), default=0.0)
    if size <= node:
        return _small_knapsack(items, size)
    whole = _small_knapsack([(g, v) for g, v in items if g <= node], node)  # no replica straddles two nodes
    return _small_knapsack([(node, whole), *((g, v) for g, v in items if g > node)], size)


def _small_knapsack(items: Sequence[tuple[int, float]], size: int) -> float:
    best = [0.0] * (size + 1)
    for g in range(1, size + 1):
        best[g] = max([best[g - 1], *(best[g - s] + v for s, v in items if s <= g)])
    return best[size]


def places_of(problem: Problem, ladders: Sequence[Ladder]) -> tuple[tuple[int, int], ...]:
    """Return each ladder's workload and its place among that workload's candidates."""
    where = {
        (name, label): (w, c)
        for w, (name, labels) in enumerate(zip(problem.names, problem.labels, strict=True))
        for c, label in enumerate(labels)
    }
    return tuple(where[ladder.candidate.workload, ladder.candidate.config] for ladder in ladders)
