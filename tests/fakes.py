"""Stand-ins for what tests cannot have: GPUs, and Airflow's side of a running task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

from fleetsieve_airflow.backends.base import BACKENDS
from fleetsieve_airflow.errors import MeasurementError, SpecError
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.records import FleetSpec
from tests.builders import make_measurement

FAKE = "fake"
EVERY_POINT = "every point"


class FakeBackend:
    """Measures against known capacities, and counts; a point can be told to fail.

    Backends are made anew for every point, so what they shall do and what they did is kept by the class.
    """

    capacity_rps: ClassVar[dict[str, float]] = {}
    errors: ClassVar[dict[str, Exception]] = {}
    refuses: ClassVar[str] = ""
    measured: ClassVar[Counter[str]] = Counter()

    def check(self, spec: FleetSpec) -> None:
        """Refuse the spec if told so."""
        if self.refuses:
            raise SpecError(self.refuses)

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        """Fail if told so, else meet the SLO up to the capacity."""
        self.measured[point.label] += 1
        if error := self.errors.get(point.label, self.errors.get(EVERY_POINT)):
            raise error
        capacity = self.capacity_rps[f"{point.workload} {point.config}"]
        repeat = point.seed - spec.measurement.seed
        return make_measurement(
            spec, point.workload, point.config, point.load, met=point.load <= capacity, repeat=repeat
        )


@contextmanager
def fake_backend(
    capacity_rps: dict[str, float] | None = None,
    *,
    errors: dict[str, Exception] | None = None,
    refuses: str = "",
) -> Iterator[type[FakeBackend]]:
    """Register a fresh :class:`FakeBackend` under the name ``fake``.

    :param capacity_rps: candidate label -> capacity.
    :param errors: point label, or :data:`EVERY_POINT`, -> what measuring it raises, every time.
    """
    FakeBackend.capacity_rps = capacity_rps or {"chat TP2": 2.0, "chat TP4": 8.0, "chat TP8": 8.0}
    FakeBackend.errors, FakeBackend.refuses, FakeBackend.measured = errors or {}, refuses, Counter()
    BACKENDS[FAKE] = f"{FakeBackend.__module__}:{FakeBackend.__name__}"
    try:
        yield FakeBackend
    finally:
        del BACKENDS[FAKE]


def went_away() -> MeasurementError:
    """Return the error of a point that can be measured another time."""
    return MeasurementError("The node went away.", kind="infrastructure", gpu_seconds_billed=12.0)


def make_context(*, try_number: int = 1, max_tries: int = 0, **entries: Any) -> dict[str, Any]:
    """Return what a running task is given."""
    ti = SimpleNamespace(
        dag_id="fleet_plan",
        run_id="manual__1",
        task_id="task",
        map_index=-1,
        try_number=try_number,
        max_tries=max_tries,
        log_url="http://127.0.0.1/log",
    )
    return {"ti": ti, **entries}
