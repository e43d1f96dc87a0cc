"""Play one method on one fleet to its stop and write down what it cost and what its plan is worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.methods.base import Asked, Method
from benchmarks.state import Board, State
from fleetsieve_airflow.core.bounds import solve
from fleetsieve_airflow.evidence import EvidenceItem, Measurement, MeasurementPoint

#: Answers a point, or None where no further run of its cell was recorded.
Measure = Callable[[MeasurementPoint], Measurement | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one play cost and ended with.

    :param hours: wall-clock hours, the longest job of each round after the other.
    :param regret: what the plan really loses against the best one, in fulfilment.
    :param wrong: certified although it loses more than the tolerance.
    :param decision_s_mean: CPU seconds that choosing a round and testing the stop took.
    :param plan: the plan in words, and ``oracle`` the one chosen by someone who knows all capacities.
    :param curve: (window GPU-seconds spent, true regret of the plan at that time) wherever the regret
        changes.
    """

    window: float
    billed: float
    points: int
    rounds: int
    hours: float
    state: str
    regret: float
    wrong: bool
    decision_s_mean: float
    decision_s_max: float
    curve: tuple[tuple[float, float], ...]
    plan: str
    oracle: str

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return asdict(self)


class _Bill:
    """Adds up rounds of jobs."""

    def __init__(self, board: Board) -> None:
        self._settings = board.spec.measurement
        self.window = self.billed = self.seconds = 0.0
        self.points = self.rounds = 0

    def add(self, asked: Sequence[Asked]) -> None:
        """Book one round."""
        jobs: dict[int, tuple[int, int]] = {}
        for item in asked:
            gpus, count = jobs.get(item.job, (item.point.gpus, 0))
            jobs[item.job] = (gpus, count + 1)
        lengths = {
            job: self._settings.startup_s + n * self._settings.duration_s for job, (_, n) in jobs.items()
        }
        self.window += sum(item.point.gpu_seconds_window for item in asked)
        self.billed += sum(gpus * lengths[job] for job, (gpus, _) in jobs.items())
        self.seconds += max(lengths.values(), default=0.0)
        self.points += len(asked)
        self.rounds += 1


def play(board: Board, method: Method, room: int | None = None, measure: Measure | None = None) -> Outcome:
    """Play a method until its decision is settled or it has nothing left to ask.

    :param room: GPUs for profiling at once; None measures one point (for FleetSieve: one job) at a time.
    :param measure: answers points; without it each shows its truth.
    """
    answer: Measure = measure if measure is not None else board.fleet.measure
    state, bill = State(board), _Bill(board)
    times: list[float] = []
    curve: list[tuple[float, float]] = []
    while True:
        begun = time.process_time()
        settled = not method.stops_itself and bool(state.stop().state)
        asked = () if settled else method.batch(state, room)
        times.append(time.process_time() - begun)
        _note(curve, bill.window, board.true_regret(state.plan()))
        if not asked:
            break
        paid = []
        for item in asked:
            measurement = answer(item.point)
            if measurement is None:
                state.exhausted.add(item.cell)
                continue
            paid.append(item)
            state.observe(*item.cell, measurement)
            state.evidence.append(EvidenceItem(measurement=measurement, round=bill.rounds + 1))
        if paid:
            bill.add(paid)
    stop = state.stop()
    regret = board.true_regret(stop.counts)
    return Outcome(
        window=bill.window,
        billed=bill.billed,
        points=bill.points,
        rounds=bill.rounds,
        hours=bill.seconds / 3600.0,
        state=stop.state or "undetermined",
        regret=regret,
        wrong=bool(stop.state) and regret > board.tolerance * (1 + 1e-6),
        decision_s_mean=sum(times) / len(times),
        decision_s_max=max(times),
        curve=tuple(curve),
        plan=_words(board, stop.counts),
        oracle=_words(board, solve(board.problem, board.capacities)[0]),
    )


def _words(board: Board, counts: Sequence[Sequence[int]]) -> str:
    """Write a plan as in ``2 x TP4 chat + 2 x TP4 code``."""
    return " + ".join(
        f"{n} x {label} {name}"
        for name, labels, row in zip(board.problem.names, board.problem.labels, counts, strict=True)
        for label, n in zip(labels, row, strict=True)
        if n
    )


def _note(curve: list[tuple[float, float]], spent: float, regret: float) -> None:
    if not curve or curve[-1][1] != regret:
        curve.append((spent, regret))


def with_repeats(board: Board, repeats: int, confidence: float, run_to_run_cv: float) -> Board:
    """Return the board of the same fleet judged with a confidence, loads in doubt measured repeatedly."""
    spec = board.spec
    return Board(
        board.fleet,
        replace(
            spec,
            decision=replace(spec.decision, confidence=confidence, run_to_run_cv=run_to_run_cv),
            measurement=replace(spec.measurement, repeats=repeats),
        ),
    )
