from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from fleetsieve_airflow.backends.simulate import SimulateBackend, fleet_requests
from fleetsieve_airflow.campaign import run_campaign
from fleetsieve_airflow.evidence import PriorCapacity
from fleetsieve_airflow.records import FleetSpec, Model, Trace
from fleetsieve_airflow.serialization import point_of
from fleetsieve_airflow.simulator.calibration import calibrate
from fleetsieve_airflow.simulator.fleet import FleetEngines
from fleetsieve_airflow.simulator.narrowing import targets_of
from fleetsieve_airflow.simulator.prior import observations_of, prior_capacities
from tests.builders import make_slo, make_spec

LADDER = (2.0, 4.0, 6.0, 12.0)


def fleet(constants: str = "", **changes: object) -> FleetSpec:
    spec = make_spec(
        demand={"chat": 14.0},
        loads=LADDER,
        slo=make_slo(0.99, ttft_p90_s=0.6, e2e_p90_s=9.0),
        measurement={
            "backend": "simulate",
            "device": "simulate:truth",
            "duration_s": 60.0,
            "options": (("constants", constants),) if constants else (),
        },
        **changes,  # type: ignore[arg-type]
    )
    trace = Trace(name="chat", format="poisson", isl_mean_tokens=1000, osl_mean_tokens=250)
    return replace(
        spec,
        models=(Model(name="llama-3.1-70b", revision="r1"),),
        configs=tuple(replace(config, engine_args=(("quantization", "fp8"),)) for config in spec.configs),
        workloads=tuple(replace(item, model="llama-3.1-70b", trace=trace) for item in spec.workloads),
    )


@functools.cache
def priors_of(spec: FleetSpec, **options: object) -> dict[str, PriorCapacity]:
    engines = FleetEngines(spec, "roofline")
    found = prior_capacities(spec, engines.engine, fleet_requests(spec, engines), **options)  # type: ignore[arg-type]
    return {item.config: item for item in found}


def test_a_prior_is_an_interval_with_its_source_for_every_candidate_that_can_run() -> None:
    found = priors_of(fleet(configs={"TP1": 1, "TP2": 2, "TP4": 4, "TP8": 8}))
    assert set(found) == {"TP2", "TP4", "TP8"}
    assert {item.source for item in found.values()} == {"simulator"}
    assert all(item.lower_rps < item.upper_rps for item in found.values())
    assert found["TP2"].upper_rps < found["TP4"].upper_rps <= found["TP8"].upper_rps


def test_a_simulated_replica_has_its_capacity_within_the_prior_interval() -> None:
    spec = fleet()
    backend = SimulateBackend()
    slo = spec.workload("chat").slo
    for config, prior in priors_of(spec).items():
        met = [
            load
            for load in LADDER
            for result in [backend.measure(spec, point_of(spec, spec.candidate("chat", config), load))]
            if all((result.percentile(limit.name) or 1e9) <= limit.limit_s for limit in slo.limits)
        ]
        assert max(met) <= prior.upper_rps * 1.3
        assert max(met) >= prior.lower_rps / 1.6


def test_calibration_on_one_cheap_point_moves_the_prior_towards_a_slower_stack() -> None:
    truth = fleet(constants="prefill_scale=2.0,decode_scale=1.7")
    engines = FleetEngines(truth, "roofline")
    cheap = SimulateBackend().measure(truth, point_of(truth, truth.candidate("chat", "TP2"), 2.0))
    requests = fleet_requests(truth, engines)
    observations = observations_of([cheap], truth, engines.engine, requests)
    calibration = calibrate(observations)
    assert 1.4 < calibration.constants.decode_scale < 2.0
    before, after = priors_of(truth), priors_of(truth, calibration=calibration)
    assert after["TP4"].upper_rps < before["TP4"].upper_rps


def test_refused_and_curtailed_measurements_teach_nothing() -> None:
    spec = fleet()
    engines = FleetEngines(spec, "roofline")
    whole = SimulateBackend().measure(spec, point_of(spec, spec.candidate("chat", "TP2"), 2.0))
    useless = [replace(whole, refused="no"), replace(whole, curtailed=True), replace(whole, percentiles=())]
    assert observations_of(useless, spec, engines.engine, fleet_requests(spec, engines)) == ()


def wrong(priors: dict[str, PriorCapacity], kind: str) -> tuple[PriorCapacity, ...]:
    if kind == "reversed":
        names = list(priors)
        mirrored = dict(zip(names, reversed(list(priors.values())), strict=True))
        return tuple(replace(item, config=name) for name, item in mirrored.items())
    factor = float(kind)
    return tuple(
        replace(item, lower_rps=item.lower_rps * factor, upper_rps=item.upper_rps * factor)
        for item in priors.values()
    )


@pytest.mark.parametrize("kind", ["1.0", "0.5", "2.0", "reversed"])
def test_a_prior_however_wrong_never_changes_what_is_certified(kind: str) -> None:
    truth = fleet(constants="prefill_scale=1.5,decode_scale=1.2,step_overhead_s=0.002")
    alone, steered = (
        run_campaign(truth, SimulateBackend(), priors=priors)
        for priors in ((), wrong(priors_of(truth), kind))
    )
    assert steered.decisions[-1].state == alone.decisions[-1].state == "certified_feasible"
    measured = {item.measurement.point.config: 0.0 for item in steered.evidence.items}
    for item in steered.evidence.items:
        if all(
            (item.measurement.percentile(limit.name) or 1e9) <= limit.limit_s
            for limit in truth.workloads[0].slo.limits
        ):
            config = item.measurement.point.config
            measured[config] = max(measured[config], item.measurement.point.load)
    for allocation in steered.decisions[-1].conservative.allocations:
        assert allocation.capacity_rps <= measured[allocation.config] * 1.01


def test_medians_must_be_within_the_tightest_percentile_of_each_latency() -> None:
    targets = targets_of(make_slo(ttft_p50_s=1.0, ttft_p99_s=3.0, e2e_p95_s=9.0))
    assert (targets.ttft_s, targets.tpot_s, targets.e2e_s) == (1.0, None, 9.0)
