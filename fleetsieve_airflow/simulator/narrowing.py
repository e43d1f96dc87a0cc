"""From thousands of ways to build a replica to the dozen worth measuring, for one workload of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fleetsieve_airflow.records import Candidate, EngineConfig, FleetSpec, Slo
from fleetsieve_airflow.simulator.fleet import hardware_of, open_database, settings_of, shape_of
from fleetsieve_airflow.simulator.plans import ParallelPlan
from fleetsieve_airflow.simulator.prior import RequestsAt, simulated_capacity
from fleetsieve_airflow.simulator.search import Found, SearchResult, Targets, search
from fleetsieve_airflow.simulator.space import SearchSpace
from fleetsieve_airflow.simulator.steady import LengthProfile

_BATCHES = tuple(range(1, 17)) + tuple(range(20, 257, 4))


@dataclass(frozen=True, slots=True)
class Narrowed:
    """An engine config worth measuring, and what the simulator expects of it.

    :param capacity_rps: simulated largest load of one replica that meets the workload's SLO, tails included.
    """

    config: EngineConfig
    capacity_rps: float
    capacity_per_gpu: float


def targets_of(slo: Slo) -> Targets:
    """Return what medians must reach at least: a median above the limit of any percentile misses it."""
    tightest: dict[str, float] = {}
    for limit in slo.limits:
        tightest[limit.metric] = min(limit.limit_s, tightest.get(limit.metric, limit.limit_s))
    return Targets(ttft_s=tightest.get("ttft"), tpot_s=tightest.get("tpot"), e2e_s=tightest.get("e2e"))


def narrow(
    spec: FleetSpec,
    workload: str,
    requests_at: Callable[[FleetSpec], RequestsAt],
    *,
    tables: str,
    keep: int = 12,
    degrees: Sequence[int] = (1, 2, 4, 8),
    progress: Callable[[int, int], None] | None = None,
) -> tuple[tuple[Narrowed, ...], dict[str, SearchResult]]:
    """Search every pool of a fleet for one workload; judge the best by discrete events under its SLO.

    The closed forms leave ``2 x keep`` ways to build a replica on each pool; their simulated capacity under
    the SLO, per GPU, ranks them. The engine arguments are those of the pool's first config in the spec.

    :param requests_at: gives, for a spec, the requests of its candidates at a load.
    :returns: what to measure, best first, and the search of each pool by its name.
    """
    wanted = spec.workload(workload)
    mean = (wanted.trace.isl_mean_tokens or 1000.0, wanted.trace.osl_mean_tokens or 200.0)
    profile = LengthProfile(isl_tokens=mean[0], osl_tokens=mean[1])
    searches: dict[str, SearchResult] = {}
    narrowed: list[Narrowed] = []
    for pool in spec.pools:
        model = next((config for config in spec.configs if config.pool == pool.name), None)
        if model is None:
            continue
        hardware = hardware_of(pool)
        space = SearchSpace(
            databases=(open_database(tables, hardware, model.engine),),
            tp=tuple(degrees),
            batches=_BATCHES,
            budgets=(settings_of(model).max_num_batched_tokens,),
            disaggregated=False,
            max_gpus=min(pool.usable_gpus, pool.gpus_per_node),
            settings=settings_of(model),
        )
        shape = shape_of(spec.model(wanted.model), model)
        result = search(shape, profile, space, targets_of(wanted.slo), top=2 * keep, progress=progress)
        searches[pool.name] = result
        narrowed += _judged(spec, workload, model, result, requests_at, labelled=len(spec.pools) > 1)
    narrowed.sort(key=lambda item: (-item.capacity_per_gpu, item.config.gpus, item.config.label))
    return tuple(item for item in narrowed[:keep] if item.capacity_rps > 0.0), searches


def _judged(
    spec: FleetSpec,
    workload: str,
    like: EngineConfig,
    result: SearchResult,
    requests_at: Callable[[FleetSpec], RequestsAt],
    *,
    labelled: bool,
) -> list[Narrowed]:
    judged = []
    for found in result.ranked:
        config = _config(found.serve.plan, like, labelled)
        candidate = _ladder(workload, config, found)
        trial = replace(spec, configs=(config,), candidates=(candidate,))
        capacity = simulated_capacity(
            found.serve,
            candidate,
            spec.workload(workload).slo,
            requests_at(trial),
            spec.measurement.duration_s,
        )
        judged.append(Narrowed(config, capacity, capacity / config.gpus))
    return judged


def _config(plan: ParallelPlan, like: EngineConfig, labelled: bool) -> EngineConfig:
    return replace(
        like,
        label=f"{like.pool}-{plan.label}" if labelled else plan.label,
        tensor_parallel=plan.tp,
        pipeline_parallel=plan.pp,
        data_parallel=plan.dp,
        expert_parallel=plan.ep > 1,
    )


def _ladder(workload: str, config: EngineConfig, found: Found) -> Candidate:
    """Return where to look for a capacity: around what the closed form serves at its best batch."""
    low, high = (float(f"{found.rate_rps * share:.4g}") for share in (0.1, 1.2))
    return Candidate(workload=workload, config=config.label, load_kind="offered_load_rps", loads=(low, high))


def as_sections(narrowed: Sequence[Narrowed]) -> dict[str, dict[str, object]]:
    """Return the configs as the ``engine_configs`` of a fleet file."""
    return {
        item.config.label: {
            "pool": item.config.pool,
            "tensor_parallel": item.config.tensor_parallel,
            "pipeline_parallel": item.config.pipeline_parallel,
            "data_parallel": item.config.data_parallel,
            "expert_parallel": item.config.expert_parallel,
            "engine": item.config.engine,
            "engine_version": item.config.engine_version,
            "engine_args": dict(item.config.engine_args),
        }
        for item in narrowed
    }
