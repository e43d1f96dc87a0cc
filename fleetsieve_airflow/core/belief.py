"""What to expect of loads not yet measured. It guides what is measured next and never carries a certificate.

Two Gaussian processes over all candidates of the fleet: one on the margin ln(worst metric / limit), one on
the log of the served rate per unit of load. Each has a linear mean over ln load and ln GPUs with priors that
say little, plus a smooth residual per workload and per candidate, so that one measurement informs other
loads, other degrees, and (weakly) other workloads. Before anything is measured, a replica is expected to
carry its GPUs' share of the demand: fleets are planned where demand and GPUs are of one order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr

from fleetsieve_airflow.core.allocation import Problem
from fleetsieve_airflow.core.ladder import Ladder

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
#: Up to so many measurements are used for every prediction of the fleet.
MOST_SHARED = 200


@dataclass(frozen=True, slots=True)
class Kernel:
    """Standard deviations of one process's parts, and the slopes of its mean.

    :param slope_load, slope_gpus: prior mean slopes over ln load and ln GPUs.
    :param fleet, workload, candidate: intercepts shared by the fleet, by a workload's candidates, by one
        candidate.
    :param slope_sd: of both slopes, half of it shared by the fleet.
    :param residual: smooth deviation from the line, over one e-fold of load or GPUs.
    """

    slope_load: float
    slope_gpus: float
    fleet: float
    workload: float
    candidate: float
    slope_sd: float
    residual: float
    noise: float


#: Open loop: latency explodes near capacity, so margins rise steeply with load, from zero at the guessed
#: capacity.
OPEN_MARGIN = Kernel(1.5, 0.0, 0.5, 0.7, 0.25, 0.6, 0.35, 0.05)
#: Closed loop: tails grow about as the cube root of users per GPU; slopes and spreads are those of public
#: grids at large.
CLOSED_MARGIN = Kernel(0.35, -0.35, 0.4, 0.6, 0.05, 0.2, 0.15, 0.05)
#: ln(rate / concurrency) falls with concurrency and rises with GPUs by about the same power.
CLOSED_RATE = Kernel(-0.33, 0.34, 0.4, 0.5, 0.03, 0.12, 0.13, 0.03)
#: Prior ln(tail / limit) of a workload's largest replica at its lowest load: limits are set to be reachable,
#: with some room.
EASIEST_MARGIN = -1.3


@dataclass(frozen=True, slots=True)
class Belief:
    """Per ladder and load: the probability that the load is met, and the expected rate in req/s.

    Both lists run over ladders; ``met`` never rises along a ladder and is 1 / 0 where the verdict is implied.
    """

    met: list[Array]
    rate: list[Array]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a process, one per load of each ladder.

    :param load: ln of the load over the workload's lowest load.  # (rows,)
    :param gpus: ln of the replica's GPUs over the workload's largest replica.  # (rows,)
    """

    workload: Indices
    candidate: Indices
    load: Array
    gpus: Array


def believe(problem: Problem, ladders: Sequence[Ladder]) -> Belief:
    """Predict every load of every ladder from all that is measured, and nothing else (see :mod:`.priors`)."""
    if not ladders:
        return Belief([], [])
    inputs, guess = rows_of(problem, ladders)
    open_loop = ladders[0].candidate.load_kind == "offered_load_rps"
    margins = np.array([np.nan if m is None else m for ladder in ladders for m in ladder.margins])
    loads = np.concatenate([np.array(ladder.candidate.loads) for ladder in ladders])
    if open_loop:
        mean, sd = _posterior(OPEN_MARGIN, replace(inputs, load=np.log(loads) - guess), 0.0, margins)
        rate = loads
    else:
        mean, sd = _posterior(CLOSED_MARGIN, inputs, EASIEST_MARGIN, margins)
        rates, anchor = anchored_rates(inputs, np.log(loads), guess, ladders)
        rate = loads * np.exp(anchor + _posterior(CLOSED_RATE, inputs, 0.0, rates)[0])
    met = ndtr(-mean / sd)
    cuts = np.cumsum([len(ladder.candidate.loads) for ladder in ladders])[:-1]
    return Belief(
        [implied(ladder, row) for ladder, row in zip(ladders, np.split(met, cuts), strict=True)],
        [bounded(ladder, row) for ladder, row in zip(ladders, np.split(rate, cuts), strict=True)],
    )


def rows_of(
    problem: Problem, ladders: Sequence[Ladder], guesses: Mapping[tuple[str, str], float] | None = None
) -> tuple[Rows, Array]:
    """Return the rows, and per row the ln capacity guessed for its candidate before anything is measured.

    :param guesses: ln capacity by workload and config, in place of the GPUs' share of the demand.
    """
    counts = [len(ladder.candidate.loads) for ladder in ladders]
    total, workloads = sum(problem.totals), len(problem.names)
    share = [
        (guesses or {}).get(
            (ladder.candidate.workload, ladder.candidate.config),
            np.log(problem.demands[ladder.workload] * workloads * ladder.gpus / total),
        )
        for ladder in ladders
    ]
    lowest = {
        w: min(ladder.candidate.loads[0] for ladder in ladders if ladder.workload == w)
        for w in {ladder.workload for ladder in ladders}
    }
    largest = {w: max(ladder.gpus for ladder in ladders if ladder.workload == w) for w in lowest}
    return (
        Rows(
            workload=np.repeat([ladder.workload for ladder in ladders], counts),
            candidate=np.repeat(np.arange(len(ladders)), counts),
            load=np.concatenate(
                [np.log(np.array(row.candidate.loads) / lowest[row.workload]) for row in ladders]
            ),
            gpus=np.repeat([np.log(ladder.gpus / largest[ladder.workload]) for ladder in ladders], counts),
        ),
        np.repeat(share, counts),
    )


def anchored_rates(
    inputs: Rows, log_loads: Array, guess: Array, ladders: Sequence[Ladder]
) -> tuple[Array, Array]:
    """Return measured ln(rate / concurrency) over an anchor, and the anchor of each row.

    At the anchor, the guess is served where the limit is expected.
    """
    measured = np.array(
        [
            np.nan if rate is None else np.log(max(0.5 * (rate[0] + rate[1]), 1e-9) / load)
            for ladder in ladders
            for rate, load in zip(ladder.rates, ladder.candidate.loads, strict=True)
        ]
    )
    limit = (
        -(EASIEST_MARGIN + CLOSED_MARGIN.slope_gpus * inputs.gpus) / CLOSED_MARGIN.slope_load
    )  # ln load there
    starts = np.cumsum([0, *(len(ladder.candidate.loads) for ladder in ladders)])
    for start, stop in pairwise(starts):
        limit[start:stop] = np.clip(limit[start], inputs.load[start], inputs.load[stop - 1])
    base = log_loads - inputs.load  # ln of the workload's lowest load
    anchor: Array = (
        guess - (base + limit) - CLOSED_RATE.slope_load * limit - CLOSED_RATE.slope_gpus * inputs.gpus
    )
    return measured - anchor, anchor


def _posterior(kernel: Kernel, rows: Rows, level: float, values: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of a process at every row, given ``values`` (NaN: not measured).

    :param level: prior mean where ln load and ln GPUs of the rows are zero.
    """
    load, gpus = rows.load, rows.gpus
    prior = level + kernel.slope_load * load + kernel.slope_gpus * gpus
    known = np.flatnonzero(~np.isnan(values))
    variance = covariance(kernel, rows, load, gpus, None, None)
    mean, spread = prior.copy(), variance.copy()
    for members, given in conditioning(rows, known):
        inner = covariance(kernel, rows, load, gpus, given, given)  # (given, given)
        cross = covariance(kernel, rows, load, gpus, members, given)  # (members, given)
        factor = cho_factor(inner + kernel.noise**2 * np.eye(len(given)), lower=True)
        mean[members] = prior[members] + cross @ cho_solve(factor, values[given] - prior[given])
        spread[members] -= np.einsum("rk,kr->r", cross, cho_solve(factor, cross.T))
    return mean, np.sqrt(np.maximum(spread, 0.0) + kernel.noise**2)


def conditioning(rows: Rows, known: Indices) -> list[tuple[Indices, Indices]]:
    """Return which rows are predicted from which measured ones.

    Few measurements inform everything. Many would cost their cube: then a workload is predicted from its own
    and an even sample of the others, which is all that the shared slopes need.
    """
    everything = np.arange(len(rows.workload))
    if not len(known):
        return []
    if len(known) <= MOST_SHARED:
        return [(everything, known)]
    parts = []
    for w in np.unique(rows.workload):
        own = rows.workload[known] == w
        others = known[~own]
        sample = others[np.linspace(0, len(others) - 1, min(len(others), MOST_SHARED // 2)).astype(np.int64)]
        parts.append((everything[rows.workload == w], np.sort(np.concatenate([known[own], sample]))))
    return parts


def covariance(
    kernel: Kernel,
    rows: Rows,
    load: Array,
    gpus: Array,
    left: Indices | None,
    right: Indices | None,
) -> Array:
    """Return the covariance between rows; with both sides None, the variance of each row."""
    if left is None and right is None:
        slopes = kernel.slope_sd**2 * (load**2 + gpus**2)
        level = kernel.fleet**2 + kernel.workload**2 + kernel.candidate**2 + 1.5 * kernel.residual**2
        variance: Array = level + slopes
        return variance
    a = slice(None) if left is None else left
    b = slice(None) if right is None else right
    same_workload = rows.workload[a][:, None] == rows.workload[b][None, :]
    same_candidate = rows.candidate[a][:, None] == rows.candidate[b][None, :]
    x, y = load[a][:, None], gpus[a][:, None]
    u, v = load[b][None, :], gpus[b][None, :]
    far = np.exp(-0.5 * ((x - u) ** 2 + (y - v) ** 2))
    shared = 0.5 * kernel.slope_sd**2 * (x * u + y * v)
    result: Array = (
        kernel.fleet**2
        + shared
        + same_workload * (kernel.workload**2 + shared + kernel.residual**2 * far)
        + same_candidate * (kernel.candidate**2 + 0.5 * kernel.residual**2 * far)
    )
    return result


def implied(ladder: Ladder, met: Array) -> Array:
    """Make beliefs follow what is known: 1 up to the highest met load, 0 past the open ones, never rising."""
    result = np.minimum.accumulate(np.clip(met, 1e-3, 1.0 - 1e-3))
    result[: ladder.met_upto + 1] = 1.0
    result[ladder.open_upto + 1 :] = 0.0
    return result


def bounded(ladder: Ladder, rate: Array) -> Array:
    """Keep expected rates inside what is known of them, never falling along the ladder."""
    lower = [ladder.rate_lower(j) for j in range(len(rate))]
    upper = [ladder.rate_upper(j) for j in range(len(rate))]
    result: Array = np.maximum.accumulate(np.clip(rate, lower, upper))
    return result
