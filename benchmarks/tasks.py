"""The pieces of work of an evaluation, each small enough to repeat and independent of the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.clairvoyant import clairvoyant
from benchmarks.fleets import TIGHTNESS, Fleet, fleet_of, real_fleets
from benchmarks.grids import Grid, read_grids
from benchmarks.methods import BY_NAME
from benchmarks.methods.orders import first_settled, shuffled, without_implied
from benchmarks.noise import CONFIDENCE, REPEATS, RecordedRuns, run_to_run_cv
from benchmarks.paper import paper_fleets
from benchmarks.play import play, with_repeats
from benchmarks.state import Board, State
from benchmarks.store import code_digest
from benchmarks.synthetic import synthetic_fleets

#: GPUs for profiling whose wall-clock hours are compared.
ROOMS = (8, 16, 64)
#: Equal shares of all GPU-seconds at which the plan of a random order is looked at.
CHECKPOINTS = 24
#: Random orders of a fleet that the mean curve is taken over: its many plans cost more than all stops.
CURVES = 6
#: GPUs of the fleets that show growth, and those for profiling, per workload.
GROWTH_GPUS, GROWTH_ROOM = 16, 4


@dataclass(frozen=True, slots=True)
class Setting:
    """What fleets are built from and how thoroughly they are played; the same in every worker.

    :param paths: grid files.
    :param digest: of their contents.
    :param per_family: recorded fleets of each hardware and engine.
    :param synthetic: made-up fleets of each shape.
    :param orders: random orders of each fleet.
    :param draws: how often each fleet is played with recorded noise.
    :param tries: sets the clairvoyant looks at to close the last gap.
    :param growth: workloads of the fleets that show growth.
    """

    paths: tuple[str, ...]
    digest: str
    per_family: int = 18
    synthetic: int = 6
    orders: int = 40
    draws: int = 2
    tries: int = 300
    growth: tuple[int, ...] = (2, 5, 10, 20, 50, 100)


@dataclass(frozen=True, slots=True)
class Task:
    """One result to compute.

    :param group: which set of fleets: ``real``, ``synthetic``, ``paper``, ``growth``.
    :param kind: ``limit``, ``play``, ``orders``, ``rooms`` or ``noise``.
    :param weight: guess of its CPU seconds, for the order of work and the time left.
    """

    group: str
    fleet: str
    kind: str
    method: str
    weight: float

    def key(self, setting: Setting) -> str:
        """Return what identifies the result and everything it depends on."""
        module = BY_NAME[self.method].__module__.rsplit(".", 1)[-1] if self.method in BY_NAME else None
        extra = {"orders": setting.orders, "noise": setting.draws, "limit": setting.tries}.get(self.kind, "")
        return "|".join(
            (self.group, self.fleet, self.kind, self.method, str(extra), setting.digest, _digest(module))
        )


@lru_cache(maxsize=64)
def _digest(module: str | None) -> str:
    return code_digest(module)


@lru_cache(maxsize=2)
def grids_of(paths: tuple[str, ...]) -> list[Grid]:
    """Read the grid files once."""
    return read_grids([Path(path) for path in paths])


@lru_cache(maxsize=8)
def fleets_of(setting: Setting, group: str) -> dict[str, Fleet]:
    """Return the fleets of a group by name."""
    if group == "real":
        fleets = real_fleets(grids_of(setting.paths), setting.per_family)
    elif group == "synthetic":
        fleets = synthetic_fleets(setting.synthetic)
    elif group == "paper":
        fleets = paper_fleets()
    else:
        fleets = growing_fleets(grids_of(setting.paths), setting.growth)
    return {fleet.name: fleet for fleet in fleets}


def growing_fleets(grids: Sequence[Grid], counts: Sequence[int]) -> list[Fleet]:
    """Build fleets of so many workloads from the hardware with the most grids, as large as its demand."""
    kinds: dict[str, list[Grid]] = {}
    for grid in grids:
        kinds.setdefault(f"{grid.hardware} {grid.load_kind}", []).append(grid)
    most = max(sorted(kinds), key=lambda kind: len(kinds[kind]))
    fleets = []
    for count in counts:
        rng = random.Random(f"growth|{count}")  # noqa: S311
        fleets.append(
            fleet_of(
                "growth",
                f"growth {count}",
                [rng.choice(kinds[most]) for _ in range(count)],
                [rng.choice(TIGHTNESS) for _ in range(count)],
                [rng.uniform(0.3, 1.7) for _ in range(count)],
                GROWTH_GPUS * count,
                1.0,
            )
        )
    return fleets


@lru_cache(maxsize=2)
def board_of(setting: Setting, group: str, fleet: str) -> Board:
    """Return the board of one fleet, kept for the next task on it."""
    return Board(fleets_of(setting, group)[fleet])


def run(setting: Setting, task: Task) -> dict[str, Any]:
    """Compute one result."""
    board = board_of(setting, task.group, task.fleet)
    if task.kind == "limit":
        limit = clairvoyant(board, setting.tries)
        return {"lower": limit.lower, "found": limit.found, "points": len(limit.cells)}
    method = BY_NAME[task.method]
    if task.kind == "play":
        room = GROWTH_ROOM * len(board.problem.names) if task.group == "growth" else None
        return play(board, method(board), room).plain()
    if task.kind == "orders":
        return _orders(board, task.method, setting.orders, CURVES if task.group == "real" else 0)
    if task.kind == "rooms":
        plays = {room: play(board, method(board), room) for room in ROOMS}
        return {
            str(room): {"hours": one.hours, "window": one.window, "rounds": one.rounds}
            for room, one in plays.items()
        }
    if task.kind == "noise":
        return _noisy(board, task.method, setting)
    raise ValueError(f"Unknown kind of task {task.kind!r}.")


def _noisy(board: Board, name: str, setting: Setting) -> dict[str, Any]:
    """Play a method on recorded runs several times, in other draws."""
    judged = with_repeats(board, REPEATS, CONFIDENCE, run_to_run_cv(grids_of(setting.paths)))
    plays = [
        play(judged, BY_NAME[name](judged, seed), measure=RecordedRuns(board.fleet, seed))
        for seed in range(setting.draws)
    ]
    return {
        "windows": [one.window for one in plays],
        "regrets": [one.regret for one in plays],
        "states": [one.state for one in plays],
        "wrong": [one.wrong for one in plays],
    }


def _orders(board: Board, name: str, count: int, curves: int) -> dict[str, Any]:
    """Play many random orders to their stops by bisection.

    :param curves: of so many of them the plan is looked at on the way.
    """
    settings = board.spec.measurement
    costs, points, regrets = [], [], []
    curve = [0.0] * (CHECKPOINTS + 1)
    for seed in range(count):
        order: Sequence[tuple[int, int]] = shuffled(board, seed)
        if BY_NAME[name].skips_implied:
            order = without_implied(board, order)
        length = first_settled(board, order)
        costs.append(sum(map(board.window, order[:length])))
        points.append(length)
        regrets.append(board.true_regret(board.after(order[:length]).stop().counts))
        if seed < curves:
            for part, regret in enumerate(_regrets(board, order[:length])):
                curve[part] += regret / min(count, curves)
    billed = [cost * (1.0 + settings.startup_s / settings.duration_s) for cost in costs]
    return {"windows": costs, "billed": billed, "points": points, "regrets": regrets, "curve": curve}


def _regrets(board: Board, order: Sequence[tuple[int, int]]) -> list[float]:
    """Return the true regret of the plan after equal shares of all GPU-seconds, for the anytime curve."""
    total, state, spent, rows, at = sum(map(board.window, board.cells)), State(board), 0.0, [], 0
    for part in range(CHECKPOINTS + 1):
        while at < len(order) and spent + board.window(order[at]) <= total * part / CHECKPOINTS + 1e-6:
            spent += board.window(order[at])
            state.reveal(*order[at])
            at += 1
        rows.append(board.true_regret(state.plan()))
    return rows
