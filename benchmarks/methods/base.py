"""What a method is: given what is known, the next cell to measure.

All methods see the same evidence and the same bounds and stop by the same rule; they differ in the order
only. Where several GPUs profile at once, a method is asked again with its earlier choices of the round marked
as pending, and what it names is packed in that order; points of one server share its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.state import Board, Cell, State
from fleetsieve_airflow.evidence import MeasurementPoint


@dataclass(frozen=True, slots=True)
class Asked:
    """One point of a round and the job (server start) it belongs to."""

    cell: Cell
    point: MeasurementPoint
    job: int


class Method:
    """Base of the methods that name one cell at a time."""

    #: How tables call it.
    name = ""
    #: Whether it needs every regret worked out only once it names no more points (it stops by itself).
    stops_itself = False
    #: Whether a fixed order leaves out loads whose verdict is implied.
    skips_implied = False
    #: Whether several points of one server may share a round; one that learns from answers waits for them.
    joins_jobs = False

    def __init__(self, board: Board, seed: int = 0) -> None:
        self.board = board
        self.seed = seed

    def next_cell(self, state: State) -> Cell | None:
        """Return the cell to measure next, None where nothing is left to ask."""
        raise NotImplementedError

    def batch(self, state: State, room: int | None) -> Sequence[Asked]:
        """Return the points of one round.

        :param room: GPUs for profiling; None measures one point at a time.
        """
        asked: list[Asked] = []
        jobs: dict[tuple[str, str], int] = {}
        while (cell := self.next_cell(state)) is not None:
            point = state.next_point(cell)
            if point is None:
                raise AssertionError(f"{self.name} asked for {cell}, which has no point left.")
            server = self.board.servers[cell[0]]
            if server not in jobs:
                if asked and (room is None or point.gpus > room):
                    break
                jobs[server] = len(jobs)
                room = None if room is None else room - point.gpus
            asked.append(Asked(cell, point, jobs[server]))
            if room is None:
                break
            state.pending.add(cell)
            if not self.joins_jobs:
                state.pending.update(
                    other for other in self.board.cells if self.board.servers[other[0]] == server
                )
        state.pending.clear()
        return asked


def middle(cells: Sequence[int]) -> int:
    """Return the middle one, the lower of two."""
    return cells[(len(cells) - 1) // 2]
