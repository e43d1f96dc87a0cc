"""The protocol of every measuring device, and the registry that finds one by the name in the spec.

The registry is lazy: a backend's own needs (SSH, a simulator's tables) are imported when a campaign uses it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from fleetsieve_airflow.errors import MeasurementError, SpecError
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint
from fleetsieve_airflow.records import FleetSpec

#: Backend name in a spec -> where its class is.
BACKENDS = {
    "replay": "fleetsieve_airflow.backends.replay:ReplayBackend",
    "simulate": "fleetsieve_airflow.backends.simulate:SimulateBackend",
    "local": "fleetsieve_airflow.backends.local:LocalBackend",
    "slurm": "fleetsieve_airflow.backends.slurm:SlurmBackend",
}


class Backend(Protocol):
    """Measures points, one at a time; the same point may be asked for again after a failure."""

    def check(self, spec: FleetSpec) -> None:
        """Refuse a spec that this backend cannot measure, before anything is paid for.

        :raises FleetsieveError: naming what is missing and the remedy.
        """
        ...

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        """Measure one point.

        :raises MeasurementError: the point could not be measured this time; it says nothing about the SLO.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """A measurement with its artifacts by path: per-request records, logs, metrics, facts of the node."""

    measurement: Measurement
    files: Mapping[str, str | bytes]


@runtime_checkable
class FilingBackend(Backend, Protocol):
    """A backend whose measurements come with artifacts."""

    def measure_with_files(self, spec: FleetSpec, point: MeasurementPoint) -> Collected:
        """Measure one point; see :meth:`Backend.measure`."""
        ...


@runtime_checkable
class DeferrableBackend(Backend, Protocol):
    """A backend that measures elsewhere, so that no worker has to wait: submit, wait by trigger, collect.

    A job is plain JSON that identifies it. Submitting the same points in the same scope again returns the
    same job, until a :meth:`collect` that found no result has closed its attempt.
    """

    def lease_s(self, spec: FleetSpec, points: Sequence[MeasurementPoint]) -> float:
        """Return how long the points may take at most, waiting included."""
        ...

    def submit(self, spec: FleetSpec, points: Sequence[MeasurementPoint], *, scope: str) -> dict[str, Any]:
        """Start measuring, once, and return the job.

        :raises MeasurementError: it cannot be started.
        """
        ...

    def trigger(self, spec: FleetSpec, job: Mapping[str, Any]) -> Any:
        """Return the Airflow trigger that fires when a job has ended."""
        ...

    def collect(
        self,
        spec: FleetSpec,
        points: Sequence[MeasurementPoint],
        job: Mapping[str, Any],
        event: Mapping[str, Any] | None = None,
    ) -> dict[str, Collected | MeasurementError]:
        """Return each point's measurement, by key, or why there is none.

        :param event: what the trigger said; without it the job is waited for here.
        :raises MeasurementError: the results cannot be fetched at the moment.
        """
        ...

    def cancel(self, spec: FleetSpec, job: Mapping[str, Any]) -> None:
        """End a job and make sure that it has ended."""
        ...


def installed_backends() -> tuple[str, ...]:
    """Return the names of the backends that this installation has, without importing them."""
    return tuple(
        name for name, place in BACKENDS.items() if importlib.util.find_spec(place.partition(":")[0])
    )


def backend_for(spec: FleetSpec) -> Backend:
    """Return the backend that the spec names.

    :raises SpecError: this installation has no backend of that name.
    """
    name, known = spec.measurement.backend, installed_backends()
    if name not in known:
        raise SpecError(
            f"measurement.backend: must be one of {', '.join(known)}, got {name!r}.",
            hint="Name a backend of this installation.",
        )
    module, _, attribute = BACKENDS[name].partition(":")
    return cast(Backend, getattr(importlib.import_module(module), attribute)())
