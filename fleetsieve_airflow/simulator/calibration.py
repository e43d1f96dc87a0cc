"""Calibration: a few constants fitted on the cheapest measurements of a stack, and how far off it still is.

A fit of five numbers on two or three measurements would follow their noise, so every constant is held to its
default by what is known of how far stacks differ (a ridge in the logarithm). What the fit cannot explain is
kept as quantiles of observed over simulated, per metric; they turn a simulated capacity into an interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from fleetsieve_airflow.simulator.arrivals import Requests
from fleetsieve_airflow.simulator.curves import FloatArray, PerfDataError
from fleetsieve_airflow.simulator.engine import Constants, EngineModel
from fleetsieve_airflow.simulator.events import Outcome
from fleetsieve_airflow.simulator.pools import AnyEngine, SplitEngine, serve

Engine = TypeVar("Engine", EngineModel, SplitEngine, AnyEngine)
#: How far each constant may plausibly be from its default: standard deviation of its natural logarithm.
PLAUSIBLE = {
    "prefill_scale": 0.5,
    "decode_scale": 0.35,
    "step_overhead_s": 1.2,
    "sequence_overhead_s": 1.5,
    "request_overhead_s": 1.5,
}
#: Standard deviation of the logarithm of one measured value: run-to-run noise and what no constant explains.
NOISE = {"ttft": 0.15, "tpot": 0.04, "e2e": 0.04, "served": 0.04}
TAIL_NOISE = 2.0
ORIGIN = 10.0
#: Residuals of an uncalibrated simulator over many stacks: 90 % of observed latencies lie within this factor.
UNCALIBRATED_FACTOR = 1.6
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
#: The narrowest residual band that is claimed, as a factor: a handful of points cannot promise less.
NARROWEST_FACTOR = 1.08


@dataclass(frozen=True, slots=True)
class Observation:
    """What was measured of one replica, and the requests it was measured with.

    :param values: name -> value; names are ``served_rps``, and ``ttft``, ``tpot``, ``e2e`` with ``_mean_s``
        or a percentile, e.g. ``e2e_p99_s``.
    """

    engine: AnyEngine
    requests: Requests
    values: tuple[tuple[str, float], ...]
    window_s: float | None = None

    def simulated(self, constants: Constants) -> tuple[float, ...]:
        """Return the same values as the simulator gives them under some constants."""
        outcome = serve(self.engine.with_constants(constants), self.requests, window_s=self.window_s)
        return tuple(value_of(outcome, name, ranks_of(self.engine)) for name, _ in self.values)


@dataclass(frozen=True, slots=True)
class Residual:
    """Observed over simulated, as quantiles (:data:`QUANTILES`), for one metric."""

    metric: str
    quantiles: tuple[float, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted constants and what they leave unexplained."""

    constants: Constants
    residuals: tuple[Residual, ...]
    observations: int

    def band(self) -> tuple[float, float]:
        """Return factors on simulated times between which 90 % of observed ones lie, over all latencies.

        Never narrower than :data:`NARROWEST_FACTOR`, and wider the fewer observations there are.
        """
        if not self.residuals:
            return 1.0 / UNCALIBRATED_FACTOR, UNCALIBRATED_FACTOR
        least = NARROWEST_FACTOR ** (1.0 + 3.0 / max(1, self.observations))
        low = min(1.0 / least, *(item.quantiles[0] for item in self.residuals))
        return low, max(least, *(item.quantiles[-1] for item in self.residuals))


def value_of(outcome: Outcome, name: str, ranks: int = 1) -> float:
    """Return one value of a run by its name.

    :raises PerfDataError: the name is none of those an observation may hold.
    """
    if name == "served_rps":
        served = len(outcome.e2e_s) - outcome.failed
        return ranks * served / outcome.end_s if outcome.end_s > 0 else 0.0
    metric, _, statistic = name.removesuffix("_s").partition("_")
    if metric not in ("ttft", "tpot", "e2e"):
        raise PerfDataError(
            f"Unknown observed value {name!r}; known: served_rps, ttft, tpot, e2e as in e2e_p99_s."
        )
    if statistic == "mean":
        return outcome.mean(metric)
    return outcome.percentile(metric, float(statistic.removeprefix("p")))


def calibrate(observations: Sequence[Observation], start: Constants | None = None) -> Calibration:
    """Fit the constants to observations and keep the residuals.

    :raises PerfDataError: an observation holds no positive number.
    """
    start = start or Constants()
    if not observations:
        return Calibration(start, (), 0)
    for observation in observations:
        for name, value in observation.values:
            if not (math.isfinite(value) and value > 0.0):
                raise PerfDataError(f"An observation's {name} must be a positive number, got {value}.")
    constants = fit_constants(observations, start)
    return Calibration(constants, residuals(observations, constants), len(observations))


def fit_constants(observations: Sequence[Observation], start: Constants) -> Constants:
    """Return the constants that best explain the observations and stay plausible."""
    from scipy.optimize import least_squares

    names = list(PLAUSIBLE)
    spread = np.array([PLAUSIBLE[name] for name in names])

    def constants_at(moved: FloatArray) -> Constants:
        factors = np.exp(moved * spread)
        return replace(
            start,
            **{
                name: getattr(start, name) * float(factor)
                for name, factor in zip(names, factors, strict=True)
            },
        )

    def misfit(shifted: FloatArray) -> FloatArray:
        moved = np.asarray(shifted - ORIGIN, dtype=float)
        constants = constants_at(moved)
        errors = [
            math.log(max(value, 1e-9) / observed) / _noise(name)
            for observation in observations
            for value, (name, observed) in zip(
                observation.simulated(constants), observation.values, strict=True
            )
        ]
        return np.array([*(min(max(error, -50.0), 50.0) for error in errors), *moved])

    first = np.array([_first_guess(observations, start, name) for name in names]) / spread
    # Steps of a discrete simulation are not smooth: differences are taken over a tenth of what is plausible.
    # The solver takes them relative to the unknowns, so those are counted from ORIGIN instead of from 0.
    found = least_squares(
        misfit,
        first + ORIGIN,
        diff_step=[0.1 / ORIGIN] * len(names),
        loss="soft_l1",
        max_nfev=6,
    )
    return constants_at(found.x - ORIGIN)


def _first_guess(observations: Sequence[Observation], start: Constants, name: str) -> float:
    """Return where to start a scale: the log of observed over simulated of the latency it governs most."""
    metric = {"prefill_scale": "ttft", "decode_scale": "tpot"}.get(name)
    ratios = [
        math.log(observed / value)
        for observation in observations
        for value, (found, observed) in zip(observation.simulated(start), observation.values, strict=True)
        if metric is not None and found.startswith(metric) and 0.0 < value < math.inf
    ]
    return float(np.clip(np.median(ratios), -1.0, 1.0)) if ratios else 0.0


def residuals(observations: Iterable[Observation], constants: Constants) -> tuple[Residual, ...]:
    """Return observed over simulated by metric (all percentiles of a latency together)."""
    ratios: dict[str, list[float]] = {}
    for observation in observations:
        for value, (name, observed) in zip(observation.simulated(constants), observation.values, strict=True):
            if name != "served_rps" and 0.0 < value < math.inf:
                ratios.setdefault(name.partition("_")[0], []).append(observed / value)
    return tuple(
        Residual(metric, tuple(float(value) for value in np.quantile(found, QUANTILES)), len(found))
        for metric, found in sorted(ratios.items())
    )


def ranks_of(engine: AnyEngine) -> int:
    """Return how many ranks share a replica's requests, of which a run of it is one."""
    return 1 if isinstance(engine, SplitEngine) else engine.plan.dp


def slowed(engine: Engine, factor: float) -> Engine:
    """Return a replica all of whose times are ``factor`` times as long."""
    constants = engine.constants
    return engine.with_constants(
        Constants(**{field.name: getattr(constants, field.name) * factor for field in fields(Constants)})
    )


def _noise(name: str) -> float:
    metric = name.partition("_")[0]
    return NOISE[metric] * (TAIL_NOISE if "_p9" in name else 1.0)
