"""The findings on measured operator tables (H100, H200, vLLM)."""

from __future__ import annotations

from fleetsieve_airflow.simulator.models import Precision
from fleetsieve_airflow.simulator.search import Targets
from tests.simulator import findings

TABLES = "aiconfigurator"


def test_strict_online_targets_favour_disaggregation_and_a_far_larger_decode_batch() -> None:
    found = findings.runtimes(TABLES, findings.STRICT)
    assert 1.5 <= found.gain <= 1.9
    assert found.disaggregated.batch >= 2 * found.continuous.batch


def test_offline_throughput_does_not_favour_disaggregation() -> None:
    assert findings.runtimes(TABLES, Targets()).gain <= 1.0


def test_wide_shallow_prefill_is_sooner_done_and_narrow_deep_prefill_serves_more() -> None:
    cuts = findings.prefill_cuts(TABLES)
    assert cuts["TP4PP2"][0] < cuts["TP2PP4"][0]
    assert cuts["TP4PP2"][1] < cuts["TP2PP4"][1]


def test_decoding_prefers_a_higher_tensor_parallel_degree_than_prefill() -> None:
    assert findings.best_cut(TABLES, "prefill") == 2
    assert findings.best_cut(TABLES, "decode") == 8


def test_spreading_experts_raises_throughput_and_uneven_routing_lowers_it() -> None:
    rates = findings.expert_rates(TABLES, "h200", "deepseek-v3", Precision(gemm="fp8_block", moe="fp8_block"))
    assert rates["TP1DP8EP8", "power_law_1.01"] > 1.2 * rates["TP8", "power_law_1.01"]
    assert rates["TP1DP8EP8", "power_law_1.2"] < rates["TP1DP8EP8", "power_law_1.01"]


def test_mixed_pools_serve_no_less_for_the_same_money_than_the_best_pools_of_one_kind() -> None:
    alike, mixed = findings.fleets(TABLES)
    assert (mixed.requests_per_dollar or 0.0) > (alike.requests_per_dollar or 0.0)
