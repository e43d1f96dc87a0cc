"""Methods that bisect ladders: cheapest configs first, widest interval first, workload after workload."""

from __future__ import annotations

from benchmarks.methods.base import Method, middle
from benchmarks.state import Board, Cell, State


class CheapestBisection(Method):
    """Bisect every ladder, those of the fewest GPUs first: the strongest simple method known."""

    name = "cheapest bisection"

    def __init__(self, board: Board, seed: int = 0) -> None:
        super().__init__(board, seed)
        self._order = sorted(range(len(board.blank)), key=lambda i: (board.blank[i].gpus, i))

    def next_cell(self, state: State) -> Cell | None:
        """Return the middle open load of the first ladder that has one."""
        for i in self._order:
            if loads := state.askable(i):
                return i, middle(loads)
        return None


class LargestInterval(Method):
    """Halve the widest capacity interval, as a share of its workload's demand."""

    name = "largest interval"

    def next_cell(self, state: State) -> Cell | None:
        """Return the middle open load of the widest interval."""
        best: tuple[float, int, Cell] | None = None
        for i, (w, _) in enumerate(self.board.places):
            if loads := state.askable(i):
                low, high = state.bounds(i)
                width = (high - low) / float(self.board.problem.demands[w])
                if best is None or (-width, i) < best[:2]:
                    best = (-width, i, (i, middle(loads)))
        return None if best is None else best[2]


class IndependentBest(Method):
    """Settle each workload's best config per GPU alone, by bisection, then whatever is still open.

    Within a workload the config that may still be the best per GPU is bisected first; one that cannot be is
    left.
    """

    name = "independent best config"

    def next_cell(self, state: State) -> Cell | None:
        """Return the middle open load of the most promising ladder of the first open workload."""
        rest: Cell | None = None
        for w in range(len(self.board.problem.names)):
            members = [i for i, (owner, _) in enumerate(self.board.places) if owner == w]
            proved = max(state.bounds(i)[0] / self.board.blank[i].gpus for i in members)
            hopes = []
            for i in members:
                if loads := state.askable(i):
                    hope = state.ladders[i].capacity_upper / self.board.blank[i].gpus
                    rest = rest or (i, middle(loads))
                    if hope > proved:
                        hopes.append((-hope, self.board.blank[i].gpus, i, middle(loads)))
            if hopes:
                return min(hopes)[2:]
        return rest
