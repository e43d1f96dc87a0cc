"""The operator graph of one step: which operators a parallelism plan runs, how often, and on what sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fleetsieve_airflow.simulator.models import ModelShape
from fleetsieve_airflow.simulator.perf_database import Fixed
from fleetsieve_airflow.simulator.plans import ParallelPlan

Group = Literal["product", "experts", "collective", "memory", "pipeline"]


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator as one step runs it.

    :param calls: how often all stages together run it in one step.
    :param per_token: what one token of an attention rank adds to its free size (tokens, or bytes of a
        message).
    :param head: whether it runs on sequences (the output layer) instead of on tokens.
    """

    operator: str
    fixed: Fixed
    calls: float
    per_token: float
    group: Group
    head: bool = False


def operator_graph(shape: ModelShape, plan: ParallelPlan, routing: str) -> tuple[OperatorCall, ...]:
    """Return the token-driven operators of one step; attention needs two sizes and is priced apart."""
    calls = [*_attention_products(shape, plan), *_feed_forward(shape, plan), *_memory(shape, plan)]
    calls += _head(shape, plan)
    if shape.experts:
        calls += _experts(shape, plan, routing)
    return tuple(calls)


def _product(shape: ModelShape, n: float, k: float, calls: float, dtype: str = "") -> OperatorCall:
    fixed: Fixed = {"dtype": dtype or shape.precision.gemm, "n": n, "k": k}
    return OperatorCall("gemm", fixed, calls, 1.0, "product")


def _attention_products(shape: ModelShape, plan: ParallelPlan) -> Iterator[OperatorCall]:
    if shape.attention == "gqa":
        heads = shape.heads // plan.tp
        kv_heads = max(1, shape.kv_heads // plan.tp)
        yield _product(shape, (heads + 2 * kv_heads) * shape.head_dim, shape.hidden, shape.layers)
        yield _product(shape, shape.hidden, heads * shape.head_dim, shape.layers)
    if plan.tp > 1:
        yield _reduce(shape, plan.tp, shape.layers + 1)


def _feed_forward(shape: ModelShape, plan: ParallelPlan) -> Iterator[OperatorCall]:
    blocks = ((shape.layers - shape.moe_layers, shape.inter), (shape.moe_layers, shape.shared_inter))
    for layers, width in blocks:
        if layers and width:
            cut = plan.tp if width % plan.tp == 0 else 1
            yield _product(shape, 2 * width / cut, shape.hidden, layers)
            yield _product(shape, shape.hidden, width / cut, layers)
    dense_layers = shape.layers - shape.moe_layers
    if plan.tp > 1 and dense_layers:
        yield _reduce(shape, plan.tp, dense_layers)


def _experts(shape: ModelShape, plan: ParallelPlan, routing: str) -> Iterator[OperatorCall]:
    yield _product(shape, shape.experts, shape.hidden, shape.moe_layers, "bfloat16")
    cut = plan.expert_ranks // plan.ep
    fixed: Fixed = {
        "dtype": shape.precision.moe,
        "routing": routing,
        "hidden": shape.hidden,
        "inter": shape.moe_inter,
        "topk": shape.topk,
        "experts": shape.experts,
        "tp": cut,
        "ep": plan.ep,
    }
    yield OperatorCall("moe", fixed, shape.moe_layers, float(plan.dp), "experts")
    if plan.dp > 1:
        # Every rank's tokens go to the ranks of their experts and come back summed.
        message = plan.dp * shape.hidden * 2.0
        for operator in ("all_gather", "reduce_scatter"):
            yield OperatorCall(operator, {"gpus": plan.expert_ranks}, shape.moe_layers, message, "collective")
    elif plan.tp > 1:
        yield _reduce(shape, plan.tp, shape.moe_layers)


def _reduce(shape: ModelShape, gpus: int, calls: float) -> OperatorCall:
    return OperatorCall("all_reduce", {"gpus": gpus}, calls, shape.hidden * 2.0, "collective")


def _memory(shape: ModelShape, plan: ParallelPlan) -> Iterator[OperatorCall]:
    # Two norms with residual (read and write two hidden vectors each) and one gated activation a layer.
    width = shape.inter if not shape.experts else shape.moe_inter * shape.topk
    moved = 2.0 * (2 * 4 * shape.hidden + 3.0 * width / plan.tp)
    yield OperatorCall("memory", {}, shape.layers, moved, "memory")
    if plan.pp > 1:
        yield OperatorCall("point_to_point", {}, plan.pp - 1, shape.hidden * 2.0, "pipeline")


def _head(shape: ModelShape, plan: ParallelPlan) -> Iterator[OperatorCall]:
    fixed: Fixed = {"dtype": "bfloat16", "n": shape.vocab / plan.tp, "k": shape.hidden}
    yield OperatorCall("gemm", fixed, 1.0, 1.0, "product", head=True)
