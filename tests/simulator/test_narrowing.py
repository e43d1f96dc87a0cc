from __future__ import annotations

from pathlib import Path

import pytest

from fleetsieve_airflow.backends.simulate import fleet_requests
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.fleet import FleetEngines
from fleetsieve_airflow.simulator.narrowing import APART, Narrowed, as_sections, narrow
from fleetsieve_airflow.spec import parse_spec

FP8 = {"quantization": "fp8"}
H100 = {"gpu": "NVIDIA H100 80GB HBM3", "gpus": 16, "gpus_per_node": 8, "price_per_gpu_hour": 2.8}
H200 = {"gpu": "NVIDIA H200", "gpus": 16, "gpus_per_node": 8, "price_per_gpu_hour": 3.5}


def fleet_of(
    pools: dict[str, dict[str, object]],
    configs: dict[str, dict[str, object]] | None = None,
    *,
    demand_rps: float = 8.0,
    objective: str = "max_min_fulfilment",
    profiling_gpus: int = 16,
    **slo: float,
) -> FleetSpec:
    first = {f"{pool}-TP4": {"pool": pool, "tensor_parallel": 4, "engine_args": FP8} for pool in pools}
    return parse_spec(
        {
            "fleet": "to-narrow",
            "pools": pools,
            "models": {"llama-3.1-70b": {"revision": "r1"}},
            "engine_configs": configs or first,
            "workloads": {
                "chat": {
                    "model": "llama-3.1-70b",
                    "demand_rps": demand_rps,
                    "slo": {"success_rate": 0.99, **(slo or {"ttft_p90_s": 1.0, "e2e_p90_s": 20.0})},
                    "trace": {"format": "poisson", "isl_mean_tokens": 2000, "osl_mean_tokens": 300},
                    "engine_configs": list(configs or first),
                    "loads": {"offered_load_rps": [2, 4]},
                }
            },
            "decision": {"objective": objective, "tolerance": 1.0 if objective == "lowest_cost" else 0.01},
            "measurement": {"backend": "simulate", "duration_s": 60, "profiling_gpus": profiling_gpus},
        },
        Path(),
    )


def narrowed(spec: FleetSpec, **options: object) -> tuple[Narrowed, ...]:
    kept, _ = narrow(
        spec,
        "chat",
        fleet_requests,
        tables="roofline",
        degrees=(2, 4),
        **options,  # type: ignore[arg-type]
    )
    return kept


def test_a_few_configs_that_can_meet_the_slo_are_kept_best_first() -> None:
    spec = fleet_of({"h100": H100})
    kept, searches = narrow(spec, "chat", fleet_requests, tables="roofline", keep=4)
    assert 1 < len(kept) <= 4
    assert [item.worth for item in kept] == sorted((item.worth for item in kept), reverse=True)
    assert searches["h100"].priced > 200
    assert APART not in searches
    section = as_sections(kept)[kept[0].config.label]
    assert section["pool"] == "h100"
    assert section["engine_args"] == FP8


def test_replicas_that_prefill_and_decode_apart_are_found_where_the_slo_favours_them() -> None:
    spec = fleet_of({"h100": H100}, ttft_p90_s=1.5, tpot_p90_s=0.02)
    kept = narrowed(spec, keep=4, disaggregated=True)
    assert kept[0].config.disaggregated
    assert all(item.config.gpus <= 16 for item in kept)
    assert not any(item.config.disaggregated for item in narrowed(spec, keep=4))


def test_every_pool_and_every_pair_of_pools_keeps_its_best_in_a_fleet_file_that_can_be_simulated() -> None:
    pools = {"h100": H100, "h200": H200}
    sections = as_sections(narrowed(fleet_of(pools), keep=6, disaggregated=True))
    second = fleet_of(pools, sections)
    kinds = {tuple(part.engine.pool for part in config.parts) for config in second.configs}
    assert kinds == {("h100",), ("h200",), *((one, other) for one in pools for other in pools)}
    assert {item.config for item in second.candidates if not item.excluded} == set(sections)
    engines = FleetEngines(second, "roofline")
    assert all(engines.replica("chat", label).kv_tokens > 0 for label in sections)


def test_a_replica_is_worth_no_more_than_the_demand_can_use() -> None:
    much, little = (narrowed(fleet_of({"h100": H100}, demand_rps=rate), keep=8) for rate in (50.0, 1.0))
    assert max(item.config.gpus for item in much) > little[0].config.gpus
    assert little[0].config.gpus == min(item.config.gpus for item in little)
    assert little[0].worth == pytest.approx(1.0 / little[0].config.gpus)


def test_where_money_is_planned_for_a_cheaper_pool_is_worth_more() -> None:
    pools = {"h100": {**H100, "price_per_gpu_hour": 0.1}, "h200": H200}
    assert narrowed(fleet_of(pools))[0].config.pool == "h200"
    assert narrowed(fleet_of(pools, objective="lowest_cost"))[0].config.pool == "h100"


def test_an_engine_that_speculates_is_judged_with_its_speculation() -> None:
    args = {**FP8, "speculative-config": '{"num_speculative_tokens": 3, "acceptance": 0.9}'}
    configs = {"TP4": {"pool": "h100", "tensor_parallel": 4, "engine_args": args}}
    plain, drafting = (fleet_of({"h100": H100}, some, tpot_p90_s=0.02) for some in (None, configs))
    assert narrowed(drafting)[0].worth > 1.2 * narrowed(plain)[0].worth
    apart = [item.config for item in narrowed(drafting, disaggregated=True) if item.config.disaggregated]
    assert apart
    assert all(dict(config.engine_args) == args for config in apart)


def test_a_power_cap_in_a_pools_gpu_slows_its_prompts() -> None:
    def capacity(gpu: str) -> float:
        spec = fleet_of({"h100": {**H100, "gpu": gpu}}, ttft_p90_s=0.5)
        return next(item.capacity_rps for item in narrowed(spec) if item.config.label == "TP4")

    assert capacity("NVIDIA H100 80GB HBM3@350W") < 0.9 * capacity("NVIDIA H100 80GB HBM3")


def test_a_power_cap_that_is_no_number_is_named() -> None:
    with pytest.raises(PerfDataError, match=r"'half'.*not a number of watts"):
        narrowed(fleet_of({"h100": {**H100, "gpu": "NVIDIA H100@half"}}))
