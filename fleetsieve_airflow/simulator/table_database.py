"""Operator tables from rows: one's own microbenchmarks as CSV or parquet, or any other columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fleetsieve_airflow.simulator.curves import (
    Curve,
    FloatArray,
    PerfDataError,
    Surface,
    blend,
    blend_surfaces,
    surface_from_cells,
)
from fleetsieve_airflow.simulator.hardware import Hardware
from fleetsieve_airflow.simulator.perf_database import OPERATORS, Fixed, OperatorKind, lacking

Columns = Mapping[str, npt.NDArray[np.generic]]
Found = Curve | Surface


class OperatorTable:
    """Measured times of one operator kind, one row a shape, interpolated linearly between shapes."""

    def __init__(self, kind: OperatorKind, columns: Columns, source: str) -> None:
        """Keep the columns.

        :param columns: one array for every word, number and free size of the kind and for ``seconds``; all of
            one length.
        :raises PerfDataError: a column is missing, or a time is not a positive number.
        """
        needed = (*kind.words, *kind.exact, *kind.between, *kind.free, "seconds")
        if missing := [name for name in needed if name not in columns]:
            raise PerfDataError(
                f"{source}: operator {kind.name} lacks columns {', '.join(missing)}; "
                f"it needs {', '.join(needed)}."
            )
        self.kind, self.source = kind, source
        self._words = {name: np.asarray(columns[name]).astype(str) for name in kind.words}
        numbers = (*kind.exact, *kind.between, *kind.free, "seconds")
        self._numbers: dict[str, FloatArray] = {
            name: np.asarray(columns[name]).astype(float) for name in numbers
        }
        seconds = self._numbers["seconds"]
        if not np.all(np.isfinite(seconds) & (seconds > 0)):
            raise PerfDataError(
                f"{source}: operator {kind.name} has times that are not positive numbers of seconds."
            )
        self._found: dict[tuple[str | float, ...], Found] = {}

    def find(self, fixed: Fixed) -> Found:
        """Return seconds against the free sizes at these fixed ones.

        Numbers that may lie between measured ones are interpolated; beyond the largest one they are refused.

        :raises PerfDataError: naming what exists.
        """
        names = (*self.kind.words, *self.kind.exact, *self.kind.between)
        key = tuple(fixed[name] if isinstance(fixed[name], str) else float(fixed[name]) for name in names)
        if key not in self._found:
            rows = self._matching(fixed)
            self._found[key] = self._between(rows, list(self.kind.between), fixed)
        return self._found[key]

    def values(self, name: str) -> list[str]:
        """Return what a word or number of the table may be, as text."""
        if name in self._words:
            return sorted(set(self._words[name].tolist()))
        return [format(value, "g") for value in np.unique(self._numbers[name])]

    def _matching(self, fixed: Fixed) -> npt.NDArray[np.intp]:
        chosen = np.ones(len(self._numbers["seconds"]), dtype=bool)
        for name in (*self.kind.words, *self.kind.exact):
            column = self._words[name] if name in self._words else self._numbers[name]
            narrower = chosen & (column == fixed[name])
            if not narrower.any():
                have = sorted(set(column[chosen].tolist()))
                shown = ", ".join(
                    value if isinstance(value, str) else format(value, "g") for value in have[:12]
                )
                raise lacking(self.kind.name, fixed, self.source, f"{name} {shown or 'nothing'}")
            chosen = narrower
        return np.flatnonzero(chosen)

    def _between(self, rows: npt.NDArray[np.intp], names: list[str], fixed: Fixed) -> Found:
        if not names:
            return self._function(rows)
        name, rest = names[0], names[1:]
        column = self._numbers[name][rows]
        value, have = float(fixed[name]), np.unique(column)
        if value > have[-1]:
            raise lacking(self.kind.name, fixed, self.source, f"{name} up to {have[-1]:g}")
        upper = int(np.searchsorted(have, value))
        if upper == 0 or have[upper] == value:
            return self._between(rows[column == have[upper]], rest, fixed)
        low = self._between(rows[column == have[upper - 1]], rest, fixed)
        high = self._between(rows[column == have[upper]], rest, fixed)
        weight = (value - have[upper - 1]) / (have[upper] - have[upper - 1])
        if isinstance(low, Curve) and isinstance(high, Curve):
            return blend(low, high, weight)
        if isinstance(low, Surface) and isinstance(high, Surface):
            return blend_surfaces(low, high, weight)
        raise PerfDataError(f"{self.source}: operator {self.kind.name} mixes curves and surfaces.")

    def _function(self, rows: npt.NDArray[np.intp]) -> Found:
        seconds = self._numbers["seconds"][rows]
        sizes = [self._numbers[name][rows] for name in self.kind.free]
        if len(self.kind.free) > 1:
            return surface_from_cells(sizes[0], sizes[1], seconds)
        cells = surface_from_cells(np.zeros(len(rows)), sizes[0], seconds)
        return Curve(cells.y, cells.seconds[0])


class TableDatabase:
    """A :class:`PerfDatabase` over operator tables."""

    def __init__(self, name: str, hardware: Hardware, tables: Mapping[str, OperatorTable]) -> None:
        self.name, self.hardware = name, hardware
        self._tables = dict(tables)

    def table(self, operator: str) -> OperatorTable:
        """Return the table of one operator.

        :raises PerfDataError: naming the operators there are tables for.
        """
        if operator not in self._tables:
            have = ", ".join(sorted(self._tables)) or "no operator"
            raise PerfDataError(f"{self.name} has no table for operator {operator!r}; it has {have}.")
        return self._tables[operator]

    def curve(self, operator: str, fixed: Fixed) -> Curve:
        """Return seconds of one call against its one free size."""
        pieces = 1
        if operator == "gemm":
            fixed, pieces = self._split_wide(fixed)
        found = self.table(operator).find(fixed)
        if not isinstance(found, Curve):
            raise PerfDataError(f"Operator {operator!r} varies in two sizes: ask for its surface.")
        return found.scaled(pieces) if pieces > 1 else found

    def surface(self, operator: str, fixed: Fixed) -> Surface:
        """Return seconds of one call against its two free sizes."""
        found = self.table(operator).find(fixed)
        if not isinstance(found, Surface):
            raise PerfDataError(f"Operator {operator!r} varies in one size: ask for its curve.")
        return found

    def _split_wide(self, fixed: Fixed) -> tuple[Fixed, int]:
        # A product wider than the table (a vocabulary of 150,000) is a row of equal narrower products, so its
        # price is an upper bound from data rather than an extrapolation.
        widest = max(float(value) for value in self.table("gemm").values("n"))
        pieces = max(1, -int(-float(fixed["n"]) // widest))
        return {**fixed, "n": float(fixed["n"]) / pieces}, pieces


def read_tables(path: str | Path, hardware: Hardware) -> TableDatabase:
    """Read one's own microbenchmarks: a tidy CSV or parquet with the columns ``operator`` and ``seconds``.

    The other columns are named as in :data:`~fleetsieve_airflow.simulator.perf_database.OPERATORS`; those an
    operator does not use stay empty.

    :raises PerfDataError: the file cannot be read, or names an operator nobody knows.
    """
    path = Path(path)
    columns = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    for name in ("operator", "seconds"):
        if name not in columns:
            raise PerfDataError(f"{path}: needs the columns operator and seconds, lacks {name}.")
    operators = np.asarray(columns["operator"]).astype(str)
    if unknown := sorted(set(operators.tolist()) - set(OPERATORS)):
        raise PerfDataError(f"{path}: unknown operators {', '.join(unknown)}; known: {', '.join(OPERATORS)}.")
    tables = {}
    for operator in sorted(set(operators.tolist())):
        rows = operators == operator
        kind = OPERATORS[operator]
        used = (*kind.words, *kind.exact, *kind.between, *kind.free, "seconds")
        part = {name: np.asarray(columns[name])[rows] for name in used if name in columns}
        tables[operator] = OperatorTable(kind, part, str(path))
    return TableDatabase(path.name, hardware, tables)


def _read_csv(path: Path) -> Columns:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(line for line in file if not line.startswith("#"))
            rows = list(reader)
            names: Iterable[str] = reader.fieldnames or ()
    except OSError as error:
        raise PerfDataError(f"Operator table {path} cannot be read: {error.strerror}.") from error
    return {name: np.array([row[name] or "nan" for row in rows]) for name in names}


def _read_parquet(path: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise PerfDataError(
            f"Reading {path} needs pyarrow.", hint="Install pyarrow, or save the table as CSV."
        ) from error
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise PerfDataError(f"Operator table {path} cannot be read: {error}.") from error
    return {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
