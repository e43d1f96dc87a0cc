"""Recorded grids: a CSV file of benchmark runs, read strictly, found by workload, engine config and load.

The columns are documented in ``fleetsieve_airflow/data/README.md``. A value that cannot be used is refused
with its file, line, column and remedy: a grid is a measuring device, and a guessed number would be evidence.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fleetsieve_airflow.errors import GridError
from fleetsieve_airflow.records import (
    LATENCY_METRICS,
    LOAD_KINDS,
    PERCENTILE_NAMES,
    PERCENTILES,
    EngineConfig,
    LoadKind,
)

#: A grid named ``package:NAME`` is one that ships with this package.
PACKAGE_PREFIX = "package:"
DATA_FOLDER = Path(__file__).resolve().parent.parent / "data"
#: Problems of a file that one error lists; the rest is counted.
PROBLEMS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRun:
    """One row: one run of one cell. ``config`` is a label, or a degree where rows have no label."""

    line: int
    workload: str
    config: str | int
    load_kind: LoadKind
    load: float
    repeat: int
    served_rps: float
    success_rate: float | None
    percentiles: tuple[tuple[str, float], ...]
    duration_s: float | None
    sent: int | None
    failed: int | None
    provenance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A recorded grid. ``sha256`` is of the file's bytes and identifies the grid as a measuring device.

    ``cells`` maps (workload, config, load) to the runs of that cell by repeat, ``ladders`` maps (workload,
    config) to its loads, ascending; a config is a label or a degree, as in :class:`GridRun`.
    """

    path: Path
    sha256: str
    columns: tuple[str, ...]
    load_kinds: dict[str, LoadKind]
    ladders: dict[tuple[str, str | int], tuple[float, ...]]
    cells: dict[tuple[str, str | int, float], tuple[GridRun, ...]]

    @property
    def device(self) -> str:
        """What a spec names as its measuring device: another file is another device."""
        return f"replay:{self.sha256[:16]}"

    def configs(self, workload: str) -> tuple[str, ...]:
        """Return the engine configs recorded for a workload; a mere degree is said as ``TP4``."""
        return tuple(
            config if isinstance(config, str) else f"TP{config}"
            for name, config in self.ladders
            if name == workload
        )

    def config_key(self, config: EngineConfig) -> str | int:
        """Return how the rows of an engine config are marked in this file.

        :raises GridError: rows name only a tensor-parallel degree, which says too little of this config.
        """
        if "engine_config" in self.columns:
            return config.label
        if config.gpus != config.tensor_parallel:
            more = f"pipeline_parallel {config.pipeline_parallel}, data_parallel {config.data_parallel} too"
            if config.disaggregated:
                more = "engines of two phases"
            raise GridError(
                f"{self.path}: rows name a tensor_parallel degree only, but {config.label} has {more}.",
                hint="Add a column engine_config with the spec's labels.",
            )
        return config.tensor_parallel

    def loads(self, workload: str, config: EngineConfig) -> tuple[float, ...]:
        """Return the loads recorded for a candidate, ascending; empty when there are none."""
        return self.ladders.get((workload, self.config_key(config)), ())

    def all_loads(self, workload: str) -> tuple[float, ...]:
        """Return every load recorded for any config of a workload, ascending."""
        return tuple(
            sorted({load for (name, _), loads in self.ladders.items() if name == workload for load in loads})
        )

    def cell(self, workload: str, config: EngineConfig, load: float) -> tuple[GridRun, ...]:
        """Return the runs of one cell by repeat; empty when it was not recorded."""
        return self.cells.get((workload, self.config_key(config), load), ())


def grid_path(name: str) -> Path:
    """Return where a grid is: ``package:NAME`` ships with this package, anything else is a path.

    :raises GridError: no such file.
    """
    if name.startswith(PACKAGE_PREFIX):
        shipped = sorted(item.name for item in DATA_FOLDER.glob("*.csv"))
        if name.removeprefix(PACKAGE_PREFIX) not in shipped:
            raise GridError(
                f"{name}: no such grid in this package; it has {', '.join(shipped)}.",
                hint=f"Name one of these after {PACKAGE_PREFIX}, or give a path.",
            )
        return DATA_FOLDER / name.removeprefix(PACKAGE_PREFIX)
    if not Path(name).is_file():
        raise GridError(
            f"{name}: no such grid file.", hint="Relative paths start at the folder of the fleet file."
        )
    return Path(name)


def read_grid(name: str) -> Grid:
    """Read a grid file.

    :param name: a path, or ``package:NAME``.
    :raises GridError: naming each file, line, column, value and remedy.
    """
    path = grid_path(name)
    try:
        content = path.read_bytes()
        rows = list(_numbered_rows(content.decode("utf-8-sig")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GridError(
            f"{path}: cannot be read: {error}.", hint="Save it as comma-separated UTF-8 text."
        ) from error
    header = [column.strip() for column in rows[0][1]] if rows else []
    _require_columns(path, header)
    read = [_Row(header, cells, line) for line, cells in rows[1:]]
    runs = [run for row in read if (run := row.to_run())]
    problems = [problem for row in read for problem in row.problems]
    problems = problems or [*_duplicates(runs), *_mixed_load_kinds(runs)]
    if not read:
        problems = ["no rows under the header. Record at least one run"]
    if problems:
        raise _refused(path, problems)
    return _indexed(path, hashlib.sha256(content).hexdigest(), tuple(header), runs)


def _numbered_rows(text: str) -> Iterable[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""))
    for cells in reader:
        if any(cell.strip() for cell in cells):
            yield reader.line_num, cells


def _indexed(path: Path, digest: str, columns: tuple[str, ...], runs: list[GridRun]) -> Grid:
    cells: dict[tuple[str, str | int, float], list[GridRun]] = {}
    for run in runs:
        cells.setdefault((run.workload, run.config, run.load), []).append(run)
    ladders: dict[tuple[str, str | int], list[float]] = {}
    for workload, config, load in cells:
        ladders.setdefault((workload, config), []).append(load)
    return Grid(
        path=path,
        sha256=digest,
        columns=columns,
        load_kinds={run.workload: run.load_kind for run in runs},
        ladders={key: tuple(sorted(loads)) for key, loads in ladders.items()},
        cells={key: tuple(sorted(same, key=lambda run: run.repeat)) for key, same in cells.items()},
    )


def _refused(path: Path, problems: list[str]) -> GridError:
    lines = [f"{path}: {problem}." for problem in problems[:PROBLEMS_SHOWN]]
    if len(problems) > PROBLEMS_SHOWN:
        lines.append(f"{path}: {len(problems) - PROBLEMS_SHOWN} more problems of this kind.")
    return GridError("\n".join(lines))


def _require_columns(path: Path, header: list[str]) -> None:
    if not any(header):
        raise _refused(
            path, ["is empty. A grid starts with a header line, see fleetsieve_airflow/data/README.md"]
        )
    problems = [
        f"lacks a column {' or '.join(names)}; it has {', '.join(header)}. Add it"
        for names in (("workload",), ("engine_config", "tensor_parallel"), LOAD_KINDS, ("served_rps",))
        if not set(names) & set(header)
    ]
    doubles = sorted({column for column in header if column and header.count(column) > 1})
    problems += [f"has the column {column} {header.count(column)} times. Keep one" for column in doubles]
    if problems:
        raise _refused(path, problems)


class _Row:
    """One row being read: collects the problems of its cells instead of stopping at the first."""

    def __init__(self, header: list[str], cells: list[str], line: int) -> None:
        self.line = line
        self.problems: list[str] = []
        self._cells = dict(zip(header, (cell.strip() for cell in cells), strict=False))
        if len(cells) != len(header):
            self.problems.append(
                f"line {line}: has {len(cells)} cells, the header has {len(header)}. Mend the row"
            )

    def to_run(self) -> GridRun | None:
        """Return the run, or None when a cell was refused."""
        load_kind, sent, failed = self._load_kind(), self._whole("sent"), self._whole("failed")
        labelled = "engine_config" in self._cells
        run = GridRun(
            line=self.line,
            workload=self._text("workload"),
            config=self._text("engine_config") if labelled else self._whole("tensor_parallel", least=1) or 0,
            load_kind=load_kind,
            load=self._number(load_kind, positive=True) or 0.0,
            repeat=self._whole("repeat") or 0,
            served_rps=self._number("served_rps", required=True) or 0.0,
            success_rate=self._success_rate(sent, failed),
            percentiles=self._percentiles(),
            duration_s=self._number("duration_s", positive=True),
            sent=sent,
            failed=failed,
            provenance=self._cells.get("provenance", ""),
        )
        return None if self.problems else run

    def _refuse(self, column: str, must: str, remedy: str) -> None:
        value = self._cells.get(column, "")
        self.problems.append(f"line {self.line}, column {column}: {must}, got {value!r}. {remedy}")

    def _text(self, column: str) -> str:
        value = self._cells.get(column, "")
        if not value:
            self._refuse(column, "must not be empty", "Give the name that the spec uses")
        return value

    def _load_kind(self) -> LoadKind:
        filled: list[LoadKind] = [kind for kind in LOAD_KINDS if self._cells.get(kind)]
        if len(filled) != 1:
            self.problems.append(
                f"line {self.line}: needs exactly one of {' and '.join(LOAD_KINDS)}, has {len(filled)}. "
                "Keep the load that was set and leave the other empty"
            )
        return filled[0] if filled else LOAD_KINDS[0]

    def _number(self, column: str, *, positive: bool = False, required: bool = False) -> float | None:
        text = self._cells.get(column, "")
        if not text and not required:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0 or (positive and value == 0):
            must = "must be a finite number " + ("above 0" if positive else "of at least 0")
            self._refuse(column, must, "Correct it, or remove the row if the run is not valid")
            return None
        return value

    def _whole(self, column: str, *, least: int = 0) -> int | None:
        """Read a whole number; a column with a least value above 0 must be filled."""
        value = self._number(column, positive=least > 0, required=least > 0)
        if value is None:
            return None
        if value != int(value):
            self._refuse(column, "must be a whole number", "Correct it")
            return None
        return int(value)

    def _success_rate(self, sent: int | None, failed: int | None) -> float | None:
        """Return the recorded rate, or the one that the counts say; both must agree."""
        rate = self._number("success_rate")
        if rate is not None and rate > 1:
            self._refuse("success_rate", "must be a share between 0 and 1", "Write 0.999 for 99.9 %")
        if not sent or failed is None:
            return rate
        if failed > sent:
            self._refuse("failed", f"must be at most the {sent} requests sent", "Correct the counts")
        counted = 1 - failed / sent
        # Recorded rates are often rounded to three digits.
        if rate is not None and abs(rate - counted) > max(1 / sent, 0.001):
            self._refuse(
                "success_rate", f"must agree with sent {sent} and failed {failed}", f"They say {counted:.4f}"
            )
        return counted

    def _percentiles(self) -> tuple[tuple[str, float], ...]:
        values = {name: self._number(name) for name in PERCENTILE_NAMES if name in self._cells}
        known = {name: value for name, value in values.items() if value is not None}
        for metric in LATENCY_METRICS:
            names = [name for p in PERCENTILES if (name := f"{metric}_p{p}_s") in known]
            for low, high in pairwise(names):
                if known[high] < known[low]:
                    self._refuse(high, f"must not be below {low} {known[low]:g}", "Are the columns mixed up?")
        return tuple(known.items())


def _duplicates(runs: list[GridRun]) -> Iterable[str]:
    first: dict[tuple[str, str | int, float, int], GridRun] = {}
    for run in runs:
        kept = first.setdefault((run.workload, run.config, run.load, run.repeat), run)
        if kept is not run:
            yield (
                f"line {run.line}: {run.workload} {run.config} at {run.load:g}, repeat {run.repeat}, is "
                f"already on line {kept.line}. Number repeated runs from 0 in a column repeat, or keep one"
            )


def _mixed_load_kinds(runs: list[GridRun]) -> Iterable[str]:
    first: dict[str, GridRun] = {}
    for run in runs:
        kept = first.setdefault(run.workload, run)
        if kept.load_kind != run.load_kind:
            yield (
                f"line {run.line}: workload {run.workload} is given by {run.load_kind}, but by "
                f"{kept.load_kind} on line {kept.line}. Keep one kind of load per workload"
            )
