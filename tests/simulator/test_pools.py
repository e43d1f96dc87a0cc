from __future__ import annotations

import numpy as np
import pytest

from fleetsieve_airflow.simulator.arrivals import Lengths, closed_loop, poisson
from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.events import simulate
from fleetsieve_airflow.simulator.plans import ParallelPlan
from fleetsieve_airflow.simulator.pools import simulate_split
from fleetsieve_airflow.simulator.steady import LengthProfile, transfer_s
from tests.simulator.conftest import EngineOf

LENGTHS = Lengths(isl_mean_tokens=4000, osl_mean_tokens=300, spread="uniform")


def test_a_lone_request_is_prefilled_moved_and_decoded(engine_of: EngineOf) -> None:
    prefill, decode = engine_of(ParallelPlan(tp=4)), engine_of(ParallelPlan(tp=8))
    stream = poisson(0.05, 60.0, Lengths(isl_mean_tokens=4000, osl_mean_tokens=300), seed=2)
    split = simulate_split(prefill, decode, stream)
    together = simulate(prefill, stream)
    assert split.ttft_s[0] == pytest.approx(float(together.ttft_s[0]), rel=0.01)
    moved = transfer_s(prefill, decode, LengthProfile(isl_tokens=4000, osl_tokens=1))
    decoding = float(decode.decode_s(1, 4150)) + decode.constants.step_overhead_s
    assert split.e2e_s[0] - split.ttft_s[0] - moved == pytest.approx(299 * decoding, rel=0.05)


def test_under_long_prompts_the_tail_of_tpot_is_steadier_in_pools_of_their_own(engine_of: EngineOf) -> None:
    """Both use 16 GPUs at one rate: two mixed replicas, or one that prefills and one that decodes."""
    engine = engine_of(ParallelPlan(tp=8))
    stream = poisson(8.0, 60.0, LENGTHS, seed=4)
    split = simulate_split(engine, engine, stream)
    half = poisson(4.0, 60.0, LENGTHS, seed=4)
    mixed = simulate(engine, half)
    assert split.percentile("tpot", 99) < mixed.percentile("tpot", 99)


def test_every_request_of_several_replicas_ends(engine_of: EngineOf) -> None:
    engine = engine_of(ParallelPlan(tp=4))
    stream = poisson(6.0, 30.0, LENGTHS, seed=5)
    split = simulate_split(engine, engine, stream, prefills=3, decoders=2)
    assert split.failed == 0
    assert np.all(split.e2e_s > split.ttft_s)
    assert simulate_split(engine, engine, stream, prefills=3, decoders=2, timeout_s=1.0).failed > 0


def test_pools_are_simulated_under_an_open_loop_only(engine_of: EngineOf) -> None:
    with pytest.raises(PerfDataError, match="open loop"):
        simulate_split(engine_of(), engine_of(), closed_loop(2, 4, LENGTHS))
