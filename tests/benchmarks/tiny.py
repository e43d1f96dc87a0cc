"""Fleets and grid files small enough to check by hand or by brute force."""

from __future__ import annotations

import csv
import random
from pathlib import Path

from benchmarks.fleets import LIMIT, Fleet, fleet_of
from benchmarks.grids import Grid, Run

COLUMNS = (
    "source",
    "model",
    "precision",
    "hardware",
    "engine",
    "workload",
    "gpus",
    "load_kind",
    "load",
    "served_rps",
    "success_rate",
    "e2e_p99_ms",
)


def tiny_grid(name: str, rng: random.Random, degrees: tuple[int, ...] = (1, 2), loads: int = 3) -> Grid:
    """Make a closed-loop grid whose rates and tails grow with the load, at most as fast as it."""
    cells: dict[tuple[int, float], tuple[Run, ...]] = {}
    for degree in degrees:
        rate, tail = rng.uniform(0.5, 2.0) * degree**0.8, rng.uniform(1.0, 3.0) / degree**0.5
        for step in range(loads):
            cells[degree, 4.0 * 2**step] = (Run(rate, None, ((LIMIT, tail),)),)
            growth = rng.uniform(1.1, 1.9)
            rate, tail = rate * growth, tail * 2.0 / growth
    return Grid(name, "tiny", "engine", "concurrency", cells)


def tiny_fleet(seed: int, scale: float, *, workloads: int = 2, gpus: int = 8, loads: int = 3) -> Fleet:
    """Make a fleet of two configs per workload."""
    rng = random.Random(f"tiny|{seed}")
    grids = [tiny_grid(f"g{k}", rng, loads=loads) for k in range(workloads)]
    tightness = [rng.choice((1.25, 1.5, 2.0)) for _ in grids]
    return fleet_of(
        "tiny", f"tiny #{seed}", grids, tightness, [rng.uniform(0.5, 1.5) for _ in grids], gpus, scale
    )


def write_grids(path: Path, *, models: int = 2, seed: int = 0) -> Path:
    """Write a grid file of complete grids: three degrees, three loads, two runs per cell."""
    rng = random.Random(f"file|{seed}")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for k in range(models):
            grid = tiny_grid(f"m{k}", rng, degrees=(1, 2, 4))
            for (gpus, load), (run,) in grid.cells.items():
                for factor in (1.0, 1.03):
                    row = ("made", f"m{k}", "fp8", "h1", "vllm", "chat", gpus, "concurrency", load)
                    tail_ms = run.percentile(LIMIT) * factor * 1000.0
                    writer.writerow(
                        dict(zip(COLUMNS, (*row, run.served_rps / factor, "", tail_ms), strict=True))
                    )
    return path
