"""From thousands of ways to build a replica to the dozen worth measuring, for one workload of a fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fleetsieve_airflow.engine_config import EngineGroup
from fleetsieve_airflow.feasibility import replica_exclusion
from fleetsieve_airflow.records import Candidate, EngineConfig, FleetSpec, Slo
from fleetsieve_airflow.simulator.engine import EngineModel
from fleetsieve_airflow.simulator.fleet import FleetEngines, database_of, settings_of, shape_of
from fleetsieve_airflow.simulator.plans import ParallelPlan
from fleetsieve_airflow.simulator.prior import RequestsAt, simulated_capacity
from fleetsieve_airflow.simulator.search import Found, SearchResult, Targets, search
from fleetsieve_airflow.simulator.space import SearchSpace
from fleetsieve_airflow.simulator.steady import LengthProfile

_BATCHES = tuple(range(1, 17)) + tuple(range(20, 257, 4))
#: The name under which the search of replicas that prefill and decode apart stands beside those of the pools.
APART = "prefill and decode apart"
#: More ways to build a replica than any search has.
EVERY = 10**9


@dataclass(frozen=True, slots=True)
class Narrowed:
    """An engine config worth measuring, and what the simulator expects of it.

    :param capacity_rps: simulated largest load of one replica that meets the workload's SLO, tails included.
    :param worth: of that, what the workload's demand can use, per GPU; where the fleet is planned for the
        lowest cost, per unit of money an hour.
    """

    config: EngineConfig
    capacity_rps: float
    worth: float


def targets_of(slo: Slo) -> Targets:
    """Return what medians must reach at least: a median above the limit of any percentile misses it."""
    tightest: dict[str, float] = {}
    for limit in slo.limits:
        tightest[limit.metric] = min(limit.limit_s, tightest.get(limit.metric, limit.limit_s))
    return Targets(ttft_s=tightest.get("ttft"), tpot_s=tightest.get("tpot"), e2e_s=tightest.get("e2e"))


def narrow(
    spec: FleetSpec,
    workload: str,
    requests_of: Callable[[FleetSpec, FleetEngines], RequestsAt],
    *,
    tables: str,
    keep: int = 12,
    degrees: Sequence[int] = (1, 2, 4, 8),
    disaggregated: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[tuple[Narrowed, ...], dict[str, SearchResult]]:
    """Search every pool of a fleet for one workload; judge the best by discrete events under its SLO.

    The closed forms leave ``2 x keep`` ways to build a replica on each pool, and as many that prefill and
    decode apart; what each is worth under the SLO ranks them. The best of each pool, and of each pair of
    pools, is kept before any second best: the simulator may be wrong about one kind of GPU. The engine and
    its arguments are those of the pool's first config in the spec.

    :param requests_of: gives, for a spec and its engines, the requests of its candidates at a load.
    :param disaggregated: also judge replicas that prefill and decode on engines of their own, in one pool or
        in two whose first configs name the same engine.
    :returns: what to measure, best first, and the search of each pool by its name.
    """
    fleet = _Fleet(spec, workload, tables, degrees, progress)
    whole = {pool: fleet.searched([pool], 2 * keep) for pool in fleet.likes}
    found = [(fleet.whole(item), item.rate_rps) for result in whole.values() for item in result.ranked]
    searches = dict(whole)
    if disaggregated and fleet.likes:
        searches[APART] = fleet.searched(list(fleet.likes), EVERY, apart=True)
        found += _in_turn(fleet.placed(searches[APART].ranked))[: 2 * keep]
    return _kept(_judged(fleet, found, requests_of), keep), searches


class _Fleet:
    """The pools of a fleet as one workload's searches see them."""

    def __init__(
        self,
        spec: FleetSpec,
        workload: str,
        tables: str,
        degrees: Sequence[int],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.spec, self.workload, self.tables = spec, spec.workload(workload), tables
        self.model = spec.model(self.workload.model)
        self.likes = _likes(spec)
        self._degrees, self._progress = tuple(degrees), progress
        self._databases = {
            name: database_of(spec.pool(name), tables, like.engine) for name, like in self.likes.items()
        }

    @property
    def for_money(self) -> bool:
        """Whether plans are compared by what they cost."""
        return self.spec.decision.objective == "lowest_cost"

    def searched(self, names: Sequence[str], top: int, *, apart: bool = False) -> SearchResult:
        """Price every replica of one engine on a pool, or of engines apart on any two of several."""
        pools, like, trace = (
            [self.spec.pool(name) for name in names],
            self.likes[names[0]],
            self.workload.trace,
        )
        settings = settings_of(like)
        room = sum(pool.usable_gpus for pool in pools)
        most = (self.spec.measurement.profiling_gpus or room) if apart else pools[0].gpus_per_node
        speculation = settings.speculation
        space = SearchSpace(
            databases=tuple(self._databases[name] for name in names),
            tp=self._degrees,
            dp=self._degrees,
            batches=_BATCHES,
            budgets=(settings.max_num_batched_tokens,),
            # Prompts are not drafted: a pool that prefills is always searched without speculation.
            speculations=tuple(dict.fromkeys((None, speculation) if apart else (speculation,))),
            continuous=not apart,
            disaggregated=apart,
            max_gpus=min(room, most),
            settings=settings,
        )
        mean = (trace.isl_mean_tokens or 1000.0, trace.osl_mean_tokens or 200.0)
        return search(
            shape_of(self.model, like),
            LengthProfile(isl_tokens=mean[0], osl_tokens=mean[1]),
            space,
            targets_of(self.workload.slo),
            objective="per_dollar" if self.for_money else "per_gpu",
            top=top,
            progress=self._progress,
        )

    def whole(self, found: Found) -> EngineConfig:
        """Return a replica of one engine as an engine config."""
        pool, plan = self._pool(found.serve), found.serve.plan
        label = f"{pool}-{plan.label}" if len(self.spec.pools) > 1 else plan.label
        return replace(self.likes[pool], label=label, **_degrees(plan))

    def placed(self, ranked: Sequence[Found]) -> list[tuple[EngineConfig, float]]:
        """Return the disaggregated replicas that the pools can hold, and what each is estimated to serve."""
        pools = {pool.name: pool for pool in self.spec.pools}
        configs = [(self._apart(item), item.rate_rps) for item in ranked]
        return [
            (config, rate)
            for config, rate in configs
            if config is not None and not replica_exclusion(config, pools, self.model)
        ]

    def _apart(self, found: Found) -> EngineConfig | None:
        """Return a disaggregated replica as an engine config; None where its pools run different engines."""
        if found.prefill is None:
            return None
        sides = [(found.prefill, found.prefills), (found.serve, found.decoders)]
        likes = [self.likes[self._pool(engine)] for engine, _ in sides]
        if (likes[0].engine, likes[0].engine_version) != (likes[1].engine, likes[1].engine_version):
            return None
        if found.serve.settings.speculation != settings_of(likes[1]).speculation:
            return None
        same = likes[0].engine_args == likes[1].engine_args
        prefill, decode = (
            EngineGroup(
                pool=like.pool,
                engines=engines,
                engine_args=() if same else like.engine_args,
                **_degrees(engine.plan),
            )
            for like, (engine, engines) in zip(likes, sides, strict=True)
        )
        words = [
            f"{group.engines}x{group.pool}-{engine.plan.label}"
            for group, (engine, _) in zip((prefill, decode), sides, strict=True)
        ]
        return EngineConfig(
            label=f"{words[0]}-to-{words[1]}",
            engine=likes[0].engine,
            engine_version=likes[0].engine_version,
            engine_args=likes[0].engine_args if same else (),
            multi_node=all(like.multi_node for like in likes),
            prefill=prefill,
            decode=decode,
        )

    def _pool(self, engine: EngineModel) -> str:
        return next(name for name, database in self._databases.items() if database is engine.database)


def _degrees(plan: ParallelPlan) -> dict[str, Any]:
    return {
        "tensor_parallel": plan.tp,
        "pipeline_parallel": plan.pp,
        "data_parallel": plan.dp,
        "expert_parallel": plan.ep > 1,
    }


def _likes(spec: FleetSpec) -> dict[str, EngineConfig]:
    """Return, by pool, an engine as the pool's first config has it: engine, version, arguments."""
    likes: dict[str, EngineConfig] = {}
    for config in spec.configs:
        for part in config.parts:
            likes.setdefault(part.engine.pool, part.engine)
    return {pool.name: likes[pool.name] for pool in spec.pools if pool.name in likes}


def _judged(
    fleet: _Fleet,
    found: Sequence[tuple[EngineConfig, float]],
    requests_of: Callable[[FleetSpec, FleetEngines], RequestsAt],
) -> list[Narrowed]:
    """Simulate each replica under the SLO; what cannot meet it at any load is left out."""
    spec, workload = fleet.spec, fleet.workload
    candidates = [_ladder(workload.name, config, rate) for config, rate in found]
    trial = replace(spec, configs=tuple(config for config, _ in found), candidates=tuple(candidates))
    engines = FleetEngines(trial, fleet.tables)
    requests_at = requests_of(trial, engines)
    judged = []
    for (config, _), candidate in zip(found, candidates, strict=True):
        capacity = simulated_capacity(
            engines.replica(workload.name, config.label),
            candidate,
            workload.slo,
            requests_at,
            spec.measurement.duration_s,
        )
        used = min(capacity, workload.demand_rps)
        if used > 0.0:
            judged.append(Narrowed(config, capacity, used / _price(fleet, config)))
    return judged


def _price(fleet: _Fleet, config: EngineConfig) -> float:
    """Return what a replica takes: GPUs, or money an hour where the fleet is planned for the lowest cost."""
    prices = {pool.name: pool.price_per_gpu_hour for pool in fleet.spec.pools}
    return sum(
        gpus * ((prices[pool] or 1.0) if fleet.for_money else 1.0) for pool, gpus in config.pool_gpus.items()
    )


def _ladder(workload: str, config: EngineConfig, rate_rps: float) -> Candidate:
    """Return where to look for a capacity: around what the closed form serves at its best batch."""
    low, high = (float(f"{rate_rps * share:.4g}") for share in (0.1, 1.2))
    return Candidate(workload=workload, config=config.label, load_kind="offered_load_rps", loads=(low, high))


def _kind(config: EngineConfig) -> tuple[str, ...]:
    """Return the pool of a replica, or those that prefill and decode."""
    return tuple(part.engine.pool for part in config.parts)


def _in_turn(found: Sequence[tuple[EngineConfig, float]]) -> list[tuple[EngineConfig, float]]:
    """Order the best of each kind before the second best of each, and so on."""
    places: Counter[tuple[str, ...]] = Counter()
    ordered = []
    for item in found:
        ordered.append((places[_kind(item[0])], item))
        places[_kind(item[0])] += 1
    return [item for _, item in sorted(ordered, key=lambda pair: pair[0])]


def _kept(judged: Sequence[Narrowed], keep: int) -> tuple[Narrowed, ...]:
    """Keep the best of every pool and pair of pools, then the best of the rest; best first."""

    def order(item: Narrowed) -> tuple[float, int, str]:
        return -item.worth, item.config.gpus, item.config.label

    kinds: dict[tuple[str, ...], Narrowed] = {}
    ranked = sorted(judged, key=order)
    for item in ranked:
        kinds.setdefault(_kind(item.config), item)
    first = sorted(kinds.values(), key=order)
    rest = [item for item in ranked if item not in first]
    return tuple(sorted([*first, *rest][:keep], key=order))


def as_sections(narrowed: Sequence[Narrowed]) -> dict[str, dict[str, object]]:
    """Return the configs as the ``engine_configs`` of a fleet file."""
    return {item.config.label: _section(item.config) for item in narrowed}


def _section(config: EngineConfig) -> dict[str, object]:
    built: dict[str, object] = {"pool": config.pool, **_built(config)}
    if config.prefill is not None and config.decode is not None:
        built = {"prefill": _group(config.prefill), "decode": _group(config.decode)}
    return {
        **built,
        "multi_node": config.multi_node,
        "engine": config.engine,
        "engine_version": config.engine_version,
        "engine_args": dict(config.engine_args),
    }


def _group(group: EngineGroup) -> dict[str, object]:
    args = {"engine_args": dict(group.engine_args)} if group.engine_args else {}
    return {"pool": group.pool, "engines": group.engines, **_built(group), **args}


def _built(engine: EngineConfig | EngineGroup) -> dict[str, object]:
    return {
        "tensor_parallel": engine.tensor_parallel,
        "pipeline_parallel": engine.pipeline_parallel,
        "data_parallel": engine.data_parallel,
        "expert_parallel": engine.expert_parallel,
    }
