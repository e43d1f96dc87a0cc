"""Made-up fleets of known shapes, with open-loop ladders: what recorded grids may happen not to hold.

A replica of d GPUs saturates at a rate that depends on the family's shape; below it the tail grows as in a
queue, above it the tail runs away and requests fail. Ladders are spaced by the GPUs alone, so they give
nothing away.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from benchmarks.fleets import LIMIT, Fleet, drawn_fleet
from benchmarks.grids import Grid, Run

DEGREES = (1, 2, 4, 8)
LOADS = 12
GRIDS = 6
#: Lowest and highest load of a ladder, as shares of what the GPUs would carry if every config scaled ideally.
LOWEST, HIGHEST = 0.15, 1.25


def _peaked(rng: random.Random) -> Callable[[int], float]:
    at, fall = rng.uniform(0.5, 2.5), rng.uniform(0.05, 0.2)
    return lambda degree: math.exp(-fall * (math.log2(degree) - at) ** 2)


def _flat(rng: random.Random) -> Callable[[int], float]:
    shares = {degree: rng.uniform(0.97, 1.0) for degree in DEGREES}
    return shares.__getitem__


def _monotone(rng: random.Random) -> Callable[[int], float]:
    slope = rng.choice((-1.0, 1.0)) * rng.uniform(0.1, 0.35)
    return lambda degree: degree**slope / max(1.0, DEGREES[-1] ** slope)


def _two_peaked(rng: random.Random) -> Callable[[int], float]:
    high, low = rng.uniform(0.85, 1.0), rng.uniform(0.55, 0.75)
    shares = dict(
        zip(DEGREES, (high, low, 1.0, low) if rng.random() < 0.5 else (low, 1.0, low, high), strict=True)
    )
    return shares.__getitem__


def _cliff(rng: random.Random) -> Callable[[int], float]:
    fits, left, fall = rng.choice((2, 4)), rng.uniform(0.2, 0.5), rng.uniform(0.02, 0.1)
    return lambda degree: (left if degree < fits else 1.0) * math.exp(-fall * math.log2(degree))


#: Family -> (capacity per GPU over the degrees, whether the tail jumps at the limit instead of growing
#: towards it).
SHAPES: dict[str, tuple[Callable[[random.Random], Callable[[int], float]], bool]] = {
    "peaked": (_peaked, False),
    "flat": (_flat, False),
    "monotone": (_monotone, False),
    "two-peaked": (_two_peaked, False),
    "KV cliff": (_cliff, True),
}


def synthetic_fleets(per_family: int, seed: int = 0) -> list[Fleet]:
    """Build fleets of every shape, workload counts and demand scales in turn as for recorded grids."""
    fleets = []
    for family in SHAPES:
        for index in range(per_family):
            rng = random.Random(f"{seed}|{family}|{index}")  # noqa: S311
            grids = [_grid(family, k, rng) for k in range(GRIDS)]
            fleets.append(drawn_fleet(family, index, grids, rng))
    return fleets


def _grid(family: str, number: int, rng: random.Random) -> Grid:
    shape, jumps = SHAPES[family]
    share = shape(rng)
    per_gpu, base_s = math.exp(rng.uniform(-1.0, 1.5)), math.exp(rng.uniform(0.5, 2.5))
    cells: dict[tuple[int, float], tuple[Run, ...]] = {}
    for degree in DEGREES:
        ideal = per_gpu * degree
        saturation, alone_s = ideal * share(degree), base_s * degree**-0.5
        for step in range(LOADS):
            load = float(f"{ideal * LOWEST * (HIGHEST / LOWEST) ** (step / (LOADS - 1)):.4g}")
            cells[degree, load] = (_run(load, saturation, alone_s, jumps),)
    return Grid(f"synthetic/{family}/{number}", "synthetic", family, "offered_load_rps", cells)


def _run(load: float, saturation: float, alone_s: float, jumps: bool) -> Run:
    busy = load / saturation
    if busy >= 0.98:
        return Run(min(load, saturation), min(1.0, 1.0 / busy), ((LIMIT, alone_s * 60.0 * busy),))
    waiting = 0.1 * busy if jumps else 0.3 * busy / (1.0 - busy)
    return Run(load, 1.0, ((LIMIT, alone_s * (1.0 + waiting)),))
