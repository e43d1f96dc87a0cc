"""What can never run, known before it is paid for: heads, memory, node and pool of a replica.

Pure arithmetic on records. A reason is a sentence that ends up beside the candidate in the report.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleetsieve_airflow.records import EngineConfig, Model, Pool


def replica_exclusion(config: EngineConfig, pools: Mapping[str, Pool], model: Model) -> str:
    """Say why a replica of this config can never serve this model; empty when it may.

    Of a disaggregated replica every engine must be able to run, and all of them at once.
    """
    for part in config.parts:
        pool = pools[part.engine.pool]
        if reason := exclusion_reason(part.engine, pool, model):
            return f"{part.phase.capitalize()}: {reason}" if part.phase else reason
        if part.engines > (fitting := most_replicas(part.engine, pool)):
            return (
                f"{part.phase.capitalize()}: {part.engines} engines, pool {pool.name} has room for {fitting}."
            )
    for name, gpus in config.pool_gpus.items():
        if gpus > pools[name].usable_gpus:
            return (
                f"A replica takes {gpus} GPUs of pool {name}, it has {pools[name].usable_gpus} to plan with."
            )
    return ""


def replicas_at_most(config: EngineConfig, pools: Mapping[str, Pool]) -> int:
    """Return how many replicas otherwise empty pools hold at most: exact for replicas of one engine."""
    if not config.disaggregated:
        return most_replicas(config, pools[config.pool])
    return min(pools[name].usable_gpus // gpus for name, gpus in config.pool_gpus.items())


def exclusion_reason(config: EngineConfig, pool: Pool, model: Model) -> str:
    """Say why one engine of this config can never serve this model on this pool; empty when it may.

    Facts the spec leaves out (heads, weights, GPU memory) exclude nothing.
    """
    return (
        _placement_reason(config, pool) or _heads_reason(config, model) or _memory_reason(config, pool, model)
    )


def most_replicas(config: EngineConfig, pool: Pool) -> int:
    """Return how many replicas of a config fit an otherwise empty pool, node by node."""
    if config.gpus > pool.gpus_per_node:
        return pool.usable_gpus // config.gpus
    nodes, rest = divmod(pool.usable_gpus, pool.gpus_per_node)
    return nodes * (pool.gpus_per_node // config.gpus) + rest // config.gpus


def _placement_reason(config: EngineConfig, pool: Pool) -> str:
    size, node = config.gpus, pool.gpus_per_node
    if size > pool.usable_gpus:
        return f"A replica takes {size} GPUs, pool {pool.name} has {pool.usable_gpus} to plan with."
    if size > node and not config.multi_node:
        return f"A replica takes {size} GPUs, a node of pool {pool.name} has {node}, and multi_node is off."
    if size > node and size % node:
        return f"A replica over several nodes takes whole nodes of {node} GPUs, {size} is not a multiple."
    return ""


def _heads_reason(config: EngineConfig, model: Model) -> str:
    degree, heads, kv_heads = config.tensor_parallel, model.num_attention_heads, model.num_key_value_heads
    if heads is not None and heads % degree:
        return f"Tensor-parallel degree {degree} does not divide the {heads} attention heads of {model.name}."
    # A degree above the number of key-value heads copies them, which needs an equal number of copies of each.
    if kv_heads is not None and kv_heads % degree and degree % kv_heads:
        return (
            f"Tensor-parallel degree {degree} does not divide the {kv_heads} key-value heads of {model.name}."
        )
    return ""


def _memory_reason(config: EngineConfig, pool: Pool, model: Model) -> str:
    if model.weights_gib is None or pool.gpu_memory_gib is None:
        return ""
    # Data-parallel ranks hold a whole copy each, unless they share out the experts.
    shards = config.gpus if config.expert_parallel else config.tensor_parallel * config.pipeline_parallel
    room_gib = pool.gpu_memory_gib * shards
    if model.weights_gib >= room_gib:
        return (
            f"The weights of {model.name} take {model.weights_gib:g} GiB, {shards} GPUs of "
            f"{pool.gpu_memory_gib:g} GiB hold {room_gib:g} GiB and leave no room for the KV cache."
        )
    return ""
