"""Successive halving over the engine configs of each workload, with ladder points as the budget.

Each rung gives every surviving config one more point of its ladder (the middle of what is open); then the
better half by proved rate per GPU survives, hopes deciding between those that prove nothing yet. The winner
is bisected to the end. Where that proves no decision, the configs that were dropped come back, the latest
dropped first.
"""

from __future__ import annotations

from collections import Counter

from benchmarks.methods.base import Method, middle
from benchmarks.state import Board, Cell, State


class SuccessiveHalving(Method):
    """Halve every workload's configs in step, then come back to what was dropped."""

    name = "successive halving"

    def __init__(self, board: Board, seed: int = 0) -> None:
        super().__init__(board, seed)
        workloads = range(len(board.problem.names))
        self._alive = [[i for i, (w, _) in enumerate(board.places) if w == owner] for owner in workloads]
        self._dropped: list[int] = []
        self._goals: dict[int, int] = {
            i: 1 for row in self._alive for i in row
        }  # measurements that end the rung

    def next_cell(self, state: State) -> Cell | None:
        """Return the next point of the running rung; a finished rung halves the survivors first."""
        while True:
            done = Counter[int]()
            for (i, _), cell in state.measured.items():
                done[i] += len(cell)
            for i, goal in self._goals.items():
                if done[i] < goal and (loads := state.askable(i)):
                    return i, middle(loads)
            if state.pending or not self._next_rung(state, done):
                return None  # pending: the rung's answers decide who survives

    def _next_rung(self, state: State, done: Counter[int]) -> bool:
        for w, row in enumerate(self._alive):
            if len(row) > 1:
                ranked = sorted(row, key=lambda i: self._rank(state, i), reverse=True)
                half = -(-len(row) // 2)
                self._alive[w] = ranked[:half]
                self._dropped += reversed(ranked[half:])
        survivors = [i for row in self._alive for i in row if state.askable(i)]
        if not survivors:
            survivors = [i for i in reversed(self._dropped) if state.askable(i)][:1]
        self._goals = {i: done[i] + 1 for i in survivors}
        return bool(survivors)

    def _rank(self, state: State, i: int) -> tuple[float, float]:
        low, high = state.bounds(i)
        return low / self.board.blank[i].gpus, high / self.board.blank[i].gpus
