"""How far one run may lie from what its load does: what verdicts and rates allow for at a confidence.

The confidence is promised for the certificate, so what may be wrong is shared equally among all the bounds
it can rest on (Bonferroni). The spread of a single run is the declared one, corrected by what the campaign
itself shows: repeats of a load that differ, and tails that fall although the load grew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.special import ndtri

from fleetsieve_airflow.evidence import Measurement
from fleetsieve_airflow.records import FleetSpec

#: The declared spread weighs as much as so many repeats.
DECLARED_WEIGHT = 4.0
#: What is assumed where none is declared: about what public benchmarks of one deployment differ by.
UNDECLARED = 0.05

#: Measurements per load of one ladder.
Cells = Sequence[Sequence[Measurement]]
#: Logarithms of one quantity per load and run of one ladder.
Logs = Sequence[Sequence[float]]
#: A sum of squares and its degrees of freedom.
Shown = tuple[float, int]


@dataclass(frozen=True, slots=True)
class Noise:
    """What single runs may differ by.

    :param confidence: one-sided, of each verdict and of each end of a rate.
    :param tails: per limit, the standard deviation of ln(percentile) between runs of one load.
    :param rate: the standard deviation of ln(served rate) between runs of one load, for shares of failed
        requests too.
    :param counted: whether it is held against latencies whose misses were counted too: where it is declared.
    """

    confidence: float
    tails: tuple[tuple[str, float], ...] = ()
    rate: float = 0.0
    counted: bool = False

    @property
    def reach(self) -> float:
        """Standard deviations that a bound stays away from what was seen."""
        return float(ndtri(self.confidence))

    def tail(self, name: str) -> float:
        """Return the standard deviation for one limit."""
        return dict(self.tails).get(name, self.rate)


def noise_of(spec: FleetSpec, ladders: Sequence[Cells]) -> Noise | None:
    """Estimate the noise from the evidence at hand; None where the spec asks for no confidence.

    :param ladders: measurements per ladder and load.
    """
    confidence = spec.bound_confidence
    if confidence is None:
        return None
    declared = spec.decision.run_to_run_cv or UNDECLARED
    ran = [[[row for row in cell if not row.refused] for cell in cells] for cells in ladders]
    names = sorted({limit.name for workload in spec.workloads for limit in workload.slo.limits})
    tails = []
    for name in names:
        shown = [[_logs(row.percentile(name) for row in cell) for cell in cells] for cells in ran]
        tails.append((name, pooled(declared, [*map(of_repeats, shown), *map(of_falls, shown)])))
    served = [[_logs(row.served_rps for row in cell) for cell in cells] for cells in ran]
    rate = pooled(declared, map(of_repeats, served))
    return Noise(confidence, tuple(tails), rate, spec.decision.run_to_run_cv > 0.0)


def pooled(declared: float, shown: Iterable[Shown]) -> float:
    """Return the standard deviation that the declared one and what the evidence shows make together."""
    squares, freedom = DECLARED_WEIGHT * declared**2, DECLARED_WEIGHT
    for more, count in shown:
        squares, freedom = squares + more, freedom + count
    return math.sqrt(squares / freedom)


def of_repeats(cells: Logs) -> Shown:
    """Return what repeats of a load differ by."""
    return (
        sum((value - _mean(cell)) ** 2 for cell in cells for value in cell),
        sum(len(cell) - 1 for cell in cells if cell),
    )


def of_falls(cells: Logs) -> Shown:
    """Return what a ladder's values fall by although they cannot: the residue of their isotonic fit.

    Each pair of neighbours that had to be pooled shows one degree of freedom: where two loads are alike, half
    the squared difference of their values is the variance, whichever is the larger.
    """
    filled = [cell for cell in cells if cell]
    fitted = isotonic([_mean(cell) for cell in filled])
    residue = sum(len(cell) * (_mean(cell) - value) ** 2 for cell, value in zip(filled, fitted, strict=True))
    return residue, len(fitted) - len(set(fitted))


def _logs(values: Iterable[float | None]) -> list[float]:
    return [math.log(value) for value in values if value is not None and value > 0.0]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def isotonic(values: Sequence[float]) -> list[float]:
    """Return the nearest non-decreasing sequence: pool adjacent violators (Ayer et al. 1955)."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            last, size = blocks.pop()
            mean, count = (mean * count + last * size) / (count + size), count + size
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]
