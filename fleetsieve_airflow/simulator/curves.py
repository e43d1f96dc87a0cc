"""Piecewise-linear functions of one or two sizes that know where their data end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fleetsieve_airflow.errors import FleetsieveError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class PerfDataError(FleetsieveError):
    """Operator data are lacking or would have to be extrapolated: take other data, model or GPU."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds as a piecewise-linear function of one size, known between its first and last knot.

    Below the first knot the first value holds (the floor of a kernel launch). Above the last knot the last
    segment goes on, and :meth:`outside` says so.

    :param x: knots, strictly increasing, shape (n,).
    :param seconds: values at the knots, shape (n,).
    """

    x: FloatArray
    seconds: FloatArray

    def __post_init__(self) -> None:
        if self.x.ndim != 1 or self.x.shape != self.seconds.shape or len(self.x) == 0:
            raise PerfDataError(
                f"A curve needs matching knots and values, got {self.x.shape} and {self.seconds.shape}."
            )
        if np.any(np.diff(self.x) <= 0):
            raise PerfDataError("The knots of a curve must strictly increase.")
        if not np.all(np.isfinite(self.seconds)):
            raise PerfDataError("The values of a curve must be finite numbers.")

    def at(self, size: npt.ArrayLike) -> FloatArray:
        """Return seconds at sizes of any shape."""
        size = np.asarray(size, dtype=float)
        inside = np.interp(size, self.x, self.seconds)
        if len(self.x) == 1:
            return np.asarray(inside * np.maximum(1.0, size / self.x[-1]))
        slope = max(0.0, (self.seconds[-1] - self.seconds[-2]) / (self.x[-1] - self.x[-2]))
        return np.asarray(inside + slope * np.maximum(0.0, size - self.x[-1]))

    def outside(self, size: npt.ArrayLike) -> BoolArray:
        """Return where a size lies above the data."""
        return np.asarray(np.asarray(size, dtype=float) > self.x[-1])

    def scaled(self, factor: float, stretch: float = 1.0) -> Curve:
        """Return the curve times ``factor``, as a function of size / ``stretch``."""
        return Curve(self.x * stretch, self.seconds * factor)


def constant(seconds: float, upto: float) -> Curve:
    """Return a curve that is the same everywhere up to a size."""
    return Curve(np.array([0.0, upto]), np.array([seconds, seconds]))


def add(curves: list[Curve]) -> Curve:
    """Return the sum of curves over the union of their knots, known as far as the shortest of them."""
    last = min(float(curve.x[-1]) for curve in curves)
    knots = np.unique(np.concatenate([curve.x for curve in curves]))
    knots = knots[knots <= last]
    return Curve(knots, np.sum([curve.at(knots) for curve in curves], axis=0))


def blend(low: Curve, high: Curve, weight: float) -> Curve:
    """Return ``low`` and ``high`` mixed linearly, ``weight`` being the share of ``high``."""
    if weight <= 0.0:
        return low
    if weight >= 1.0:
        return high
    return add([low.scaled(1.0 - weight), high.scaled(weight)])


@dataclass(frozen=True, slots=True)
class Surface:
    """Seconds as a piecewise-linear function of two sizes, e.g. batch and context length.

    Cells of the rectangle that were not measured are continued along the second size; ``known`` says which
    are data.

    :param x: knots of the first size, shape (n,).
    :param y: knots of the second size, shape (m,).
    :param seconds: values, shape (n, m), finite.
    :param known: where a value is data, shape (n, m).
    """

    x: FloatArray
    y: FloatArray
    seconds: FloatArray
    known: BoolArray

    def row(self, size: float) -> Curve:
        """Return seconds against the second size at one first size, beyond the data in proportion."""
        upper = int(np.searchsorted(self.x, size))
        if upper == 0:
            return Curve(self.y, self.seconds[0])
        if upper == len(self.x):
            return Curve(self.y, self.seconds[-1] * (size / self.x[-1]))
        weight = (size - self.x[upper - 1]) / (self.x[upper] - self.x[upper - 1])
        return Curve(self.y, self.seconds[upper - 1] * (1.0 - weight) + self.seconds[upper] * weight)

    def at(self, first: npt.ArrayLike, second: npt.ArrayLike) -> FloatArray:
        """Return seconds at pairs of sizes (broadcast against each other)."""
        first, second = np.broadcast_arrays(np.asarray(first, dtype=float), np.asarray(second, dtype=float))
        row, row_share = _bracket(self.x, first)
        row_share = np.minimum(1.0, row_share)
        column, column_share = _bracket(self.y, second)
        below = self.seconds[row, column] * (1 - column_share) + self._next(row, column) * column_share
        above_row = np.minimum(row + 1, len(self.x) - 1)
        above = (
            self.seconds[above_row, column] * (1 - column_share)
            + self._next(above_row, column) * column_share
        )
        mixed = below * (1 - row_share) + above * row_share
        return np.asarray(mixed * np.maximum(1.0, first / self.x[-1]))

    def outside(self, first: npt.ArrayLike, second: npt.ArrayLike) -> BoolArray:
        """Return where a pair of sizes is not surrounded by data."""
        first, second = np.broadcast_arrays(np.asarray(first, dtype=float), np.asarray(second, dtype=float))
        row = np.clip(np.searchsorted(self.x, first), 0, len(self.x) - 1)
        column = np.clip(np.searchsorted(self.y, second), 0, len(self.y) - 1)
        return np.asarray((first > self.x[-1]) | (second > self.y[-1]) | ~self.known[row, column])

    def scaled(self, factor: float) -> Surface:
        """Return the surface times ``factor``."""
        return Surface(self.x, self.y, self.seconds * factor, self.known)

    def _next(self, row: npt.NDArray[np.intp], column: npt.NDArray[np.intp]) -> FloatArray:
        return np.asarray(self.seconds[row, np.minimum(column + 1, len(self.y) - 1)])


def _bracket(knots: FloatArray, size: FloatArray) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """Return the knot below each size and how far on towards the next it lies (above 1 beyond the last)."""
    if len(knots) == 1:
        return np.zeros(size.shape, dtype=np.intp), np.zeros(size.shape)
    lower = np.clip(np.searchsorted(knots, size, side="right") - 1, 0, len(knots) - 2)
    share = (size - knots[lower]) / (knots[lower + 1] - knots[lower])
    return lower, np.maximum(0.0, share)


def surface_from_cells(first: FloatArray, second: FloatArray, seconds: FloatArray) -> Surface:
    """Return the surface through scattered cells of a rectangle; repeated cells take their median.

    :param first: first sizes, shape (n,).
    :param second: second sizes, shape (n,).
    :param seconds: seconds, shape (n,).
    """
    x, rows = np.unique(first, return_inverse=True)
    y, columns = np.unique(second, return_inverse=True)
    values = np.full((len(x), len(y)), np.nan)
    order = np.lexsort((seconds, columns, rows))
    cells = rows[order] * len(y) + columns[order]
    _, start, count = np.unique(cells, return_index=True, return_counts=True)
    middle = order[start + (count - 1) // 2]
    values[rows[middle], columns[middle]] = seconds[middle]
    known = np.isfinite(values)
    for row in range(len(x)):
        have = np.flatnonzero(known[row])
        values[row] = Curve(y[have], values[row, have]).at(y)
    return Surface(x, y, values, known)


def blend_surfaces(low: Surface, high: Surface, weight: float) -> Surface:
    """Return two surfaces mixed linearly, ``weight`` being the share of ``high``."""
    if weight <= 0.0:
        return low
    if weight >= 1.0:
        return high
    x, y = np.union1d(low.x, high.x), np.union1d(low.y, high.y)
    grid_x, grid_y = np.meshgrid(x, y, indexing="ij")
    values = low.at(grid_x, grid_y) * (1 - weight) + high.at(grid_x, grid_y) * weight
    return Surface(x, y, values, ~(low.outside(grid_x, grid_y) | high.outside(grid_x, grid_y)))
