from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from fleetsieve_airflow.operators.search import SearchConfigsOperator

FLEET = """
fleet: to-narrow
pools: {h100: {gpu: NVIDIA H100 80GB HBM3, gpus: 16, gpus_per_node: 8}}
models: {llama-3.1-70b: {revision: fp8}}
engine_configs: {TP4: {pool: h100, tensor_parallel: 4, engine_args: {quantization: fp8}}}
workloads:
  chat:
    model: llama-3.1-70b
    demand_rps: 8.0
    slo: {success_rate: 0.99, ttft_p90_s: 1.0, e2e_p90_s: 20.0}
    trace: {name: chat, format: poisson, isl_mean_tokens: 1000, osl_mean_tokens: 200}
    engine_configs: [TP4]
    loads: {offered_load_rps: [2, 4]}
measurement: {backend: simulate, duration_s: 60}
"""


def test_a_fleet_is_narrowed_to_engine_configs_that_a_fleet_file_can_take(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET, encoding="utf-8")
    operator = SearchConfigsOperator(
        task_id="search", fleet=str(tmp_path / "fleet.yaml"), keep=3, degrees=(2, 4), disaggregated=False
    )
    found = operator.execute({})["chat"]  # type: ignore[arg-type]
    assert 1 <= len(found["engine_configs"]) <= 3
    assert set(found["capacity_rps"]) == set(found["engine_configs"])
    assert all(section["pool"] == "h100" for section in found["engine_configs"].values())
    assert found["priced"] > 100


def test_replicas_that_prefill_and_decode_apart_are_searched_where_the_backend_measures_them(
    tmp_path: Path,
) -> None:
    for backend, phases in (("simulate", {"prefill", "decode"}), ("local", set())):
        (tmp_path / "fleet.yaml").write_text(FLEET.replace("simulate", backend), encoding="utf-8")
        operator = SearchConfigsOperator(
            task_id="search", fleet=str(tmp_path / "fleet.yaml"), keep=2, degrees=(4,)
        )
        found = operator.execute({})["chat"]  # type: ignore[arg-type]
        keys = {key for section in found["engine_configs"].values() for key in section}
        assert keys & {"prefill", "decode"} == phases


def test_a_gpu_without_a_data_sheet_fails_the_task_at_once(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET.replace("NVIDIA H100 80GB HBM3", "Abacus 9"), encoding="utf-8")
    operator = SearchConfigsOperator(task_id="search", fleet=str(tmp_path / "fleet.yaml"))
    with pytest.raises(AirflowFailException, match="no known GPU in 'Abacus 9'"):
        operator.execute({})  # type: ignore[arg-type]
