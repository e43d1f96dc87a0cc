from __future__ import annotations

from dataclasses import replace

import pytest

from fleetsieve_airflow.simulator.arrivals import Lengths, closed_loop
from fleetsieve_airflow.simulator.calibration import (
    Calibration,
    Observation,
    Residual,
    calibrate,
    slowed,
    value_of,
)
from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.engine import Constants, EngineModel
from fleetsieve_airflow.simulator.events import simulate
from fleetsieve_airflow.simulator.plans import ParallelPlan
from tests.simulator.conftest import EngineOf

LENGTHS = Lengths(isl_mean_tokens=900, osl_mean_tokens=300, spread="uniform")
NAMES = ("ttft_p50_s", "tpot_p50_s", "e2e_p50_s", "e2e_p99_s")
TRUTH = Constants(prefill_scale=1.9, decode_scale=1.3, step_overhead_s=0.004, request_overhead_s=0.02)


def observe(engine: EngineModel, clients: int, truth: Constants = TRUTH) -> Observation:
    requests = closed_loop(clients, 6 * clients + 12, LENGTHS, seed=clients)
    outcome = simulate(engine.with_constants(truth), requests)
    return Observation(engine, requests, tuple((name, value_of(outcome, name)) for name in NAMES))


def worst(engine: EngineModel, clients: int, constants: Constants) -> float:
    held_out = observe(engine, clients)
    return max(
        abs(value / observed - 1.0)
        for value, (_, observed) in zip(held_out.simulated(constants), held_out.values, strict=True)
    )


def test_two_cheap_points_teach_the_simulator_another_stack(engine_of: EngineOf) -> None:
    engines = [engine_of(ParallelPlan(tp=tp)) for tp in (2, 4)]
    found = calibrate([observe(engines[0], 2), observe(engines[1], 16)])
    for engine, clients in ((engines[0], 24), (engines[1], 48), (engine_of(ParallelPlan(tp=8)), 8)):
        before, after = (worst(engine, clients, constants) for constants in (Constants(), found.constants))
        assert before > 0.25
        assert after < 0.5 * before


def test_a_stack_that_is_as_simulated_keeps_its_constants(engine_of: EngineOf) -> None:
    found = calibrate([observe(engine_of(), 4, Constants()), observe(engine_of(), 16, Constants())])
    assert found.constants.decode_scale == pytest.approx(1.0, abs=0.03)
    assert found.constants.prefill_scale == pytest.approx(1.0, abs=0.1)


def test_without_observations_nothing_is_fitted_and_the_band_is_wide() -> None:
    found = calibrate([])
    assert found.constants == Constants()
    assert found.band() == (1 / 1.6, 1.6)


def test_the_band_holds_the_worst_metric_and_is_never_narrower_than_a_handful_of_points_allow() -> None:
    exact = tuple([1.0] * 5)
    few = Calibration(Constants(), (Residual("e2e", exact, 4),), observations=1)
    many = replace(few, observations=30)
    late = replace(
        many, residuals=(Residual("e2e", exact, 4), Residual("ttft", (0.8, 0.9, 1.0, 1.4, 1.7), 4))
    )
    assert few.band()[1] > many.band()[1] > 1.07
    assert late.band() == (0.8, 1.7)


def test_an_observation_must_be_a_positive_number(engine_of: EngineOf) -> None:
    bad = replace(observe(engine_of(), 2), values=(("ttft_p50_s", 0.0),))
    with pytest.raises(PerfDataError, match="ttft_p50_s must be a positive number"):
        calibrate([bad])


def test_an_unknown_value_is_refused_with_the_known_ones(engine_of: EngineOf) -> None:
    outcome = simulate(engine_of(), closed_loop(2, 4, LENGTHS))
    with pytest.raises(PerfDataError, match="known: served_rps, ttft"):
        value_of(outcome, "itl_p99_s")
    assert value_of(outcome, "served_rps") == pytest.approx(4 / outcome.end_s)


def test_a_slowed_engine_takes_longer_in_everything(engine_of: EngineOf) -> None:
    fast = simulate(engine_of(), closed_loop(4, 12, LENGTHS))
    slow = simulate(slowed(engine_of(), 1.5), closed_loop(4, 12, LENGTHS))
    assert slow.end_s == pytest.approx(1.5 * fast.end_s, rel=0.03)
