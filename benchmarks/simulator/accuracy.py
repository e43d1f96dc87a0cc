"""Accuracy of the simulator against real measurements, before and after calibration.

    python -m benchmarks.simulator.accuracy --grids measured_grids.csv --silicon --out results/

Calibration sees at most a tenth of a grid's GPU-seconds (each cell measured once): the cheapest cell, then
those that are farthest from what is known and still affordable. It never sees what it is judged on: "after"
counts the other cells only.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.simulator.grids import Cell, Grid, recorded_grids, silicon_sample
from fleetsieve_airflow.simulator.arrivals import Requests, closed_loop
from fleetsieve_airflow.simulator.calibration import Observation, calibrate, value_of
from fleetsieve_airflow.simulator.curves import PerfDataError
from fleetsieve_airflow.simulator.engine import Constants, EngineModel
from fleetsieve_airflow.simulator.events import simulate
from fleetsieve_airflow.simulator.plans import EngineSettings, ParallelPlan

METRICS = ("ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s", "e2e_mean_s", "e2e_p99_s", "served_rps")
FITTED = ("ttft_p50_s", "ttft_mean_s", "tpot_p50_s", "tpot_mean_s", "e2e_p50_s", "e2e_p99_s", "ttft_p99_s")
SHARE = 0.1
MOST_REQUESTS = 1500


@dataclass(slots=True)
class Errors:
    """Errors of one grid: (metric, cell was used for calibration) -> signed relative errors."""

    before: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    after: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    ranks: list[float] = field(default_factory=list)
    calibration_cells: int = 0
    cells: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grids", type=Path, help="CSV of recorded grids")
    parser.add_argument(
        "--silicon", action="store_true", help="also the sample in the aiconfigurator-core wheel"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--only", default="", help="only grids whose name holds this")
    arguments = parser.parse_args(argv)
    unusable: dict[str, str] = {}
    sources: list[tuple[str, Iterable[Grid]]] = []
    if arguments.grids:
        sources.append(("recorded grids", recorded_grids(arguments.grids, unusable)))
    if arguments.silicon:
        sources.append(("silicon sample", silicon_sample(unusable)))
    arguments.out.mkdir(parents=True, exist_ok=True)
    texts = ["# Accuracy of the simulator"]
    for name, grids in sources:
        rows = []
        for row in measured(grids, arguments.only, unusable):
            # A run over hundreds of grids takes a while: what is there so far is on disk at any time.
            rows.append(row)
            write_csv(arguments.out / f"{name.replace(' ', '_')}.csv", rows)
            (arguments.out / f"{name.replace(' ', '_')}.md").write_text(markdown(rows), encoding="utf-8")
        texts.append(f"## {name}\n\n{markdown(rows)}\n")
    if unusable:
        texts.append(
            "## Not simulated\n\n" + "\n".join(f"- {what}: {why}" for what, why in sorted(unusable.items()))
        )
    text = "\n".join(texts)
    (arguments.out / "accuracy.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def measured(grids: Iterable[Grid], only: str, unusable: dict[str, str]) -> Iterator[tuple[Grid, Errors]]:
    for grid in grids:
        label = " ".join((*grid.stack, grid.workload))
        if only and only not in label:
            continue
        started = time.perf_counter()
        errors = evaluate(grid, unusable)
        if errors.cells:
            print(f"{label}: {errors.cells} cells, {time.perf_counter() - started:.1f} s", file=sys.stderr)
            yield grid, errors


def evaluate(grid: Grid, unusable: dict[str, str]) -> Errors:
    engines: dict[ParallelPlan, EngineModel] = {}
    cells = []
    for cell in grid.cells:
        try:
            if cell.plan not in engines:
                # The public benchmark starts the server for as many sequences as there are clients.
                settings = EngineSettings(max_num_seqs=max(item.concurrency for item in grid.cells))
                engines[cell.plan] = EngineModel(grid.database, grid.shape, cell.plan, settings)
        except PerfDataError as error:
            unusable[f"{' '.join(grid.stack)} {cell.plan.label}"] = error.message
            continue
        if engines[cell.plan].kv_tokens < grid.lengths.isl_mean_tokens + grid.lengths.osl_mean_tokens:
            unusable[f"{' '.join(grid.stack)} {cell.plan.label}"] = "weights and one request do not fit"
            continue
        cells.append(cell)
    errors = Errors(cells=len(cells))
    if not cells:
        return errors
    chosen = affordable(grid, cells)
    observations = [
        Observation(
            engines[cell.plan],
            requests_of(grid, cell),
            tuple((name, cell.observed[name]) for name in FITTED if name in cell.observed),
        )
        for cell in chosen
    ]
    fitted = calibrate(observations).constants
    errors.calibration_cells = len(chosen)
    predictions: dict[int, dict[ParallelPlan, tuple[float, float]]] = defaultdict(dict)
    for cell in cells:
        raw = predict(grid, engines[cell.plan], cell, Constants())
        tuned = predict(grid, engines[cell.plan], cell, fitted)
        predictions[cell.concurrency][cell.plan] = (cell.observed["e2e_mean_s"], raw["e2e_mean_s"])
        for metric in METRICS:
            if metric in cell.observed:
                errors.before[metric].append(raw[metric] / cell.observed[metric] - 1.0)
                if cell not in chosen:
                    errors.after[metric].append(tuned[metric] / cell.observed[metric] - 1.0)
    errors.ranks = [rank for plans in predictions.values() if (rank := spearman(plans.values())) is not None]
    return errors


def affordable(grid: Grid, cells: Sequence[Cell]) -> list[Cell]:
    """Choose what to calibrate on: the cheapest cell, then the farthest that a tenth of the grid pays."""

    def cost(cell: Cell) -> float:
        return cell.gpu_seconds(grid.requests_per_client)

    def distance(cell: Cell, other: Cell) -> float:
        apart = math.log2(cell.concurrency / other.concurrency), math.log2(cell.plan.gpus / other.plan.gpus)
        return math.hypot(*apart)

    left = SHARE * sum(cost(cell) for cell in cells)
    chosen = [min(cells, key=cost)]
    left -= cost(chosen[0])
    while True:
        rest = [cell for cell in cells if cell not in chosen and cost(cell) <= left]
        if not rest:
            return chosen
        farthest = max(rest, key=lambda cell: (min(distance(cell, other) for other in chosen), -cost(cell)))
        chosen.append(farthest)
        left -= cost(farthest)


def requests_of(grid: Grid, cell: Cell) -> Requests:
    count = min(cell.concurrency * grid.requests_per_client, max(MOST_REQUESTS, 3 * cell.concurrency))
    return closed_loop(cell.concurrency, count, grid.lengths, seed=1)


def predict(grid: Grid, engine: EngineModel, cell: Cell, constants: Constants) -> dict[str, float]:
    outcome = simulate(engine.with_constants(constants), requests_of(grid, cell))
    found = {name: value_of(outcome, name) for name in METRICS}
    # As the recorded grids do: the rate that Little's law gives for the clients.
    found["served_rps"] = cell.concurrency / found["e2e_mean_s"]
    return found


def spearman(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return the rank correlation of observed and simulated over plans; None below three plans."""
    observed, simulated = zip(*pairs, strict=True)
    if len(observed) < 3:
        return None
    first, second = ranks(observed), ranks(simulated)
    try:
        return statistics.correlation(first, second)
    except statistics.StatisticsError:
        return None


def ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [float(order.index(value)) for value in values]


def quantile(errors: Sequence[float], share: float) -> float:
    sizes = sorted(abs(error) for error in errors)
    return sizes[min(len(sizes) - 1, int(share * len(sizes)))]


def markdown(rows: Sequence[tuple[Grid, Errors]]) -> str:
    """Return the table by stack: median and 90th percentile of the absolute error in percent."""
    stacks: dict[tuple[str, str, str], list[Errors]] = defaultdict(list)
    sources: dict[tuple[str, str, str], str] = {}
    for grid, errors in rows:
        stacks[grid.stack].append(errors)
        sources[grid.stack] = "data sheet" if "roofline" in grid.database.name else "tables"
    held = [metric for metric in METRICS if any(errors.before[metric] for _, errors in rows)]
    names = ["throughput" if metric == "served_rps" else metric.removesuffix("_s") for metric in held]
    lines = [
        "Median (90th percentile) of the absolute error in %, before -> after calibration.",
        "",
        f"| model | hardware | engine | times from | cells (calibrated on) | {' | '.join(names)} | TP rank |",
        f"|{'---|' * (len(names) + 6)}",
    ]
    stacks[("all", "", "")] = [errors for _, errors in rows]
    for stack, found in stacks.items():
        cells = [_words(found, metric) for metric in held]
        ranked = [rank for errors in found for rank in errors.ranks]
        rank = f"{statistics.fmean(ranked):.2f}" if ranked else "-"
        counted = f"{sum(item.cells for item in found)} ({sum(item.calibration_cells for item in found)})"
        lines.append(
            f"| {' | '.join(stack)} | {sources.get(stack, '')} | {counted} | {' | '.join(cells)} | {rank} |"
        )
    return "\n".join(lines)


def _words(found: Sequence[Errors], metric: str) -> str:
    parts = []
    for errors in ([item.before[metric] for item in found], [item.after[metric] for item in found]):
        flat = [error for part in errors for error in part]
        parts.append(f"{100 * quantile(flat, 0.5):.0f} ({100 * quantile(flat, 0.9):.0f})" if flat else "-")
    return " -> ".join(parts)


def write_csv(path: Path, rows: Sequence[tuple[Grid, Errors]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("model", "hardware", "engine", "workload", "metric", "phase", "errors"))
        for grid, errors in rows:
            for phase, part in (("before", errors.before), ("after", errors.after)):
                for metric, values in part.items():
                    rounded = json.dumps([round(value, 4) for value in values])
                    writer.writerow((*grid.stack, grid.workload, metric, phase, rounded))


if __name__ == "__main__":
    raise SystemExit(main())
