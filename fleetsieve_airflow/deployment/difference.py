"""What changes from one plan of a fleet to the next, in words: a line for each workload, then the fleet."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fleetsieve_airflow.deployment.plan import FleetPlan, ReplicaKind
from fleetsieve_airflow.errors import DeploymentError

#: Rates closer than this are the same, in req/s.
_SAME_RPS = 0.005


def differences(old: FleetPlan, new: FleetPlan) -> tuple[str, ...]:
    """Say what changes, e.g. ``chat: 1 x TP8 -> 2 x TP4, frees 0 GPUs, +1.93 req/s at 1.3x``.

    Rates are what each plan's own certificate is sure of, of the new demand and its multiples; a workload's
    line names the multiple at which they differ most.

    :raises DeploymentError: the plans are of two fleets.
    """
    if old.fleet != new.fleet:
        raise DeploymentError(f"The plans are of two fleets, {old.fleet!r} and {new.fleet!r}.")
    demand = dict(old.demand_rps) | dict(new.demand_rps)
    lines = [_workload(old, new, workload, rps) for workload, rps in demand.items()]
    return (*lines, _fleet(old, new, demand))


def _workload(old: FleetPlan, new: FleetPlan, workload: str, demand_rps: float) -> str:
    before, after = old.kinds_of(workload), new.kinds_of(workload)
    was, now = _words(before), _words(after)
    parts = [f"{workload}: {was} stays" if was == now else f"{workload}: {was} -> {now}"]
    freed = sum(kind.gpus for kind in before) - sum(kind.gpus for kind in after)
    if was != now:
        parts.append(f"frees {_gpus(freed)}" if freed >= 0 else f"takes {_gpus(-freed)} more")
    gains = [
        (new.served_rps(workload, scale * demand_rps) - old.served_rps(workload, scale * demand_rps), scale)
        for scale in new.scenarios
    ]
    gain, scale = max(gains, key=lambda pair: (abs(pair[0]), pair[1]))
    if abs(gain) >= _SAME_RPS:
        parts.append(f"{gain:+.3g} req/s at {scale:g}x")
    known = dict(old.demand_rps).get(workload)
    if known is not None and known != demand_rps:
        parts.append(f"demand {known:g} -> {demand_rps:g} req/s")
    parts += _rebuilt(before, after)
    return ", ".join(parts)


def _fleet(old: FleetPlan, new: FleetPlan, demand: dict[str, float]) -> str:
    gains = []
    for scale in new.scenarios:
        gain = sum(
            new.served_rps(workload, scale * rps) - old.served_rps(workload, scale * rps)
            for workload, rps in demand.items()
        )
        gains.append(
            f"{gain:+.3g} req/s at {scale:g}x" if abs(gain) >= _SAME_RPS else f"the same at {scale:g}x"
        )
    return f"fleet: {old.gpus} -> {_gpus(new.gpus)}; served {', '.join(gains)}"


def _words(kinds: tuple[ReplicaKind, ...]) -> str:
    return " + ".join(f"{kind.replicas} x {kind.config.label}" for kind in kinds) or "none"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _rebuilt(before: tuple[ReplicaKind, ...], after: tuple[ReplicaKind, ...]) -> list[str]:
    """Say what is started anew though its label is the same."""
    known = {kind.config.label: kind for kind in before}
    said = []
    for kind in after:
        if earlier := known.get(kind.config.label):
            changes = [f"{name} {was} -> {now}" for name, was, now in _changes(earlier, kind)]
            if changes:
                said.append(f"{kind.config.label} restarts with {', '.join(changes)}")
    return said


def _changes(before: ReplicaKind, after: ReplicaKind) -> list[tuple[str, Any, Any]]:
    was, now = _facts(before), _facts(after)
    return [
        (name, was.get(name, "none"), now.get(name, "none"))
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    ]


def _facts(kind: ReplicaKind) -> dict[str, Any]:
    config = {
        field.name: getattr(kind.config, field.name)
        for field in fields(kind.config)
        if field.name not in ("label", "engine_args", "prefill", "decode")
    }
    config |= {part.phase: part.words for part in kind.config.parts if part.phase}
    model = {"model": kind.model.name, "revision": kind.model.revision, "source": kind.model.source}
    facts = {**config, **model, "GPU": kind.gpu, **dict(kind.config.engine_args)}
    # An empty text is a fact that is not said.
    return {name: value for name, value in facts.items() if value != ""}
