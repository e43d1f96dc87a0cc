"""Campaigns with and without a simulated prior, and with deliberately wrong ones.

    python -m benchmarks.simulator.priors --fleets 8 --out results/

The truth is a world of its own: the same discrete events with constants the prior does not know, drawn per
fleet. A wrong prior must cost measurements only: every certificate is checked against the truth's own best
plan.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fleetsieve_airflow.backends.simulate import SimulateBackend, fleet_requests
from fleetsieve_airflow.campaign import run_campaign
from fleetsieve_airflow.evidence import Measurement, MeasurementPoint, PriorCapacity
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.simulator.fleet import FleetEngines
from fleetsieve_airflow.simulator.prior import prior_capacities
from fleetsieve_airflow.spec import parse_spec

KINDS = ("none", "prior", "x0.5", "x2", "reversed")
LADDER = [1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16]


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
    parser.add_argument("--fleets", type=int, default=8)
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
    result = {"mean_of_without": summary, "worst_of_without": worst, "fleets": rows}
    (arguments.out / "priors.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"mean": summary, "worst": worst}))
    return 0


def one_fleet(seed: int) -> dict[str, dict[str, object]]:
    """Run one fleet with every kind of prior: GPU-seconds, outcome and certified value by kind."""
    spec, backend = fleet(seed), Remembering()
    engines = FleetEngines(replace(spec, measurement=replace(spec.measurement, options=())), "roofline")
    found = prior_capacities(spec, engines.engine, fleet_requests(spec, engines))
    priors = {
        "none": (),
        "prior": found,
        "x0.5": scaled(found, 0.5),
        "x2": scaled(found, 2.0),
        "reversed": mirrored(spec, found),
    }
    spent, states, values = {}, {}, {}
    for kind, given in priors.items():
        last = run_campaign(spec, backend, priors=given).decisions[-1]
        spent[kind] = last.spend.gpu_seconds_window
        states[kind] = last.state
        values[kind] = round(last.conservative.value, 6)
    return {"gpu_seconds": spent, "state": states, "certified_value": values}


def fleet(seed: int) -> FleetSpec:
    random = np.random.default_rng(seed)
    constants = {
        "prefill_scale": float(random.uniform(0.8, 2.2)),
        "decode_scale": float(random.uniform(0.9, 1.6)),
        "step_overhead_s": float(random.uniform(0.0005, 0.003)),
    }
    said = ",".join(f"{name}={value:.4f}" for name, value in constants.items())

    def workload(demand: float, isl: int, osl: int, ttft: float, e2e: float) -> dict[str, object]:
        return {
            "model": "llama-3.1-70b",
            "demand_rps": round(demand * float(random.uniform(0.6, 1.6)), 2),
            "slo": {"success_rate": 0.99, "ttft_p90_s": ttft, "e2e_p90_s": e2e},
            "trace": {"format": "poisson", "isl_mean_tokens": isl, "osl_mean_tokens": osl},
            "engine_configs": ["TP2", "TP4", "TP8"],
            "loads": {"offered_load_rps": LADDER},
        }

    return parse_spec(
        {
            "fleet": f"synthetic-{seed}",
            "pools": {"h100": {"gpu": "NVIDIA H100 80GB HBM3", "gpus": 16, "gpus_per_node": 8}},
            "models": {"llama-3.1-70b": {"revision": "fp8"}},
            "engine_configs": {
                f"TP{tp}": {"pool": "h100", "tensor_parallel": tp, "engine_args": {"quantization": "fp8"}}
                for tp in (2, 4, 8)
            },
            "workloads": {
                "chat": workload(8.0, 1155, 211, 0.6, 12.0),
                "code": workload(6.0, 2048, 28, 1.0, 3.0),
            },
            "measurement": {
                "backend": "simulate",
                "duration_s": 120,
                "options": {"constants": said, "run_to_run_cv": "0.02"},
            },
        },
        Path(),
    )


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
