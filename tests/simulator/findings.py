"""What two published systems found, as questions to the simulator: the same for a data sheet and for tables.

Each function states its conditions and returns numbers. :class:`Findings` says what must hold of them
whatever the times; the two test modules name theirs, and how far each effect goes with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fleetsieve_airflow.simulator.engine import EngineModel, StepShape
from fleetsieve_airflow.simulator.models import Precision, model_named
from fleetsieve_airflow.simulator.plans import EngineSettings, ParallelPlan
from fleetsieve_airflow.simulator.search import Found, Targets, search
from fleetsieve_airflow.simulator.space import SearchSpace, databases_named
from fleetsieve_airflow.simulator.steady import LengthProfile, continuous, decode_pool

DENSE = model_named("llama-3.1-70b").with_precision(Precision(gemm="fp8", moe="fp8", kv="fp8"))
#: Online: 4,000 tokens in, 1,000 out; first token within 1 s, then 50 tokens a second. Offline: no limits.
PROFILE = LengthProfile(isl_tokens=4000, osl_tokens=1000)
STRICT = Targets(ttft_s=1.0, tpot_s=0.02)


@dataclass(frozen=True)
class Runtimes:
    """The best configuration of each runtime."""

    continuous: Found
    disaggregated: Found

    @property
    def gain(self) -> float:
        """Throughput per GPU of disaggregated over continuous serving."""
        return self.disaggregated.rate_per_gpu / self.continuous.rate_per_gpu


def runtimes(tables: str, targets: Targets) -> Runtimes:
    """Search both runtimes for a dense 70B model in fp8 on H100 GPUs."""
    databases = databases_named(["h100"], tables, "vllm")
    batches = tuple(range(2, 257, 2))
    best = []
    for split in (False, True):
        space = SearchSpace(
            databases=databases, batches=batches, budgets=(8192,), continuous=not split, disaggregated=split
        )
        best.append(search(DENSE, PROFILE, space, targets, top=1).ranked[0])
    return Runtimes(*best)


def prefill_cuts(tables: str) -> dict[str, tuple[float, float]]:
    """Return, for two cuts of eight H100 GPUs, seconds of a 4,000-token prompt and prompts per second."""
    database = databases_named(["h100"], tables, "vllm")[0]
    found = {}
    for plan in (ParallelPlan(tp=4, pp=2), ParallelPlan(tp=2, pp=4)):
        engine, prompt = EngineModel(database, DENSE, plan), StepShape(prefill=4000)
        busy = float(engine.prefill_s(prompt))
        found[plan.label] = busy + float(engine.prefill_lag_s(prompt)), 1.0 / busy
    return found


def best_cut(tables: str, phase: str) -> int:
    """Return the tensor-parallel degree with the most throughput per GPU for one phase of online serving.

    Prefill: a prompt of 4,000 tokens within 1 s. Decode: 10 ms a token, which takes a wide replica.
    """
    database = databases_named(["h100"], tables, "vllm")[0]
    value = {}
    for tp in (2, 4, 8):
        engine = EngineModel(database, DENSE, ParallelPlan(tp=tp))
        if phase == "prefill":
            value[tp] = 1.0 / float(engine.prefill_s(StepShape(prefill=4000))) / tp
            continue
        batch = np.arange(1.0, engine.max_sequences(5000) + 1.0)
        pool = decode_pool(engine, PROFILE, batch)
        value[tp] = float(np.max(np.where(pool.tpot_s <= 0.0105, pool.rate_rps, 0.0))) / tp
    return max(value, key=lambda tp: value[tp])


def expert_rates(tables: str, gpu: str, model: str, precision: Precision) -> dict[tuple[str, str], float]:
    """Return requests per second of eight GPUs with 1,024 running sequences, by (cut, routing)."""
    database = databases_named([gpu], tables, "vllm")[0]
    shape = model_named(model).with_precision(precision)
    found = {}
    for plan in (ParallelPlan(tp=8), ParallelPlan(dp=8, ep=8)):
        for routing in ("power_law_1.01", "power_law_1.2"):
            settings = EngineSettings(max_num_seqs=1024, routing=routing)
            engine = EngineModel(database, shape, plan, settings)
            batch = min(1024 / plan.dp, engine.max_sequences(3000))
            profile = LengthProfile(isl_tokens=2000, osl_tokens=1000)
            found[plan.label, routing] = float(continuous(engine, profile, batch).rate_rps)
    return found


def fleets(tables: str) -> tuple[Found, Found]:
    """Return the best homogeneous and the best mixed prefill and decode pools per dollar.

    H100 at 2.8 and H200 at 3.5 per GPU-hour; first token within 1.5 s, 50 tokens a second.
    """
    databases = databases_named(["h100", "h200"], tables, "vllm", {"h100": 2.8, "h200": 3.5})
    space = SearchSpace(
        databases=databases, batches=tuple(range(4, 257, 4)), budgets=(8192,), continuous=False
    )
    targets = Targets(ttft_s=1.5, tpot_s=0.02)
    ranked = search(DENSE, PROFILE, space, targets, objective="per_dollar", top=4000).ranked

    def mixed(item: Found) -> bool:
        assert item.prefill is not None
        return item.prefill.database.hardware.name != item.serve.database.hardware.name

    return next(item for item in ranked if not mixed(item)), next(item for item in ranked if mixed(item))


class Findings:
    """The tests of the findings, for one source of operator times.

    A test class inherits from it and sets what its times give: how much larger the decode batch of separate
    pools is at least, and how much more mixed pools serve for the same money.
    """

    tables: str
    least_batch_ratio: float
    least_mixed_gain: float

    def test_strict_online_targets_favour_disaggregation_and_a_far_larger_decode_batch(self) -> None:
        found = runtimes(self.tables, STRICT)
        assert 1.5 <= found.gain <= 1.9  # published: 1.5 to 1.8
        assert found.disaggregated.batch >= self.least_batch_ratio * found.continuous.batch

    def test_offline_throughput_does_not_favour_disaggregation(self) -> None:
        assert runtimes(self.tables, Targets()).gain <= 1.0

    def test_wide_shallow_prefill_is_sooner_done_and_narrow_deep_prefill_serves_more(self) -> None:
        cuts = prefill_cuts(self.tables)
        assert cuts["TP4PP2"][0] < cuts["TP2PP4"][0]
        assert cuts["TP4PP2"][1] < cuts["TP2PP4"][1]

    def test_decoding_prefers_a_higher_tensor_parallel_degree_than_prefill(self) -> None:
        assert best_cut(self.tables, "prefill") == 2
        assert best_cut(self.tables, "decode") == 8

    def test_spreading_experts_raises_throughput_and_uneven_routing_lowers_it(self) -> None:
        precision = Precision(gemm="fp8_block", moe="fp8_block")
        rates = expert_rates(self.tables, "h200", "deepseek-v3", precision)
        assert rates["TP1DP8EP8", "power_law_1.01"] > 1.2 * rates["TP8", "power_law_1.01"]
        assert rates["TP1DP8EP8", "power_law_1.2"] < rates["TP1DP8EP8", "power_law_1.01"]

    def test_mixed_pools_serve_more_for_the_same_money_than_the_best_pools_of_one_kind(self) -> None:
        alike, mixed = fleets(self.tables)
        assert (mixed.requests_per_dollar or 0.0) > self.least_mixed_gain * (alike.requests_per_dollar or 0.0)
