"""What an earlier release or a simulator says before anything is measured, and how far it is believed.

A prior enters the belief as one hypothesis among others, beside that of knowing nothing. Each hypothesis
predicts what has been measured so far, and they are mixed by how well they did: a prior that is wrong loses
its weight within a few measurements and the belief falls back to that without priors. Nothing here moves a
bound: an interval rests on a prior only where the spec names its source under ``certify_on``.

An earlier release is believed load by load. Its margins are those of the new release but for a shift of the
capacity, part of it shared by the fleet and by a workload's candidates, so that one measurement corrects them
all. A simulator gives a capacity per candidate, where the margin is expected to cross zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr

from fleetsieve_airflow.core.allocation import Problem
from fleetsieve_airflow.core.belief import (
    CLOSED_MARGIN,
    CLOSED_RATE,
    EASIEST_MARGIN,
    MOST_SHARED,
    OPEN_MARGIN,
    Array,
    Belief,
    Indices,
    Kernel,
    Rows,
    anchored_rates,
    believe,
    bounded,
    conditioning,
    covariance,
    implied,
    rows_of,
)
from fleetsieve_airflow.core.ladder import Ladder
from fleetsieve_airflow.evidence import PriorCapacity, PriorLoad
from fleetsieve_airflow.records import Candidate

#: A shift of the capacity by an e-fold moves ln(tail / limit) by at least this much.
LEAST_SLOPE = 1.0
#: Up to here a margin is as exact as its measurement. In an open loop latencies run away past saturation, so
#: this share of what is beyond is taken for noise.
NEAR, FAR_NOISE = 0.3, 0.7
#: Exponent of the likelihood in the weights of hypotheses: no model here is exact, so one measurement must
#: not decide between them.
TEMPER = 0.5


@dataclass(frozen=True, slots=True)
class Shift:
    """Standard deviations of how far ln(capacity) moves from one release to the next, by what shares it."""

    fleet: float
    workload: float
    candidate: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One way to read the priors.

    :param weight: how far it is believed before anything is measured; the weights sum to one.
    :param shift: how far an earlier release's capacities may have moved; None: it says nothing.
    :param simulated: whether simulated capacities are taken for the place where the margin crosses zero.
    """

    weight: float
    shift: Shift | None = None
    simulated: bool = False


#: A release as releases are: nearly all within 15 % of the last one; or one that changed by about a third.
SMALL, LARGE = Shift(0.05, 0.05, 0.04), Shift(0.15, 0.15, 0.15)
#: What differs between a simulated and a real fleet is mostly shared by its candidates.
SIMULATED_OPEN = replace(OPEN_MARGIN, fleet=0.5, workload=0.4, candidate=0.15, slope_sd=0.3, residual=0.25)


@dataclass(frozen=True, slots=True)
class _Process:
    """One process over the rows of all releases.

    :param values: what was measured, NaN where nothing was.
    :param mean: what is expected before anything is measured.
    :param age: releases back from the one that is planned; 0 for its own rows.
    :param far_noise: noise per unit by which a value is beyond :data:`NEAR`.
    """

    kernel: Kernel
    rows: Rows
    mean: Array
    values: Array
    age: Array
    far_noise: float = 0.0


def believe_given(problem: Problem, ladders: Sequence[Ladder], priors: Sequence[PriorCapacity]) -> Belief:
    """Predict every load of every ladder from what is measured and from what was believed before.

    :param priors: without any of these candidates, the belief is that of
        :func:`~fleetsieve_airflow.core.belief.believe`.
    """
    names = {(ladder.candidate.workload, ladder.candidate.config) for ladder in ladders}
    priors = [prior for prior in priors if (prior.workload, prior.config) in names]
    if not priors:
        return believe(problem, ladders)
    found = [_predict(problem, ladders, priors, hypothesis) for hypothesis in hypotheses_for(priors)]
    evidence = np.array([scored for _, _, scored in found])
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    met = sum(weight * row for weight, (row, _, _) in zip(weights, found, strict=True))
    log_rate = sum(weight * row for weight, (_, row, _) in zip(weights, found, strict=True))
    cuts = np.cumsum([len(ladder.candidate.loads) for ladder in ladders])[:-1]
    return Belief(
        [implied(ladder, row) for ladder, row in zip(ladders, np.split(met, cuts), strict=True)],
        [bounded(ladder, row) for ladder, row in zip(ladders, np.split(np.exp(log_rate), cuts), strict=True)],
    )


def hypotheses_for(priors: Sequence[PriorCapacity]) -> list[Hypothesis]:
    """Return how priors may be read, from trusting them to leaving them."""
    simulated = any(not prior.loads for prior in priors)
    if any(prior.loads for prior in priors):
        return [
            Hypothesis(0.7, SMALL, simulated),
            Hypothesis(0.2, LARGE, simulated),
            Hypothesis(0.1),
        ]
    return [Hypothesis(0.75, simulated=True), Hypothesis(0.25)]


def _predict(
    problem: Problem, ladders: Sequence[Ladder], priors: Sequence[PriorCapacity], hypothesis: Hypothesis
) -> tuple[Array, Array, float]:
    """Return P(met) and ln(rate) of every load under one hypothesis, and ln(weight x likelihood)."""
    guesses = {}
    if hypothesis.simulated:
        guesses = {(p.workload, p.config): _middle(p) for p in priors if p.upper_rps and not p.loads}
    older = earlier_ladders(ladders, priors) if hypothesis.shift else []
    every = [*ladders, *(ladder for ladder, _, _ in older)]
    rows, guess = rows_of(problem, every, guesses)
    counts = [len(ladder.candidate.loads) for ladder in every]
    own = [*range(len(ladders)), *(place for _, place, _ in older)]
    age = np.repeat([*(0.0 for _ in ladders), *(float(back) for _, _, back in older)], counts)
    log_loads = np.log(np.concatenate([np.array(ladder.candidate.loads) for ladder in every]))
    margins = np.array([np.nan if m is None else m for ladder in every for m in ladder.margins])
    total = sum(counts[: len(ladders)])
    score = float(np.log(hypothesis.weight))
    if ladders[0].candidate.load_kind == "offered_load_rps":
        kernel = SIMULATED_OPEN if guesses else OPEN_MARGIN
        rows = replace(rows, load=log_loads - guess, candidate=np.repeat(own, counts))
        process = _Process(kernel, rows, _line(kernel, rows, 0.0), margins, age, FAR_NOISE)
        mean, sd, likelihood = _posterior(process, counts, hypothesis.shift, total)
        return ndtr(-mean / sd), log_loads[:total], score + TEMPER * likelihood
    rates, anchor = anchored_rates(rows, log_loads, guess, every)
    rows = replace(rows, candidate=np.repeat(own, counts))
    process = _Process(CLOSED_MARGIN, rows, _line(CLOSED_MARGIN, rows, EASIEST_MARGIN), margins, age)
    mean, sd, likelihood = _posterior(process, counts, hypothesis.shift, total)
    process = _Process(CLOSED_RATE, rows, _line(CLOSED_RATE, rows, 0.0), rates, age)
    log_rate, _, more = _posterior(process, counts, hypothesis.shift, total)
    return ndtr(-mean / sd), (anchor + log_loads)[:total] + log_rate, score + TEMPER * (likelihood + more)


def _middle(prior: PriorCapacity) -> float:
    return float(0.5 * (np.log(max(prior.lower_rps, 1e-9)) + np.log(prior.upper_rps or 1e-9)))


def _line(kernel: Kernel, rows: Rows, level: float) -> Array:
    line: Array = level + kernel.slope_load * rows.load + kernel.slope_gpus * rows.gpus
    return line


def earlier_ladders(
    ladders: Sequence[Ladder], priors: Sequence[PriorCapacity]
) -> list[tuple[Ladder, int, int]]:
    """Return what earlier releases showed as ladders: each with its candidate's place and how far back it is.

    They hold the loads of today's ladders too, so that both are anchored alike.
    """
    places = {(ladder.candidate.workload, ladder.candidate.config): i for i, ladder in enumerate(ladders)}
    found = []
    for prior in priors:
        place = places[prior.workload, prior.config]
        ladder = ladders[place]
        for back in sorted({shown.releases_back for shown in prior.loads}):
            shown = {row.load: row for row in prior.loads if row.releases_back == back}
            found.append((_earlier(ladder, shown), place, back))
    return found


def _earlier(ladder: Ladder, shown: dict[float, PriorLoad]) -> Ladder:
    loads = tuple(sorted({*ladder.candidate.loads, *shown}))
    rates = [shown[load].rate_rps if load in shown else 0.0 for load in loads]
    return Ladder(
        candidate=Candidate(
            workload=ladder.candidate.workload,
            config=ladder.candidate.config,
            load_kind=ladder.candidate.load_kind,
            loads=loads,
        ),
        workload=ladder.workload,
        gpus=ladder.gpus,
        verdicts=(None,) * len(loads),
        rates=tuple((rate, rate, rate) if rate > 0.0 else None for rate in rates),
        margins=tuple(shown[load].margin if load in shown else None for load in loads),
        keys=((),) * len(loads),
    )


def _posterior(
    process: _Process, counts: Sequence[int], shift: Shift | None, total: int
) -> tuple[Array, Array, float]:
    """Return mean and standard deviation of the first ``total`` rows, and how likely their values were."""
    rows, values, kernel = process.rows, process.values, process.kernel
    known = np.flatnonzero(~np.isnan(values))
    slope = np.zeros(len(values))
    if shift is not None:
        plain = covariance(kernel, rows, rows.load, rows.gpus, None, None)
        shown, _ = _given(process, known[process.age[known] > 0], _without_shift(process), plain)
        slope = _slopes(shown, rows.load, counts, kernel)
    between = _with_shift(process, shift, slope)
    variance = covariance(kernel, rows, rows.load, rows.gpus, None, None)
    if shift is not None:
        moved = shift.fleet**2 + shift.workload**2 + shift.candidate**2
        variance = variance + (process.age.max() - process.age) * moved * slope**2
    mean, sd = _given(process, known, between, variance)
    return mean[:total], sd[:total], _likelihood(process, known, between)


Between = Callable[[Indices, Indices], Array]


def _without_shift(process: _Process) -> Between:
    def between(left: Indices, right: Indices) -> Array:
        return covariance(process.kernel, process.rows, process.rows.load, process.rows.gpus, left, right)

    return between


def _with_shift(process: _Process, shift: Shift | None, slope: Array) -> Between:
    """Return the covariance of rows, in which releases that came later have moved together."""
    plain, rows, age = _without_shift(process), process.rows, process.age
    if shift is None:
        return plain
    oldest = float(age.max())

    def between(left: Indices, right: Indices) -> Array:
        same_workload = rows.workload[left][:, None] == rows.workload[right][None, :]
        same_candidate = rows.candidate[left][:, None] == rows.candidate[right][None, :]
        moved = shift.fleet**2 + same_workload * shift.workload**2 + same_candidate * shift.candidate**2
        # Releases that both rows have gone through since the oldest.
        steps = oldest - np.maximum(age[left][:, None], age[right][None, :])
        result: Array = plain(left, right) + steps * moved * slope[left][:, None] * slope[right][None, :]
        return result

    return between


def _given(process: _Process, known: Indices, between: Between, variance: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of every row given the values of some, and each one's variance."""
    mean, spread = process.mean.copy(), variance.copy()
    off = process.values - process.mean
    for members, given in conditioning(process.rows, known):
        cross = between(members, given)
        factor = cho_factor(between(given, given) + np.diag(_noise(process, given)), lower=True)
        mean[members] = process.mean[members] + cross @ cho_solve(factor, off[given])
        spread[members] -= np.einsum("rk,kr->r", cross, cho_solve(factor, cross.T))
    return mean, np.sqrt(np.maximum(spread, 0.0) + process.kernel.noise**2)


def _noise(process: _Process, known: Indices) -> Array:
    """Return the variance of each value's noise: how far off a limit is, is the less certain the further."""
    beyond = np.maximum(process.values[known] - NEAR, 0.0)
    return process.kernel.noise**2 + (process.far_noise * beyond) ** 2


def _likelihood(process: _Process, known: Indices, between: Between) -> float:
    """Return ln p(values of the release that is planned | values of earlier ones)."""
    new = known[process.age[known] == 0]
    if not len(new):
        return 0.0
    old = known[process.age[known] > 0]
    if len(known) > MOST_SHARED:
        new, old = _sample(new, MOST_SHARED // 2), _sample(old, MOST_SHARED // 2)
    both = np.concatenate([old, new])
    return _log_density(process, both, between) - _log_density(process, old, between)


def _sample(rows: Indices, most: int) -> Indices:
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.int64)]


def _log_density(process: _Process, known: Indices, between: Between) -> float:
    if not len(known):
        return 0.0
    factor, lower = cho_factor(between(known, known) + np.diag(_noise(process, known)), lower=True)
    off = process.values[known] - process.mean[known]
    return float(
        -0.5 * off @ cho_solve((factor, lower), off)
        - np.log(np.diag(factor)).sum()
        - 0.5 * len(known) * np.log(2.0 * np.pi)
    )


def _slopes(mean: Array, load: Array, counts: Sequence[int], kernel: Kernel) -> Array:
    """Return by how much each row's value moves with ln(load): what a shift of the capacity does to it."""
    parts = []
    cuts = np.cumsum(counts)[:-1]
    sign = 1.0 if kernel.slope_load >= 0.0 else -1.0
    for values, x in zip(np.split(mean, cuts), np.split(load, cuts), strict=True):
        local = np.gradient(values, x) if len(x) > 1 else np.full(len(x), kernel.slope_load)
        parts.append(sign * np.maximum(sign * local, LEAST_SLOPE))
    return np.concatenate(parts)
