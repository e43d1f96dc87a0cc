"""Read recorded benchmark grids: a table of engine configs and loads per model, hardware, engine, requests.

A grid file is a CSV with one row per run. Times are in milliseconds in the file and in seconds here. Cells
may hold several runs: their median is the truth of the noise-free evaluation, and one of them is drawn in the
noisy one.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleetsieve_airflow.core.spread import isotonic
from fleetsieve_airflow.errors import GridError
from fleetsieve_airflow.records import PERCENTILE_NAMES, LoadKind

GRID_KEY = ("source", "model", "precision", "hardware", "engine", "workload")
#: Fewest engine configs and loads per config of a grid that poses a choice.
LEAST_CONFIGS, LEAST_LOADS = 3, 3


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded run of one cell; ``sent`` counts its requests where that was recorded."""

    served_rps: float
    success_rate: float | None
    percentiles: tuple[tuple[str, float], ...]
    sent: int | None = None

    def percentile(self, name: str) -> float:
        """Return a latency percentile in seconds."""
        return dict(self.percentiles)[name]


@dataclass(frozen=True, slots=True)
class Grid:
    """All runs of one model, hardware, engine and request profile.

    :param cells: (GPUs of a replica, load) -> its runs.
    """

    name: str
    hardware: str
    engine: str
    load_kind: LoadKind
    cells: dict[tuple[int, float], tuple[Run, ...]]

    @property
    def degrees(self) -> list[int]:
        """GPUs per replica, ascending."""
        return sorted({gpus for gpus, _ in self.cells})

    def loads(self, gpus: int) -> list[float]:
        """Return the loads recorded for one degree, ascending."""
        return sorted(load for degree, load in self.cells if degree == gpus)

    def truth(self, limits: Sequence[str]) -> dict[tuple[int, float], Run]:
        """Return one run per cell: medians, made non-decreasing along the loads where noise says otherwise.

        :param limits: the percentiles that must be there, e.g. ``("e2e_p99_s",)``.
        """
        repaired: dict[tuple[int, float], Run] = {}
        for gpus in self.degrees:
            loads = self.loads(gpus)
            medians = [self._median(gpus, load, limits) for load in loads]
            columns = {
                name: [math.exp(x) for x in isotonic([math.log(median[name]) for median in medians])]
                for name in limits
            }
            served = isotonic([median["served_rps"] for median in medians])
            for j, load in enumerate(loads):
                success = self.cells[gpus, load][0].success_rate
                percentiles = tuple((name, columns[name][j]) for name in limits)
                repaired[gpus, load] = Run(served[j], success, percentiles)
        return repaired

    def _median(self, gpus: int, load: float, limits: Sequence[str]) -> dict[str, float]:
        runs = self.cells[gpus, load]
        row = {name: _middle([run.percentile(name) for run in runs]) for name in limits}
        return {**row, "served_rps": _middle([run.served_rps for run in runs])}


def _middle(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def read_grids(paths: Sequence[Path]) -> list[Grid]:
    """Read all complete grids of some files, ordered by name.

    :raises GridError: a file lacks a column or holds no complete grid.
    """
    rows: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            lacking = [
                name
                for name in (*GRID_KEY, "gpus", "load", "load_kind", "served_rps")
                if name not in (reader.fieldnames or [])
            ]
            if lacking:
                raise GridError(f"{path}: lacks the columns {', '.join(lacking)}.")
            for row in reader:
                rows[tuple(row[name] for name in GRID_KEY)].append(row)
    grids = [grid for key in sorted(rows) if (grid := _grid(key, rows[key])) is not None]
    if not grids:
        raise GridError(
            f"No complete grid ({LEAST_CONFIGS} configs x {LEAST_LOADS} loads) in "
            f"{', '.join(map(str, paths))}."
        )
    return grids


def _grid(key: tuple[str, ...], rows: Sequence[dict[str, str]]) -> Grid | None:
    cells: dict[tuple[int, float], list[Run]] = defaultdict(list)
    kinds = {row["load_kind"] for row in rows}
    for row in rows:
        run = _run(row)
        if run is not None:
            cells[int(float(row["gpus"])), float(row["load"])].append(run)
    per_degree: dict[int, int] = defaultdict(int)
    for gpus, _ in cells:
        per_degree[gpus] += 1
    kept = {gpus for gpus, loads in per_degree.items() if loads >= LEAST_LOADS}
    if len(kept) < LEAST_CONFIGS or len(kinds) != 1:
        return None
    kind: LoadKind = "concurrency" if kinds == {"concurrency"} else "offered_load_rps"
    return Grid(
        name="/".join(key),
        hardware=key[3],
        engine=key[4],
        load_kind=kind,
        cells={cell: tuple(runs) for cell, runs in cells.items() if cell[0] in kept},
    )


def _run(row: dict[str, str]) -> Run | None:
    percentiles = []
    for name in PERCENTILE_NAMES:
        text = row.get(f"{name[:-2]}_ms", "")
        if text and math.isfinite(float(text)) and float(text) > 0.0:
            percentiles.append((name, float(text) / 1000.0))
    served = row["served_rps"]
    if not served or float(served) <= 0.0 or "e2e_p99_s" not in dict(percentiles):
        return None
    success = row.get("success_rate") or ""
    sent = row.get("n_requests") or ""
    return Run(
        float(served),
        float(success) if success else None,
        tuple(percentiles),
        int(float(sent)) if sent else None,
    )
