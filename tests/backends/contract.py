"""What every backend must keep, whatever it measures with. Called by one test for each backend."""

from __future__ import annotations

import pytest

from fleetsieve_airflow.backends.base import Backend
from fleetsieve_airflow.core.verdict import judge
from fleetsieve_airflow.errors import FleetsieveError
from fleetsieve_airflow.evidence import Measurement
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serialization import from_document, points_of, to_document


def keeps_its_promises(backend: Backend, spec: FleetSpec, *, bad: FleetSpec) -> None:
    """Check a backend against a spec that it can measure and one that it must refuse."""
    backend.check(spec)
    candidate = next(item for item in spec.candidates if not item.excluded)
    point = points_of(spec, candidate)[0]
    measurement = backend.measure(spec, point)
    assert measurement.point == point, "it measures the point that it was asked for"
    slo = spec.workload(point.workload).slo
    assert judge(measurement, slo, spec.decision) in ("met", "missed", "marginal", "refused")
    assert measurement.gpu_seconds_window > 0
    assert measurement.gpu_seconds_billed >= measurement.gpu_seconds_window
    assert measurement.samples_sha256, "evidence names its samples"
    assert from_document(Measurement, to_document(measurement)) == measurement, "it can be stored"
    again = backend.measure(spec, point)
    assert again.point == point, "the same point may be asked for again"
    with pytest.raises(FleetsieveError):
        backend.check(bad)
