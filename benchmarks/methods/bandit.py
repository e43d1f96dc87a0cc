"""A feasible-set bandit in the manner of LATS and LAGEX: pure exploration under constraints.

Two feasible sets follow from the bounds, a pessimistic and an optimistic one; each has its best allocation.
The replica kinds ("arms") on which the two allocations rest are sampled, the one whose uncertainty weighs
most in them first. Arms have no price there, and none here.
"""

from __future__ import annotations

from benchmarks.methods.base import Method, middle
from benchmarks.state import Cell, State
from fleetsieve_airflow.core.bounds import solve


class FeasibleSetBandit(Method):
    """Sample the arm whose uncertainty weighs most in the two best allocations."""

    name = "feasible-set bandit"

    def next_cell(self, state: State) -> Cell | None:
        """Return the middle open load of the heaviest arm."""
        problem = self.board.problem
        pessimistic = solve(problem, state.lower)[0]
        optimistic = solve(problem, state.upper)[0]
        best: tuple[float, float, int, Cell] | None = None
        for i, (w, c) in enumerate(self.board.places):
            if not (loads := state.askable(i)):
                continue
            low, high = state.bounds(i)
            share = (high - low) / float(problem.demands[w])
            weight = max(pessimistic[w][c], optimistic[w][c]) * share
            if best is None or (-weight, -share, i) < best[:3]:
                best = (-weight, -share, i, (i, middle(loads)))
        return None if best is None else best[3]
