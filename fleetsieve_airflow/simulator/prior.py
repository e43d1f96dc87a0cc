"""Capacities before anything is measured: simulated, calibrated on what was measured, with an honest width.

A prior steers which points are measured. It carries no certificate unless the spec names ``simulator`` under
``certify_on``, so a wrong one costs measurements and never correctness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fleetsieve_airflow.evidence import Measurement, PriorCapacity
from fleetsieve_airflow.records import Candidate, FleetSpec, Slo
from fleetsieve_airflow.simulator.arrivals import Requests
from fleetsieve_airflow.simulator.calibration import Calibration, Observation, ranks_of, slowed
from fleetsieve_airflow.simulator.engine import Constants, EngineModel
from fleetsieve_airflow.simulator.events import Outcome, StepTimes
from fleetsieve_airflow.simulator.pools import AnyEngine, serve

#: Requests of one candidate at (load, ladder) of its kind: given by the caller, who knows the trace.
RequestsAt = Callable[[Candidate, float], Requests]
#: Bisections between the ends of a ladder; each halves the logarithm of the load that is still open.
BISECTIONS = 6
#: How far beyond its ladder's top a candidate's capacity is looked for.
BEYOND_LADDER = 1.5


def meets_slo(outcome: Outcome, slo: Slo) -> bool:
    """Tell whether a simulated run meets an SLO."""
    if slo.success_rate is not None and outcome.success_rate < slo.success_rate:
        return False
    return all(outcome.percentile(limit.metric, limit.percentile) <= limit.limit_s for limit in slo.limits)


def simulated_capacity(
    engine: AnyEngine, candidate: Candidate, slo: Slo, requests_at: RequestsAt, duration_s: float
) -> float:
    """Return the largest load at which one simulated replica meets the SLO, in the candidate's unit of load.

    Looked for between a quarter of the lowest load of the ladder and 1.5 times the highest; 0 where even
    the lowest misses.
    """
    times = StepTimes(engine) if isinstance(engine, EngineModel) else None

    def met(load: float) -> bool:
        requests = requests_at(candidate, load)
        window = duration_s if requests.concurrency is not None else None
        return meets_slo(serve(engine, requests, times=times, window_s=window), slo)

    low, high = candidate.loads[0] / 4.0, candidate.loads[-1] * BEYOND_LADDER
    if engine.kv_tokens < 1 or not met(low):
        return 0.0
    if met(high):
        return high
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if met(middle) else (low, middle)
    return float(np.sqrt(low * high))


def prior_capacities(
    spec: FleetSpec,
    engine_of: Callable[[str, str], AnyEngine],
    requests_at: RequestsAt,
    calibration: Calibration | None = None,
) -> tuple[PriorCapacity, ...]:
    """Return a capacity interval of every candidate that can be simulated.

    The interval's ends are the capacities of a replica that is as much slower, or faster, than simulated as
    nine in ten observations were (of an uncalibrated simulator: by a factor of 1.6).

    :param engine_of: the engine of a workload and engine config; may raise PerfDataError, which leaves the
        candidate without a prior.
    """
    from fleetsieve_airflow.simulator.curves import PerfDataError

    calibration = calibration or Calibration(Constants(), (), 0)
    fast, slow = calibration.band()
    found = []
    for candidate in spec.candidates:
        if candidate.excluded:
            continue
        try:
            engine = engine_of(candidate.workload, candidate.config).with_constants(calibration.constants)
        except PerfDataError:
            continue
        if candidate.load_kind == "concurrency" and not isinstance(engine, EngineModel):
            continue  # disaggregated replicas are simulated under offered loads only
        slo, duration = spec.workload(candidate.workload).slo, spec.measurement.duration_s
        lower, upper = (
            simulated_capacity(slowed(engine, factor), candidate, slo, requests_at, duration)
            for factor in (slow, fast)
        )
        if candidate.load_kind == "concurrency":
            lower, upper = (
                _served(engine, candidate, load, requests_at, duration) for load in (lower, upper)
            )
        if upper > 0.0:
            found.append(
                PriorCapacity(
                    workload=candidate.workload,
                    config=candidate.config,
                    source="simulator",
                    lower_rps=min(lower, upper),
                    upper_rps=upper,
                )
            )
    return tuple(found)


def _served(
    engine: AnyEngine, candidate: Candidate, load: float, requests_at: RequestsAt, duration_s: float
) -> float:
    """Return requests per second that a closed loop of so many clients gets."""
    if load <= 0.0:
        return 0.0
    outcome = serve(engine, requests_at(candidate, max(1.0, round(load))), window_s=duration_s)
    return ranks_of(engine) * (len(outcome.e2e_s) - outcome.failed) / max(outcome.end_s, 1e-9)


def observations_of(
    measurements: Sequence[Measurement],
    spec: FleetSpec,
    engine_of: Callable[[str, str], AnyEngine],
    requests_at: RequestsAt,
) -> tuple[Observation, ...]:
    """Return a campaign's measurements as observations to calibrate on, the cheapest first.

    Refused configs and ended windows say nothing of latencies and are left out.
    """
    usable = [item for item in measurements if not item.refused and not item.curtailed and item.percentiles]
    found = []
    for item in sorted(usable, key=lambda item: (item.gpu_seconds_billed, item.point.key)):
        point = item.point
        candidate = spec.candidate(point.workload, point.config)
        values = [(name, value) for name, value in item.percentiles if value > 0.0]
        found.append(
            Observation(
                engine_of(point.workload, point.config),
                requests_at(candidate, point.load),
                tuple(values),
                point.duration_s if point.load_kind == "concurrency" else None,
            )
        )
    return tuple(found)
