from __future__ import annotations

import random

import pytest

from benchmarks.noise import RecordedRuns
from benchmarks.play import with_repeats
from benchmarks.state import Board, State
from benchmarks.synthetic import synthetic_fleets
from fleetsieve_airflow.core.bounds import box_of, counts_of
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.core.intervals import fit_intervals
from fleetsieve_airflow.evidence import Evidence, EvidenceItem
from tests.benchmarks.tiny import tiny_fleet


def _boards() -> list[Board]:
    open_loop = synthetic_fleets(1)[0]
    return [Board(tiny_fleet(1, 1.0)), Board(tiny_fleet(2, 1.3)), Board(open_loop)]


@pytest.mark.parametrize("number", range(3))
def test_the_incremental_state_holds_the_bounds_and_the_stop_of_the_core(number: int) -> None:
    board = _boards()[number]
    order = random.Random("order").sample(board.cells, k=min(len(board.cells), 12))
    state = State(board)
    for i, j in order:
        measurement = board.fleet.measure(board.points[i][j][0])
        state.observe(i, j, measurement)
        state.evidence.append(EvidenceItem(measurement=measurement, round=1))
        evidence = Evidence(items=tuple(state.evidence), rounds_done=1)
        box = box_of(board.spec, board.problem, fit_intervals(board.spec, evidence))
        assert state.lower == box.lower
        assert state.upper == box.upper
        assert state.box().ranges == box.ranges
        decision = decide(board.spec, evidence)
        assert state.stop().state == ("" if decision.state == "measure" else decision.state)
        assert state.stop().counts == counts_of(board.problem, decision.conservative)
        if state.stop().state:
            break


def test_revealing_truth_equals_measuring_it() -> None:
    board = Board(tiny_fleet(4, 1.0))
    cells = board.cells[::2]
    measured = State(board)
    for i, j in cells:
        measured.observe(i, j, board.fleet.measure(board.points[i][j][0]))
    assert board.after(cells).box() == measured.box()


def test_a_repeat_draws_another_recorded_run_and_none_is_shown_twice() -> None:
    fleet = tiny_fleet(1, 1.0)
    cell = ("w00", "TP1", 4.0)
    first = fleet.runs[cell][0]
    fleet.runs[cell] = tuple(type(first)(first.served_rps + k, None, first.percentiles) for k in range(2))
    board = with_repeats(Board(fleet), 3, 0.95, 0.05)
    i, j = next(
        (i, j) for i, j in board.cells if (board.points[i][j][0].workload, *_place(board, i, j)) == cell
    )
    for seed in range(5):
        draw = RecordedRuns(fleet, seed)
        shown = [draw(point) for point in board.points[i][j]]
        assert {m.served_rps for m in shown[:2] if m} == {first.served_rps, first.served_rps + 1}
        assert shown[2] is None


def _place(board: Board, i: int, j: int) -> tuple[str, float]:
    point = board.points[i][j][0]
    return point.config, point.load
