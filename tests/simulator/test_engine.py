from __future__ import annotations

import numpy as np
import pytest

from fleetsieve_airflow.simulator.collectives import collective
from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.engine import Constants, EngineModel, StepShape
from fleetsieve_airflow.simulator.hardware import hardware_named
from fleetsieve_airflow.simulator.models import model_named
from fleetsieve_airflow.simulator.plans import (
    EngineSettings,
    ParallelPlan,
    Speculation,
    cannot_run,
    kv_tokens,
    weights_bytes,
)
from fleetsieve_airflow.simulator.roofline_database import RooflineDatabase, imbalance
from tests.simulator.conftest import FP8, EngineOf

NO_OVERHEAD = Constants(step_overhead_s=0.0, sequence_overhead_s=0.0, request_overhead_s=0.0)


def test_a_decoding_step_reads_at_least_the_weights_and_the_cache_once(engine_of: EngineOf) -> None:
    engine = engine_of(ParallelPlan(tp=4), constants=NO_OVERHEAD)
    moved = weights_bytes(engine.shape, engine.plan) + 64 * 2000 * engine.shape.kv_bytes_per_token(4)
    at_full_speed = moved / engine.database.hardware.memory_bandwidth
    assert 1.0 < float(engine.step_s(StepShape(decoding=64, context=2000))) / at_full_speed < 2.0


def test_prefill_takes_at_least_the_arithmetic_of_its_tokens(engine_of: EngineOf) -> None:
    engine = engine_of(ParallelPlan(tp=4), constants=NO_OVERHEAD)
    hardware = engine.database.hardware
    at_full_speed = 2 * 4096 * engine.shape.params / 4 / hardware.flops("fp8")
    assert 1.0 < float(engine.step_s(StepShape(prefill=4096))) / at_full_speed < 3.0


def test_chunks_of_a_prompt_attend_to_as_much_as_the_whole_prompt(engine_of: EngineOf) -> None:
    engine = engine_of(ParallelPlan(tp=4), constants=NO_OVERHEAD)
    whole = float(engine.prefill_s(StepShape(prefill=32768)))
    chunks = engine.prefill_s(StepShape(prefill=8192, done=np.arange(4) * 8192.0))
    assert np.all(np.diff(chunks) > 0)
    assert float(chunks.sum()) == pytest.approx(whole, rel=0.05)


def test_more_sequences_take_a_longer_step_but_less_time_each(engine_of: EngineOf) -> None:
    steps = engine_of().step_s(StepShape(decoding=np.array([1, 8, 64, 256]), context=1000))
    assert np.all(np.diff(steps) > 0)
    assert np.all(np.diff(steps / [1, 8, 64, 256]) < 0)


def test_constants_scale_and_add_where_they_say(engine_of: EngineOf) -> None:
    base, shape = engine_of(constants=NO_OVERHEAD), StepShape(decoding=10, context=500)
    slow = base.with_constants(Constants(decode_scale=2.0, step_overhead_s=0.001, sequence_overhead_s=1e-4))
    assert float(slow.step_s(shape)) == pytest.approx(2 * float(base.step_s(shape)) + 0.001 + 10 * 1e-4)


def test_a_stage_is_busy_for_its_layers_and_the_prompt_passes_all_of_them(engine_of: EngineOf) -> None:
    flat, deep = (engine_of(ParallelPlan(tp=2, pp=pp), constants=NO_OVERHEAD) for pp in (1, 4))
    prompt = StepShape(prefill=4096)
    assert float(deep.prefill_s(prompt)) == pytest.approx(float(flat.prefill_s(prompt)) / 4, rel=0.05)
    through = float(deep.prefill_s(prompt) + deep.prefill_lag_s(prompt))
    assert through == pytest.approx(float(flat.prefill_s(prompt)), rel=0.05)


def test_context_parallelism_shortens_long_prompts_and_leaves_decoding_as_it_is(engine_of: EngineOf) -> None:
    alone, shared = engine_of(ParallelPlan(tp=4)), engine_of(ParallelPlan(tp=4, cp=2))
    long_prompt = StepShape(prefill=65536)
    assert 0.5 < float(shared.prefill_s(long_prompt)) / float(alone.prefill_s(long_prompt)) < 0.6
    assert shared.plan.gpus == 2 * alone.plan.gpus
    assert float(shared.decode_s(16, 1000)) == float(alone.decode_s(16, 1000))


def test_speculation_gains_tokens_and_pays_for_verifying_them(engine_of: EngineOf) -> None:
    plain = engine_of()
    guessing = engine_of(settings=EngineSettings(speculation=Speculation(tokens=3, acceptance=0.7)))
    assert guessing.tokens_per_step == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    for batch, better in ((1, True), (256, False)):
        per_token = (
            float(guessing.decode_s(batch, 1000))
            / guessing.tokens_per_step
            / float(plain.decode_s(batch, 1000))
        )
        assert (per_token < 0.6) is better, batch


def test_speculation_refuses_rates_that_are_no_probability() -> None:
    with pytest.raises(PerfDataError, match="acceptance"):
        Speculation(acceptance=1.0)


@pytest.mark.parametrize(
    ("model", "plan", "words"),
    [
        ("llama-3.1-70b", ParallelPlan(tp=3), "64 attention heads do not divide"),
        ("llama-3.1-70b", ParallelPlan(tp=16), "more than a node's 8"),
        ("llama-3.1-70b", ParallelPlan(pp=100), "more stages than 80 layers"),
        ("llama-3.1-70b", ParallelPlan(dp=2), "is 2 replicas"),
        ("qwen3-235b-a22b", ParallelPlan(tp=4, ep=3), "EP3 divides not both"),
        ("qwen3-235b-a22b", ParallelPlan(tp=8, dp=4), "more than a node's 8"),
    ],
)
def test_a_plan_that_cannot_run_says_why(model: str, plan: ParallelPlan, words: str) -> None:
    assert words in cannot_run(model_named(model), hardware_named("h100"), plan)
    with pytest.raises(PerfDataError, match="cannot run as"):
        EngineModel(RooflineDatabase(hardware_named("h100")), model_named(model), plan)


def test_blocks_of_fp8_weights_must_stay_whole() -> None:
    shape = model_named("qwen3-235b-a22b").with_precision(type(FP8)(gemm="fp8_block", moe="fp8_block"))
    assert "blocks of 128" in cannot_run(shape, hardware_named("h100"), ParallelPlan(tp=8))
    assert cannot_run(shape, hardware_named("h100"), ParallelPlan(tp=8, ep=8)) == ""


def test_weights_that_do_not_fit_leave_no_cache() -> None:
    shape, settings = model_named("llama-3.1-70b"), EngineSettings()
    assert kv_tokens(shape, hardware_named("h100"), ParallelPlan(tp=1), settings) == 0
    assert kv_tokens(shape, hardware_named("h100"), ParallelPlan(tp=4), settings) > 300_000
    assert kv_tokens(shape, hardware_named("h100"), ParallelPlan(tp=2, pp=2), settings) > 300_000


def test_the_cache_limits_how_many_sequences_run(engine_of: EngineOf) -> None:
    engine = engine_of(ParallelPlan(tp=2))
    assert engine.max_sequences(10_000) == engine.kv_tokens // 10_000
    assert engine.max_sequences(10) == engine.settings.max_num_seqs


def test_a_collective_over_more_gpus_than_a_node_crosses_the_network_and_is_flagged() -> None:
    database = RooflineDatabase(hardware_named("h100"))
    inside, beyond_inside = collective(database, "all_reduce", 8)
    across, beyond_across = collective(database, "all_reduce", 16)
    assert (beyond_inside, beyond_across) == (False, True)
    assert float(across.at(1e8)) > float(inside.at(1e8))


def test_extrapolation_is_refused_where_that_is_asked_and_otherwise_named() -> None:
    database = RooflineDatabase(hardware_named("h100"))
    shape = model_named("llama-3.1-70b").with_precision(FP8)
    plan = ParallelPlan(tp=16)
    flagged = EngineModel(database, shape, plan, multi_node=True)
    assert flagged.beyond == ["all_reduce over 16 GPUs"]
    with pytest.raises(PerfDataError, match="would have to extrapolate: all_reduce over 16 GPUs"):
        EngineModel(database, shape, plan, multi_node=True, beyond_tables="refuse")


def test_a_step_wider_than_the_tables_is_outside_them(engine_of: EngineOf) -> None:
    engine = engine_of()
    steps = StepShape(decoding=np.array([10.0, 10.0]), context=np.array([1000.0, 1e6]))
    assert engine.outside(steps).tolist() == [False, True]


def test_uneven_routing_costs_more_the_more_ranks_share_the_experts() -> None:
    assert imbalance("balanced", 8) == 1.0
    assert imbalance("power_law_1.2", 1) == 1.0
    assert (
        1.0 < imbalance("power_law_1.01", 8) < imbalance("power_law_1.2", 8) < imbalance("power_law_1.2", 32)
    )
