"""Campaigns for the tests of reports: decisions written out by hand, in every state a campaign can be in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetsieve_airflow.evidence import (
    Allocation,
    Bound,
    CapacityInterval,
    Decision,
    DecisionState,
    Evidence,
    EvidenceItem,
    Measurement,
    Plan,
    PlannedPoint,
    PointFailure,
    Scenario,
    SkippedPoint,
    Spend,
)
from fleetsieve_airflow.records import (
    Budget,
    Candidate,
    DecisionSettings,
    EngineConfig,
    FleetSpec,
    LatencyLimit,
    MeasurementSettings,
    Model,
    Pool,
    Slo,
    Trace,
    Workload,
)
from fleetsieve_airflow.serialization import point_of

LOADS = {"chat": (2.2, 4.4, 6.6, 11.27), "code": (1.2, 2.4, 3.6, 6.0)}
#: Candidate -> the highest load that meets its SLO; what the campaigns below pretend to find.
TRUTH = {
    "chat TP2": 2.2, "chat TP4": 6.6, "chat TP8": 11.27, "code TP2": 1.2, "code TP4": 3.6, "code TP8": 6.0,
}  # fmt: skip
NASTY = "<script>alert('x')</script> & a name of 60 characters \"quoted\""


@dataclass(frozen=True)
class Campaign:
    """What a report is rendered from."""

    spec: FleetSpec
    rounds: tuple[Decision, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    certificate: dict[str, Any] | None = None


def limit(metric: str, limit_s: float) -> LatencyLimit:
    """Build a limit on a 99th percentile."""
    return LatencyLimit(metric=metric, percentile=99, limit_s=limit_s)


def chat_and_code(
    scale: float = 1.0, *, chat: str = "chat", code: str = "code", **decision: Any
) -> FleetSpec:
    """Build the fleet of the paper: two workloads on 16 GPUs, TP2, TP4 and TP8."""
    settings = {"demand_scenarios": (0.7, 1.0, 1.3), **decision}
    limits = {
        chat: (limit("ttft", 2.0), limit("e2e", 30.0)),
        code: (limit("ttft", 5.0),),
    }  # fmt: skip
    demand, loads = {chat: 12.0, code: 6.5}, {chat: LOADS["chat"], code: LOADS["code"]}
    return FleetSpec(
        fleet="chat-and-code-h100",
        pools=(
            Pool(name="h100", gpu="NVIDIA H100 80GB HBM3", gpus=16, gpus_per_node=8, price_per_gpu_hour=2.5),
        ),
        models=(Model(name="open-31b-fp8", revision="r1"),),
        configs=tuple(
            EngineConfig(label=f"TP{degree}", pool="h100", tensor_parallel=degree, engine_version="0.30.1")
            for degree in (1, 2, 4, 8)
        ),
        workloads=tuple(
            Workload(
                name=name,
                model="open-31b-fp8",
                demand_rps=round(rate * scale, 4),
                slo=Slo(success_rate=0.99, limits=limits[name]),
                trace=Trace(name=name),
            )
            for name, rate in demand.items()
        ),
        candidates=tuple(
            Candidate(
                workload=name,
                config=f"TP{degree}",
                load_kind="offered_load_rps",
                loads=loads[name],
                excluded=""
                if degree > 1
                else "weights of 62 GiB and one request's KV cache do not fit into 80 GiB",
            )
            for name in demand
            for degree in (1, 2, 4, 8)
        ),
        decision=DecisionSettings(**settings),
        measurement=MeasurementSettings(backend="replay", device="paper", startup_s=120.0),
        budget=Budget(rounds=12),
    )


def measured(
    spec: FleetSpec, label: str, load: float, *, round: int, met: bool, **fields: Any
) -> EvidenceItem:
    """Measure a point: half of every limit where it met its SLO, twice where it missed."""
    workload, config = label.rsplit(" ", 1)
    point = point_of(spec, spec.candidate(workload, config), load, fields.pop("repeat", 0))
    item = {name: fields.pop(name) for name in ("reused", "run_id", "measured_at") if name in fields}
    found: dict[str, Any] = {
        "served_rps": load if met else round_(load * 0.6),
        "success_rate": 0.999 if met else 0.8,
        "sent": 3000,
        "failed": 3 if met else 600,
        "percentiles": tuple(
            (limit.name, limit.limit_s * (0.55 if met else 2.1))
            for limit in spec.workload(workload).slo.limits
        ),
        "gpu_seconds_window": point.gpu_seconds_window,
        "gpu_seconds_billed": point.gpus * (point.duration_s + spec.measurement.startup_s),
    }
    measurement = Measurement(point=point, **{**found, **fields})
    run_id = f"{label.replace(' ', '-').lower()}-{load}-{point.seed}"
    return EvidenceItem(measurement=measurement, round=round, **{"run_id": run_id, **item})


def round_(value: float) -> float:
    return round(value, 3)


def interval(
    label: str, lower: float, upper: float | None, *, operating: float | None = None, **fields: Any
) -> CapacityInterval:
    """Build a capacity interval in req/s."""
    workload, config = label.rsplit(" ", 1)
    return CapacityInterval(
        workload=workload,
        config=config,
        lower=Bound(value_rps=lower, source="measured" if lower > 0 else "none"),
        upper=Bound(value_rps=upper, source="none" if upper is None else "monotone"),
        operating_load=operating or (lower if lower > 0 else None),
        **fields,
    )


def plan(spec: FleetSpec, replicas: Mapping[str, int], capacity: Mapping[str, float]) -> Plan:
    """Build a plan from candidate -> replicas, and the req/s one replica of each counts for."""
    allocations, served = [], {workload.name: 0.0 for workload in spec.workloads}
    for label, quantity in replicas.items():
        workload, config = label.rsplit(" ", 1)
        gpus = quantity * spec.config(config).gpus
        allocations.append(
            Allocation(
                workload=workload, config=config, replicas=quantity, gpus=gpus, capacity_rps=capacity[label]
            )
        )
        served[workload] += quantity * capacity[label]
    shares = {w.name: min(1.0, served[w.name] / w.demand_rps) for w in spec.workloads}
    gpus = sum(item.gpus for item in allocations)
    least = min(shares.values())
    return Plan(
        allocations=tuple(allocations),
        fulfilment=tuple(shares.items()),
        min_fulfilment=least,
        served_rps=sum(shares[w.name] * w.demand_rps for w in spec.workloads),
        gpus=gpus,
        cost_per_hour=gpus * 2.5,
        value=least if spec.decision.objective == "max_min_fulfilment" else -float(gpus),
        solver="exact dynamic programme",
        solver_status="Optimal",
    )


def spend(spec: FleetSpec, items: Sequence[EvidenceItem]) -> Spend:
    """Count what a campaign has spent on its own measurements."""
    own = [item.measurement for item in items if not item.reused]
    every = [(c, load) for c in spec.candidates if not c.excluded for load in c.loads]
    return Spend(
        gpu_seconds_window=sum(run.gpu_seconds_window for run in own),
        gpu_seconds_billed=sum(run.gpu_seconds_billed for run in own),
        points_measured=len(own),
        points_reused=len(items) - len(own),
        points_all=len(every),
        gpu_seconds_window_all=sum(
            spec.config(c.config).gpus * spec.measurement.duration_s for c, _ in every
        ),
    )


def planned(spec: FleetSpec, label: str, load: float, *, job: int = 1, reason: str = "") -> PlannedPoint:
    """Choose a point for the next round."""
    workload, config = label.rsplit(" ", 1)
    point = point_of(spec, spec.candidate(workload, config), load)
    return PlannedPoint(
        point=point,
        reason=reason or f"if met, two replicas of {label} serve the demand; if missed, they never can",
        probability_met=0.62,
        expected_fall_per_gpu_second=0.00018,
        gpu_seconds_billed=point.gpus * (point.duration_s + spec.measurement.startup_s),
        job=job,
    )


def skipped_rest(
    spec: FleetSpec, items: Sequence[EvidenceItem], ahead: Sequence[PlannedPoint] = ()
) -> tuple[SkippedPoint, ...]:
    """Skip every point that was neither measured nor is planned, each with one of three reasons."""
    seen = {
        (i.measurement.point.workload, i.measurement.point.config, i.measurement.point.load) for i in items
    }
    seen |= {(p.point.workload, p.point.config, p.point.load) for p in ahead}
    reasons = {
        2: "in no plan even at its highest possible capacity",
        4: "implied by a measured load",
        8: "no outcome changes the replicas of any plan",
    }
    return tuple(
        SkippedPoint(
            workload=c.workload, config=c.config, load=load,
            reason=reasons.get(spec.config(c.config).gpus, "no outcome changes the replicas of any plan"),
            gpu_seconds_window=spec.config(c.config).gpus * spec.measurement.duration_s,
        )
        for c in spec.candidates if not c.excluded
        for load in c.loads if (c.workload, c.config, load) not in seen
    )  # fmt: skip


def decision(
    spec: FleetSpec,
    state: DecisionState,
    number: int,
    intervals: Sequence[CapacityInterval],
    low: Plan,
    high: Plan,
    items: Sequence[EvidenceItem],
    **fields: Any,
) -> Decision:
    """Build a round's decision; gap and regret follow from the plans where they are not given."""
    gap = max(0.0, high.value - low.value)
    ahead = fields.get("points", ())
    certain = [
        Scenario(
            demand_scale=scale,
            min_fulfilment=min(1.0, low.min_fulfilment / scale),
            lost_rps=max(0.0, scale - 1.0) * 6.1,
        )
        for scale in spec.decision.demand_scenarios
    ]
    defaults = {
        "reason": "",
        "gap": gap,
        "regret": gap,
        "skipped": skipped_rest(spec, items, ahead),
        "spend": spend(spec, items),
        "scenarios": tuple(certain),
    }
    return Decision(
        state=state,
        round=number,
        intervals=tuple(intervals),
        conservative=low,
        optimistic=high,
        **{**defaults, **fields},
    )


def verdicts_of(items: Sequence[EvidenceItem]) -> dict[str, str]:
    """Judge by what the builders above made: a success rate of at least 99 %."""
    return {
        item.measurement.point.key: "refused" if item.measurement.refused else
        "met" if (item.measurement.success_rate or 0.0) >= 0.99 else "missed"
        for item in items
    }  # fmt: skip


def paper_campaign(upto: int = 4, *, chat: str = "chat", code: str = "code") -> Campaign:
    """Return the campaign that decides 2 x TP4 for chat and for code, after its first ``upto`` rounds."""
    spec = chat_and_code(chat=chat, code=code)
    steps = ((f"{code} TP4", 3.6, True), (f"{chat} TP4", 6.6, True), (f"{chat} TP4", 11.27, False))
    items = tuple(
        measured(spec, label, load, round=i, met=met, curtailed=not met)
        for i, (label, load, met) in enumerate(steps, 1)
    )
    top = {
        f"{name} TP{degree}": LOADS[key][-1]
        for name, key in ((chat, "chat"), (code, "code"))
        for degree in (2, 4, 8)
    }
    low = dict.fromkeys(top, 0.0)
    rounds = []
    for number in range(1, upto + 1):
        known = items[: number - 1]
        for label, load, met in steps[: number - 1]:
            if met:
                low[label] = load
            else:
                top[label] = 6.6
        ends = [interval(label, low[label], top[label]) for label in top]
        best = {f"{chat} TP4": 2, f"{code} TP4": 2}
        ahead = () if number == 4 else (planned(spec, *steps[number - 1][:2]),)
        rounds.append(
            decision(
                spec,
                "certified_feasible" if number == 4 else "measure",
                number,
                ends,
                plan(spec, {label: n for label, n in best.items() if low[label] > 0}, low),
                plan(spec, best, top),
                known,
                points=ahead,
                reason="the conservative plan reaches the required fulfilment"
                if number == 4
                else "one point decides most",
            )
        )
    known = items[: upto - 1]
    return Campaign(spec, tuple(rounds), Evidence(items=known, rounds_done=len(known)), verdicts_of(known))


def infeasible_campaign() -> Campaign:
    """Return a campaign that proves 1.3 times the demand impossible on these GPUs."""
    spec = chat_and_code(1.3)
    items = (
        measured(spec, "code TP4", 3.6, round=1, met=True),
        measured(spec, "chat TP4", 6.6, round=1, met=True),
        measured(spec, "chat TP4", 11.27, round=2, met=False),
        measured(spec, "chat TP2", 2.2, round=2, met=False),
    )
    low = {
        "chat TP2": 0.0,
        "chat TP4": 6.6,
        "chat TP8": 0.0,
        "code TP2": 0.0,
        "code TP4": 3.6,
        "code TP8": 0.0,
    }
    top = {
        "chat TP2": 0.0,
        "chat TP4": 6.6,
        "chat TP8": 11.27,
        "code TP2": 6.0,
        "code TP4": 3.6,
        "code TP8": 6.0,
    }
    last = decision(
        spec,
        "certified_infeasible",
        3,
        [interval(label, low[label], top[label]) for label in low],
        plan(spec, {"chat TP4": 2, "code TP4": 2}, low),
        plan(spec, {"chat TP4": 2, "code TP4": 2}, {**top, "code TP4": 3.63}),
        items,
        gap=0.006,
        regret=0.005,
        reason="Even at the highest capacities still possible only 0.852 of 1 is served.",
    )
    return Campaign(spec, (last,), Evidence(items=items, rounds_done=2), verdicts_of(items))


def undetermined_campaign() -> Campaign:
    """Return a campaign whose budget ended too early, with every trouble that evidence can have."""
    spec = chat_and_code()
    items = (
        measured(spec, "code TP4", 3.6, round=0, met=True, reused=True, measured_at="2026-11-02T08:00:00Z"),
        measured(spec, "chat TP4", 4.4, round=1, met=False, measured_at="2026-11-30T08:10:00Z"),
        measured(spec, "chat TP4", 6.6, round=2, met=True, measured_at="2026-11-30T08:20:00Z"),
        measured(spec, "chat TP4", 6.6, round=3, met=False, repeat=1, curtailed=True),
        measured(
            spec, "chat TP2", 2.2, round=2, met=False, refused="ValueError: 62.1 GiB of weights do not fit"
        ),
    )
    lost = point_of(spec, spec.candidate("chat", "TP8"), 11.27)
    failure = PointFailure(
        key=lost.key,
        label=lost.label,
        round=2,
        kind="infrastructure",
        message="node dgx-07 went down",
        gpu_seconds_billed=900.0,
    )
    ends = [
        interval("chat TP2", 0.0, 0.0),
        interval("chat TP4", 2.2, 6.6, contradiction=(4.4, 6.6)),
        interval("chat TP8", 0.0, None),
        *(
            interval(label, low, 6.0)
            for label, low in (("code TP2", 0.0), ("code TP4", 3.6), ("code TP8", 0.0))
        ),
    ]
    low, high = {"chat TP4": 2.2, "code TP4": 3.6}, {"chat TP4": 6.6, "code TP4": 6.0}
    last = decision(
        spec,
        "undetermined",
        4,
        ends,
        plan(spec, {"chat TP4": 2, "code TP4": 2}, low),
        plan(spec, {"chat TP4": 2, "code TP4": 2}, high),
        items,
        points=(
            planned(spec, "chat TP8", 11.27, job=0),
            planned(spec, "chat TP4", 4.4, job=1, reason="a repeat is due"),
        ),
        regret=0.35,
        reason="regret 0.35 is above the tolerance of 0.01; the budget of 3 rounds is used up.",
        warnings=("chat TP4: a load above a missed one is met (measured loads 4.4, 6.6).",),
    )
    verdicts = verdicts_of(items)
    evidence = Evidence(items=items, failures=(failure,), rounds_done=3)
    return Campaign(spec, (last,), evidence, verdicts)


def fewest_gpus_campaign() -> Campaign:
    """Return a campaign for the fewest GPUs: no sure plan in round 1, one of 12 GPUs in round 3."""
    spec = chat_and_code(0.7, objective="fewest_gpus", tolerance=0.0)
    items = (
        measured(spec, "chat TP4", 6.6, round=1, met=True),
        measured(spec, "code TP4", 3.6, round=1, met=True),
        measured(spec, "chat TP2", 2.2, round=2, met=True),
        measured(spec, "code TP2", 1.2, round=2, met=True),
    )
    top = {f"{name} TP{degree}": LOADS[name][-1] for name in LOADS for degree in (2, 4, 8)}
    lows = (
        dict.fromkeys(top, 0.0),
        {**dict.fromkeys(top, 0.0), "chat TP4": 6.6, "code TP4": 3.6},
        {**dict.fromkeys(top, 0.0), "chat TP4": 6.6, "code TP4": 3.6, "chat TP2": 2.2, "code TP2": 1.2},
    )
    settled = {**lows[2], "chat TP8": 11.27, "code TP8": 6.0}
    sure: tuple[dict[str, int], ...] = (
        {},
        {"chat TP4": 2, "code TP4": 2},
        {"chat TP2": 1, "chat TP4": 1, "code TP2": 1, "code TP4": 1},
    )
    hoped = ({"chat TP2": 1, "code TP2": 1}, {"chat TP2": 1, "code TP2": 1}, sure[2])
    rounds = tuple(
        decision(
            spec,
            "certified_feasible" if i == 2 else "measure",
            i + 1,
            [interval(label, lows[i][label], settled[label] if i == 2 else top[label]) for label in top],
            plan(spec, sure[i], lows[i]),
            plan(spec, hoped[i], lows[i] if i == 2 else top),
            items[: 2 * i],
            points=() if i == 2 else (planned(spec, "chat TP2", 4.4),),
        )
        for i in range(3)
    )
    return Campaign(spec, rounds, Evidence(items=items, rounds_done=2), verdicts_of(items))


def large_campaign(
    workloads: int = 20, configs: int = 6, loads: int = 8, *, name_length: int = 60
) -> Campaign:
    """Return a campaign of a large fleet with long names, one config of each workload measured."""
    names = [f"workload-{w:02d}-".ljust(name_length, "x") for w in range(workloads)]
    labels = [f"TP{2 ** (c % 4)}-variant-{c}" for c in range(configs)]
    ladder = tuple(round(1.5 * 1.4**j, 3) for j in range(loads))
    slo, model = (
        Slo(success_rate=0.99, limits=(limit("ttft", 2.0),)),
        "some-organisation/a-long-model-name-70b",
    )
    spec = FleetSpec(
        fleet="large",
        pools=(Pool(name="h100", gpu="NVIDIA H100 80GB HBM3", gpus=1024, gpus_per_node=8),),
        models=(Model(name=model, revision="r1"),),
        configs=tuple(
            EngineConfig(label=label, pool="h100", tensor_parallel=2 ** (c % 4))
            for c, label in enumerate(labels)
        ),
        workloads=tuple(
            Workload(name=name, model=model, demand_rps=40.0 + w, slo=slo, trace=Trace(name=name))
            for w, name in enumerate(names)
        ),
        candidates=tuple(
            Candidate(workload=name, config=label, load_kind="offered_load_rps", loads=ladder)
            for name in names
            for label in labels
        ),
        measurement=MeasurementSettings(backend="slurm", device="live"),
        decision=DecisionSettings(demand_scenarios=(0.7, 1.0, 1.3)),
    )  # fmt: skip
    met, missed = ladder[loads // 2], ladder[loads // 2 + 1]
    kept = labels[min(2, configs - 1)]
    items = tuple(
        measured(spec, f"{name} {kept}", load, round=1, met=load == met)
        for name in names
        for load in (met, missed)
    )
    chosen = {f"{name} {kept}": -(-int(40 + w) // int(met)) + 1 for w, name in enumerate(names)}
    ends = [
        interval(f"{name} {label}", met if label == kept else 0.0, met if label == kept else ladder[-1])
        for name in names
        for label in labels
    ]
    both = plan(spec, chosen, dict.fromkeys(chosen, met))
    last = decision(spec, "certified_feasible", 2, ends, both, both, items)
    return Campaign(spec, (last,), Evidence(items=items, rounds_done=1), verdicts_of(items))
