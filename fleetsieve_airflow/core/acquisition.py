"""Choose what to measure next: the loads that can still change the decision, the cheapest to settle it first.

The proof that beliefs call cheapest (:mod:`.proof`) is checked by playing its hoped answers through the
regret, and thinned to what is needed. Of what remains, the question most likely to prove it wrong per
GPU-second is asked first; a batch takes as many as the profiling GPUs hold.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fleetsieve_airflow.core import proof
from fleetsieve_airflow.core.allocation import SLACK, Problem, allocate_exact
from fleetsieve_airflow.core.belief import believe
from fleetsieve_airflow.core.bounds import Box, box_of, ranges_between, regret_of, solve, value_of
from fleetsieve_airflow.core.caution import hoped_value, least_chance
from fleetsieve_airflow.core.dominance import dominated, places_of
from fleetsieve_airflow.core.ladder import Ladder
from fleetsieve_airflow.core.priors import believe_given
from fleetsieve_airflow.core.proof import Question, Scene
from fleetsieve_airflow.core.verdict import Verdict
from fleetsieve_airflow.evidence import CapacityInterval, Evidence, PlannedPoint
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serialization import point_of, points_of

#: While the fleet's demand is reached by capacities of at least this chance each, only that is tried to be
#: proved.
HOPE = 0.2
#: A batch grows over the profiling GPUs while its workload's part of the proof stands with this chance
#: (what is asked of one workload is mostly needed however another's answer turns out) ...
STANDS = 0.5
#: ... and, once they are taken, with points of servers that run anyway while all of it is all but certain.
STANDS_FREE = 0.95
#: Into how many units the cost of all GPUs is divided where plans are compared by money.
MONEY_UNITS = 2000
#: Most hypothetical plans solved to thin a proof; a larger proof is used as it is.
MAX_THINNING = 24
#: Most chosen points whose expected fall of the regret is worked out; the others show the proof's own share.
MAX_LOOKAHEAD = 8


@dataclass(frozen=True, slots=True)
class Outlook:
    """A problem as the choice of points sees it: one pool, no side constraints where those are too slow."""

    problem: Problem
    ladders: tuple[Ladder, ...]
    box: Box
    places: tuple[
        tuple[int, int], ...
    ]  # per ladder: its workload and its place among that workload's candidates


def choose_points(
    spec: FleetSpec,
    evidence: Evidence,
    problem: Problem,
    ladders: tuple[Ladder, ...],
    intervals: Sequence[CapacityInterval],
    box: Box,
    budget_gpu_seconds: float | None,
) -> tuple[PlannedPoint, ...]:
    """Choose the next batch of points.

    :param box: the intervals as the problem's box.
    :param budget_gpu_seconds: billed GPU-seconds left, None for no limit.
    :return: empty where nothing that can be measured would change the decision.
    """
    relaxed = _relaxed(problem)
    seen = box if relaxed is problem else box_of(spec, relaxed, intervals)
    outlook = Outlook(relaxed, ladders, seen, places_of(relaxed, ladders))
    repeats = _next_points(spec, evidence, ladders)
    beaten = dominated(problem, ladders, box)
    scene = _scene(spec, outlook, repeats, evidence, beaten)
    tolerance = spec.decision.tolerance
    questions = _needed(spec, outlook, scene, tolerance)
    if not questions and _within_reach(spec, scene):
        questions = _widest(outlook, scene, _hopeful(problem, ladders, box))
    ordered = sorted(questions, key=lambda q: (-_urgency(scene, q), q.ladder, q.load))
    return _batch(spec, outlook, scene, repeats, ordered, budget_gpu_seconds)


def _relaxed(problem: Problem) -> Problem:
    """Drop what only the general solver can handle: it decides where to look, never when to stop.

    All pools become one, of GPUs alike; or of money, in units that are a small share of what all GPUs cost.
    """
    if problem.home is not None:
        return problem
    workloads, unit = len(problem.names), 1.0
    gpus, total = problem.gpus, sum(problem.totals)
    if problem.objective == "lowest_cost":
        unit, total = max(problem.most_needed, 1e-9) / MONEY_UNITS, MONEY_UNITS
        gpus = tuple(
            tuple(max(1, math.ceil(problem.price_of(w, c) / unit * (1 - SLACK))) for c in range(len(row)))
            for w, row in enumerate(problem.gpus)
        )
    return replace(
        problem,
        gpus=gpus,
        pools=tuple((0,) * len(row) for row in problem.gpus),
        parts=(),
        totals=(total,),
        prices=(unit,),
        node_sizes=(max(problem.node_sizes),),
        min_replicas=(0,) * workloads,
        max_replicas=(None,) * workloads,
        cost_per_hour_max=None,
        home=(0,) * workloads,
        _curves={},
    )


def _next_points(spec: FleetSpec, evidence: Evidence, ladders: Sequence[Ladder]) -> list[list[int | None]]:
    """Return, per ladder and load, which repeat would measure it next; None where it is given up."""
    failures: dict[str, int] = defaultdict(int)
    for failure in evidence.failures:
        failures[failure.key] += spec.measurement.failed_attempts if failure.kind == "missing_in_grid" else 1
    repeats = spec.measurement.repeats
    rows: list[list[int | None]] = []
    for ladder in ladders:
        loads = len(ladder.candidate.loads)
        if not failures and not any(ladder.keys):
            rows.append([0] * loads)
            continue
        measured = {key for keys in ladder.keys for key in keys}
        keys = ladder.point_keys or [point.key for point in points_of(spec, ladder.candidate, repeats)]
        row: list[int | None] = []
        for j in range(loads):
            usable = [
                repeat
                for repeat, key in enumerate(keys[j * repeats : (j + 1) * repeats])
                if key not in measured and failures.get(key, 0) < spec.measurement.failed_attempts
            ]
            row.append(usable[0] if usable else None)
        rows.append(row)
    return rows


def _scene(
    spec: FleetSpec,
    outlook: Outlook,
    repeats: Sequence[Sequence[int | None]],
    evidence: Evidence,
    beaten: Sequence[bool],
) -> Scene:
    problem, ladders, box = outlook.problem, outlook.ladders, outlook.box
    members: list[list[int]] = [[] for _ in problem.names]
    for i, (w, _) in enumerate(outlook.places):
        members[w].append(i)
    settings, belief = spec.measurement, believe_given(problem, ladders, evidence.priors)
    return Scene(
        problem=problem,
        ladders=ladders,
        belief=belief,
        members=members,
        lower=box.lower,
        upper=box.upper,
        costs=[ladder.gpus * (settings.duration_s + settings.startup_s) for ladder in ladders],
        askable=[[repeat is not None for repeat in row] for row in repeats],
        dominated=beaten,
        unprompted=believe(problem, ladders) if evidence.priors else belief,
    )


def _needed(spec: FleetSpec, outlook: Outlook, scene: Scene, tolerance: float) -> list[Question]:
    """Return the questions of the cheapest proof, thinned to those the regret needs."""
    problem = outlook.problem
    if problem.counts_need:
        return _least_needed_proof(outlook, scene, tolerance)
    expected = proof.expected_capacities(scene)
    likely = value_of(problem, expected)
    goal = spec.decision.required_fulfilment
    if hoped_value(scene, HOPE) >= goal * (1 - SLACK):
        reached = proof.prove_reached(scene, goal)
        if reached:
            return list(reached)
    conservative = value_of(problem, outlook.box.lower)
    level = max(min(likely, goal), conservative)
    lower_side = proof.prove_reached(scene, level) or ()
    upper_side = proof.prove_exceeded(scene, level + 0.99 * tolerance) or ()
    if not lower_side and not upper_side:
        return _merged(
            proof.closer(scene, (conservative, level, value_of(problem, outlook.box.upper)), tolerance)
        )
    return _thinned(outlook, scene, _merged([*lower_side, *upper_side]), tolerance)


def _least_needed_proof(outlook: Outlook, scene: Scene, tolerance: float) -> list[Question]:
    """Prove that the expected number of GPUs, or units of money, reaches the requirement and fewer do not."""
    problem = outlook.problem
    required = problem.required
    used = problem.gpus_of(allocate_exact(problem, proof.expected_capacities(scene)))
    if problem.objective == "lowest_cost":
        tolerance /= problem.prices[0] or math.inf
    smaller = replace(problem, totals=(max(1, min(used, problem.totals[0])),), _curves={})
    below = replace(
        problem, totals=(max(1, min(used, problem.totals[0]) - 1 - math.floor(tolerance)),), _curves={}
    )
    lower_side = proof.prove_reached(replace(scene, problem=smaller), required) or proof.prove_reached(
        scene, required
    )
    upper_side = proof.prove_exceeded(replace(scene, problem=below), required * (1 - 1e-6))
    return _merged([*(lower_side or ()), *(upper_side or ())])


def _merged(questions: Iterable[Question]) -> list[Question]:
    """Keep each load once; asked from both sides, the likelier hope stands."""
    best: dict[tuple[int, int], Question] = {}
    for question in questions:
        key = (question.ladder, question.load)
        if key not in best or question.chance > best[key].chance:
            best[key] = question
    return list(best.values())


def _thinned(outlook: Outlook, scene: Scene, questions: list[Question], tolerance: float) -> list[Question]:
    """Drop questions, dearest first, that the hoped end does not need."""
    if len(questions) > MAX_THINNING or _regret_after(outlook, scene, questions) > tolerance + SLACK:
        return questions
    kept = list(questions)
    for question in sorted(questions, key=lambda q: -scene.costs[q.ladder] / q.chance):
        rest = [other for other in kept if other is not question]
        if rest and _regret_after(outlook, scene, rest) <= tolerance + SLACK:
            kept = rest
    return kept


def _regret_after(outlook: Outlook, scene: Scene, questions: Iterable[Question]) -> float:
    """Return the regret that would be left if every question were answered as hoped."""
    box = _box_after(outlook, scene, [(q.ladder, q.load, q.hoped) for q in questions])
    counts = allocate_exact(outlook.problem, box.lower)
    return regret_of(outlook.problem, box, counts)


def _box_after(outlook: Outlook, scene: Scene, answers: Iterable[tuple[int, int, str]]) -> Box:
    changed: dict[int, Ladder] = {}
    for i, j, verdict in answers:
        rate = float(scene.belief.rate[i][j])
        hoped: Verdict = "met" if verdict == "met" else "missed"
        changed[i] = changed.get(i, outlook.ladders[i]).with_outcome(j, hoped, rate)
    lower = [list(row) for row in outlook.box.lower]
    upper = [list(row) for row in outlook.box.upper]
    ranges = [list(row) for row in outlook.box.ranges]
    for i, ladder in changed.items():
        w, c = outlook.places[i]
        lower[w][c] = max(lower[w][c], outlook.problem.cap(w, ladder.capacity_lower))
        upper[w][c] = max(lower[w][c], min(upper[w][c], outlook.problem.cap(w, ladder.capacity_upper)))
        loads = ladder.candidate.loads if ladder.candidate.load_kind == "offered_load_rps" else None
        ranges[w][c] = ranges_between(lower[w][c], upper[w][c], loads)
    return Box(lower, upper, ranges)


def _within_reach(spec: FleetSpec, scene: Scene) -> bool:
    """Say whether anything could still be certified although rates stay as uncertain as repeats leave them.

    Rates that are known to more than the tolerance leave only one certificate: that the requirement is met.
    """
    settings = spec.decision
    if settings.objective != "max_min_fulfilment" or all(
        ladder.least_blur <= settings.tolerance for ladder in scene.ladders
    ):
        return True
    hoped = value_of(scene.problem, proof.expected_capacities(scene, HOPE, provable=True))
    return hoped >= settings.required_fulfilment * (1 - SLACK)


def _hopeful(problem: Problem, ladders: Sequence[Ladder], box: Box) -> set[int]:
    """Return the ladders whose replicas the optimistic plan counts on: one is open while the plans differ.

    Asked where the relaxed problem is not the real one, so that what is settled there may be open here.
    """
    if problem.home is not None:
        return set()
    counts, _, _ = solve(problem, box.upper)
    return {i for i, (w, c) in enumerate(places_of(problem, ladders)) if counts[w][c]}


def _widest(outlook: Outlook, scene: Scene, hopeful: set[int]) -> list[Question]:
    """Return the middle of the widest open interval that matters most, where no proof is in sight.

    :param hopeful: ladders to look at first; all of them where none of these is open.
    """
    best: tuple[float, Question] | None = None
    some = any(scene.open_loads(i) for i in hopeful)
    for i, (w, c) in enumerate(outlook.places):
        asked = list(scene.open_loads(i)) if i in hopeful or not some else []
        if not asked:
            continue
        j = asked[len(asked) // 2]
        span = (outlook.box.upper[w][c] - outlook.box.lower[w][c]) / float(outlook.problem.demands[w])
        worth = span / scene.costs[i]
        if best is None or worth > best[0]:
            best = (worth, Question(i, j, "met", float(scene.belief.met[i][j])))
    return [] if best is None else [best[1]]


def _urgency(scene: Scene, question: Question) -> float:
    """Return how likely the question refutes the proof per GPU-second: what may fail is asked early."""
    return (1.0 - question.chance + 0.02) / scene.costs[question.ladder]


def _batch(
    spec: FleetSpec,
    outlook: Outlook,
    scene: Scene,
    repeats: Sequence[Sequence[int | None]],
    ordered: Sequence[Question],
    budget: float | None,
) -> tuple[PlannedPoint, ...]:
    """Take questions in order while profiling GPUs and budget hold; one server's points share a job."""
    settings, ladders = spec.measurement, outlook.ladders
    room = settings.profiling_gpus if settings.profiling_gpus is not None else sum(outlook.problem.totals)
    jobs: dict[tuple[str, str], int] = {}
    chosen: list[PlannedPoint] = []
    now = _regret_after(outlook, scene, ())
    # The chance that the answers hoped for so far come true: all of them, and those of each workload.
    stands, parts = 1.0, [1.0] * len(outlook.problem.names)
    for question in ordered:
        repeat = repeats[question.ladder][question.load]
        if repeat is None:
            continue
        w = outlook.places[question.ladder][0]
        if chosen and (parts[w] < STANDS if room > 0 else stands < STANDS_FREE):
            continue  # an earlier answer is likely to change the proof: this question may not be needed
        candidate = ladders[question.ladder].candidate
        point = point_of(spec, candidate, candidate.loads[question.load], repeat)
        server = (spec.workload(point.workload).model, point.config)
        starts = server not in jobs
        if starts and chosen and point.gpus > room:
            continue
        cost = point.gpus * (settings.duration_s + (settings.startup_s if starts else 0.0))
        if budget is not None and cost > budget:
            continue
        budget = None if budget is None else budget - cost
        if starts:
            room -= point.gpus
            jobs[server] = len(jobs)
        chance = least_chance(scene, question)
        stands, parts[w] = stands * chance, parts[w] * chance
        fall = _expected_fall(outlook, scene, question, now) if len(chosen) < MAX_LOOKAHEAD else 0.0
        chosen.append(
            PlannedPoint(
                point=point,
                reason=_reason(outlook, scene, question),
                probability_met=round(float(scene.belief.met[question.ladder][question.load]), 4),
                expected_fall_per_gpu_second=fall / cost,
                gpu_seconds_billed=cost,
                job=jobs[server],
            )
        )
    return tuple(chosen)


def _expected_fall(outlook: Outlook, scene: Scene, question: Question, now: float) -> float:
    """Return how far the regret is expected to fall over the two outcomes of one question alone."""
    met = float(scene.belief.met[question.ladder][question.load])
    after = [
        _regret_after(outlook, scene, [replace(question, hoped=hoped, chance=chance)]) * chance
        for hoped, chance in (("met", met), ("missed", 1.0 - met))
    ]
    return max(0.0, now - sum(after))


def _reason(outlook: Outlook, scene: Scene, question: Question) -> str:
    """Say in words why a load is worth measuring."""
    w, c = outlook.places[question.ladder]
    ladder = outlook.ladders[question.ladder]
    problem = outlook.problem
    rate = float(scene.belief.rate[question.ladder][question.load])
    demand = float(problem.demands[w])
    who = f"{ladder.candidate.config} for {ladder.candidate.workload}"
    if ladder.verdicts[question.load] is not None:
        return (
            f"{who}: the verdict at {ladder.candidate.loads[question.load]:g} is in doubt, a repeat is due."
        )
    if question.hoped == "met":
        replicas = max(1, math.ceil(demand * problem.required / max(rate, 1e-12) * (1 - SLACK)))
        return (
            f"{who}: if it meets the SLO here it is proved to serve {rate:.4g} req/s, "
            f"and {replicas} of it would carry the demand of {demand:.4g} req/s."
        )
    known = scene.lower[w]
    best = max(range(len(known)), key=lambda k: (known[k] / problem.gpus[w][k], -k))
    rival = f"{problem.labels[w][best]}" if known[best] > 0.0 and best != c else "what is proved so far"
    return (
        f"{who} could still replace {rival} if it serves {rate:.4g} req/s or more; "
        "a miss here rules that out."
    )
