"""How one replica is cut over GPUs, which cuts can run, and what they leave for the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.hardware import GIB, Hardware
from fleetsieve_airflow.simulator.models import BYTES, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """Degrees of parallelism of one replica.

    :param dp: attention ranks that each hold their own requests; the experts are shared by all of them.
    :param ep: ranks the experts are spread over; 1 cuts every expert over all ranks instead.
    :param cp: ranks that share the tokens of one prompt; they bring nothing to decoding.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1

    def __post_init__(self) -> None:
        if min(self.tp, self.pp, self.dp, self.ep, self.cp) < 1:
            raise PerfDataError(f"Parallel degrees must be at least 1, got {self.label}.")

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def expert_ranks(self) -> int:
        """Ranks of one pipeline stage, over which the experts lie."""
        return self.tp * self.dp * self.cp

    @property
    def label(self) -> str:
        """Short name, e.g. ``TP4``, ``TP2PP2``, ``TP1DP8EP8``."""
        named = (("PP", self.pp), ("DP", self.dp), ("EP", self.ep), ("CP", self.cp))
        return f"TP{self.tp}" + "".join(f"{name}{degree}" for name, degree in named if degree > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: a draft of ``tokens``, each accepted with probability ``acceptance``.

    :param draft_cost: time of drafting one token as a share of a decoding step of the served model.
    """

    tokens: int = 3
    acceptance: float = 0.7
    draft_cost: float = 0.04

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 0.0 <= self.acceptance < 1.0 or self.draft_cost < 0.0:
            raise PerfDataError(
                f"Speculation needs tokens >= 1, acceptance in [0, 1) and draft_cost >= 0, "
                f"got {self.tokens}, {self.acceptance}, {self.draft_cost}."
            )

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens one step yields: 1 + a + a^2 + ... + a^k."""
        return (1.0 - self.acceptance ** (self.tokens + 1)) / (1.0 - self.acceptance)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Scheduler and memory settings of a replica, by the names of vLLM's arguments where they have one."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    gpu_memory_utilization: float = 0.9
    runtime_gib: float = 3.0
    routing: str = "power_law_1.2"
    speculation: Speculation | None = None


def cannot_run(shape: ModelShape, hardware: Hardware, plan: ParallelPlan, *, multi_node: bool = False) -> str:
    """Return why a plan cannot run, or an empty string."""
    return next(_obstacles(shape, hardware, plan, multi_node), "")


def _obstacles(shape: ModelShape, hardware: Hardware, plan: ParallelPlan, multi_node: bool) -> Iterator[str]:
    if shape.heads % plan.tp:
        yield f"{shape.heads} attention heads do not divide by TP{plan.tp}"
    if shape.attention == "gqa" and shape.kv_heads % plan.tp and plan.tp % shape.kv_heads:
        yield f"{shape.kv_heads} key-value heads neither divide by TP{plan.tp} nor fit into it"
    if plan.pp > shape.layers:
        yield f"PP{plan.pp} has more stages than {shape.layers} layers"
    if plan.expert_ranks > hardware.gpus_per_node and not multi_node:
        yield f"{plan.label}: a stage takes more than a node's {hardware.gpus_per_node} GPUs"
    if not shape.experts:
        if plan.ep > 1 or plan.dp > 1:
            yield f"{shape.name} has no experts: EP does not apply, and DP{plan.dp} is {plan.dp} replicas"
        if shape.inter % plan.tp:
            yield f"feed-forward width {shape.inter} does not divide by TP{plan.tp}"
    elif plan.expert_ranks % plan.ep or shape.experts % plan.ep:
        yield f"EP{plan.ep} divides not both {plan.expert_ranks} ranks and {shape.experts} experts"
    else:
        cut = plan.expert_ranks // plan.ep
        block = 128 if shape.precision.moe == "fp8_block" else 1
        if shape.moe_inter % (cut * block):
            yield f"expert width {shape.moe_inter} does not divide over {cut} ranks in blocks of {block}"


def weights_bytes(shape: ModelShape, plan: ParallelPlan) -> float:
    """Return weight bytes of one GPU."""
    dense, moe = BYTES[shape.precision.gemm], BYTES[shape.precision.moe]
    stage_layers = -(-shape.layers // plan.pp) / shape.layers
    ffn = (
        3.0
        * shape.hidden
        * (shape.inter * (shape.layers - shape.moe_layers) + shape.shared_inter * shape.moe_layers)
    )
    attention = shape.layers * shape.attention_params_per_layer
    experts = shape.moe_layers * shape.expert_params_per_layer / plan.expert_ranks
    embedding = (2.0 if plan.pp == 1 else 1.0) * shape.vocab * shape.hidden * BYTES["bfloat16"] / plan.tp
    return stage_layers * ((attention + ffn) / plan.tp * dense + experts * moe) + embedding


def kv_budget_bytes(
    shape: ModelShape, hardware: Hardware, plan: ParallelPlan, settings: EngineSettings
) -> float:
    """Return bytes of one GPU that are left for the KV cache; negative where the weights do not fit."""
    width = max(shape.inter, 2 * shape.moe_inter * max(1, shape.topk)) / plan.tp
    activations = settings.max_num_batched_tokens * 2.0 * (4.0 * shape.hidden + 2.0 * width)
    usable = hardware.memory_bytes * settings.gpu_memory_utilization
    return usable - weights_bytes(shape, plan) - activations - settings.runtime_gib * GIB


def kv_tokens(shape: ModelShape, hardware: Hardware, plan: ParallelPlan, settings: EngineSettings) -> int:
    """Return how many tokens the KV cache of one attention rank holds; 0 where the weights do not fit."""
    budget = kv_budget_bytes(shape, hardware, plan, settings)
    per_token = shape.kv_bytes_per_token(plan.tp) / plan.pp
    windows = shape.kv_bytes_per_sequence(plan.tp) / plan.pp * min(settings.max_num_seqs, 64)
    return max(0, int((budget - windows) / per_token))
