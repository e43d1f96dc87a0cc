"""What to expect of loads not yet measured. It guides what is measured next and never carries a certificate.

Two Gaussian processes over all candidates of the fleet: one on the margin ln(worst metric / limit), one on the log of the
served rate per unit of load. Each has a linear mean over ln load and ln GPUs with priors that say little, plus a smooth
residual per workload and per candidate, so that one measurement informs other loads, other degrees, and (weakly) other
workloads. Before anything is measured, a replica is expected to carry its GPUs' share of the demand: fleets are planned
where demand and GPUs are of one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr

from fleetsieve_airflow.core.allocation import Problem
from fleetsieve_airflow.core.ladder import Ladder
from fleetsieve_airflow.evidence import PriorCapacity

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Standard deviations of one process's parts, and the slopes of its mean.

    :param slope_load, slope_gpus: prior mean slopes over ln load and ln GPUs.
    :param fleet, workload, candidate: intercepts shared by the fleet, by a workload's candidates, by one candidate.
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


#: Open loop: latency explodes near capacity, so margins rise steeply with load.
OPEN_MARGIN = Kernel(1.5, -1.5, 0.5, 0.7, 0.25, 0.6, 0.35, 0.03)
#: Closed loop: latency grows at most like the concurrency.
CLOSED_MARGIN = Kernel(0.5, -0.5, 0.6, 0.8, 0.08, 0.2, 0.12, 0.02)
#: ln(rate / concurrency) falls slowly with concurrency and rises with GPUs.
CLOSED_RATE = Kernel(-0.4, 0.4, 0.5, 0.6, 0.08, 0.2, 0.1, 0.01)


@dataclass(frozen=True, slots=True)
class Belief:
    """Per ladder and load: the probability that the load is met, and the expected rate in req/s.

    Both lists run over ladders; ``met`` never rises along a ladder and is 1 / 0 where the verdict is implied.
    """

    met: list[Array]
    rate: list[Array]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Rows of a process: one per load of each ladder."""

    workload: NDArray[np.int64]
    candidate: NDArray[np.int64]
    load: Array
    gpus: Array


def believe(problem: Problem, ladders: Sequence[Ladder], priors: Sequence[PriorCapacity] = ()) -> Belief:
    """Predict every load of every ladder from all that is measured.

    :param priors: capacities believed before measuring; they replace the share-of-demand guess of their candidate.
    """
    if not ladders:
        return Belief([], [])
    inputs, guess = _inputs(problem, ladders, priors)
    open_loop = ladders[0].candidate.load_kind == "offered_load_rps"
    margins = np.array([np.nan if m is None else m for ladder in ladders for m in ladder.margins])
    kernel = OPEN_MARGIN if open_loop else CLOSED_MARGIN
    mean, sd = _posterior(kernel, inputs, inputs.load - guess if open_loop else _centred(inputs.load), margins)
    met = ndtr(-mean / sd)
    loads = np.concatenate([np.array(ladder.candidate.loads) for ladder in ladders])
    rate = loads if open_loop else loads * np.exp(_log_rates(inputs, guess, ladders))
    cuts = np.cumsum([len(ladder.candidate.loads) for ladder in ladders])[:-1]
    return Belief(
        [_implied(ladder, row) for ladder, row in zip(ladders, np.split(met, cuts), strict=True)],
        [_bounded(ladder, row) for ladder, row in zip(ladders, np.split(rate, cuts), strict=True)],
    )


def _inputs(problem: Problem, ladders: Sequence[Ladder], priors: Sequence[PriorCapacity]) -> tuple[_Inputs, Array]:
    """Return the rows, and per row the ln capacity guessed for its candidate before anything is measured."""
    counts = [len(ladder.candidate.loads) for ladder in ladders]
    total, workloads = sum(problem.totals), len(problem.names)
    believed = {(p.workload, p.config): 0.5 * (np.log(max(p.lower_rps, 1e-9)) + np.log(p.upper_rps)) for p in priors}
    share = [
        believed.get(
            (ladder.candidate.workload, ladder.candidate.config),
            np.log(problem.demands[ladder.workload] * workloads * ladder.gpus / total),
        )
        for ladder in ladders
    ]
    return (
        _Inputs(
            workload=np.repeat([ladder.workload for ladder in ladders], counts),
            candidate=np.repeat(np.arange(len(ladders)), counts),
            load=np.log(np.concatenate([np.array(ladder.candidate.loads) for ladder in ladders])),
            gpus=np.repeat(np.log([ladder.gpus for ladder in ladders]), counts),
        ),
        np.repeat(share, counts),
    )


def _centred(values: Array) -> Array:
    result: Array = values - 0.5 * (values.min() + values.max())
    return result


def _log_rates(inputs: _Inputs, guess: Array, ladders: Sequence[Ladder]) -> Array:
    """Predict ln(rate / concurrency), anchored so that a ladder's middle serves the guessed capacity."""
    measured = np.array(
        [
            np.nan if rate is None else np.log(max(0.5 * (rate[0] + rate[1]), 1e-9) / load)
            for ladder in ladders
            for rate, load in zip(ladder.rates, ladder.candidate.loads, strict=True)
        ]
    )
    centre = 0.5 * (inputs.load.min() + inputs.load.max())
    # the kernel's slope over GPUs is already part of the guess
    anchor = guess - centre - CLOSED_RATE.slope_gpus * _centred(inputs.gpus)
    mean, _ = _posterior(CLOSED_RATE, inputs, _centred(inputs.load), measured - anchor)
    result: Array = mean + anchor
    return result


def _posterior(kernel: Kernel, rows: _Inputs, load: Array, values: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of a process at every row, given ``values`` (NaN: not measured).

    :param load: ln load relative to where the prior mean is zero.  # (rows,)
    """
    gpus = _centred(rows.gpus)
    prior = kernel.slope_load * load + (kernel.slope_gpus * gpus if kernel is not OPEN_MARGIN else 0.0)
    known = np.flatnonzero(~np.isnan(values))
    variance = _covariance(kernel, rows, load, gpus, None, None)
    if not len(known):
        return prior, np.sqrt(variance)
    inner = _covariance(kernel, rows, load, gpus, known, known)  # (known, known)
    cross = _covariance(kernel, rows, load, gpus, None, known)  # (rows, known)
    factor = cho_factor(inner + kernel.noise**2 * np.eye(len(known)), lower=True)
    mean = prior + cross @ cho_solve(factor, values[known] - prior[known])
    shrink = np.einsum("rk,kr->r", cross, cho_solve(factor, cross.T))
    return mean, np.sqrt(np.maximum(variance - shrink, 0.0) + kernel.noise**2)


def _covariance(
    kernel: Kernel, rows: _Inputs, load: Array, gpus: Array, left: NDArray[np.int64] | None, right: NDArray[np.int64] | None
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


def _implied(ladder: Ladder, met: Array) -> Array:
    """Make beliefs follow what is known: 1 up to the highest met load, 0 past the open ones, never rising between."""
    result = np.minimum.accumulate(np.clip(met, 1e-3, 1.0 - 1e-3))
    result[: ladder.met_upto + 1] = 1.0
    result[ladder.open_upto + 1 :] = 0.0
    return result


def _bounded(ladder: Ladder, rate: Array) -> Array:
    """Keep expected rates inside what is known of them, never falling along the ladder."""
    lower = [ladder.rate_lower(j) for j in range(len(rate))]
    upper = [ladder.rate_upper(j) for j in range(len(rate))]
    result: Array = np.maximum.accumulate(np.clip(rate, lower, upper))
    return result
