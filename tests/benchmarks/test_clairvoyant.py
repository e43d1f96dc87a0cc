from __future__ import annotations

import itertools

import pytest

from benchmarks.clairvoyant import clairvoyant, price_of
from benchmarks.state import Board, Cell
from tests.benchmarks.tiny import tiny_fleet


def _cheapest_by_trying_all(board: Board) -> float:
    """Return the price in window GPU-seconds of the cheapest set of points that the stop rule accepts."""
    subsets = itertools.chain.from_iterable(
        itertools.combinations(board.cells, k) for k in range(len(board.cells) + 1)
    )
    by_price: dict[int, list[tuple[Cell, ...]]] = {}
    for subset in subsets:
        by_price.setdefault(price_of(board, subset), []).append(subset)
    for price in sorted(by_price):
        if any(board.after(subset).stop().state for subset in by_price[price]):
            return price * board.spec.measurement.duration_s
    raise AssertionError("not even all points settle the decision")


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.3])
@pytest.mark.parametrize("seed", range(3))
def test_on_tiny_fleets_the_limit_is_the_cheapest_set_of_all(seed: int, scale: float) -> None:
    board = Board(tiny_fleet(seed, scale, gpus=6))
    limit = clairvoyant(board)
    assert limit.lower == limit.found == _cheapest_by_trying_all(board)


@pytest.mark.parametrize("scale", [1.0, 1.3])
def test_the_best_set_found_is_accepted_and_costs_what_is_said(scale: float) -> None:
    board = Board(tiny_fleet(7, scale, workloads=4, gpus=24, loads=5))
    limit = clairvoyant(board)
    assert board.after(limit.cells).stop().state.startswith("certified")
    assert limit.lower <= limit.found == sum(board.window(cell) for cell in limit.cells)


def test_without_tries_the_bound_still_holds() -> None:
    board = Board(tiny_fleet(2, 1.3, workloads=3, gpus=12))
    assert clairvoyant(board, tries=0).lower <= clairvoyant(board, tries=100_000).lower
