"""The protocol of every measuring device, and the registry that finds one by the name in the spec.

The registry is lazy: a backend's own needs (SSH, a simulator's tables) are imported when a campaign uses it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Protocol, cast

from fleetsieve_airflow.errors import SpecError
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
