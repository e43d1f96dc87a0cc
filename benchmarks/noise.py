"""Noise as it was recorded: a measurement shows one of its cell's runs, a repeat another one.

A cell with no further run answers nothing, exactly as the replay backend does: the same run is never counted
twice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from benchmarks.fleets import LIMIT, Fleet
from benchmarks.grids import Grid
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint

CONFIDENCE = 0.95
REPEATS = 3


class RecordedRuns:
    """Answers points of one fleet by its recorded runs in an order of their own.

    :param seed: another seed draws the runs in another order.
    """

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet, self._seed = fleet, seed

    def __call__(self, point: MeasurementPoint) -> Measurement | None:
        """Return what measuring a point shows, None where no further run of its cell was recorded."""
        runs = self._fleet.runs[point.workload, point.config, point.load]
        order = list(range(len(runs)))
        cell = f"{self._fleet.name}|{self._seed}|{point.workload}|{point.config}|{point.load}"
        random.Random(cell).shuffle(order)  # noqa: S311
        repeat = point.seed - self._fleet.spec.measurement.seed
        return self._fleet.measure(point, runs[order[repeat]]) if repeat < len(runs) else None


def run_to_run_cv(grids: Sequence[Grid]) -> float:
    """Return the standard deviation of ln(tail) between runs of one cell, pooled over all cells."""
    squares, freedom = 0.0, 0
    for grid in grids:
        for runs in grid.cells.values():
            logs = [math.log(run.percentile(LIMIT)) for run in runs]
            mean = sum(logs) / len(logs)
            squares += sum((value - mean) ** 2 for value in logs)
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom) if freedom else 0.0
