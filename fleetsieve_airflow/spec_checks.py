"""Checks of a fleet file that need more than one of its sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fleetsieve_airflow.backends.base import installed_backends
from fleetsieve_airflow.records import Candidate, FleetSpec
from fleetsieve_airflow.spec_problems import Problems

#: Keys of an engine config under which a disaggregated replica's groups of engines stand.
PHASES = ("prefill", "decode")


def check_references(data: Mapping[str, Any], problems: Problems) -> None:
    """Add every name that refers to nothing.

    Works on plain data that may be wrong elsewhere, so that unknown names are said together with the rest.
    """
    pools, models, configs = (_keys(data, section) for section in ("pools", "models", "engine_configs"))
    for label, config in _entries(data, "engine_configs"):
        for phase, part in (((), config), *(((name,), config.get(name)) for name in PHASES)):
            if isinstance(part, dict):
                place = ("engine_configs", label, *phase, "pool")
                _check_name(place, "pool", part.get("pool"), pools, problems)
    for name, workload in _entries(data, "workloads"):
        _check_name(("workloads", name, "model"), "model", workload.get("model"), models, problems)
        listed = workload.get("engine_configs")
        listed = listed if isinstance(listed, list) else []
        for position, label in enumerate(listed):
            path = ("workloads", name, "engine_configs", position)
            _check_name(path, "engine config", label, configs, problems)
        for label in _keys(workload, "loads_by_config"):
            if label not in listed:
                override = ("workloads", name, "loads_by_config", label)
                problems.add_unknown(override, "engine config of this workload", label, map(str, listed))
    measurement = data.get("measurement")
    backend = measurement.get("backend") if isinstance(measurement, dict) else None
    if isinstance(backend, str) and backend not in installed_backends():
        problems.add_value(
            ("measurement", "backend"),
            f"must be one of {', '.join(installed_backends())}",
            backend,
            "Name a backend of this installation.",
        )


def check_candidates(spec: FleetSpec, problems: Problems) -> None:
    """Add what keeps the candidates that can run from being measured or planned."""
    for workload in spec.workloads:
        path = ("workloads", workload.name, "engine_configs")
        of_workload = [item for item in spec.candidates if item.workload == workload.name]
        if not spec.candidates_of(workload.name):
            reasons = " ".join(f"{item.config}: {item.excluded}" for item in of_workload)
            problems.add(
                path, f"holds no candidate that can run. {reasons}", "Add a config that fits the pool."
            )
        kinds = sorted({item.load_kind for item in of_workload})
        if len(kinds) > 1:
            problems.add(
                path, f"mixes {' and '.join(kinds)}", "Give all configs of a workload one kind of load."
            )
    _check_profiling_gpus(spec, problems)
    _check_fewest_replicas(spec, problems)
    _check_decision(spec, problems)


def _check_profiling_gpus(spec: FleetSpec, problems: Problems) -> None:
    gpus = spec.measurement.profiling_gpus
    large = [
        item.label for item in _runnable(spec) if gpus is not None and spec.config(item.config).gpus > gpus
    ]
    if large:
        problems.add_value(
            ("measurement", "profiling_gpus"),
            f"must hold one replica of every candidate, too few for {', '.join(large)}",
            gpus,
            "Raise it, or take these engine configs out.",
        )


def _check_fewest_replicas(spec: FleetSpec, problems: Problems) -> None:
    needed = sum(
        workload.min_replicas
        * min((spec.config(item.config).gpus for item in spec.candidates_of(workload.name)), default=0)
        for workload in spec.workloads
    )
    usable = sum(pool.usable_gpus for pool in spec.pools)
    if needed > usable:
        problems.add(
            ("workloads",),
            f"ask for min_replicas that take at least {needed} GPUs, the pools have {usable} to plan with",
            "Lower min_replicas or add GPUs.",
        )


def _check_decision(spec: FleetSpec, problems: Problems) -> None:
    decision = spec.decision
    if "interior_peak" in decision.certify_on and not decision.interior_peak:
        problems.add(
            ("decision", "certify_on"),
            "names interior_peak, which is not assumed",
            "Set decision.assumptions.interior_peak to true, or take it out.",
        )
    cheapest = decision.objective == "lowest_cost"
    if decision.cost_per_hour_max is not None or cheapest:
        used = {pool for item in _runnable(spec) for pool in spec.config(item.config).pool_gpus}
        needs_it = "objective lowest_cost" if cheapest else "cost_per_hour_max"
        for pool in spec.pools:
            if pool.name in used and pool.price_per_gpu_hour is None:
                problems.add(
                    ("pools", pool.name, "price_per_gpu_hour"),
                    f"is missing, and decision.{needs_it} needs it",
                    "Give a price, e.g. 2.5.",
                )
        if cheapest and not any(spec.pool(name).price_per_gpu_hour != 0.0 for name in used):
            problems.add(
                ("decision", "objective"),
                "is lowest_cost, but no pool costs anything",
                "Give prices, or choose fewest_gpus.",
            )


def _runnable(spec: FleetSpec) -> Iterable[Candidate]:
    return (item for item in spec.candidates if not item.excluded)


def _check_name(
    path: tuple[str | int, ...], what: str, name: Any, known: list[str], problems: Problems
) -> None:
    # A section without any entry is a problem of its own: saying it once is enough.
    if isinstance(name, str) and known and name not in known:
        problems.add_unknown(path, what, name, known)


def _keys(data: Mapping[str, Any], section: str) -> list[str]:
    found = data.get(section)
    return [str(key) for key in found] if isinstance(found, dict) else []


def _entries(data: Mapping[str, Any], section: str) -> Iterable[tuple[str, dict[str, Any]]]:
    found = data.get(section)
    if isinstance(found, dict):
        yield from ((str(name), entry) for name, entry in found.items() if isinstance(entry, dict))
