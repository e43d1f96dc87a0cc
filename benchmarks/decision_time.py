"""How long one decision takes in the middle of a large campaign: ``python -m benchmarks.decision_time``."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.evidence import Evidence, EvidenceItem, Measurement
from fleetsieve_airflow.records import (
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
from fleetsieve_airflow.serialization import points_of

DEGREES = (1, 2, 4, 8)
LOADS = 12
LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Size:
    """A campaign whose decision is timed, with the seconds it may take."""

    workloads: int
    configs: int
    gpus: int
    allowed_s: float

    @property
    def label(self) -> str:
        """Readable name."""
        return f"{self.workloads} workloads x {self.configs} configs x {self.gpus:,} GPUs"


SIZES = (Size(20, 12, 512, 1.0), Size(100, 50, 10_000, 10.0))


def campaign(size: Size, seed: int = 0) -> tuple[FleetSpec, Evidence]:
    """Build a fleet and a campaign half-way: half of the candidates bracketed, the others unknown."""
    rng = random.Random(f"decision time|{size.workloads}|{size.configs}|{seed}")  # noqa: S311
    configs = tuple(
        EngineConfig(
            label=f"TP{DEGREES[k % 4]}-{k // 4}",
            pool="pool",
            tensor_parallel=DEGREES[k % 4],
            engine_args=(("variant", str(k // 4)),),
        )
        for k in range(size.configs)
    )
    share = size.gpus / size.workloads
    slo = Slo(limits=(LatencyLimit(metric="e2e", percentile=99, limit_s=LIMIT_S),))
    workloads, candidates = [], []
    capacity: dict[tuple[str, str], float] = {}
    for w in range(size.workloads):
        name, per_gpu = f"w{w:03d}", rng.uniform(0.5, 3.0)
        workloads.append(
            Workload(
                name=name, model=f"m{w}", demand_rps=per_gpu * share * 0.8, slo=slo, trace=Trace(name=name)
            )
        )
        for config in configs:
            ideal = per_gpu * config.gpus
            capacity[name, config.label] = ideal * rng.uniform(0.5, 1.0)
            loads = tuple(round(ideal * 0.2 * 6.0 ** (step / (LOADS - 1)), 6) for step in range(LOADS))
            candidates.append(
                Candidate(workload=name, config=config.label, load_kind="offered_load_rps", loads=loads)
            )
    spec = FleetSpec(
        fleet="decision-time",
        pools=(Pool(name="pool", gpu="GPU", gpus=size.gpus, gpus_per_node=8),),
        models=tuple(Model(name=f"m{w}", revision="1") for w in range(size.workloads)),
        configs=configs,
        workloads=tuple(workloads),
        candidates=tuple(candidates),
        decision=DecisionSettings(tolerance=0.01),
        measurement=MeasurementSettings(device="benchmark", profiling_gpus=64, repeats=1),
    )
    half = [candidate for candidate in candidates if rng.random() < 0.5]
    items = [item for candidate in half for item in _bracket(spec, candidate, capacity, rng)]
    return spec, Evidence(items=tuple(items), rounds_done=10)


def _bracket(
    spec: FleetSpec, candidate: Candidate, capacity: dict[tuple[str, str], float], rng: random.Random
) -> list[EvidenceItem]:
    """Measure one load below and one above a candidate's capacity."""
    true = capacity[candidate.workload, candidate.config]
    points = points_of(spec, candidate)
    chosen = [
        side for side in ([p for p in points if p.load <= true], [p for p in points if p.load > true]) if side
    ]
    items = []
    for side in chosen:
        point = rng.choice(side)
        tail = LIMIT_S * (point.load / true) ** 2
        items.append(
            EvidenceItem(
                measurement=Measurement(
                    point=point,
                    served_rps=min(point.load, true),
                    percentiles=(("e2e_p99_s", tail),),
                    gpu_seconds_window=point.gpu_seconds_window,
                    gpu_seconds_billed=point.gpu_seconds_window,
                ),
                round=1,
            )
        )
    return items


def decision_times(sizes: Sequence[Size] = SIZES) -> list[dict[str, Any]]:
    """Time one decision of each size in CPU seconds."""
    rows = []
    for size in sizes:
        spec, evidence = campaign(size)
        begun, wall = time.process_time(), time.perf_counter()
        decision = decide(spec, evidence)
        rows.append(
            {
                "size": size.label,
                "measurements": len(evidence.items),
                "seconds": time.process_time() - begun,
                "wall_seconds": time.perf_counter() - wall,
                "allowed": size.allowed_s,
                "state": decision.state,
                "points": len(decision.points),
                "regret": decision.regret,
            }
        )
    return rows


if __name__ == "__main__":
    for row in decision_times():
        sys.stdout.write(
            f"{row['size']}: {row['seconds']:.2f} CPU s, {row['wall_seconds']:.2f} s on the clock, "
            f"{row['allowed']:g} s allowed; {row['measurements']} measurements, {row['state']}, "
            f"regret {row['regret']:.3f}, {row['points']} points\n"
        )
