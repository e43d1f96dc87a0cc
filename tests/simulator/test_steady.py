from __future__ import annotations

import numpy as np
import pytest

from fleetsieve_airflow.simulator.arrivals import Lengths, closed_loop
from fleetsieve_airflow.simulator.events import StepTimes, simulate
from fleetsieve_airflow.simulator.plans import ParallelPlan
from fleetsieve_airflow.simulator.steady import (
    LengthProfile,
    continuous,
    decode_pool,
    disaggregated,
    prefill_pool,
    transfer_s,
)
from tests.simulator.conftest import EngineOf


@pytest.mark.parametrize(("isl", "osl"), [(1024, 1024), (8192, 1024), (4000, 100)])
@pytest.mark.parametrize("tp", [4, 8])
def test_closed_forms_agree_with_discrete_events(engine_of: EngineOf, isl: int, osl: int, tp: int) -> None:
    engine = engine_of(ParallelPlan(tp=tp))
    times, profile = StepTimes(engine), LengthProfile(isl_tokens=isl, osl_tokens=osl)
    lengths = Lengths(isl_mean_tokens=isl, osl_mean_tokens=osl, spread="uniform")
    batch = np.array([1, 8, 24])
    estimate = continuous(engine, profile, batch)
    for index, clients in enumerate(batch.tolist()):
        outcome = simulate(engine, closed_loop(clients, 20 * clients + 20, lengths), times=times)
        assert estimate.tpot_s[index] == pytest.approx(outcome.percentile("tpot", 50), rel=0.12)
        assert estimate.rate_rps[index] == pytest.approx(len(outcome.e2e_s) / outcome.end_s, rel=0.08)


def test_latency_rate_and_batch_obey_littles_law(engine_of: EngineOf) -> None:
    profile = LengthProfile(isl_tokens=2000, osl_tokens=200)
    batch = np.array([2.0, 16.0, 64.0])
    estimate = continuous(engine_of(), profile, batch)
    assert np.allclose(estimate.rate_rps * estimate.e2e_s(profile), batch, rtol=0.05)


def test_more_running_sequences_serve_more_and_answer_later(engine_of: EngineOf) -> None:
    estimate = continuous(engine_of(), LengthProfile(isl_tokens=1000, osl_tokens=300), np.arange(1.0, 200.0))
    assert np.all(np.diff(estimate.rate_rps) > 0)
    assert np.all(np.diff(estimate.tpot_s) > 0)


def test_a_decode_pool_is_not_delayed_by_prompts(engine_of: EngineOf) -> None:
    profile = LengthProfile(isl_tokens=8000, osl_tokens=300)
    engine = engine_of(ParallelPlan(tp=8))
    assert float(decode_pool(engine, profile, 32.0).tpot_s) < 0.6 * float(
        continuous(engine, profile, 32.0).tpot_s
    )


def test_pools_are_balanced_and_the_slower_one_sets_the_rate(engine_of: EngineOf) -> None:
    profile = LengthProfile(isl_tokens=4000, osl_tokens=500)
    prefill, decode = engine_of(ParallelPlan(tp=4)), engine_of(ParallelPlan(tp=8))
    split = disaggregated(prefill, decode, profile, np.array([32.0, 128.0]), most=4)
    _, prefill_rate = prefill_pool(prefill, profile)
    decode_rate = decode_pool(decode, profile, np.array([32.0, 128.0])).rate_rps
    assert np.allclose(
        split.steady.rate_rps, np.minimum(split.prefills * prefill_rate, split.decoders * decode_rate)
    )
    assert np.array_equal(split.gpus, split.prefills * 4 + split.decoders * 8)
    balanced = split.prefills * prefill_rate / (split.decoders * decode_rate)
    assert np.all(np.abs(balanced[-1] - 1.0) < 0.5)


def test_the_cache_of_a_prompt_travels_over_the_cards_of_the_smaller_side(engine_of: EngineOf) -> None:
    profile = LengthProfile(isl_tokens=4000, osl_tokens=500)
    wide, narrow = engine_of(ParallelPlan(tp=8)), engine_of(ParallelPlan(tp=4))
    bytes_moved = 4000 * wide.shape.kv_bytes_per_token(1)
    assert transfer_s(wide, narrow, profile) == pytest.approx(bytes_moved / (4 * 50e9), rel=0.01)
    assert transfer_s(wide, narrow, profile) == transfer_s(narrow, wide, profile)
