from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetsieve_airflow.backends.base import Backend
from fleetsieve_airflow.backends.simulate import SimulateBackend
from fleetsieve_airflow.errors import FleetsieveError, MeasurementError, SpecError
from fleetsieve_airflow.evidence import Measurement
from fleetsieve_airflow.records import FleetSpec, Model, Trace
from fleetsieve_airflow.serialization import point_of
from tests.builders import make_slo, make_spec

CHAT = Trace(name="chat", format="poisson", isl_mean_tokens=1000, osl_mean_tokens=200)
FAST = {"ttft_p90_s": 1.0}


def spec_of(
    *,
    model: str = "llama-3.1-70b",
    options: Mapping[str, str] | None = None,
    trace: Trace = CHAT,
    **changes: Any,
) -> FleetSpec:
    changes.setdefault("slo", make_slo(0.99, **FAST))
    spec = make_spec(
        measurement={
            "backend": "simulate",
            "device": "simulate:test",
            "duration_s": 60.0,
            "options": tuple(sorted((options or {}).items())),
        },
        **changes,
    )
    return replace(
        spec,
        models=(Model(name=model, revision="r1"),),
        configs=tuple(replace(config, engine_args=(("--quantization", "fp8"),)) for config in spec.configs),
        workloads=tuple(replace(workload, model=model, trace=trace) for workload in spec.workloads),
    )


def measure(spec: FleetSpec, config: str, load: float, *, repeat: int = 0) -> Measurement:
    backend: Backend = SimulateBackend()
    return backend.measure(spec, point_of(spec, spec.candidate("chat", config), load, repeat))


def test_a_point_comes_back_with_counts_percentiles_and_miss_shares() -> None:
    result = measure(spec_of(), "TP4", 4.0)
    assert result.sent == 240
    assert result.failed == 0
    assert result.served_rps == pytest.approx(4.0)
    assert {"ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "e2e_p99_s"} <= set(dict(result.percentiles))
    assert [share.limit for share in result.miss_shares] == ["ttft_p90_s"]
    assert result.gpu_seconds_window == 4 * 60.0
    assert dict(result.versions)["simulator"].startswith("h100 roofline")


def test_the_same_point_always_gives_the_same_measurement() -> None:
    assert measure(spec_of(), "TP2", 2.0) == measure(spec_of(), "TP2", 2.0)


def test_another_seed_draws_other_arrivals_and_another_run_of_the_step_times() -> None:
    spec = spec_of(options={"run_to_run_cv": "0.05"})
    first, again = measure(spec, "TP4", 4.0), measure(spec, "TP4", 4.0, repeat=1)
    assert first.percentile("e2e_p50_s") != again.percentile("e2e_p50_s")


def test_run_to_run_variation_is_about_as_large_as_asked() -> None:
    spec = spec_of(options={"run_to_run_cv": "0.05"}, loads=(2.0,))
    medians = [
        measure(spec, "TP4", 2.0, repeat=repeat).percentile("tpot_p50_s") or 0.0 for repeat in range(12)
    ]
    mean = sum(medians) / len(medians)
    spread = (sum((value - mean) ** 2 for value in medians) / len(medians)) ** 0.5 / mean
    assert 0.02 < spread < 0.10


def test_load_above_the_capacity_of_a_replica_misses_its_slo() -> None:
    fine, late = (measure(spec_of(loads=(2.0, 60.0)), "TP2", load) for load in (2.0, 60.0))
    assert fine.miss_shares[0].share == 0.0
    assert late.miss_shares[0].share > 0.5


def test_a_replica_of_more_gpus_answers_sooner() -> None:
    results = [
        measure(spec_of(), config, 4.0).percentile("e2e_p50_s") or 0.0 for config in ("TP2", "TP4", "TP8")
    ]
    assert results == sorted(results, reverse=True)


def test_slower_constants_make_another_world() -> None:
    world = spec_of(options={"constants": "decode_scale=2.0, prefill_scale=2.0"})
    ratio = (measure(world, "TP4", 2.0).percentile("tpot_p50_s") or 0) / (
        measure(spec_of(), "TP4", 2.0).percentile("tpot_p50_s") or 1
    )
    assert 1.6 < ratio < 2.2


def test_a_closed_loop_keeps_its_number_of_clients() -> None:
    spec = spec_of(load_kind="concurrency", loads=(8.0,), slo=make_slo(e2e_p50_s=30.0))
    result = measure(spec, "TP4", 8.0)
    e2e = result.percentile("e2e_p50_s") or 0.0
    assert result.served_rps * e2e == pytest.approx(8.0, rel=0.15)


def test_clients_that_give_up_are_failures() -> None:
    result = measure(spec_of(options={"timeout_s": "0.5"}), "TP4", 4.0)
    assert result.success_rate == 0.0
    assert result.percentile("e2e_p50_s") is None


def test_a_config_that_cannot_run_is_refused_with_the_reason_and_is_not_an_error() -> None:
    result = measure(spec_of(configs={"TP1": 1, "TP3": 3}, loads=(2.0,)), "TP3", 2.0)
    assert "64 attention heads do not divide by TP3" in result.refused
    assert "leaves no memory" in measure(spec_of(configs={"TP1": 1}, loads=(2.0,)), "TP1", 2.0).refused


def test_data_parallel_copies_of_a_dense_model_share_the_load() -> None:
    spec = spec_of(loads=(8.0,))
    two = replace(spec, configs=tuple(replace(config, data_parallel=2) for config in spec.configs))
    assert measure(two, "TP2", 8.0).sent == 480
    assert (measure(two, "TP2", 8.0).percentile("tpot_p50_s") or 9) < (
        measure(spec, "TP2", 8.0).percentile("tpot_p50_s") or 0
    )


def test_a_model_is_read_from_its_own_config_json(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3",
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "head_dim": 128,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "vocab_size": 151936,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = spec_of(model="house-model", loads=(4.0,))
    mine = replace(spec, models=(Model(name="house-model", revision="r1", source=str(tmp_path)),))
    assert measure(mine, "TP2", 4.0).success_rate == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "roofline"}, "knows no table"),
        ({"constants": "warp=9"}, "unknown warp; known: decode_scale"),
        ({"constants": "prefill_scale"}, "is not name=number"),
        ({"tables": "/nowhere/mine.csv"}, "cannot be read"),
    ],
)
def test_check_refuses_options_it_does_not_understand(options: dict[str, str], words: str) -> None:
    with pytest.raises(FleetsieveError, match=words):
        SimulateBackend().check(spec_of(options=options, loads=(4.0,)))


def test_check_refuses_a_trace_without_lengths_before_anything_is_measured() -> None:
    with pytest.raises(SpecError, match="isl_mean_tokens"):
        SimulateBackend().check(spec_of(trace=Trace(name="chat", format="poisson")))


def test_check_refuses_a_window_with_too_few_requests_for_its_percentile() -> None:
    with pytest.raises(MeasurementError):
        SimulateBackend().check(spec_of(slo=make_slo(ttft_p99_s=1.0), loads=(0.5,)))


def test_check_refuses_a_gpu_it_has_no_data_sheet_for() -> None:
    spec = spec_of()
    with pytest.raises(FleetsieveError, match="no known GPU in 'Trainium'"):
        SimulateBackend().check(replace(spec, pools=(replace(spec.pools[0], gpu="Trainium"),)))


def test_check_passes_where_every_candidate_can_be_simulated() -> None:
    SimulateBackend().check(spec_of(loads=(2.0, 4.0)))
