"""One-line builders of the records that tests talk about.

The default fleet is the smallest one with a choice: one workload ``chat`` (12 req/s, TTFT p99 at most 2 s) on
16 GPUs in nodes of 8, served by ``TP2``, ``TP4`` or ``TP8`` at 2, 4, 8 or 12 req/s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fleetsieve_airflow.evidence import Evidence, EvidenceItem, Measurement, MeasurementPoint, PointFailure
from fleetsieve_airflow.records import (
    Budget,
    Candidate,
    DecisionSettings,
    EngineConfig,
    FleetSpec,
    LatencyLimit,
    LoadKind,
    MeasurementSettings,
    Model,
    Pool,
    Slo,
    Trace,
    Workload,
)
from fleetsieve_airflow.serialization import point_of

REPOSITORY = Path(__file__).resolve().parent.parent
PAPER_FLEET = REPOSITORY / "dags" / "fleets" / "chat_and_code_h100.yaml"
DEGREES = {"TP2": 2, "TP4": 4, "TP8": 8}
LOADS = (2.0, 4.0, 8.0, 12.0)


def make_slo(success_rate: float | None = None, **limits_s: float) -> Slo:
    """Build an SLO from limits by name, ``make_slo(0.99, ttft_p99_s=2.0)``; without any, TTFT p99 <= 2 s."""
    if success_rate is None and not limits_s:
        limits_s = {"ttft_p99_s": 2.0}
    limits = []
    for name, limit_s in limits_s.items():
        metric, percentile, _ = name.split("_")
        limits.append(LatencyLimit(metric=metric, percentile=int(percentile[1:]), limit_s=limit_s))
    return Slo(success_rate=success_rate, limits=tuple(limits))


def make_spec(
    *,
    demand: Mapping[str, float] | None = None,
    configs: Mapping[str, int] | None = None,
    loads: Sequence[float] | Mapping[str, Sequence[float]] = LOADS,
    load_kind: LoadKind = "offered_load_rps",
    slo: Slo | None = None,
    gpus: int = 16,
    gpus_per_node: int = 8,
    spare_nodes: int = 0,
    price_per_gpu_hour: float | None = None,
    excluded: Mapping[str, str] | None = None,
    workload: Mapping[str, Any] | None = None,
    decision: Mapping[str, Any] | None = None,
    measurement: Mapping[str, Any] | None = None,
    budget: Mapping[str, Any] | None = None,
) -> FleetSpec:
    """Build a fleet of one H100 pool and one model.

    :param demand: workload -> demand in req/s; by default ``{"chat": 12.0}``.
    :param configs: engine config label -> tensor-parallel degree, candidates of every workload.
    :param loads: the ladder of every candidate, or by label (``"chat TP4"``) or config (``"TP4"``).
    :param excluded: candidate label -> why it cannot run.
    :param workload: further fields of every :class:`Workload`.
    :param decision: fields of :class:`DecisionSettings`; so do ``measurement`` and ``budget`` for theirs.
    """
    demand = {"chat": 12.0} if demand is None else demand
    configs = DEGREES if configs is None else configs

    def ladder(name: str, label: str) -> tuple[float, ...]:
        chosen = loads.get(f"{name} {label}", loads.get(label)) if isinstance(loads, Mapping) else loads
        return tuple(float(load) for load in chosen or LOADS)

    return FleetSpec(
        fleet="test",
        pools=(
            Pool(
                name="h100",
                gpu="NVIDIA H100 80GB HBM3",
                gpus=gpus,
                gpus_per_node=gpus_per_node,
                spare_nodes=spare_nodes,
                price_per_gpu_hour=price_per_gpu_hour,
            ),
        ),
        models=(Model(name="base", revision="r1"),),
        configs=tuple(
            EngineConfig(label=label, pool="h100", tensor_parallel=degree)
            for label, degree in configs.items()
        ),
        workloads=tuple(
            Workload(
                name=name,
                model="base",
                demand_rps=rate,
                slo=slo or make_slo(),
                trace=Trace(name=name),
                **(workload or {}),
            )
            for name, rate in demand.items()
        ),
        candidates=tuple(
            Candidate(
                workload=name,
                config=label,
                load_kind=load_kind,
                loads=ladder(name, label),
                excluded=(excluded or {}).get(f"{name} {label}", ""),
            )
            for name in demand
            for label in configs
        ),
        decision=DecisionSettings(**(decision or {})),
        measurement=MeasurementSettings(**{"device": "test", **(measurement or {})}),
        budget=Budget(**(budget or {})),
    )


@lru_cache(maxsize=8)
def paper_spec(scale: float = 1.0) -> FleetSpec:
    """Load the fleet that ships with the project, measured by replay, its demand scaled."""
    from fleetsieve_airflow.spec import load_spec

    return load_spec(PAPER_FLEET, demand_scale=scale)


def make_point(
    spec: FleetSpec | None = None,
    workload: str = "chat",
    config: str = "TP4",
    load: float = 8.0,
    repeat: int = 0,
) -> MeasurementPoint:
    """Build the point of one load of a candidate."""
    spec = spec or make_spec()
    return point_of(spec, spec.candidate(workload, config), load, repeat)


def make_measurement(
    spec: FleetSpec | None = None,
    workload: str = "chat",
    config: str = "TP4",
    load: float = 8.0,
    *,
    met: bool = True,
    repeat: int = 0,
    **fields: Any,
) -> Measurement:
    """Build a measurement that clearly meets (every limit halved) or misses (doubled) the workload's SLO.

    :param fields: any field of :class:`Measurement` to say otherwise; ``percentiles`` may be a mapping.
    """
    spec = spec or make_spec()
    point = make_point(spec, workload, config, load, repeat)
    slo = spec.workload(workload).slo
    percentiles = {limit.name: limit.limit_s * (0.5 if met else 2.0) for limit in slo.limits}
    defaults: dict[str, Any] = {
        "served_rps": load if met else load * 0.7,
        "success_rate": 1.0 if met or slo.success_rate is None else slo.success_rate / 2,
        "percentiles": tuple(percentiles.items()),
        "gpu_seconds_window": point.gpu_seconds_window,
        "gpu_seconds_billed": point.gpus * (point.duration_s + spec.measurement.startup_s),
        "samples_sha256": f"{point.key}{point.key}",
    }
    if isinstance(fields.get("percentiles"), Mapping):
        fields["percentiles"] = tuple((name, float(value)) for name, value in fields["percentiles"].items())
    return Measurement(point=point, **{**defaults, **fields})


def make_evidence(
    *measurements: Measurement, round: int = 1, failures: Iterable[PointFailure] = (), **fields: Any
) -> Evidence:
    """Build what a campaign knows after one round that measured all of these."""
    items = tuple(EvidenceItem(measurement=measurement, round=round) for measurement in measurements)
    return Evidence(items=items, failures=tuple(failures), **{"rounds_done": round if items else 0, **fields})


def add_round(
    evidence: Evidence, *measurements: Measurement, failures: Iterable[PointFailure] = ()
) -> Evidence:
    """Return the evidence after one more round."""
    number = evidence.rounds_done + 1
    items = tuple(EvidenceItem(measurement=measurement, round=number) for measurement in measurements)
    return replace(
        evidence,
        items=evidence.items + items,
        failures=evidence.failures + tuple(failures),
        rounds_done=number,
    )


def make_failure(point: MeasurementPoint, *, round: int = 1, **fields: Any) -> PointFailure:
    """Build a failure of a point by infrastructure."""
    defaults = {"kind": "infrastructure", "message": "node went away"}
    return PointFailure(key=point.key, label=point.label, round=round, **{**defaults, **fields})


def paper_measurement(workload: str, config: str, load: float, *, scale: float = 1.0) -> Measurement:
    """Measure one point of the paper's grid by replay."""
    from fleetsieve_airflow.backends.replay import ReplayBackend

    spec = paper_spec(scale)
    return ReplayBackend().measure(spec, point_of(spec, spec.candidate(workload, config), load))
