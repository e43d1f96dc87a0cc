from __future__ import annotations

import pytest

from fleetsieve_airflow.simulator.aic_database import available, model_shape, open_tables
from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.engine import EngineModel, StepShape
from fleetsieve_airflow.simulator.models import KNOWN_MODELS, Precision, model_named
from fleetsieve_airflow.simulator.plans import ParallelPlan

FP8 = Precision(gemm="fp8", moe="fp8")


def test_the_tables_cover_the_gpus_they_say() -> None:
    assert {"a100", "b200", "gb200", "h100", "h200", "l40s"} <= set(available())
    assert "vllm" in available()["h100"]


@pytest.mark.parametrize(
    ("gpu", "engine", "words"),
    [("mi300x", "vllm", "there are tables for a100"), ("h100", "tgi", "there are sglang, trtllm, vllm")],
)
def test_a_gpu_or_engine_without_tables_is_refused_in_one_line(gpu: str, engine: str, words: str) -> None:
    with pytest.raises(PerfDataError, match=words) as caught:
        open_tables(gpu, engine)
    assert "\n" not in str(caught.value)


def test_a_shape_without_rows_is_refused_with_what_exists() -> None:
    shape = model_named("gpt-oss-120b").with_precision(Precision(moe="nvfp4"))
    with pytest.raises(
        PerfDataError, match=r"h100/vllm tables has no moe\(dtype=nvfp4.*it has dtype bfloat16, fp8"
    ):
        EngineModel(open_tables("h100"), shape, ParallelPlan(tp=4))


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(PerfDataError, match=r"Llama-3\.1-70B"):
        model_shape("meta-llama/Llama-3.1-71B")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("qwen3-32b", "Qwen/Qwen3-32B"),
        ("gpt-oss-120b", "openai/gpt-oss-120b"),
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
        ("llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B"),
    ],
)
def test_built_in_models_are_those_of_their_config_json(ours: str, theirs: str) -> None:
    read, known = model_shape(theirs), KNOWN_MODELS[ours]
    for name in (
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "vocab",
        "experts",
        "topk",
        "moe_inter",
    ):
        assert getattr(read, name) == getattr(known, name), name


def test_an_all_reduce_of_a_gigabyte_runs_at_the_speed_of_the_links() -> None:
    curve = open_tables("h100").curve("all_reduce", {"gpus": 8})
    gigabytes_per_second = 1.0 / float(curve.at(1e9))
    assert 220 < gigabytes_per_second < 300


@pytest.mark.parametrize(("tp", "tpot_ms"), [(2, 19.7), (4, 13.2), (8, 11.0)])
def test_a_decoding_step_is_near_what_public_runs_of_llama_70b_show(tp: int, tpot_ms: float) -> None:
    """Sixteen clients, 1,024 tokens in and out: time per token of a public benchmark of October 2025."""
    shape = model_named("llama-3.1-70b").with_precision(FP8)
    engine = EngineModel(open_tables("h100"), shape, ParallelPlan(tp=tp))
    step_ms = 1e3 * float(engine.step_s(StepShape(decoding=16, context=1400)))
    assert step_ms == pytest.approx(tpot_ms, rel=0.15)
