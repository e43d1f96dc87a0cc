"""A quick look while the core is tuned: a few small fleets of every family, a few methods, one table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from benchmarks.store import Store
from benchmarks.tasks import Setting, Task, fleets_of

PLAYED = ("FleetSieve", "cheapest bisection", "independent best config", "feasible-set bandit")
DRAWN = "uniform random"
#: Two and five workloads at each demand scale, of the fleets numbered within a family.
CHOSEN = (0, 2, 6, 8, 12, 14)


def sample_tasks(setting: Setting) -> list[Task]:
    """Return the tasks of the sample."""
    tasks = []
    for name, fleet in fleets_of(setting, "real").items():
        if int(name.rsplit("#", 1)[1]) in CHOSEN:
            size = float(len(fleet.spec.workloads))
            tasks.append(Task("real", name, "limit", "", size))
            tasks.append(Task("real", name, "orders", DRAWN, size))
            tasks += [
                Task("real", name, "play", method, size * (2 if method == "FleetSieve" else 0.2))
                for method in PLAYED
            ]
    return tasks


def sample_table(setting: Setting, store: Store) -> str:
    """Return window GPU-seconds as shares of all points, per fleet and in the mean."""
    results: dict[str, dict[str, Any]] = defaultdict(dict)
    for task in sample_tasks(setting):
        results[task.fleet][task.method or "limit"] = store[task.key(setting)]
    lines = [
        f"{'window GPU-s, share of all points':34s} W    GPUs limit<= found   "
        + " ".join(f"{n[:11]:>11s}" for n in (*PLAYED, DRAWN))
        + "  /best-other /limit /random  state"
    ]
    ratios: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for name, row in results.items():
        fleet = fleets_of(setting, "real")[name]
        spec = fleet.spec
        total = (
            sum(len(c.loads) * spec.config(c.config).gpus for c in spec.candidates)
            * spec.measurement.duration_s
        )
        costs = [row[method]["window"] / total for method in PLAYED]
        drawn = _mean(row[DRAWN]["windows"]) / total
        lower, found = row["limit"]["lower"] / total, row["limit"]["found"] / total
        best = min([*costs[1:], drawn])
        against = (costs[0] / best, costs[0] / lower, costs[0] / drawn)
        lines.append(
            f"{name:34s} {len(spec.workloads):2d} {spec.pools[0].gpus:6d} {lower:6.3f} {found:6.3f}  "
            + " ".join(f"{cost:11.3f}" for cost in (*costs, drawn))
            + f"  {against[0]:11.2f} {against[1]:6.2f} {against[2]:7.2f}  {row['FleetSieve']['state']}"
            + (f"  regret {row['FleetSieve']['regret']:.3f} WRONG" if row["FleetSieve"]["wrong"] else "")
        )
        scale = (int(name.rsplit("#", 1)[1]) // 6) % 3
        for group in (fleet.family, f"demand {(0.7, 1.0, 1.3)[scale]}x", "all"):
            ratios[group].append((*costs, drawn, *against))
    lines.append("")
    for group in sorted(ratios):
        means = [_mean(column) for column in zip(*ratios[group], strict=True)]
        pad = f"{'mean ' + group:34s} {len(ratios[group]):2d} {'':21s} "
        lines.append(
            pad
            + " ".join(f"{x:11.3f}" for x in means[:-3])
            + f"  {means[-3]:11.2f} {means[-2]:6.2f} {means[-1]:7.2f}"
        )
    limit = sorted(row[-2] for row in ratios["all"])
    ours, random = (_mean([row[k] for row in ratios["all"]]) for k in (0, len(PLAYED)))
    lines.append(
        f"FleetSieve mean / random mean {ours / random:.3f} (target 0.22); "
        f"against the clairvoyant median {limit[len(limit) // 2]:.2f} "
        f"(1.5), p90 {limit[int(0.9 * len(limit))]:.2f} (2.5); mean share of all points {ours:.3f}"
    )
    times = [results[name]["FleetSieve"]["decision_s_mean"] for name in results]
    lines.append(f"decision time per round, mean {_mean(times):.3f} s on a busy machine")
    return "\n".join(lines) + "\n"


def _mean(values: Iterable[float]) -> float:
    rows = list(values)
    return sum(rows) / len(rows)
