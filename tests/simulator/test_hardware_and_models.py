from __future__ import annotations

import pytest

from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.hardware import hardware_named
from fleetsieve_airflow.simulator.models import KNOWN_MODELS, Precision, model_named, shape_from_config

LLAMA = {
    "model_type": "llama",
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "vocab_size": 128256,
}
#: Billions of weights that the models' cards state.
STATED = {
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.6,
    "llama-2-7b": 6.74,
    "llama-2-13b": 13.0,
    "qwen3-32b": 32.8,
    "qwen3-235b-a22b": 235,
    "mixtral-8x7b": 46.7,
    "gpt-oss-120b": 117,
    "deepseek-v3": 671,
}


def test_every_built_in_model_counts_the_weights_its_card_states() -> None:
    assert set(STATED) == set(KNOWN_MODELS)
    for name, billions in STATED.items():
        assert model_named(name).params / 1e9 == pytest.approx(billions, rel=0.01), name


def test_a_config_json_gives_the_shape_of_the_built_in_model() -> None:
    from dataclasses import replace

    assert replace(shape_from_config("x", LLAMA), name="llama-3.1-70b") == model_named("llama-3.1-70b")


def test_an_architecture_the_engine_does_not_know_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PerfDataError, match=r"'mamba' of x; known: llama"):
        shape_from_config("x", {**LLAMA, "model_type": "mamba"})


def test_an_unknown_model_names_the_built_in_ones_and_the_way_out() -> None:
    with pytest.raises(PerfDataError, match=r"deepseek-v3.*config\.json"):
        model_named("gpt-9")


def test_a_cached_token_of_llama_70b_takes_320_kib_and_a_quarter_on_four_ranks() -> None:
    shape = model_named("llama-3.1-70b")
    assert shape.kv_bytes_per_token(1) == 320 * 1024
    assert shape.kv_bytes_per_token(4) == 80 * 1024
    assert shape.kv_bytes_per_token(16) == shape.kv_bytes_per_token(8)


def test_latent_attention_caches_the_same_on_every_rank() -> None:
    shape = model_named("deepseek-v3")
    assert shape.kv_bytes_per_token(1) == shape.kv_bytes_per_token(8) == 61 * 576 * 2


def test_sliding_layers_hold_their_window_and_grow_no_further() -> None:
    shape = model_named("gpt-oss-120b")
    assert shape.kv_bytes_per_token(1) == 18 * 2 * 8 * 64 * 2
    assert shape.kv_bytes_per_sequence(1) == 18 * 128 * 2 * 8 * 64 * 2


def test_an_unknown_number_format_is_refused() -> None:
    with pytest.raises(PerfDataError, match="'fp7' for kv"):
        Precision(kv="fp7")


def test_half_the_power_leaves_three_quarters_of_the_clock() -> None:
    capped = hardware_named("h100@350W")
    assert capped.clock == pytest.approx(0.768, abs=1e-3)
    assert capped.memory_bandwidth == hardware_named("h100").memory_bandwidth


@pytest.mark.parametrize(("name", "words"), [("tpu", "known: a100"), ("h100@lots", "not a number of watts")])
def test_a_gpu_nobody_knows_is_refused_with_what_exists(name: str, words: str) -> None:
    with pytest.raises(PerfDataError, match=words):
        hardware_named(name)


def test_a_rack_of_gb200_is_one_node_of_72() -> None:
    assert hardware_named("gb200").gpus_per_node == 72
