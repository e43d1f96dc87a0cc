"""How a point is measured by the backend a fleet names: here, or as a job that is waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fleetsieve_airflow.backends.base import Backend, Collected, DeferrableBackend, FilingBackend
from fleetsieve_airflow.errors import MeasurementError
from fleetsieve_airflow.evidence import MeasurementPoint
from fleetsieve_airflow.records import FleetSpec

#: Under this name the job's identity is in the task's state.
STATE_KEY = "fleetsieve_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job that was submitted, or found again, and the trigger that fires when it has ended."""

    trigger: Any
    lease_s: float


def measure(
    backend: Backend,
    spec: FleetSpec,
    point: MeasurementPoint,
    *,
    scope: str,
    event: Mapping[str, Any] | None = None,
    state: Any = None,
    on_job: Callable[[Callable[[], None]], None] = lambda cancel: None,
) -> Collected | Waiting:
    """Measure a point, or submit its job, or collect the job that has ended.

    A task that is retried or cleared asks for the same work in the same scope, and so finds the job that it
    has.

    :param event: what the trigger of this point's job said, None before.
    :param state: Airflow's task state store, or None.
    :param on_job: told how to cancel the job, for when the task is killed.
    :raises MeasurementError: the point was not measured this time.
    """
    if not isinstance(backend, DeferrableBackend):
        if isinstance(backend, FilingBackend):
            return backend.measure_with_files(spec, point)
        return Collected(measurement=backend.measure(spec, point), files={})
    if event is None:
        job = backend.submit(spec, [point], scope=scope)
        if state is not None:
            state.set(STATE_KEY, job)
        on_job(lambda: backend.cancel(spec, job))
        return Waiting(trigger=backend.trigger(spec, job), lease_s=backend.lease_s(spec, [point]))
    found = backend.collect(spec, [point], event["job"], event)[point.key]
    if state is not None:
        state.delete(STATE_KEY)
    if isinstance(found, MeasurementError):
        raise found
    return found
