"""Methods that fix the order of points in advance: all points, uniform random, a grid that gets finer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.methods.base import Method
from benchmarks.state import Board, Cell, State


class FixedOrder(Method):
    """Reveal points in a fixed order; once through, loads still in doubt are repeated in that order."""

    joins_jobs = True

    def __init__(self, board: Board, seed: int = 0) -> None:
        super().__init__(board, seed)
        self.order = list(self.ordered())
        self._at = 0

    def ordered(self) -> Iterable[Cell]:
        """Return the order of all cells."""
        raise NotImplementedError

    def next_cell(self, state: State) -> Cell | None:
        """Return the next cell of the order that is not measured yet."""
        self._at = 0 if self._at >= len(self.order) else self._at
        for cell in self.order[self._at :]:
            if cell not in state.measured and cell not in state.pending:
                if not self.skips_implied or cell[1] in state.ladders[cell[0]].unknown():
                    return cell
            elif cell in state.measured and self.order[self._at] == cell:
                self._at += 1
        return next((cell for cell in self.order if cell[1] in state.askable(cell[0])), None)


class AllPoints(FixedOrder):
    """Everything, candidate by candidate: a sweep that stops once the decision is settled."""

    name = "all points"

    def ordered(self) -> Iterable[Cell]:
        """Return the spec's order."""
        return self.board.cells


class UniformRandom(FixedOrder):
    """Every point equally likely next."""

    name = "uniform random"

    def ordered(self) -> Iterable[Cell]:
        """Return a shuffled order."""
        return shuffled(self.board, self.seed)


class RandomUndetermined(UniformRandom):
    """As uniform random, but loads whose verdict is implied are skipped."""

    name = "random, undetermined only"
    skips_implied = True


class Coverage(FixedOrder):
    """A grid over loads that gets finer: every candidate's middle load, then the quarters, and so on."""

    name = "coverage grid"

    def ordered(self) -> Iterable[Cell]:
        """Return cells by level of refinement."""
        levels = [
            (depth, i, j) for i, row in enumerate(self.board.points) for j, depth in _refinement(len(row))
        ]
        return [(i, j) for _, i, j in sorted(levels)]


def shuffled(board: Board, seed: int) -> list[Cell]:
    """Return the cells in a random order."""
    order = list(board.cells)
    random.Random(f"{board.fleet.name}|{seed}").shuffle(order)  # noqa: S311
    return order


def _refinement(length: int) -> Iterator[tuple[int, int]]:
    """Yield (index, depth): the middle at depth 0, the middles of both halves at depth 1, ..."""
    spans = [(0, length, 0)]
    while spans:
        low, high, depth = spans.pop(0)
        if low < high:
            at = (low + high - 1) // 2
            yield at, depth
            spans += [(low, at, depth + 1), (at + 1, high, depth + 1)]


def without_implied(board: Board, order: Sequence[Cell]) -> list[Cell]:
    """Return an order without the cells whose verdict earlier ones imply (no noise)."""
    state, kept = State(board), []
    for i, j in order:
        if j in state.ladders[i].unknown():
            state.reveal(i, j)
            kept.append((i, j))
    return kept


def first_settled(board: Board, order: Sequence[Cell]) -> int:
    """Return the length of a settled prefix whose next shorter one is not, by bisection (no noise).

    More evidence only narrows the bounds, so a settled prefix stays settled but for rare changes of the plan
    itself.
    """
    low, high = 0, len(order)
    while high - low > 1:
        half = (low + high) // 2
        if board.after(order[:half]).stop().state:
            high = half
        else:
            low = half
    return high
