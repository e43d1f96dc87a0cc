"""Judge measurements against an SLO: met, missed, marginal, or refused by the engine.

A failed request counts as infinitely late. A limit is judged by its miss share where the measurement recorded
one for exactly this limit, else by the percentile over all sent requests. An empty sample meets nothing. With
a confidence, a verdict inside the noise is ``marginal``: it is evidence of nothing and asks for a repeat.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import betaincinv

from fleetsieve_airflow.core.spread import UNDECLARED, Noise
from fleetsieve_airflow.errors import EvidenceError
from fleetsieve_airflow.evidence import Measurement
from fleetsieve_airflow.records import PERCENTILES, DecisionSettings, LatencyLimit, Slo

Verdict = Literal["met", "missed", "marginal", "refused"]
#: Relative slack for comparing a metric with its limit, far below any clock's resolution.
EXACT = 1e-12


def binomial_bounds(misses: float, sent: int, confidence: float) -> tuple[float, float]:
    """Bound a miss probability from ``misses`` out of ``sent`` requests, each side at the given confidence.

    Clopper and Pearson's exact bounds (1934): the beta quantiles ``B(1-confidence; k, n-k+1)`` and
    ``B(confidence; k+1, n-k)``.

    :param confidence: one-sided coverage of each bound, in (0, 1).
    :return: (lower, upper), both in [0, 1].
    :raises EvidenceError: ``sent`` is 0; an empty sample bounds nothing and must not read as "meets the SLO".
    """
    if sent < 1:
        raise EvidenceError("No request was sent: an empty sample bounds no miss share.")
    lower = 0.0 if misses <= 0 else float(betaincinv(misses, sent - misses + 1, 1.0 - confidence))
    upper = 1.0 if misses >= sent else float(betaincinv(misses + 1, sent - misses, confidence))
    return lower, upper


@dataclass(frozen=True, slots=True)
class _Reading:
    """One limit's reading of one measurement.

    :param log_ratio: ln(metric / limit), > 0 where it is broken.
    :param sampled: standard deviation of ``log_ratio`` that follows from the number of requests alone.
    :param timed: whether ``log_ratio`` is one of latencies, not of shares.
    """

    name: str
    log_ratio: float
    misses: float | None
    sent: int | None
    allowed: float
    sampled: float = 0.0
    timed: bool = False


def judge(measurement: Measurement, slo: Slo, settings: DecisionSettings) -> Verdict:
    """Judge one measurement on its own.

    :raises EvidenceError: the measurement does not hold what the SLO asks about, or its sample is empty.
    """
    return judge_repeats([measurement], slo, settings)


def judge_repeats(
    measurements: Sequence[Measurement], slo: Slo, settings: DecisionSettings, noise: Noise | None = None
) -> Verdict:
    """Judge all measurements of one load together.

    Without a confidence each is judged alone and the strict majority decides; a tie is ``marginal``. With
    one, counts are pooled over the repeats and must clear the allowance, and the mean log ratio must lie
    further from the limit than the spread between runs (and, where counts are not known per limit, the number
    of requests) explains.

    :param noise: what single runs may differ by; without it the declared spread, at the spec's confidence.
    :raises EvidenceError: see :func:`judge`; also when there is no measurement at all.
    """
    if not measurements:
        raise EvidenceError("No measurement to judge.")
    if any(measurement.refused for measurement in measurements):
        return "refused"
    readings = [_readings(measurement, slo) for measurement in measurements]
    if settings.confidence is None:
        met = sum(all(reading.log_ratio <= EXACT for reading in row) for row in readings)
        if 2 * met == len(readings):
            return "marginal"
        return "met" if 2 * met > len(readings) else "missed"
    declared = settings.run_to_run_cv
    known = noise or Noise(settings.confidence, (), declared or UNDECLARED, declared > 0.0)
    verdicts = [_confident(limit, known) for limit in zip(*readings, strict=True)]
    if "missed" in verdicts:
        return "missed"
    return "marginal" if "marginal" in verdicts else "met"


def margin(measurement: Measurement, slo: Slo) -> float:
    """Return the worst ln(metric / limit) over an SLO's limits: negative when met, and how far.

    :raises EvidenceError: see :func:`judge`.
    """
    return max(reading.log_ratio for reading in _readings(measurement, slo))


def _confident(readings: Iterable[_Reading], noise: Noise) -> Verdict:
    """Judge one limit over all repeats: by its counts where there are any, and by the spread between runs."""
    rows = list(readings)
    allowed, spread = rows[0].allowed, noise.tail(rows[0].name)
    variance = sum(spread**2 + row.sampled**2 for row in rows) / len(rows) ** 2
    lowest, highest = math.inf, -math.inf
    if all(row.misses is not None and row.sent is not None for row in rows):
        misses, sent = sum(row.misses or 0.0 for row in rows), sum(row.sent or 0 for row in rows)
        lowest, highest = binomial_bounds(misses, sent, noise.confidence)
        timed = noise.counted and all(row.timed for row in rows)
        variance = spread**2 / len(rows) if timed else 0.0
    mean = sum(row.log_ratio for row in rows) / len(rows)
    reach = noise.reach * math.sqrt(variance)
    if mean + reach <= EXACT and highest <= allowed:
        return "met"
    return "missed" if mean - reach > EXACT and lowest > allowed else "marginal"


def _readings(measurement: Measurement, slo: Slo) -> list[_Reading]:
    if measurement.sent == 0:
        raise EvidenceError(f"{measurement.point.label}: no request was sent; an empty sample meets nothing.")
    rows = [_limit_reading(measurement, limit) for limit in slo.limits]
    if slo.success_rate is not None:
        rows.append(_success_reading(measurement, slo.success_rate))
    return rows


def _success_reading(measurement: Measurement, required: float) -> _Reading:
    if measurement.success_rate is None:
        raise EvidenceError(
            f"{measurement.point.label}: the SLO asks for a success rate, the measurement recorded none.",
            hint="Drop slo.success_rate or measure with a device that counts failures.",
        )
    failed, allowed = 1.0 - measurement.success_rate, 1.0 - required
    ratio = _share_margin(failed, allowed)
    misses = measurement.failed
    if misses is None and measurement.sent is not None:
        misses = round(failed * measurement.sent)
    return _Reading("success_rate", ratio, misses, measurement.sent, allowed)


def _limit_reading(measurement: Measurement, limit: LatencyLimit) -> _Reading:
    allowed = limit.allowed_miss_share
    value = measurement.percentile(limit.name)
    for share in measurement.miss_shares:
        if share.limit == limit.name and math.isclose(share.limit_s, limit.limit_s, rel_tol=1e-9):
            ratio = _share_margin(share.share, allowed)
            timed = value is not None and (value > limit.limit_s) == (ratio > EXACT)
            if value is not None and timed:
                ratio = math.log(max(value, 1e-9) / limit.limit_s)
            misses = None if measurement.sent is None else round(share.share * measurement.sent)
            return _Reading(limit.name, ratio, misses, measurement.sent, allowed, timed=timed)
    failed = 0.0 if measurement.success_rate is None else 1.0 - measurement.success_rate
    if failed > allowed + EXACT:  # so many failed that the percentile itself is infinite
        misses = None if measurement.sent is None else round(failed * measurement.sent)
        return _Reading(limit.name, _share_margin(failed, allowed), misses, measurement.sent, allowed)
    if value is None:
        raise EvidenceError(
            f"{measurement.point.label}: the SLO limits {limit.name}, the measurement did not record it.",
            hint="Limit a percentile that is measured, or measure this one.",
        )
    ratio = math.log(max(value, 1e-9) / limit.limit_s)
    return _Reading(limit.name, ratio, None, None, allowed, sampling_spread(measurement, limit))


def sampling_spread(measurement: Measurement, limit: LatencyLimit) -> float:
    """Return the standard deviation of ln(percentile) that the number of requests sent alone makes.

    Of n requests the share beyond a percentile p varies by ``sqrt(p (1 - p) / n)``, and the latency moves
    with the logarithm of that share as it does from the next lower percentile recorded to this one (exact for
    Pareto tails). 0 where the requests were not counted or no lower percentile was recorded.
    """
    below = [
        (percentile, value)
        for percentile in PERCENTILES
        if percentile < limit.percentile
        and (value := measurement.percentile(f"{limit.metric}_p{percentile}_s")) is not None
    ]
    own = measurement.percentile(limit.name)
    if not measurement.sent or not below or own is None or min(own, below[-1][1]) <= 0.0:
        return 0.0
    percentile, value = below[-1]
    beyond = limit.allowed_miss_share
    slope = math.log(max(own / value, 1.0)) / math.log((1.0 - percentile / 100.0) / beyond)
    return slope * math.sqrt((1.0 - beyond) / (beyond * measurement.sent))


def _share_margin(share: float, allowed: float) -> float:
    """Return a share's distance from its allowance on the scale of ln(latency / limit): > 0 when broken.

    Past saturation the share served falls like capacity / load while latencies grow with a power of load /
    capacity, so ln((1 - allowed) / (1 - share)) is that distance up to a factor; below the allowance there is
    little to tell.
    """
    if abs(share - allowed) <= EXACT:
        return 0.0
    if share < allowed:
        return -0.05 - 0.5 * (1.0 - share / allowed)
    return max(0.05, 1.5 * math.log((1.0 - allowed) / max(1.0 - share, 1e-3)))
