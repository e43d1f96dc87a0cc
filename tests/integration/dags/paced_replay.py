"""Replay at a pace, with a record of every attempt and failures on demand: what the fault tests measure with.

The control folder has one folder for each fleet: ``delay_s`` says how long a measurement takes,
``fail/<label>`` how often a point's task shall still crash, ``attempts`` lists every attempt that began,
``measured`` those that ended.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from fleetsieve_airflow.backends.base import BACKENDS
from fleetsieve_airflow.backends.replay import ReplayBackend
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.records import FleetSpec

CONTROL = "FLEETSIEVE_TEST_CONTROL"


class PacedReplay(ReplayBackend):
    """Replay that takes its time and may fail."""

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        """Note the attempt, fail if told so, wait, look the point up."""
        folder = Path(os.environ[CONTROL], spec.fleet)
        note(folder / "attempts", point)
        if failure_is_due(folder / "fail" / point.label.replace("/", "-")):
            raise RuntimeError(f"{point.label} was told to fail.")
        time.sleep(float((folder / "delay_s").read_text()))
        measurement = super().measure(spec, point)
        note(folder / "measured", point)
        return measurement


def note(file: Path, point: MeasurementPoint) -> None:
    """Append a point; a line this short is written in one piece, also by several processes."""
    with file.open("a") as lines:
        lines.write(f"{point.key} {point.label}\n")


def failure_is_due(file: Path) -> bool:
    """Return whether to fail, and count it off."""
    left = int(file.read_text()) if file.is_file() else 0
    if left:
        file.write_text(str(left - 1))
    return left > 0


BACKENDS["replay"] = f"{PacedReplay.__module__}:{PacedReplay.__name__}"
