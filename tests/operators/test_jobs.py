from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from fleetsieve_airflow.backends.base import Collected, DeferrableBackend, FilingBackend
from fleetsieve_airflow.backends.local import LocalBackend
from fleetsieve_airflow.backends.slurm import SlurmBackend
from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.operators.jobs import STATE_KEY, Waiting, measure
from fleetsieve_airflow.records import FleetSpec
from tests.serving.jobs import served_points, served_spec

SPEC = served_spec()
POINT = served_points(SPEC)[0]
RESULT = Collected(measurement=Measurement(point=POINT, served_rps=2.0), files={"logs/vllm.log": "ready"})


class Plain:
    """Measures at once."""

    def check(self, spec: FleetSpec) -> None:
        """Accept."""

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        """Answer."""
        return RESULT.measurement


class Elsewhere(Plain):
    """Measures by jobs; the same work has the same job."""

    def __init__(self, outcome: Collected | MeasurementError = RESULT) -> None:
        self.outcome = outcome
        self.jobs: dict[tuple[str, str], dict[str, Any]] = {}
        self.cancelled: list[Mapping[str, Any]] = []

    def lease_s(self, spec: FleetSpec, points: Sequence[MeasurementPoint]) -> float:
        """Take an hour."""
        return 3600.0

    def submit(self, spec: FleetSpec, points: Sequence[MeasurementPoint], *, scope: str) -> dict[str, Any]:
        """Make a job, or find it."""
        return self.jobs.setdefault((scope, points[0].key), {"id": len(self.jobs) + 1})

    def trigger(self, spec: FleetSpec, job: Mapping[str, Any]) -> Any:
        """Name the job."""
        return ("trigger", job["id"])

    def collect(
        self,
        spec: FleetSpec,
        points: Sequence[MeasurementPoint],
        job: Mapping[str, Any],
        event: Mapping[str, Any] | None = None,
    ) -> dict[str, Collected | MeasurementError]:
        """Give the outcome."""
        return {point.key: self.outcome for point in points}

    def cancel(self, spec: FleetSpec, job: Mapping[str, Any]) -> None:
        """Note."""
        self.cancelled.append(job)


class State(dict[str, Any]):
    """Airflow's task state, as far as it is used."""

    set = dict.__setitem__
    delete = dict.__delitem__


def test_a_backend_that_measures_at_once_is_asked_at_once() -> None:
    assert measure(Plain(), SPEC, POINT, scope="c") == Collected(measurement=RESULT.measurement, files={})


def test_a_job_is_submitted_and_waited_for_and_its_identity_kept() -> None:
    state, backend = State(), Elsewhere()
    waiting = measure(backend, SPEC, POINT, scope="c", state=state)
    assert waiting == Waiting(trigger=("trigger", 1), lease_s=3600.0)
    assert state == {STATE_KEY: {"id": 1}}


def test_a_task_that_starts_over_waits_for_the_job_that_it_has() -> None:
    backend = Elsewhere()
    first = measure(backend, SPEC, POINT, scope="c")
    assert measure(backend, SPEC, POINT, scope="c") == first
    assert measure(backend, SPEC, POINT, scope="another campaign") != first


def test_a_job_that_has_ended_is_collected_with_its_artifacts() -> None:
    state = State({STATE_KEY: {"id": 1}})
    event = {"job": {"id": 1}, "state": "succeeded"}
    assert measure(Elsewhere(), SPEC, POINT, scope="c", event=event, state=state) == RESULT
    assert state == {}


def test_a_job_without_a_result_is_an_error() -> None:
    backend = Elsewhere(MeasurementError("the node failed"))
    with pytest.raises(MeasurementError, match="the node failed"):
        measure(backend, SPEC, POINT, scope="c", event={"job": {"id": 1}, "state": "failed"})


def test_a_task_that_is_killed_can_cancel_its_job() -> None:
    backend, cancels = Elsewhere(), list[Callable[[], None]]()
    measure(backend, SPEC, POINT, scope="c", on_job=cancels.append)
    cancels[0]()
    assert backend.cancelled == [{"id": 1}]


def test_the_real_backends_are_of_these_kinds() -> None:
    assert isinstance(SlurmBackend(), DeferrableBackend)
    assert isinstance(LocalBackend(), FilingBackend)
    assert not isinstance(LocalBackend(), DeferrableBackend)
