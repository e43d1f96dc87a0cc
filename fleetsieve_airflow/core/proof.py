"""The cheapest measurements expected to settle the decision: the proof, if beliefs come true.

A proof that a fulfilment level is reached needs one met load per replica kind it uses; a proof that no
more can be reached needs missed loads that cut every alternative. Both sides decompose: per workload,
what each number of GPUs costs to prove, then one knapsack over workloads. Costs are divided by the
probability that the measurement turns out as hoped, so a likely question is preferred to a lucky one.
Everything here only proposes; what settles is the regret itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleetsieve_airflow.core.allocation import SLACK, Problem, curve, mix
from fleetsieve_airflow.core.belief import Belief
from fleetsieve_airflow.core.ladder import Ladder

Array = NDArray[np.float64]
#: Below this probability an outcome is not planned for.
LEAST_CHANCE = 0.02
#: Cuts are first sought among outcomes of at least this probability.
LIKELY = 0.25
#: Most GPU counts per workload for which the price of proving them is worked out.
MAX_GOALS = 12
#: Up to so many uses of replica kinds are tried in pairs.
MOST_MIXED = 24
#: Capacities of at least this chance are those that plans of more than two kinds are made from.
MIX_CHANCES = (0.5, 0.2)
#: Parts of the way from what is proved to what is likely that are tried where all of it cannot be proved.
CLOSER = (0.75, 0.5, 0.25)


@dataclass(frozen=True, slots=True, order=True)
class Question:
    """One load to measure and the outcome that would help: ``hoped`` met or missed, with its probability."""

    ladder: int
    load: int
    hoped: str
    chance: float


def expected_price(cost: float, chance: float) -> float:
    """Return what an answer costs until it comes true, tried again and again with this chance."""
    return cost / max(chance, 1e-6)


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """Questions whose hoped answers leave a candidate's capacity at most ``cap`` req/s."""

    cap: float
    price: float
    chance: float
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """Questions that together prove how many GPUs a workload needs, at an expected price."""

    gpus: int
    price: float
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """What the proof is planned on.

    :param members: per workload, the indices of its ladders, in the problem's order of candidates.
    :param costs: per ladder, billed GPU-seconds of one more point.
    :param askable: per ladder, per load: whether another measurement of it can be had.
    :param dominated: per ladder, whether its replicas can never be better than known ones.
    :param unprompted: what would be believed without priors; the belief itself where there are none.
    """

    problem: Problem
    ladders: Sequence[Ladder]
    belief: Belief
    members: Sequence[Sequence[int]]
    lower: Sequence[Sequence[float]]
    upper: Sequence[Sequence[float]]
    costs: Sequence[float]
    askable: Sequence[Sequence[bool]]
    dominated: Sequence[bool]
    unprompted: Belief

    def open_loads(self, i: int) -> list[int]:
        """Return the loads of a ladder worth asking about."""
        return [] if self.dominated[i] else [j for j in self.ladders[i].open_loads() if self.askable[i][j]]


def expected_capacities(scene: Scene, chance: float = 0.5, *, provable: bool = False) -> list[list[float]]:
    """Return the capacity in req/s that each candidate reaches with a given chance, inside its bounds.

    :param provable: as much of it as all repeats can prove.
    """
    rows = []
    for w, indices in enumerate(scene.members):
        row = []
        for c, i in enumerate(indices):
            likely = np.flatnonzero(scene.belief.met[i] >= chance)
            value = float(scene.belief.rate[i][likely[-1]]) if len(likely) else 0.0
            value *= math.exp(-scene.ladders[i].least_blur) if provable else 1.0
            row.append(min(max(value, scene.lower[w][c]), scene.upper[w][c]))
        rows.append(row)
    return rows


def prove_reached(scene: Scene, level: float) -> tuple[Question, ...] | None:
    """Return the cheapest questions whose hoped answers prove that every workload reaches a fulfilment level.

    :return: None where no likely answers prove it.
    """
    frontiers = [_reaching(scene, w, level) for w in range(len(scene.members))]
    return _cheapest_within(scene.problem, frontiers)


def _reaching(scene: Scene, w: int, level: float) -> list[Option]:
    """Return what it costs to prove that a workload reaches a level, cheapest per number of GPUs."""
    target = float(scene.problem.demands[w]) * level * (1.0 - SLACK)
    base = curve(scene.problem, w, scene.lower[w])
    options = [Option(int(np.searchsorted(base, target)), 0.0, ())]
    singles = []
    for c, i in enumerate(scene.members[w]):
        for j in scene.open_loads(i):
            chance = float(scene.belief.met[i][j])
            rate = float(scene.belief.rate[i][j]) * math.exp(-scene.ladders[i].least_blur)
            if chance < LEAST_CHANCE or rate <= scene.lower[w][c]:
                continue
            needed = _gpus_with(base, target, scene.problem.gpus[w][c], rate)
            question = Question(i, j, "met", chance)
            options.append(Option(needed, expected_price(scene.costs[i], chance), (question,)))
            singles.append((c, rate, options[-1]))
    options.extend(_pairs(scene, w, target, singles))
    options.extend(_expected_mixes(scene, w, target))
    return _frontier(options, len(base))


def _expected_mixes(scene: Scene, w: int, target: float) -> Iterable[Option]:
    """Yield what proves the replicas, of any number of kinds, that expected capacities call for.

    So what expectations reach is never called beyond proof because more than two kinds have to be mixed.
    """
    for chance in MIX_CHANCES:
        row, loads = [], []
        for c, i in enumerate(scene.members[w]):
            hoped = [j for j in scene.open_loads(i) if scene.belief.met[i][j] >= chance]
            rate = float(scene.belief.rate[i][hoped[-1]]) if hoped else 0.0
            rate *= math.exp(-scene.ladders[i].least_blur)
            row.append(max(rate, scene.lower[w][c]))
            loads.append(hoped[-1] if rate > scene.lower[w][c] else None)
        best = curve(scene.problem, w, row)
        gpus = int(np.searchsorted(best, target))
        counts = mix(scene.problem, w, row, best, gpus) if gpus < len(best) else []
        questions = tuple(
            Question(i, j, "met", float(scene.belief.met[i][j]))
            for i, j, n in zip(scene.members[w], loads, counts, strict=False)
            if n and j is not None
        )
        if questions:
            price = sum(expected_price(scene.costs[q.ladder], q.chance) for q in questions)
            yield Option(gpus, price, questions)


def _pairs(
    scene: Scene, w: int, target: float, singles: Sequence[tuple[int, float, Option]]
) -> Iterable[Option]:
    """Yield options that mix two replica kinds not proved yet, from each kind's two likeliest uses."""
    best: dict[int, list[tuple[int, float, Option]]] = {}
    for single in sorted(singles, key=lambda s: s[2].price / max(s[1], 1e-12)):
        best.setdefault(single[0], []).append(single)
    kinds = [single for row in best.values() for single in row[:2]]
    if len(kinds) > MOST_MIXED:
        return
    for c, rate, option in kinds:
        row = list(scene.lower[w])
        row[c] = rate
        base = curve(scene.problem, w, row)
        for other, other_rate, second in kinds:
            if other > c:
                needed = _gpus_with(base, target, scene.problem.gpus[w][other], other_rate)
                yield Option(needed, option.price + second.price, (*option.questions, *second.questions))


def _gpus_with(base: Array, target: float, size: int, rate: float) -> int:
    """Return the GPUs that reach a target with any number of replicas of one more kind on top of a curve."""
    most = max(0, math.ceil(target / rate))
    if most * size > 4 * len(base):
        most = max(1, 4 * len(base) // size)
    replicas = np.arange(most + 1)
    rest = np.searchsorted(base, np.maximum(target - replicas * rate, 0.0))
    totals = replicas * size + np.where(rest < len(base), rest, len(base) * 8)
    return int(totals.min())


def _frontier(options: Iterable[Option], limit: int) -> list[Option]:
    """Keep the options that no other beats in both GPUs and price, GPUs ascending."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda o: (o.gpus, o.price, len(o.questions))):
        if option.gpus < limit and (not kept or option.price < kept[-1].price - 1e-12):
            kept.append(option)
    return kept


def _cheapest_within(problem: Problem, frontiers: Sequence[Sequence[Option]]) -> tuple[Question, ...] | None:
    """Choose one option per workload so that each pool's GPUs suffice at the least price."""
    chosen: list[Question] = []
    for k, total in enumerate(problem.totals):
        members = _at_home(problem, k)
        picked = _choose([frontiers[w] for w in members], total)
        if picked is None:
            return None
        chosen.extend(question for option in picked for question in option.questions)
    return tuple(chosen)


def _at_home(problem: Problem, pool: int) -> list[int]:
    """Return the workloads that draw on a pool."""
    return [w for w, home in enumerate(problem.home or ()) if home == pool]


def _choose(rows: Sequence[Sequence[Option]], total: int) -> list[Option] | None:
    """Solve the multiple-choice knapsack: one option per row, GPUs at most ``total``, least price."""
    best = np.zeros(total + 1)
    choices = []
    for options in rows:
        improved, choice = np.full(total + 1, np.inf), np.full(total + 1, -1, dtype=np.int64)
        for index, option in enumerate(options):
            if option.gpus > total:
                continue
            offer = best[: total + 1 - option.gpus] + option.price
            better = offer < improved[option.gpus :] - 1e-9
            improved[option.gpus :][better] = offer[better]
            choice[option.gpus :][better] = index
        best = improved
        choices.append(choice)
    if not np.isfinite(best[total]):
        return None
    left, picked = total, []
    for options, choice in zip(reversed(rows), reversed(choices), strict=True):
        picked.append(options[int(choice[left])])
        left -= picked[-1].gpus
    return picked[::-1]


def prove_exceeded(scene: Scene, level: float) -> tuple[Question, ...] | None:
    """Return the cheapest questions whose hoped answers prove that no plan exceeds a fulfilment level.

    :return: None where no likely answers prove it; an empty tuple where it is proved already.
    """
    for least_chance in (LIKELY, LEAST_CHANCE):
        if (found := _exceeded(scene, level, least_chance)) is not None:
            return found
    return None


def _exceeded(scene: Scene, level: float, least_chance: float) -> tuple[Question, ...] | None:
    found: tuple[float, tuple[Question, ...]] | None = None
    for k, total in enumerate(scene.problem.totals):
        members = _at_home(scene.problem, k)
        frontiers = [_requiring(scene, w, level, total, least_chance) for w in members]
        picked = _at_least(frontiers, total + 1)
        if picked is not None:
            price = sum(option.price for option in picked)
            if found is None or price < found[0]:
                found = (price, tuple(question for option in picked for question in option.questions))
    return None if found is None else found[1]


def _requiring(scene: Scene, w: int, level: float, total: int, least_chance: float) -> list[Option]:
    """Return what it costs to prove that a workload needs at least so many GPUs to exceed a level."""
    target = float(scene.problem.demands[w]) * level * (1.0 + 8 * SLACK)
    upper = scene.upper[w]
    now = min(int(np.searchsorted(curve(scene.problem, w, upper), target)), total + 1)
    options = [Option(now, 0.0, ())]
    cuts = [
        sorted(cut for cut in _cuts(scene, w, c) if cut.chance >= least_chance and cut.cap < upper[c])
        for c in range(len(upper))
    ]
    tightest = [row[0].cap if row else upper[c] for c, row in enumerate(cuts)]
    most = min(int(np.searchsorted(curve(scene.problem, w, tightest), target)), total + 1)
    for goal in _goals(scene.problem.gpus[w], cuts, target, now, most):
        options.append(_requiring_at(scene, w, target, goal, cuts))
    return options


def _goals(
    sizes: Sequence[int], cuts: Sequence[Sequence[Cut]], target: float, now: int, most: int
) -> list[int]:
    """Return the GPU counts worth proving, highest first: where one kind of replica alone needs more."""
    steps = {
        size * math.ceil(target / cut.cap)
        for size, row in zip(sizes, cuts, strict=True)
        for cut in row
        if cut.cap > 0
    }
    goals = sorted({most, *(step for step in steps if now < step < most)} - {now}, reverse=True)
    return [goal for goal in goals if goal > now][:MAX_GOALS]


def _requiring_at(scene: Scene, w: int, target: float, goal: int, cuts: Sequence[Sequence[Cut]]) -> Option:
    """Return cheap cuts that leave a workload needing ``goal`` GPUs: each as loose as it can be."""
    chosen: list[Cut | None] = [row[0] if row else None for row in cuts]
    row = [scene.upper[w][c] if cut is None else cut.cap for c, cut in enumerate(chosen)]
    for c in sorted(range(len(row)), key=lambda c: -(chosen[c].price if chosen[c] else 0.0)):  # type: ignore[union-attr]
        for looser in (None, *sorted(cuts[c], key=lambda cut: (cut.price, -cut.cap))):
            kept = row[c]
            row[c] = scene.upper[w][c] if looser is None else looser.cap
            if curve(scene.problem, w, row)[goal - 1] < target:
                chosen[c] = looser
                break
            row[c] = kept
    used = [cut for cut in chosen if cut is not None]
    return Option(goal, sum(cut.price for cut in used), tuple(q for cut in used for q in cut.questions))


def _cuts(scene: Scene, w: int, c: int) -> list[Cut]:
    """Return the ways to cut one candidate's capacity from above, by one or two questions."""
    i = scene.members[w][c]
    ladder, met, rate = scene.ladders[i], scene.belief.met[i], scene.belief.rate[i]
    cuts: list[Cut] = []
    closed = ladder.candidate.load_kind == "concurrency"
    asked = list(scene.open_loads(i))
    for j in asked:
        missed = ladder.with_outcome(j, "missed", float(rate[j]))
        cuts.append(_cut(scene, w, c, missed, (Question(i, j, "missed", 1.0 - float(met[j])),)))
        if not closed:
            continue
        known = ladder.with_outcome(j, "met", float(rate[j]))
        cuts.append(_cut(scene, w, c, known, (Question(i, j, "met", float(met[j])),)))
        if j + 1 in asked:
            both = known.with_outcome(j + 1, "missed", float(rate[j + 1]))
            pair = (
                Question(i, j, "met", float(met[j])),
                Question(i, j + 1, "missed", 1.0 - float(met[j + 1])),
            )
            cuts.append(_cut(scene, w, c, both, pair))
    return [cut for cut in cuts if cut.chance >= LEAST_CHANCE]


def _cut(scene: Scene, w: int, c: int, after: Ladder, questions: tuple[Question, ...]) -> Cut:
    price = sum(expected_price(scene.costs[question.ladder], question.chance) for question in questions)
    chance = min(question.chance for question in questions)
    return Cut(min(after.capacity_upper, scene.upper[w][c]), price, chance, questions)


def _at_least(rows: Sequence[Sequence[Option]], needed: int) -> list[Option] | None:
    """Choose one option per row so that the GPUs sum to at least ``needed`` at the least price."""
    best = np.full(needed + 1, np.inf)
    best[0] = 0.0
    choices, sources = [], []
    reach = np.arange(needed + 1)
    for options in rows:
        improved = np.full(needed + 1, np.inf)
        choice, source = np.full(needed + 1, -1, dtype=np.int64), np.zeros(needed + 1, dtype=np.int64)
        for index, option in enumerate(options):
            start = np.maximum(reach - option.gpus, 0)  # what the rows before must have summed to, at least
            offer = best[start] + option.price
            better = offer < improved - 1e-9
            improved[better], choice[better], source[better] = offer[better], index, start[better]
        best = improved
        choices.append(choice)
        sources.append(source)
    if not np.isfinite(best[needed]):
        return None
    at, picked = needed, []
    for options, choice, source in zip(reversed(rows), reversed(choices), reversed(sources), strict=True):
        picked.append(options[int(choice[at])])
        at = int(source[at])
    return picked[::-1]


def closer(scene: Scene, levels: tuple[float, float, float], tolerance: float) -> list[Question]:
    """Return the questions, some perhaps twice, that bring both ends closer where likely answers do not.

    :param levels: what is proved to be reached, what is likely, what cannot be exceeded.
    """
    low, likely, high = levels
    for part in CLOSER:
        rise, fall = part * (likely - low), part * (high - likely)
        lower_side = prove_reached(scene, low + rise) if rise > tolerance else None
        upper_side = prove_exceeded(scene, high - fall) if fall > tolerance else None
        if lower_side or upper_side:
            return [*(lower_side or ()), *(upper_side or ())]
    return []
