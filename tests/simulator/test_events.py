from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.simulator.arrivals import Lengths, Requests, closed_loop, poisson, thinned
from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.engine import Constants, EngineModel, StepShape
from fleetsieve_airflow.simulator.events import StepTimes, simulate
from fleetsieve_airflow.simulator.plans import EngineSettings, ParallelPlan
from tests.simulator.conftest import EngineOf

CHAT = Lengths(isl_mean_tokens=1024, osl_mean_tokens=256, spread="lognormal")


def requests(*rows: tuple[float, int, int]) -> Requests:
    arrival, isl, osl = zip(*rows, strict=True)
    return Requests(np.array(arrival, dtype=float), np.array(isl), np.array(osl))


def with_cache_of(engine: EngineModel, tokens: int) -> EngineModel:
    smaller = engine.with_constants(engine.constants)
    smaller.kv_tokens = tokens
    return smaller


def test_a_lone_request_takes_its_prefill_and_then_a_step_a_token(engine_of: EngineOf) -> None:
    engine = engine_of()
    outcome = simulate(engine, requests((0.0, 1000, 101)))
    constants = engine.constants
    first = constants.request_overhead_s + constants.step_overhead_s
    first += float(engine.prefill_s(StepShape(prefill=1000)))
    steps = sum(float(engine.step_s(StepShape(decoding=1, context=1001 + step))) for step in range(100))
    assert outcome.ttft_s[0] == pytest.approx(first, rel=0.02)
    assert outcome.e2e_s[0] == pytest.approx(first + steps, rel=0.02)
    assert outcome.tpot_s[0] == pytest.approx(steps / 100, rel=0.02)


def test_leaping_over_steps_gives_what_stepping_one_by_one_gives(engine_of: EngineOf) -> None:

    engine = engine_of()
    alone = simulate(engine, requests((0.0, 512, 400)))
    times = StepTimes(engine)
    total, context = 0.0, 513.0
    for _ in range(399):
        total += times.decode_s(1, context)
        context += 1
    assert alone.e2e_s[0] - alone.ttft_s[0] == pytest.approx(total, rel=1e-3)


def test_a_request_that_arrives_while_others_decode_waits_for_the_step_only(engine_of: EngineOf) -> None:
    engine = engine_of()
    outcome = simulate(engine, requests((0.0, 100, 1000), (3.0, 100, 10)))
    step = float(engine.step_s(StepShape(decoding=1, context=500)))
    assert 0.0 <= outcome.queued_s[1] <= engine.constants.request_overhead_s + step * 1.05


def test_a_prompt_longer_than_the_budget_is_prefilled_in_chunks(engine_of: EngineOf) -> None:
    small = engine_of(settings=EngineSettings(max_num_batched_tokens=1024))
    large = engine_of(settings=EngineSettings(max_num_batched_tokens=16384))
    rows = [(0.0, 100, 300), (1.0, 16000, 10)]
    chunked, whole = (simulate(engine, requests(*rows)) for engine in (small, large))
    assert chunked.ttft_s[1] > whole.ttft_s[1]
    assert chunked.failed == whole.failed == 0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.2, 8.0), st.integers(1_600, 60_000))
def test_every_request_ends_once_and_in_order_of_its_times(
    engine_of: EngineOf, seed: int, rate: float, cache: int
) -> None:
    engine = with_cache_of(engine_of(), cache)
    stream = poisson(rate, 30.0, Lengths(isl_mean_tokens=400, osl_mean_tokens=100, spread="uniform"), seed)
    outcome = simulate(engine, stream)
    assert len(outcome.e2e_s) == len(stream)
    assert outcome.failed == int(np.sum(stream.isl_tokens + stream.osl_tokens > cache))
    served = np.isfinite(outcome.e2e_s)
    assert np.all(outcome.ttft_s[served] > 0)
    assert np.all(outcome.e2e_s[served] >= outcome.ttft_s[served])
    assert outcome.busy_s <= outcome.end_s + 1e-9


def test_a_full_cache_preempts_the_youngest_and_all_are_served_in_the_end(engine_of: EngineOf) -> None:
    engine = with_cache_of(engine_of(), 4000)
    outcome = simulate(engine, requests(*[(0.001 * i, 900, 300) for i in range(8)]))
    assert outcome.preemptions > 0
    assert outcome.failed == 0
    assert outcome.e2e_s[0] == min(outcome.e2e_s)


def test_a_request_that_can_never_fit_fails_and_the_others_do_not(engine_of: EngineOf) -> None:
    outcome = simulate(with_cache_of(engine_of(), 2000), requests((0.0, 3000, 10), (0.0, 100, 10)))
    assert np.isfinite(outcome.e2e_s).tolist() == [False, True]
    assert outcome.success_rate == 0.5
    assert outcome.percentile("e2e", 99) == float("inf")
    assert outcome.percentile("e2e", 50) == pytest.approx(float(outcome.e2e_s[1]))


def test_a_client_that_gives_up_counts_as_failed(engine_of: EngineOf) -> None:
    outcome = simulate(engine_of(), requests((0.0, 100, 2000), (0.0, 100, 2)), timeout_s=5.0)
    assert np.isfinite(outcome.ttft_s).tolist() == [False, True]


def test_more_load_means_later_answers_and_an_overloaded_replica_queues(engine_of: EngineOf) -> None:
    engine = engine_of()
    outcomes = [simulate(engine, poisson(rate, 120.0, CHAT, seed=3)) for rate in (1.0, 4.0, 40.0)]
    assert np.all(np.diff([outcome.mean("tpot") for outcome in outcomes]) > 0)
    assert outcomes[-1].percentile("queued", 99) > 10.0
    assert outcomes[0].percentile("queued", 50) < 0.1


def test_a_closed_loop_keeps_its_clients_busy_and_no_more(engine_of: EngineOf) -> None:
    outcome = simulate(engine_of(), closed_loop(8, 80, CHAT))
    in_flight = float(np.sum(outcome.e2e_s)) / outcome.end_s
    assert 7.0 < in_flight <= 8.2
    assert outcome.failed == 0


def test_a_closed_loop_goes_on_after_a_refused_request(engine_of: EngineOf) -> None:
    loop = Requests(np.zeros(4), np.array([50, 9000, 9000, 50]), np.array([5, 5, 5, 5]), concurrency=1)
    outcome = simulate(with_cache_of(engine_of(), 1000), loop)
    assert np.isfinite(outcome.e2e_s).tolist() == [True, False, False, True]


def test_data_parallel_ranks_share_the_stream(engine_of: EngineOf) -> None:
    plan = ParallelPlan(tp=2, dp=4, ep=8)
    engine = engine_of(plan, model="qwen3-235b-a22b", gpu="h200")
    stream = poisson(8.0, 60.0, CHAT, seed=1)
    assert len(simulate(engine, stream).e2e_s) == len(thinned(stream, 4)) == -(-len(stream) // 4)


def test_the_first_token_of_a_pipeline_leaves_its_last_stage(engine_of: EngineOf) -> None:
    deep = engine_of(ParallelPlan(tp=2, pp=4), constants=Constants(request_overhead_s=0.0))
    outcome = simulate(deep, requests((0.0, 4096, 1)))
    prompt = StepShape(prefill=4096)
    expected = float(deep.prefill_s(prompt) + deep.prefill_lag_s(prompt)) + deep.constants.step_overhead_s
    assert outcome.ttft_s[0] == pytest.approx(expected, rel=0.02)


def test_the_same_seed_gives_the_same_answers(engine_of: EngineOf) -> None:
    first, second = (simulate(engine_of(), poisson(5.0, 30.0, CHAT, seed=7)) for _ in range(2))
    assert np.array_equal(first.e2e_s, second.e2e_s)


def test_a_run_beyond_the_tables_says_so(engine_of: EngineOf) -> None:
    engine = with_cache_of(engine_of(), 10_000_000)
    assert not simulate(engine, requests((0.0, 1000, 10))).beyond_tables
    assert simulate(engine, requests((0.0, 400_000, 10))).beyond_tables


def test_an_empty_stream_serves_nothing_and_meets_nothing(engine_of: EngineOf) -> None:
    outcome = simulate(engine_of(), Requests(np.zeros(0), np.zeros(0, dtype=int), np.zeros(0, dtype=int)))
    assert outcome.success_rate == 0.0
    assert outcome.percentile("ttft", 50) == float("inf")


@pytest.mark.parametrize("spread", ["fixed", "uniform", "lognormal"])
def test_drawn_lengths_have_the_mean_they_are_given(spread: str) -> None:
    isl, osl = Lengths(isl_mean_tokens=1000, osl_mean_tokens=100, spread=spread).draw(
        40_000, np.random.default_rng(1)
    )
    assert isl.mean() == pytest.approx(1000, rel=0.03)
    assert osl.mean() == pytest.approx(100, rel=0.03)


@pytest.mark.parametrize(
    ("arrival", "isl", "words"),
    [
        ([1.0, 0.5], [1, 1], "not decrease"),
        ([0.0, 1.0], [1, 0], "at least one prompt"),
        ([0.0], [1, 1], "as many"),
    ],
)
def test_requests_that_make_no_sense_are_refused(arrival: list[float], isl: list[int], words: str) -> None:
    with pytest.raises(PerfDataError, match=words):
        Requests(np.array(arrival), np.array(isl), np.ones(len(isl), dtype=int))
