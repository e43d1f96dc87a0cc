"""The physical limit: the cheapest points that prove the decision to someone who already knows every answer.

Two numbers come out. ``found`` is the price of the best set of points found; the stop rule itself accepts it.
``lower`` is a proved lower bound on the price of any set that the stop rule accepts. Where they meet, the
limit is exact.

What is needed of a set S whose plan P has a regret within the tolerance e, V* being the best value under the
truth:

* met side. The truth is one of the possible truths, so P really serves V* - e. A plan uses only replica kinds
  with a met point, so S holds a met point of every kind P uses: a price per number of GPUs and workload, and
  one knapsack.
* missed side (only where V* + e stays below the ceiling). Let w be the workload worst off under P and the
  truth, so that P serves at most V* there. The truth in which P's kinds of w are as they are and everything
  else is at its upper bound is possible too, hence no plan may exceed V* + e in it: S holds the points that
  cut all workloads so far, except that P's own kinds of w need no cut. Which workload is w is part of the
  minimisation.

Both are counts of GPUs per workload (at most so many needed at V* - e, at least so many needed beyond V* +
e), which one dynamic programme over (GPUs used, GPUs required, w chosen yet) minimises exactly. A subset of
one candidate's points is worth considering only if no cheaper one leaves narrower bounds; the highest met
with the lowest missed load leaves none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.state import Board, Cell
from fleetsieve_airflow.core.allocation import SLACK, curve

Array = NDArray[np.float64]
#: Above rounding, below any difference of interest: what a level must exceed to count as exceeded.
MARGIN = 1e-6
#: Levels at which a proof by the gap is tried.
LEVELS = 9
#: How many of the cheapest proofs found are thinned.
THINNED = 3


@dataclass(frozen=True, slots=True)
class Limit:
    """The price of the cheapest proof in window GPU-seconds.

    :param lower: no accepted set is cheaper.
    :param found: price of the set ``cells``, which the stop rule accepts.
    """

    lower: float
    found: float
    cells: tuple[Cell, ...]

    @property
    def exact(self) -> bool:
        """Whether both meet."""
        return self.found <= self.lower * (1 + 1e-9)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Points of one candidate and the bounds in req/s that they leave."""

    price: int
    lower: float
    upper: float
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class _Combination:
    """Points of one workload with the bounds of its candidates."""

    price: int
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class _Option:
    """A combination in GPU counts.

    :param used: the fewest GPUs that reach the low level with kinds that have a met point.
    :param required: the fewest GPUs that exceed the high level at the upper bounds; one more than there are
        if none do.
    :param exempt: the same where the plan's own kinds count as they truly are.
    """

    price: int
    used: int
    required: int
    exempt: int
    cells: tuple[Cell, ...]


def clairvoyant(board: Board, tries: int = 2000) -> Limit:
    """Bound the cheapest proof from both sides.

    :param tries: how many sets to look at for the exact answer where the bounds do not meet at once.
    :raises ValueError: the fleet has several pools or side constraints.
    """
    if board.problem.home is None or len(board.problem.totals) != 1:
        raise ValueError("The clairvoyant knows fleets of one pool without side constraints.")
    rows = [_combinations(board, w) for w in range(len(board.problem.names))]
    low, high = board.best - board.tolerance, board.best + board.tolerance + MARGIN
    needed = board.problem.totals[0] + 1 if high <= board.problem.ceiling else 0
    every = [_options(board, w, row, low, high) for w, row in enumerate(rows)]
    search = _Search(
        [_undominated(options) for options in every], board.problem.totals[0], needed, exempt=needed > 0
    )
    lower = search.price
    found = _best_found(board, rows, next(search.sets(lower)), needed)
    if found[0] > lower:
        lower, found = _closed(
            board, _Search(every, board.problem.totals[0], needed, exempt=True), lower, found, tries
        )
    unit = board.spec.measurement.duration_s
    return Limit(unit * lower, unit * found[0], tuple(sorted(found[1])))


def _combinations(board: Board, w: int) -> list[_Combination]:
    indices = [i for i, (owner, _) in enumerate(board.places) if owner == w]
    return [
        _Combination(
            price=sum(choice.price for choice in chosen),
            lower=tuple(board.problem.cap(w, choice.lower) for choice in chosen),
            upper=tuple(board.problem.cap(w, choice.upper) for choice in chosen),
            cells=tuple(cell for choice in chosen for cell in choice.cells),
        )
        for chosen in itertools.product(*[_choices(board, i) for i in indices])
    ]


def _choices(board: Board, i: int) -> list[_Choice]:
    """Return the subsets of one candidate's points that no other beats in price and in both bounds."""
    full = board.full[i]
    count, size, edge = len(full.verdicts), board.blank[i].gpus, full.met_upto
    subsets: list[tuple[int, ...]] = [(), *((j,) for j in range(count))]
    if 0 <= edge < count - 1:
        subsets.append((edge, edge + 1))
    choices = []
    for subset in subsets:
        ladder = board.known(i, sum(1 << j for j in subset)).ladder
        cells = tuple((i, j) for j in subset)
        choices.append(_Choice(size * len(subset), ladder.capacity_lower, ladder.capacity_upper, cells))
    kept: list[_Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.price, -choice.lower, choice.upper)):
        if not any(other.lower >= choice.lower and other.upper <= choice.upper for other in kept):
            kept.append(choice)
    return kept


def _options(board: Board, w: int, row: Sequence[_Combination], low: float, high: float) -> list[_Option]:
    """Reduce combinations to GPU counts at a level that must be reached and one that must not be exceeded."""
    problem, truth = board.problem, board.capacities[w]
    demand, total = float(problem.demands[w]), problem.totals[0]

    def gpus(capacities: Sequence[float], target: float) -> int:
        return min(total + 1, int(np.searchsorted(curve(problem, w, capacities), target)))

    options = []
    for combination in row:
        known = [lower > 0.0 for lower in combination.lower]
        held = [true if has else 0.0 for has, true in zip(known, truth, strict=True)]
        cut = [true if has else up for has, true, up in zip(known, truth, combination.upper, strict=True)]
        option = _Option(
            price=combination.price,
            used=gpus(held, demand * low * (1 - 2 * SLACK)),
            required=gpus(combination.upper, demand * high * (1 - SLACK)),
            exempt=gpus(cut, demand * high * (1 - SLACK)),
            cells=combination.cells,
        )
        if option.used <= total:
            options.append(option)
    return options


def _undominated(options: Iterable[_Option]) -> list[_Option]:
    kept: list[_Option] = []
    for option in sorted(options, key=lambda o: (o.price, o.used, -o.required, -o.exempt)):
        if not any(
            other.used <= option.used and other.required >= option.required and other.exempt >= option.exempt
            for other in kept
        ):
            kept.append(option)
    return kept


class _Search:
    """One option per workload, GPUs used at most ``total``, required at least ``needed``.

    ``tails[w][layer, used, required]`` is the least price of the workloads from w on, within ``used`` GPUs,
    that require at least ``required``; layer 1 may still exempt one workload.
    """

    def __init__(self, rows: Sequence[Sequence[_Option]], total: int, needed: int, *, exempt: bool) -> None:
        self.rows, self.total, self.needed = rows, total, needed
        self.top = 1 if exempt else 0
        end = np.full((self.top + 1, total + 1, needed + 1), np.inf)
        end[:, :, 0] = 0.0
        self.tails = [end]
        for options in reversed(rows):
            after, before = self.tails[0], np.full_like(end, np.inf)
            for option in _undominated(options):
                for layer in range(self.top + 1):
                    _relax(before[layer], after[layer], option, option.required)
                if self.top:
                    _relax(before[1], after[0], option, option.exempt)
            self.tails.insert(0, before)

    @property
    def price(self) -> int:
        """The least price.

        :raises ValueError: no choice satisfies both sides.
        """
        least = self.tails[0][self.top, self.total, self.needed]
        if not np.isfinite(least):
            raise ValueError("Not even all points prove the decision.")
        return round(float(least))

    def sets(self, price: int) -> Iterator[list[Cell]]:
        """Yield every set of exactly this price that satisfies both sides; one may come more than once."""
        yield from self._from(0, self.top, self.total, self.needed, price)

    def _from(self, w: int, layer: int, used: int, required: int, price: int) -> Iterator[list[Cell]]:
        if w == len(self.rows):
            if price == 0:
                yield []
            return
        for option in self.rows[w]:
            left = price - option.price
            if left < 0 or option.used > used:
                continue
            for source, gpus in ((layer, option.required), (layer - 1, option.exempt)):
                rest = max(0, required - gpus)
                if source >= 0 and self.tails[w + 1][source, used - option.used, rest] <= left:
                    for cells in self._from(w + 1, source, used - option.used, rest, left):
                        yield [*option.cells, *cells]


def _relax(before: Array, after: Array, option: _Option, gpus: int) -> None:
    """Offer one option to every (used, required): what is left of both is for the workloads after it."""
    size, width = after.shape
    gpus = min(gpus, width - 1)
    target, source = before[option.used :], after[: size - option.used] + option.price
    np.minimum(target[:, gpus:], source[:, : width - gpus], out=target[:, gpus:])
    np.minimum(target[:, :gpus], source[:, :1], out=target[:, :gpus])


def _best_found(
    board: Board, rows: Sequence[Sequence[_Combination]], first: list[Cell], needed: int
) -> tuple[int, list[Cell]]:
    """Return the cheapest accepted set found: proofs by the gap at several levels, thinned."""
    starts = [first]
    for part in range(LEVELS if needed else 1):
        low = board.best - board.tolerance * (1.0 - part / (LEVELS - 1))
        options = [
            _undominated(_options(board, w, row, low, low + board.tolerance)) for w, row in enumerate(rows)
        ]
        search = _Search(options, board.problem.totals[0], needed, exempt=False)
        if np.isfinite(search.tails[0][0, -1, -1]):
            starts.append(next(search.sets(search.price)))
    accepted = [start for start in starts if board.after(start).stop().state] or [list(board.cells)]
    accepted.sort(key=lambda cells: price_of(board, cells))
    thinned = [_thinned(board, cells) for cells in accepted[:THINNED]]
    return min(((price_of(board, cells), cells) for cells in thinned), key=lambda pair: pair[0])


def price_of(board: Board, cells: Iterable[Cell]) -> int:
    """Return the GPUs held for one window each, summed over points."""
    return sum(board.blank[i].gpus for i, _ in cells)


def _thinned(board: Board, cells: Sequence[Cell]) -> list[Cell]:
    """Drop points, dearest first, that the stop rule does not need."""
    kept = list(cells)
    for cell in sorted(cells, key=lambda cell: (-board.blank[cell[0]].gpus, cell)):
        rest = [other for other in kept if other != cell]
        if board.after(rest).stop().state:
            kept = rest
    return kept


def _closed(
    board: Board, search: _Search, lower: int, found: tuple[int, list[Cell]], tries: int
) -> tuple[int, tuple[int, list[Cell]]]:
    """Try the sets that satisfy both sides, cheapest first, until one is accepted or tries are up."""
    seen: set[frozenset[Cell]] = set()
    for price in range(lower, found[0]):
        for cells in search.sets(price):
            if tries <= 0:
                return price, found
            tries -= 1
            key = frozenset(cells)
            if key in seen:
                continue
            seen.add(key)
            if board.after(cells).stop().state:
                return price, (price, cells)
    return found[0], found
