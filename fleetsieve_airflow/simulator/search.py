"""Search: price every configuration of a space, keep what meets the targets, rank it, find the frontier."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fleetsieve_airflow.simulator.curves import FloatArray
from fleetsieve_airflow.simulator.engine import EngineModel
from fleetsieve_airflow.simulator.models import ModelShape
from fleetsieve_airflow.simulator.space import Built, SearchSpace, build, total
from fleetsieve_airflow.simulator.steady import LengthProfile, Split, Steady, continuous, disaggregated

Objective = Literal["per_gpu", "per_dollar"]
Progress = Callable[[int, int], None]
#: Configurations of one block that are kept for the ranking beside its frontier.
KEPT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a configuration must reach, in medians; None is no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    allow_extrapolation: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One configuration and its estimates.

    :param prefill: the prefill pool of a disaggregated group, None under continuous batching.
    :param rate_rps: requests per second of the replica, or of the whole group.
    :param budget: tokens of one step, 0 for a disaggregated group.
    """

    serve: EngineModel
    prefill: EngineModel | None
    prefills: int
    decoders: int
    batch: int
    budget: int
    gpus: int
    ttft_s: float
    tpot_s: float
    e2e_s: float
    rate_rps: float
    cost_per_hour: float | None
    beyond_tables: bool

    @property
    def rate_per_gpu(self) -> float:
        """Requests per second and GPU."""
        return self.rate_rps / self.gpus

    @property
    def requests_per_dollar(self) -> float | None:
        """Requests for one unit of money; None without prices."""
        return self.rate_rps * 3600.0 / self.cost_per_hour if self.cost_per_hour else None

    @property
    def label(self) -> str:
        """Readable name, e.g. ``h100 TP4`` or ``2 x h100 TP4 prefill + 3 x h100 TP8 decode``."""
        if self.prefill is None:
            return _name(self.serve)
        return (
            f"{self.prefills} x {_name(self.prefill)} prefill + {self.decoders} x {_name(self.serve)} decode"
        )

    @property
    def runtime(self) -> str:
        """``continuous`` or ``disaggregated``."""
        return "continuous" if self.prefill is None else "disaggregated"


def _name(engine: EngineModel) -> str:
    speculation = engine.settings.speculation
    guess = f" spec{speculation.tokens}" if speculation else ""
    return f"{engine.database.hardware.name} {engine.plan.label}{guess}"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    :param ranked: the best configurations that meet the targets, best first.
    :param frontier: of throughput per GPU (or money) against TPOT, by falling speed of the user's stream.
    :param pruned: reason -> configurations left out.
    :param nearest: where nothing meets the targets: the configuration that misses them least.
    """

    model: str
    profile: LengthProfile
    targets: Targets
    objective: Objective
    ranked: tuple[Found, ...]
    frontier: tuple[Found, ...]
    pruned: dict[str, int]
    priced: int
    seconds: float
    nearest: Found | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Block:
    """The configurations of one engine (or pair of pools): arrays of one shape."""

    serve: EngineModel
    prefill: EngineModel | None
    batch: FloatArray
    budget: FloatArray
    steady: Steady
    prefills: FloatArray
    decoders: FloatArray
    gpus: FloatArray
    cost: FloatArray

    def value(self, objective: Objective) -> FloatArray:
        return self.steady.rate_rps / (self.gpus if objective == "per_gpu" else self.cost)

    def found(self, index: int, profile: LengthProfile) -> Found:
        def at(values: FloatArray) -> float:
            return float(np.broadcast_to(values, self.steady.rate_rps.shape).flat[index])

        cost = at(self.cost)
        return Found(
            serve=self.serve,
            prefill=self.prefill,
            prefills=int(at(self.prefills)),
            decoders=int(at(self.decoders)),
            batch=int(at(self.batch)),
            budget=int(at(self.budget)),
            gpus=int(at(self.gpus)),
            ttft_s=at(self.steady.ttft_s),
            tpot_s=at(self.steady.tpot_s),
            e2e_s=at(self.steady.e2e_s(profile)),
            rate_rps=at(self.steady.rate_rps),
            cost_per_hour=None if np.isnan(cost) else cost,
            beyond_tables=bool(at(self.steady.beyond_tables.astype(float))) or bool(self.serve.beyond),
        )


@dataclass(slots=True)
class _Collector:
    """Keeps the best of each block, so that memory does not grow with the number of configurations."""

    profile: LengthProfile
    targets: Targets
    objective: Objective
    max_gpus: int
    pruned: Counter[str]
    kept: list[Found] = field(default_factory=list)
    nearest: tuple[float, Found] | None = None
    priced: int = 0

    def take(self, block: _Block) -> None:
        count = block.steady.rate_rps.size
        self.priced += count
        fits = np.broadcast_to(block.gpus, block.steady.rate_rps.shape) <= self.max_gpus
        self.pruned["more GPUs than allowed"] += int(count - fits.sum())
        if not self.targets.allow_extrapolation:
            inside = ~block.steady.beyond_tables
            self.pruned["beyond the tables"] += int((fits & ~inside).sum())
            fits = fits & inside
        misses = self._misses(block)
        meets = fits & (misses <= 1.0)
        self.pruned["misses a latency target"] += int((fits & ~meets).sum())
        if not meets.any():
            self._remember_nearest(block, np.where(fits, misses, np.inf))
            return
        value = np.where(meets, block.value(self.objective), -np.inf).ravel()
        best = np.argpartition(-value, min(KEPT, count - 1))[:KEPT]
        candidates = {*frontier_of(np.ravel(block.steady.tpot_s), value).tolist(), *best.tolist()}
        chosen = sorted(index for index in candidates if np.isfinite(value[index]))
        self.kept += [block.found(index, self.profile) for index in chosen]
        self.pruned["dominated within its engine"] += int(meets.sum()) - len(chosen)

    def _misses(self, block: _Block) -> FloatArray:
        """Return the largest ratio of an estimate to its limit."""
        steady, targets = block.steady, self.targets
        worst = np.zeros(steady.rate_rps.shape)
        limits = (
            (steady.ttft_s, targets.ttft_s),
            (steady.tpot_s, targets.tpot_s),
            (steady.e2e_s(self.profile), targets.e2e_s),
        )
        for values, limit in limits:
            if limit is not None:
                worst = np.maximum(worst, values / limit)
        return worst

    def _remember_nearest(self, block: _Block, misses: FloatArray) -> None:
        index = int(np.argmin(misses))
        ratio = float(misses.flat[index])
        if np.isfinite(ratio) and (self.nearest is None or ratio < self.nearest[0]):
            self.nearest = (ratio, block.found(index, self.profile))


def frontier_of(cost: FloatArray, value: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return the indices that no other beats in both (less cost, more value), by rising cost."""
    order = np.lexsort((-value, cost))
    best = np.maximum.accumulate(value[order])
    first = np.ones(len(order), dtype=bool)
    first[1:] = best[1:] > best[:-1]
    return order[first]


def search(
    shape: ModelShape,
    profile: LengthProfile,
    space: SearchSpace,
    targets: Targets | None = None,
    *,
    objective: Objective = "per_gpu",
    top: int = 20,
    progress: Progress | None = None,
) -> SearchResult:
    """Price a space and rank what meets the targets.

    :param progress: called with (configurations done, all).
    :raises PerfDataError: a latency target or objective that no configuration can be compared by.
    """
    started = time.perf_counter()
    targets = targets or Targets()
    engines = build(shape, profile, space)
    every, done = total(engines, space), 0
    collector = _Collector(profile, targets, objective, space.max_gpus, engines.pruned)
    for built in engines.serving:
        if space.continuous:
            collector.take(_continuous_block(built, profile, space))
        if space.disaggregated:
            for prefill in engines.prefilling:
                collector.take(_split_block(built, prefill, profile, space))
        done = collector.priced
        if progress is not None:
            progress(done, every)
    ranked = sorted(
        collector.kept, key=lambda item: (-_value(item, objective), item.tpot_s, item.label, item.batch)
    )
    speed = np.array([item.tpot_s for item in ranked])
    value = np.array([_value(item, objective) for item in ranked])
    frontier = [ranked[index] for index in frontier_of(speed, value)] if ranked else []
    return SearchResult(
        model=shape.name,
        profile=profile,
        targets=targets,
        objective=objective,
        ranked=_distinct(ranked, top),
        frontier=tuple(frontier),
        pruned={reason: count for reason, count in collector.pruned.most_common() if count},
        priced=collector.priced,
        seconds=time.perf_counter() - started,
        nearest=None if ranked or collector.nearest is None else collector.nearest[1],
        sources=tuple(database.name for database in space.databases),
    )


def _continuous_block(built: Built, profile: LengthProfile, space: SearchSpace) -> _Block:
    batch, budget = np.meshgrid(built.batches, np.array(space.budgets, dtype=float), indexing="ij")
    steady = continuous(built.engine, profile, batch, budget)
    gpus = np.array(float(built.engine.plan.gpus))
    price = built.engine.database.hardware.price_per_gpu_hour
    cost = np.array(np.nan if price is None else price * built.engine.plan.gpus)
    one = np.array(1.0)
    return _Block(built.engine, None, batch, budget, steady, np.array(0.0), one, gpus, cost)


def _split_block(built: Built, prefill: EngineModel, profile: LengthProfile, space: SearchSpace) -> _Block:
    split: Split = disaggregated(prefill, built.engine, profile, built.batches, space.prefill_replicas)
    none = np.array(0.0)
    return _Block(
        built.engine,
        prefill,
        built.batches,
        none,
        split.steady,
        split.prefills,
        split.decoders,
        split.gpus,
        split.cost_per_hour,
    )


def _value(item: Found, objective: Objective) -> float:
    return item.rate_per_gpu if objective == "per_gpu" else (item.requests_per_dollar or 0.0)


def _distinct(ranked: list[Found], top: int) -> tuple[Found, ...]:
    """Keep the best batch of every way to build a replica: twenty neighbouring batches are one answer."""
    seen: dict[tuple[str, str], Found] = {}
    for item in ranked:
        seen.setdefault((_name(item.serve), "" if item.prefill is None else _name(item.prefill)), item)
        if len(seen) == top:
            break
    return tuple(seen.values())


def meets(found: Found, targets: Targets) -> bool:
    """Tell whether a configuration's estimates are within the targets."""
    limits = ((found.ttft_s, targets.ttft_s), (found.tpot_s, targets.tpot_s), (found.e2e_s, targets.e2e_s))
    return all(limit is None or value <= limit for value, limit in limits)
