"""Specs and points that a real server could be measured with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleetsieve_airflow.evidence import MeasurementPoint
from fleetsieve_airflow.records import EngineConfig, FleetSpec, Model, Slo, Trace
from fleetsieve_airflow.serialization import point_of
from tests.builders import make_slo, make_spec


def served_spec(
    *,
    backend: str = "slurm",
    options: dict[str, str] | None = None,
    source: str = "/models/tiny",
    engine_args: tuple[tuple[str, str], ...] = (("max-num-seqs", "2"),),
    degrees: tuple[int, ...] = (1, 2),
    duration_s: float = 50.0,
    loads: tuple[float, ...] = (2.0, 4.0),
    slo: Slo | None = None,
    **measurement: Any,
) -> FleetSpec:
    """Build a fleet of two workloads of one small model with synthetic Poisson traces."""
    spec = make_spec(
        demand={"chat": 4.0, "code": 4.0},
        configs={f"TP{degree}": degree for degree in degrees},
        loads=loads,
        slo=slo or make_slo(0.9, ttft_p90_s=2.0),
        measurement={
            "backend": backend,
            "device": "live",
            "duration_s": duration_s,
            "options": tuple(sorted((options or {}).items())),
            **measurement,
        },
    )
    lengths = {"chat": (64.0, 16.0), "code": (128.0, 8.0)}
    return replace(
        spec,
        models=(Model(name="base", revision="r1", source=source),),
        configs=tuple(
            EngineConfig(label=f"TP{degree}", pool="h100", tensor_parallel=degree, engine_args=engine_args)
            for degree in degrees
        ),
        workloads=tuple(
            replace(
                workload,
                trace=Trace(
                    name=workload.name,
                    format="poisson",
                    isl_mean_tokens=lengths[workload.name][0],
                    osl_mean_tokens=lengths[workload.name][1],
                ),
            )
            for workload in spec.workloads
        ),
    )


def served_points(spec: FleetSpec, config: str = "TP1", load: float | None = None) -> list[MeasurementPoint]:
    """Return one point of each workload on one config."""
    return [
        point_of(spec, candidate, load or candidate.loads[0])
        for candidate in spec.candidates
        if candidate.config == config
    ]
