"""Run the evaluation: ``python -m benchmarks.run --grids a.csv,b.csv``; ``--help`` says the rest."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from benchmarks.decision_time import SIZES, Size, decision_times
from benchmarks.figures import draw_figures
from benchmarks.matrix import tasks_of
from benchmarks.progress import Progress
from benchmarks.results import results_text
from benchmarks.sample import sample_table, sample_tasks
from benchmarks.store import ROOT, Store, digest_of
from benchmarks.summary import summarise
from benchmarks.tasks import Setting, Task, run


def compute(setting: Setting, tasks: Sequence[Task], store: Store, workers: int) -> None:
    """Compute what the store lacks, longest tasks first.

    :raises RuntimeError: naming the tasks that failed, once all others are done.
    """
    keys = {task: task.key(setting) for task in tasks}
    open_tasks = sorted((task for task in tasks if keys[task] not in store), key=lambda task: -task.weight)
    total = sum(task.weight for task in tasks)
    progress = Progress(total, total - sum(task.weight for task in open_tasks))
    if not open_tasks:
        return
    with ProcessPoolExecutor(max_workers=workers) as pool:
        running: dict[Future[dict[str, Any]], Task] = {}
        failures: list[str] = []
        waiting = iter(open_tasks)
        for task in _first(waiting, workers * 2):
            running[pool.submit(run, setting, task)] = task
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                task = running.pop(future)
                if (error := future.exception()) is None:
                    store.add(keys[task], future.result())
                else:  # the others go on; what is done is kept
                    failures.append(f"{task.group} {task.fleet}, {task.kind} {task.method}: {error!r}")
                progress.step(task.weight, f"{task.fleet}: {task.method or task.kind}")
                for following in _first(waiting, 1):
                    running[pool.submit(run, setting, following)] = following
    if failures:
        raise RuntimeError(f"{len(failures)} tasks failed:\n" + "\n".join(failures))


def _first(tasks: Iterable[Task], count: int) -> list[Task]:
    return [task for _, task in zip(range(count), tasks, strict=False)]


def evaluate(
    setting: Setting, out: Path, report: Path, workers: int, sizes: Sequence[Size] = SIZES
) -> dict[str, Any]:
    """Compute what is missing, then write the summary, the figures and RESULTS.md.

    :param out: folder of results.jsonl and summary.json.
    :param report: folder of RESULTS.md and figures.
    """
    store = Store(out / "results.jsonl")
    compute(setting, tasks_of(setting), store, workers)
    summary = summarise(setting, store, decision_times(sizes))
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    draw_figures(summary, report / "figures")
    (report / "RESULTS.md").write_text(results_text(summary), encoding="utf-8")
    return summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    options = _options(arguments)
    paths = tuple(str(Path(path).resolve()) for path in options.grids.split(","))
    digest = digest_of(map(Path, paths))
    setting = Setting(paths, digest, 54, 12, 200, 10, 20_000) if options.full else Setting(paths, digest)
    begun = time.monotonic()
    if options.sample:
        store = Store(options.out / "results.jsonl")
        compute(setting, sample_tasks(setting), store, options.workers)
        sys.stdout.write(sample_table(setting, store))
    else:
        summary = evaluate(setting, options.out, options.report, options.workers)
        for row in summary["targets"]:
            sys.stdout.write(
                f"{'met   ' if row['met'] else 'MISSED'} {row['what']}: "
                f"{row['value']:.3g} (at most {row['target']:.3g})\n"
            )
    sys.stderr.write(
        f"Done in {time.monotonic() - begun:.0f} s; "
        f"results are in {options.out}, the report in {options.report}.\n"
    )
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--grids", required=True, help="recorded grids, CSV files separated by commas")
    parser.add_argument(
        "--full", action="store_true", help="three times the fleets, 200 random orders, 10 noisy draws"
    )
    parser.add_argument(
        "--sample", action="store_true", help="36 small fleets and a few methods only, as a table"
    )
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out", help="where results go")
    parser.add_argument(
        "--report", type=Path, default=ROOT / "benchmarks", help="where RESULTS.md and figures go"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
