"""Tail intervals: bounds in seconds on every limited latency percentile at every load of a candidate.

``monotone`` bounds follow from the neighbours measured (a tail does not fall as load grows); ``interpolated``
ones from log-log interpolation of the isotonic fit, with a band calibrated by leave-one-out residuals over
all candidates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from fleetsieve_airflow.core.ladder import Ladder
from fleetsieve_airflow.core.spread import isotonic
from fleetsieve_airflow.evidence import Evidence, TailInterval
from fleetsieve_airflow.records import FleetSpec

#: Share of leave-one-out residuals that the band around an interpolated tail covers.
BAND_COVERAGE = 0.9
#: Fewest residuals that a coverage can be stated from.
LEAST_RESIDUALS = 4

Curve = list[tuple[float, float]]  # (ln load, ln seconds), loads ascending


def tail_intervals(
    spec: FleetSpec, evidence: Evidence, ladders: Sequence[Ladder]
) -> tuple[tuple[TailInterval, ...], ...]:
    """Bound each limited percentile at each load of each ladder.

    :return: per ladder, its intervals ordered by load, then by limit in the SLO's order.
    """
    measurements = {item.measurement.point.key: item.measurement for item in evidence.items}
    curves: list[dict[str, Curve]] = []
    for ladder in ladders:
        named: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for load, keys in zip(ladder.candidate.loads, ladder.keys, strict=True):
            for key in keys:
                for name, value in measurements[key].percentiles:
                    named[name][load].append(math.log(max(value, 1e-9)))
        curves.append({name: _curve(cells) for name, cells in named.items()})
    bands = {name: _band([curve[name] for curve in curves if name in curve]) for name in _limit_names(spec)}
    return tuple(
        _of_ladder(spec, ladder, curve, bands) for ladder, curve in zip(ladders, curves, strict=True)
    )


def _limit_names(spec: FleetSpec) -> list[str]:
    return sorted({limit.name for workload in spec.workloads for limit in workload.slo.limits})


def _curve(cells: dict[float, list[float]]) -> Curve:
    loads = sorted(cells)
    return list(
        zip(
            [math.log(load) for load in loads],
            isotonic([sum(cells[x]) / len(cells[x]) for x in loads]),
            strict=True,
        )
    )


def _band(curves: Sequence[Curve]) -> float | None:
    """Return the half-width in ln seconds that covers :data:`BAND_COVERAGE` of leave-one-out residuals."""
    residuals = []
    for curve in curves:
        for k in range(1, len(curve) - 1):
            rest = [*curve[:k], *curve[k + 1 :]]
            predicted = float(np.interp(curve[k][0], [x for x, _ in rest], [y for _, y in rest]))
            residuals.append(abs(curve[k][1] - predicted))
    if len(residuals) < LEAST_RESIDUALS:
        return None
    rank = min(len(residuals), math.ceil((len(residuals) + 1) * BAND_COVERAGE))
    return sorted(residuals)[rank - 1]


def _of_ladder(
    spec: FleetSpec, ladder: Ladder, curves: dict[str, Curve], bands: dict[str, float | None]
) -> tuple[TailInterval, ...]:
    rows = []
    for load in ladder.candidate.loads:
        for limit in spec.workloads[ladder.workload].slo.limits:
            curve = curves.get(limit.name, [])
            rows.append(_at(load, limit.name, curve, bands.get(limit.name)))
    return tuple(row for row in rows if row.lower_s is not None or row.upper_s is not None)


def _at(load: float, name: str, curve: Curve, band: float | None) -> TailInterval:
    x = math.log(load)
    for at, value in curve:
        if at == x:
            seconds = float(f"{math.exp(value):.12g}")  # undo the logarithm's last digits
            return TailInterval(load=load, metric=name, lower_s=seconds, upper_s=seconds, source="measured")
    below = [y for at, y in curve if at < x]
    above = [y for at, y in curve if at > x]
    lower, upper = (below[-1] if below else None), (above[0] if above else None)
    source = "monotone"
    if lower is not None and upper is not None and band is not None:
        middle = float(np.interp(x, [at for at, _ in curve], [y for _, y in curve]))
        if middle - band > lower or middle + band < upper:
            source = "interpolated"
            lower, upper = max(lower, middle - band), min(upper, middle + band)
    return TailInterval(
        load=load,
        metric=name,
        lower_s=None if lower is None else math.exp(lower),
        upper_s=None if upper is None else math.exp(upper),
        source="interpolated" if source == "interpolated" else "monotone",
    )
