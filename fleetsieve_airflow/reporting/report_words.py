"""What records say, in words and numbers for people: the one spelling of charts, tables and verdicts.

Plain text, not yet escaped. Imports records, evidence and the pieces of :mod:`.charts_svg`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from fleetsieve_airflow.evidence import Allocation, Bound, CapacityInterval, Decision, Plan, PriorCapacity
from fleetsieve_airflow.records import Candidate, FleetSpec, LoadKind, Objective, Slo, Source, Workload
from fleetsieve_airflow.reporting.charts_svg import count, number, percent

#: How much may be missing from a required fulfilment before it is not reached: far below what is ever shown.
EXACT: Final = 1e-9

SOURCE_WORDS: Final[dict[Source, str]] = {
    "measured": "measured",
    "monotone": "implied by another load",
    "closed_loop": "implied by another concurrency",
    "interpolated": "interpolated between measured loads",
    "interior_peak": "assumed: capacity per GPU has a single peak over the degrees",
    "simulator": "simulated and calibrated on this campaign",
    "earlier_release": "known of the earlier release, widened",
    "ladder": "end of the ladder: no higher load is operated",
    "none": "nothing known yet",
}


_TITLES: Final[dict[Objective, str]] = {
    "max_min_fulfilment": "Fulfilment of the worst-served workload",
    "fewest_gpus": "GPUs needed",
    "lowest_cost": "Cost per hour",
}
_LIMIT_NAMES: Final[dict[Objective, str]] = {
    "max_min_fulfilment": "required",
    "fewest_gpus": "GPUs in the pool",
    "lowest_cost": "cost of all GPUs",
}

#: Where the first measurements of a campaign were steered from.
PRIOR_WORDS: Final[dict[Source, str]] = {
    "earlier_release": "what the earlier release showed",
    "simulator": "simulated capacities",
}


def prior_text(priors: Sequence[PriorCapacity]) -> str:
    """Say what a campaign believed before it measured; empty where that was nothing."""
    found = {source: sum(prior.source == source for prior in priors) for source in PRIOR_WORDS}
    named = [f"{PRIOR_WORDS[source]} of {count(n, 'candidate')}" for source, n in found.items() if n]
    return f"steered at first by {' and '.join(named)}" if named else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsSeries:
    """The objective of both plans by round, with what had been spent: the data of a bounds-by-round picture.

    ``limit`` is the required fulfilment, or the GPUs that may be used, or what all of them cost per hour.
    """

    rounds: tuple[int, ...]
    conservative: tuple[float, ...]
    optimistic: tuple[float, ...]
    spent: tuple[float, ...]
    limit: float
    limit_name: str
    title: str
    decided: bool

    @property
    def last(self) -> int:
        """Index of the latest round."""
        return len(self.rounds) - 1


def latest_of_each_round(rounds: Sequence[Decision]) -> tuple[Decision, ...]:
    """Return one decision per round, ascending; a round carried out twice counts as it came out last."""
    by_round = {decision.round: decision for decision in rounds}
    return tuple(by_round[number] for number in sorted(by_round))


def bounds_series(spec: FleetSpec, rounds: Sequence[Decision]) -> BoundsSeries:
    """Read what a bounds-by-round picture shows out of a campaign's decisions."""
    rows = latest_of_each_round(rounds)
    return BoundsSeries(
        rounds=tuple(row.round for row in rows),
        conservative=tuple(objective_value(spec, row.conservative) for row in rows),
        optimistic=tuple(objective_value(spec, row.optimistic) for row in rows),
        spent=tuple(row.spend.gpu_seconds_window for row in rows),
        limit=most_needed(spec) if counts_need(spec) else spec.decision.required_fulfilment,
        limit_name=_LIMIT_NAMES[spec.decision.objective],
        title=objective_title(spec),
        decided=bool(rows) and rows[-1].state in ("certified_feasible", "certified_infeasible"),
    )


def objective_title(spec: FleetSpec) -> str:
    """Name what the objective counts."""
    return _TITLES[spec.decision.objective]


def counts_need(spec: FleetSpec) -> bool:
    """Whether the objective is what a plan needs, GPUs or money, rather than a share of demand."""
    return spec.decision.objective != "max_min_fulfilment"


def counts_money(spec: FleetSpec) -> bool:
    """Whether the objective is what a plan costs per hour."""
    return spec.decision.objective == "lowest_cost"


def most_needed(spec: FleetSpec) -> float:
    """Return the GPUs that a plan may use, or what all of them cost per hour."""
    if not counts_money(spec):
        return float(usable_gpus(spec))
    return sum((pool.price_per_gpu_hour or 0.0) * pool.usable_gpus for pool in spec.pools)


def needed(spec: FleetSpec, plan: Plan) -> float:
    """Return what a plan needs in the objective's unit: GPUs, or money per hour."""
    return (plan.cost_per_hour or 0.0) if counts_money(spec) else float(plan.gpus)


def need_text(spec: FleetSpec, value: float) -> str:
    """Write what is needed: ``34 GPUs`` or ``41.6 per hour``."""
    if counts_money(spec):
        return f"{number(value)} per hour"
    return f"{number(value)} {'GPU' if value == 1 else 'GPUs'}"


def usable_gpus(spec: FleetSpec) -> int:
    """GPUs that a plan may use, over all pools."""
    return sum(pool.usable_gpus for pool in spec.pools)


def objective_value(spec: FleetSpec, plan: Plan) -> float:
    """Return what a plan reaches, in the objective's unit: least fulfilment, or GPUs, or money per hour.

    A plan that needs more GPUs than there are counts as one GPU more than that: how many more is not known.
    """
    if not counts_need(spec):
        return plan.min_fulfilment
    return needed(spec, plan) if reaches_required(spec, plan) else beyond(spec)


def beyond(spec: FleetSpec) -> float:
    """Return what stands for a need that all GPUs do not cover: one GPU more than there are, or its price."""
    most = most_needed(spec)
    return most + most / usable_gpus(spec)


def need_card(spec: FleetSpec, plan: Plan) -> tuple[str, str]:
    """Return what a plan needs of what there is, ``16 / 32``, and what that counts."""
    most = number(most_needed(spec))
    named = "cost per hour / of all GPUs" if counts_money(spec) else "GPUs needed / in the pool"
    if reaches_required(spec, plan):
        return f"{number(needed(spec, plan))} / {most}", named
    return f"? / {most}", f"{named}: no plan is certain yet"


def objective_text(spec: FleetSpec, value: float) -> str:
    """Write a value, gap or regret in the objective's unit: ``93.9 %``, ``34 GPUs`` or ``41.6 per hour``."""
    return need_text(spec, value) if counts_need(spec) else percent(value)


def plan_value_text(spec: FleetSpec, value: float) -> str:
    """Write what a plan reaches: ``93.9 %``, ``34 GPUs``, ``more than 64 GPUs`` if the pool is too small."""
    most = most_needed(spec)
    above = counts_need(spec) and value > most
    return f"more than {need_text(spec, most)}" if above else objective_text(spec, value)


def loss_text(spec: FleetSpec, decision: Decision, loss: float) -> str:
    """Write a gap or regret; ``open`` while needs are compared and no plan is sure to serve the demand."""
    if counts_need(spec) and not reaches_required(spec, decision.conservative):
        return "open"
    return objective_text(spec, loss)


def reaches_required(spec: FleetSpec, plan: Plan) -> bool:
    """Whether a plan serves every workload to the required fulfilment at the capacities it counts with."""
    return plan.min_fulfilment >= spec.decision.required_fulfilment - EXACT


def slo_texts(slo: Slo) -> list[str]:
    """Write each limit of an SLO in words: ``success >= 99 %``, ``TTFT p99 <= 2 s``."""
    parts = [] if slo.success_rate is None else [f"success \u2265 {percent(slo.success_rate)}"]
    parts += [
        f"{limit.metric.upper()} p{limit.percentile} \u2264 {seconds(limit.limit_s)}" for limit in slo.limits
    ]
    return parts


def seconds(value: float) -> str:
    """Write a duration in seconds, below a tenth in milliseconds: ``30 s``, ``50 ms``."""
    return f"{number(value)} s" if value >= 0.1 else f"{number(1000 * value)} ms"  # noqa: PLR2004


def percentile_text(name: str) -> str:
    """Write the name of a latency percentile as people do: ``ttft_p99_s`` is ``TTFT p99``."""
    metric, percentile, _ = name.split("_")
    return f"{metric.upper()} {percentile}"


def load_text(kind: LoadKind, load: float) -> str:
    """Write a load with its unit: ``6.6 req/s`` or ``32 users``."""
    return f"{load:g} {load_unit(kind)}"


def load_unit(kind: LoadKind) -> str:
    """Return the unit of a ladder's loads."""
    return "req/s" if kind == "offered_load_rps" else "users"


def interval_text(interval: CapacityInterval) -> str:
    """Write a capacity interval in req/s: ``[4.4, 6.6]``, ``6.6`` where both ends are one, ``[4.4, ...)``."""
    lower, upper = interval.lower.value_rps, interval.upper.value_rps
    if upper is None and not lower:
        return "unknown"
    if lower is not None and lower == upper:
        return number(lower)
    end = "\N{HORIZONTAL ELLIPSIS})" if upper is None else f"{number(upper)}]"
    return f"[{number(lower or 0.0)}, {end}"


def interval_reason(interval: CapacityInterval) -> str:
    """Say on what both ends of an interval rest."""
    reason = f"at least {_bound_text(interval.lower)}; at most {_bound_text(interval.upper)}"
    return f"{reason}; measurements contradict each other" if interval.contradiction else reason


def _bound_text(bound: Bound) -> str:
    value = "?" if bound.value_rps is None else f"{number(bound.value_rps)} req/s"
    return f"{value} ({SOURCE_WORDS[bound.source]})"


def run_address(template: str, run_id: str) -> str:
    """Fill a run's id into an address that has ``{run_id}`` in it."""
    return template.replace("{run_id}", quote(run_id, safe=""))


def replicas_text(allocation: Allocation) -> str:
    """Write the replicas of one candidate: ``2 x TP4``."""
    return f"{allocation.replicas} x {allocation.config}"


def plan_text(plan: Plan, *, most: int = 4) -> str:
    """Write a plan, ``chat 2 x TP4; code 2 x TP4``; empty where it has more than ``most`` workloads."""
    by_workload: dict[str, list[str]] = {}
    for item in used(plan):
        by_workload.setdefault(item.workload, []).append(replicas_text(item))
    if not 0 < len(by_workload) <= most:
        return ""
    return "; ".join(f"{name} {' + '.join(parts)}" for name, parts in by_workload.items())


def used(plan: Plan) -> tuple[Allocation, ...]:
    """Return the allocations that have replicas."""
    return tuple(item for item in plan.allocations if item.replicas > 0)


def split_texts(spec: FleetSpec, plan: Plan) -> tuple[str, ...]:
    """Say of what engines each disaggregated config of a plan is built, one line a config."""
    configs = [spec.config(label) for label in dict.fromkeys(item.config for item in used(plan))]
    return tuple(
        f"{config.label}: {', '.join(f'{part.phase} {part.words}' for part in config.parts)}."
        for config in configs
        if config.disaggregated
    )


def headroom(spec: FleetSpec, workload: Workload, capacity_rps: float) -> float:
    """Return by how much a capacity exceeds what is required of a workload; negative: what is missing."""
    return capacity_rps / (workload.demand_rps * spec.decision.required_fulfilment) - 1.0


def gpus_text(spec: FleetSpec, plan: Plan) -> str:
    """Write the GPUs of a plan against those it may use: ``16 of 16 GPUs``."""
    return f"{plan.gpus:,} of {count(usable_gpus(spec), 'GPU')}"


def most_replicas(spec: FleetSpec, candidate: Candidate) -> int:
    """Return how many replicas of a candidate its pools have room for."""
    gpus = spec.config(candidate.config).pool_gpus
    return min(spec.pool(name).usable_gpus // size for name, size in gpus.items())
