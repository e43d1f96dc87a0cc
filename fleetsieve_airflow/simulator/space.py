"""What a search ranges over: hardware, cuts, schedulers, batches; and which of it is worth pricing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fleetsieve_airflow.simulator.curves import FloatArray, PerfDataError
from fleetsieve_airflow.simulator.engine import Constants, EngineModel
from fleetsieve_airflow.simulator.hardware import hardware_named
from fleetsieve_airflow.simulator.models import ModelShape
from fleetsieve_airflow.simulator.perf_database import PerfDatabase, PowerCapped
from fleetsieve_airflow.simulator.plans import (
    EngineSettings,
    ParallelPlan,
    Speculation,
    cannot_run,
    kv_tokens,
)
from fleetsieve_airflow.simulator.steady import LengthProfile

_DEGREES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Every value of every dimension of a search.

    :param databases: one per kind of GPU (a power-capped variant is a kind of its own).
    :param ep: share the experts over all ranks of a stage (True), cut every expert (False), or both.
    :param batches: running sequences per attention rank.
    :param budgets: tokens of one step under continuous batching.
    :param speculations: None is plain decoding.
    :param prefill_replicas: the most prefill replicas of one disaggregated group.
    """

    databases: tuple[PerfDatabase, ...]
    tp: tuple[int, ...] = _DEGREES
    pp: tuple[int, ...] = (1, 2, 4)
    dp: tuple[int, ...] = _DEGREES
    cp: tuple[int, ...] = (1,)
    ep: tuple[bool, ...] = (False, True)
    batches: tuple[int, ...] = tuple(range(1, 257))
    budgets: tuple[int, ...] = (2048, 4096, 8192, 16384)
    speculations: tuple[Speculation | None, ...] = (None,)
    continuous: bool = True
    disaggregated: bool = True
    prefill_replicas: int = 8
    max_gpus: int = 64
    settings: EngineSettings = field(default_factory=EngineSettings)
    constants: Constants = field(default_factory=Constants)


@dataclass(frozen=True, slots=True)
class Built:
    """An engine and the batches of it that fit into memory."""

    engine: EngineModel
    batches: FloatArray


@dataclass(slots=True)
class Engines:
    """The engines of a space that can run, and why the others cannot (reason -> configurations)."""

    serving: list[Built]
    prefilling: list[EngineModel]
    pruned: Counter[str]


def plans(shape: ModelShape, space: SearchSpace) -> Iterator[ParallelPlan]:
    """Enumerate the cuts of a space; degrees that mean nothing for a dense model are left out."""
    spread = space.ep if shape.experts else (False,)
    for tp in space.tp:
        for pp in space.pp:
            for dp in space.dp if shape.experts else (1,):
                for cp in space.cp:
                    for shared in dict.fromkeys(spread):
                        ranks = tp * dp * cp
                        if not (shared and ranks == 1):
                            yield ParallelPlan(tp=tp, pp=pp, dp=dp, cp=cp, ep=ranks if shared else 1)


def build(shape: ModelShape, profile: LengthProfile, space: SearchSpace) -> Engines:
    """Build the engines of a space, pruning what cannot run before anything of it is priced."""
    engines = Engines([], [], Counter())
    wide = max(space.budgets)
    each = len(space.batches) * len(space.budgets)
    for database in space.databases:
        for plan in plans(shape, space):
            for speculation in space.speculations:
                settings = replace(
                    space.settings,
                    max_num_batched_tokens=wide,
                    max_num_seqs=max(space.batches),
                    speculation=speculation,
                )
                reason = _add(engines, database, shape, plan, settings, profile, space)
                if reason:
                    engines.pruned[reason] += each
    return engines


def _add(
    engines: Engines,
    database: PerfDatabase,
    shape: ModelShape,
    plan: ParallelPlan,
    settings: EngineSettings,
    profile: LengthProfile,
    space: SearchSpace,
) -> str:
    """Add the engine of a plan; return why it is left out, or an empty string."""
    if plan.gpus > space.max_gpus:
        return "more GPUs than allowed"
    if plan.expert_ranks > database.hardware.gpus_per_node:
        return "a stage larger than a node"
    if cannot_run(shape, database.hardware, plan):
        return "degrees that do not divide the model"
    held = kv_tokens(shape, database.hardware, plan, settings)
    whole = profile.isl_tokens + profile.osl_tokens
    if held < whole:
        return "weights and one request do not fit into memory"
    try:
        engine = EngineModel(database, shape, plan, settings, space.constants)
    except PerfDataError:
        return f"{database.name} lack an operator"
    fitting = [batch for batch in space.batches if batch * whole <= held]
    engines.pruned["a batch whose cache does not fit into memory"] += (
        len(space.batches) - len(fitting)
    ) * len(space.budgets)
    if plan.cp == 1:
        # Context parallelism adds GPUs that decoding does not use: it is for prefill pools.
        engines.serving.append(Built(engine, np.array(fitting, dtype=float)))
    if settings.speculation is None:
        engines.prefilling.append(engine)
    return ""


def total(engines: Engines, space: SearchSpace) -> int:
    """Return how many configurations of a space are left to price."""
    batches = sum(len(built.batches) for built in engines.serving)
    count = batches * len(space.budgets) if space.continuous else 0
    if space.disaggregated:
        count += len(engines.prefilling) * batches * space.prefill_replicas
    return count


def databases_named(
    names: Sequence[str], tables: str, engine: str, prices: Mapping[str, float] | None = None
) -> tuple[PerfDatabase, ...]:
    """Open one database per GPU name; ``h100@350W`` is an H100 capped at 350 W.

    :param prices: money per GPU-hour by name, of a capped variant by its own name or by its GPU's.
    :raises PerfDataError: a GPU nobody knows, or without tables.
    """
    from fleetsieve_airflow.simulator.fleet import open_database

    given = prices or {}
    found: list[PerfDatabase] = []
    for name in names:
        kind, _, cap = name.partition("@")
        hardware = hardware_named(kind, given.get(name, given.get(kind)))
        database = open_database(tables, hardware, engine)
        found.append(PowerCapped(database, hardware_named(name).power_w) if cap else database)
    return tuple(found)
