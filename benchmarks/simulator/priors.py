"""Campaigns with and without a simulated prior, and with deliberately wrong ones.

    python -m benchmarks.simulator.priors --fleets 18 --out results/

The truth is a world of its own: the same discrete events with constants the prior does not know, drawn per
fleet. A wrong prior must cost measurements only: every certificate is checked against the truth's own best
plan.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fleetsieve_airflow.backends.simulate import SimulateBackend, fleet_requests
from fleetsieve_airflow.campaign import run_campaign
from fleetsieve_airflow.core.allocation import problem_of
from fleetsieve_airflow.core.bounds import fulfilments, solve, value_of
from fleetsieve_airflow.core.verdict import judge
from fleetsieve_airflow.evidence import Decision, Measurement, MeasurementPoint, PriorCapacity
from fleetsieve_airflow.records import Candidate, FleetSpec
from fleetsieve_airflow.serialization import points_of
from fleetsieve_airflow.simulator.fleet import FleetEngines
from fleetsieve_airflow.simulator.prior import prior_capacities
from fleetsieve_airflow.spec import parse_spec

KINDS = ("none", "prior", "x0.5", "x2", "reversed")
LADDER = [1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16]
MODEL = "llama-3.1-70b"
#: What a certified plan may lose.
TOLERANCE = 0.01 * (1 + 1e-6)
WORKLOADS, DEMAND_SCALES = (2, 3, 5), (0.7, 1.0, 1.3)
#: Kind of requests -> mean input and output tokens, limits on TTFT p90 and E2E p90 in seconds.
REQUESTS = {
    "chat": (1155, 211, 0.6, 12.0),
    "code": (2048, 28, 1.0, 3.0),
    "rank": (600, 8, 0.4, 1.0),
    "draft": (400, 400, 0.8, 20.0),
    "digest": (3000, 120, 2.0, 12.0),
}


class Remembering(SimulateBackend):
    """Measures every point once: campaigns with different priors ask for the same ones."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, Measurement] = {}

    def measure(self, spec: FleetSpec, point: MeasurementPoint) -> Measurement:
        """Measure a point, or remember it."""
        if point.key not in self._known:
            self._known[point.key] = super().measure(spec, point)
        return self._known[point.key]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, default=18)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in range(arguments.fleets):
        rows.append(row := one_fleet(seed))
        print(json.dumps(row), flush=True)
    summary = {
        kind: round(
            statistics.fmean(row["gpu_seconds"][kind] / row["gpu_seconds"]["none"] for row in rows), 3
        )
        for kind in KINDS
    }
    worst = {
        kind: max(row["gpu_seconds"][kind] / row["gpu_seconds"]["none"] for row in rows) for kind in KINDS
    }
    wrong = {
        kind: sum(
            not row["state"][kind].startswith("certified") or row["regret"][kind] > TOLERANCE for row in rows
        )
        for kind in KINDS
    }
    alone = [row["alone"] for row in rows]
    unmeasured = {
        "regret_mean": round(statistics.fmean(alone), 3),
        "regret_worst": round(max(alone), 3),
        "wrong": sum(regret > TOLERANCE for regret in alone),
    }
    result = {
        "mean_of_without": summary,
        "worst_of_without": worst,
        "wrong": wrong,
        "simulator_only": unmeasured,
        "fleets": rows,
    }
    (arguments.out / "priors.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"mean": summary, "worst": worst, "wrong": wrong, "simulator_only": unmeasured}))
    return 0


def one_fleet(seed: int) -> dict[str, Any]:
    """Run one fleet with every kind of prior: GPU-seconds, outcome and true regret by kind."""
    backend = Remembering()
    spec = fleet(seed, backend)
    engines = FleetEngines(replace(spec, measurement=replace(spec.measurement, options=())), "roofline")
    found = prior_capacities(spec, engines.engine, fleet_requests(spec, engines))
    priors = {
        "none": (),
        "prior": found,
        "x0.5": scaled(found, 0.5),
        "x2": scaled(found, 2.0),
        "reversed": mirrored(spec, found),
    }
    spent, states, regrets = {}, {}, {}
    for kind, given in priors.items():
        last = run_campaign(spec, backend, priors=given).decision
        spent[kind] = last.spend.gpu_seconds_window
        states[kind] = last.state
        regrets[kind] = round(true_regret(spec, last, backend), 6)
    return {"gpu_seconds": spent, "state": states, "regret": regrets, "alone": alone(spec, found, backend)}


def alone(spec: FleetSpec, found: Sequence[PriorCapacity], backend: SimulateBackend) -> float:
    """Return what the plan loses that takes the simulated capacities for true and measures nothing."""
    problem = problem_of(spec)
    middle = {(item.workload, item.config): math.sqrt(item.lower_rps * item.upper_rps) for item in found}
    believed = [
        [middle.get((name, label), 0.0) for label in labels]
        for name, labels in zip(problem.names, problem.labels, strict=True)
    ]
    truth = capacities_of(spec, backend)
    served = min(*fulfilments(problem, truth, solve(problem, believed)[0]), problem.ceiling)
    return round(max(0.0, value_of(problem, truth) - served), 6)


def fleet(seed: int, backend: SimulateBackend) -> FleetSpec:
    """Draw a fleet as the evaluation's: workloads and demand scales in turn, demands set by the truth."""
    random = np.random.default_rng(seed)
    constants = {
        "prefill_scale": float(random.uniform(0.8, 2.2)),
        "decode_scale": float(random.uniform(0.9, 1.6)),
        "step_overhead_s": float(random.uniform(0.0005, 0.003)),
    }
    count = WORKLOADS[seed % len(WORKLOADS)]
    chosen = [
        list(REQUESTS)[k % len(REQUESTS)] for k in random.permutation(max(count, len(REQUESTS)))[:count]
    ]
    spec = parse_spec(
        {
            "fleet": f"simulated-{seed}",
            "pools": {"h100": {"gpu": "NVIDIA H100 80GB HBM3", "gpus": 16 * count, "gpus_per_node": 8}},
            "models": {MODEL: {"revision": "fp8"}},
            "engine_configs": {
                f"TP{tp}": {"pool": "h100", "tensor_parallel": tp, "engine_args": {"quantization": "fp8"}}
                for tp in (2, 4, 8)
            },
            "workloads": {name: workload(name, float(random.uniform(0.3, 1.7))) for name in chosen},
            "measurement": {
                "backend": "simulate",
                "duration_s": 120,
                "profiling_gpus": 16,
                "options": {
                    "constants": ",".join(f"{name}={value:.4f}" for name, value in constants.items()),
                    "run_to_run_cv": "0.02",
                },
            },
        },
        Path(),
    )
    scale = DEMAND_SCALES[seed // len(WORKLOADS) % len(DEMAND_SCALES)]
    return with_demands(spec, capacities_of(spec, backend), scale)


def true_regret(spec: FleetSpec, decision: Decision, backend: SimulateBackend) -> float:
    """Return what a certified plan loses against the best plan under the true capacities.

    Runs vary: where a load above a missed one was measured as met, that is taken for the capacity.
    """
    problem, proved = problem_of(spec), {item.label: item.lower.value_rps for item in decision.intervals}
    truth = [
        [
            max(capacity, proved.get(f"{name} {label}") or 0.0)
            for label, capacity in zip(labels, row, strict=True)
        ]
        for name, labels, row in zip(problem.names, problem.labels, capacities_of(spec, backend), strict=True)
    ]
    replicas = decision.conservative.replicas()
    counts = [
        [replicas.get(name, {}).get(label, 0) for label in labels]
        for name, labels in zip(problem.names, problem.labels, strict=True)
    ]
    served = min(*fulfilments(problem, truth, counts), problem.ceiling)
    return max(0.0, value_of(problem, truth) - served)


def workload(name: str, weight: float) -> dict[str, object]:
    """Return a workload of one kind of requests, its demand in proportion to a weight."""
    isl, osl, ttft, e2e = REQUESTS[name]
    return {
        "model": MODEL,
        "demand_rps": round(20.0 * weight, 3),
        "slo": {"success_rate": 0.99, "ttft_p90_s": ttft, "e2e_p90_s": e2e},
        "trace": {"format": "poisson", "isl_mean_tokens": isl, "osl_mean_tokens": osl},
        "engine_configs": ["TP2", "TP4", "TP8"],
        "loads": {"offered_load_rps": LADDER},
    }


def capacities_of(spec: FleetSpec, backend: SimulateBackend) -> list[list[float]]:
    """Return each candidate's true capacity, in the order of the allocation problem."""
    return [
        [capacity_of(spec, candidate, backend) for candidate in spec.candidates_of(item.name)]
        for item in spec.workloads
    ]


def capacity_of(spec: FleetSpec, candidate: Candidate, backend: SimulateBackend) -> float:
    """Return the highest load up to which every load of the ladder meets the SLO."""
    slo, capacity = spec.workload(candidate.workload).slo, 0.0
    for point in points_of(spec, candidate):
        if judge(backend.measure(spec, point), slo, spec.decision) != "met":
            break
        capacity = point.load
    return capacity


def with_demands(spec: FleetSpec, capacities: list[list[float]], scale: float) -> FleetSpec:
    """Scale all demands so that the best plan serves exactly all of them, then by ``scale``."""
    while value_of(problem_of(spec), capacities) >= 1.0:  # the level is capped at 1
        spec = times(spec, 1.5)
    for _ in range(8):  # whole replicas: the level times the demand is a fixed point after a few steps
        spec = times(spec, value_of(problem_of(spec), capacities))
    return times(spec, scale)


def times(spec: FleetSpec, factor: float) -> FleetSpec:
    """Multiply every demand."""
    scaled_up = tuple(replace(item, demand_rps=item.demand_rps * factor) for item in spec.workloads)
    return replace(spec, workloads=scaled_up)


def scaled(priors: Sequence[PriorCapacity], factor: float) -> tuple[PriorCapacity, ...]:
    return tuple(
        replace(item, lower_rps=item.lower_rps * factor, upper_rps=item.upper_rps * factor) for item in priors
    )


def mirrored(spec: FleetSpec, priors: Sequence[PriorCapacity]) -> tuple[PriorCapacity, ...]:
    """Give each workload's degrees each other's capacities, in reverse."""
    found: list[PriorCapacity] = []
    for workload in spec.workloads:
        own = [item for item in priors if item.workload == workload.name]
        found += [replace(item, config=other.config) for item, other in zip(own, reversed(own), strict=True)]
    return tuple(found)


if __name__ == "__main__":
    raise SystemExit(main())
