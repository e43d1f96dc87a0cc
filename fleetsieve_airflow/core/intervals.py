"""Fit capacity intervals: what the evidence proves of each candidate, each bound with its source.

Only sources named under ``certify_on`` may move a bound here. Bounds never widen when evidence is added,
unless it contradicts what was known; a contradiction makes the span between the loads unknown again and is
named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fleetsieve_airflow.core.ladder import Ladder, ladders_of
from fleetsieve_airflow.core.tails import tail_intervals
from fleetsieve_airflow.evidence import Bound, CapacityInterval, Evidence, PriorCapacity
from fleetsieve_airflow.records import FleetSpec, Source

#: Fewest degrees over which a single peak says anything.
LEAST_DEGREES = 3


def fit_intervals(
    spec: FleetSpec, evidence: Evidence, ladders: tuple[Ladder, ...] | None = None
) -> tuple[CapacityInterval, ...]:
    """Fit the capacity interval of every candidate that can run, in the spec's order.

    :param ladders: the evidence as :func:`~fleetsieve_airflow.core.ladder.ladders_of` reads it, if at hand.
    :raises EvidenceError: a measurement lacks what the SLO asks about.
    """
    ladders = ladders_of(spec, evidence) if ladders is None else ladders
    tails = tail_intervals(spec, evidence, ladders)
    intervals = [
        replace(interval_of(ladder), tails=tail) for ladder, tail in zip(ladders, tails, strict=True)
    ]
    intervals = _apply_priors(spec, intervals, evidence.priors)
    if spec.decision.interior_peak and "interior_peak" in spec.decision.certify_on:
        intervals = [interval for interval, _ in apply_interior_peak(spec, intervals)]
    return tuple(intervals)


def interval_of(ladder: Ladder) -> CapacityInterval:
    """Return the interval that one ladder's own measurements prove."""
    low, high = ladder.met_upto, ladder.open_upto
    loads = ladder.candidate.loads
    lower = Bound(value_rps=ladder.capacity_lower, source="none")
    if low >= 0:
        lower = Bound(value_rps=ladder.capacity_lower, source="measured", evidence=ladder.keys[low])
    elif high < 0:
        lower = Bound(value_rps=0.0, source="measured", evidence=_all_keys(ladder))
    return CapacityInterval(
        workload=ladder.candidate.workload,
        config=ladder.candidate.config,
        lower=lower,
        upper=_upper(ladder, low, high),
        operating_load=loads[low] if low >= 0 else None,
        contradiction=tuple(loads[j] for j in ladder.contradiction),
    )


def _upper(ladder: Ladder, low: int, high: int) -> Bound:
    value = ladder.capacity_upper
    if ladder.refused:
        return Bound(value_rps=0.0, source="measured", evidence=_all_keys(ladder))
    if not math.isfinite(value):
        return Bound(value_rps=None, source="none")
    closing = ladder.keys[high + 1] if high + 1 < len(ladder.keys) else ()
    if high == low:
        return Bound(
            value_rps=value,
            source="measured",
            evidence=(*ladder.keys[low], *closing) if low >= 0 else closing,
        )
    if ladder.candidate.load_kind == "concurrency" and ladder.rates[high] is None:
        rated = tuple(
            key for keys, rate in zip(ladder.keys, ladder.rates, strict=True) if rate for key in keys
        )
        return Bound(
            value_rps=value,
            source="closed_loop",
            evidence=(*rated, *(key for key in closing if key not in rated)),
        )
    if closing:
        return Bound(value_rps=value, source="monotone", evidence=closing)
    return Bound(value_rps=value, source="ladder")


def _all_keys(ladder: Ladder) -> tuple[str, ...]:
    return tuple(key for keys in ladder.keys for key in keys)


def _apply_priors(
    spec: FleetSpec, intervals: Sequence[CapacityInterval], priors: Sequence[PriorCapacity]
) -> list[CapacityInterval]:
    """Narrow intervals by priors that may certify.

    One that leaves nothing of an interval is wrong, and takes all of its source's priors for that workload
    with it.
    """
    narrowed = {(interval.workload, interval.config): interval for interval in intervals}
    usable = [
        prior
        for prior in priors
        if prior.source in spec.decision.certify_on and (prior.workload, prior.config) in narrowed
    ]
    refuted = {
        (prior.source, prior.workload)
        for prior in usable
        if not _overlap(narrowed[prior.workload, prior.config], prior)
    }
    for prior in usable:
        if (prior.source, prior.workload) not in refuted:
            key = (prior.workload, prior.config)
            upper = math.inf if prior.upper_rps is None else prior.upper_rps
            narrowed[key] = _narrow(narrowed[key], prior.lower_rps, upper, prior.source)
    return list(narrowed.values())


def _overlap(interval: CapacityInterval, prior: PriorCapacity) -> bool:
    lower, upper = interval.lower.value_rps or 0.0, interval.upper.value_rps
    return (upper is None or prior.lower_rps <= upper) and (
        prior.upper_rps is None or prior.upper_rps >= lower
    )


def _narrow(interval: CapacityInterval, lower: float, upper: float, source: Source) -> CapacityInterval:
    old_lower = interval.lower.value_rps or 0.0
    old_upper = math.inf if interval.upper.value_rps is None else interval.upper.value_rps
    if lower > old_upper or upper < old_lower:  # another source's prior may have left nothing to this one
        return interval
    if lower > old_lower:
        interval = replace(interval, lower=Bound(value_rps=lower, source=source))
    if upper < old_upper:
        interval = replace(interval, upper=Bound(value_rps=upper, source=source))
    return interval


def apply_interior_peak(
    spec: FleetSpec, intervals: Sequence[CapacityInterval]
) -> list[tuple[CapacityInterval, str]]:
    """Narrow intervals by assuming that capacity per GPU rises to one peak over the degrees, then falls.

    For degrees a < b < c: ``x_b >= min(x_a, x_c)`` with ``x = capacity / gpus``; past a proved fall it only
    falls. Where the evidence contradicts the assumption for a workload, it is dropped there.

    :return: each interval with a warning, empty where the assumption stood.
    """
    result = {interval.label: (interval, "") for interval in intervals}
    for workload in spec.workloads:
        row = sorted(
            (
                interval
                for interval in intervals
                if interval.workload == workload.name and not spec.config(interval.config).disaggregated
            ),
            key=lambda interval: spec.config(interval.config).gpus,
        )
        gpus = [spec.config(interval.config).gpus for interval in row]
        if len(set(gpus)) < len(gpus) or len(row) < LEAST_DEGREES:
            continue  # two configs of one size have no order over the degrees
        low = [(i.lower.value_rps or 0.0) / g for i, g in zip(row, gpus, strict=True)]
        high = [
            math.inf if i.upper.value_rps is None else i.upper.value_rps / g
            for i, g in zip(row, gpus, strict=True)
        ]
        new_low, new_high = _peak_bounds(low, high)
        if any(lo > hi * (1 + 1e-9) for lo, hi in zip(new_low, new_high, strict=True)):
            warning = (
                f"{workload.name}: capacity per GPU has no single peak over the degrees; "
                "the assumption was dropped."
            )
            result.update({i.label: (i, warning) for i in row})
            continue
        for interval, g, lo, hi in zip(row, gpus, new_low, new_high, strict=True):
            result[interval.label] = (_narrow(interval, lo * g, hi * g, "interior_peak"), "")
    return [result[interval.label] for interval in intervals]


def _peak_bounds(low: list[float], high: list[float]) -> tuple[list[float], list[float]]:
    """Return the bounds per GPU that unimodality implies, degrees ascending."""
    n = len(low)
    new_low, new_high = list(low), list(high)
    for b in range(n):
        left, right = max(low[:b], default=0.0), max(low[b + 1 :], default=0.0)
        new_low[b] = max(low[b], min(left, right))
        # Some earlier degree certainly beats an even earlier one's ceiling, or a later one's: walk from a
        # proved fall.
        for a in range(b):
            if max(low[:a], default=0.0) > high[a]:
                new_high[b] = min(new_high[b], high[a])
        for c in range(b + 1, n):
            if max(low[c + 1 :], default=0.0) > high[c]:
                new_high[b] = min(new_high[b], high[c])
    return new_low, new_high
