"""Turn results into the numbers that are published: per family and method, never only in the mean."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fleets import DEMAND_SCALES, WORKLOADS
from benchmarks.matrix import DRAWN, NOISE_UPTO, OURS, ROOMS_UPTO, STEPWISE, TOLD, TOLD_UPTO
from benchmarks.methods import ALL
from benchmarks.methods.orders import UniformRandom
from benchmarks.noise import CONFIDENCE, REPEATS, run_to_run_cv
from benchmarks.paper import PUBLISHED
from benchmarks.store import Store, code_digest
from benchmarks.tasks import CHECKPOINTS, ROOMS, Setting, Task, fleets_of, grids_of

RANDOM = UniformRandom.name
NAMES = tuple(method.name for method in ALL)
#: Resamples of the bootstrap over random orders.
RESAMPLES = 2000
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one fleet, without noise; means over orders for the random ones."""

    fleet: str
    family: str
    scale: float
    method: str
    everything: float
    lower: float
    found: float
    window: float
    billed: float
    points: float
    rounds: float
    regret: float
    wrong: float
    undetermined: float
    decision_s_mean: float | None
    decision_s_max: float | None
    orders: tuple[float, ...]
    curve: tuple[float, ...]


def summarise(setting: Setting, store: Store, times: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return everything RESULTS.md and the figures show, as JSON."""
    real, synthetic = _rows(setting, store, "real"), _rows(setting, store, "synthetic")
    cv = run_to_run_cv(grids_of(setting.paths))
    noise = _noise(setting, store)
    summary = {
        "setting": {
            "grids_sha256_12": setting.digest,
            "code_sha256_12": code_digest("ours"),
            "grids": len(grids_of(setting.paths)),
            "fleets": {
                group: len(fleets_of(setting, group)) for group in ("real", "synthetic", "paper", "growth")
            },
            "orders": setting.orders,
            "noise": {
                "draws": setting.draws,
                "confidence": CONFIDENCE,
                "repeats": REPEATS,
                "run_to_run_cv": cv,
            },
            "rooms_upto_workloads": ROOMS_UPTO,
            "noise_upto_workloads": NOISE_UPTO,
        },
        "real": _tables(real),
        "synthetic": _tables(synthetic),
        "paper": _paper(setting, store),
        "told": _told(setting, store, real),
        "rooms": _rooms(setting, store),
        "noise": noise,
        "growth": _growth(setting, store),
        "decision_time": list(times),
        "losses": _losses(real),
        "curves": {name: _mean_curve([row.curve for row in real if row.method == name]) for name in NAMES},
        "limit_ratios": {
            name: sorted(row.window / row.lower for row in real if row.method == name) for name in NAMES
        },
    }
    summary["targets"] = _targets(summary)
    return summary


def _rows(setting: Setting, store: Store, group: str) -> list[Row]:
    rows = []
    for name, fleet in fleets_of(setting, group).items():
        limit = store[Task(group, name, "limit", "", 0).key(setting)]
        spec = fleet.spec
        everything = spec.measurement.duration_s * sum(
            len(candidate.loads) * spec.config(candidate.config).gpus for candidate in spec.candidates
        )
        index = int(name.rsplit("#", 1)[1]) if "#" in name else 0
        scale = DEMAND_SCALES[(index // len(WORKLOADS)) % len(DEMAND_SCALES)]
        common = (name, fleet.family, scale)
        for method in STEPWISE:
            one = store[Task(group, name, "play", method, 0).key(setting)]
            rows.append(_played(common, method, everything, limit, one))
        for method in DRAWN:
            many = store[Task(group, name, "orders", method, 0).key(setting)]
            rows.append(_drawn(common, method, everything, limit, many))
    return rows


def _played(
    common: tuple[str, str, float], method: str, everything: float, limit: dict[str, Any], one: dict[str, Any]
) -> Row:
    steps, at, curve = one["curve"], 0, []
    for part in range(CHECKPOINTS + 1):
        while at + 1 < len(steps) and steps[at + 1][0] <= everything * part / CHECKPOINTS + 1e-6:
            at += 1
        curve.append(steps[at][1])
    return Row(
        *common,
        method,
        everything,
        limit["lower"],
        limit["found"],
        one["window"],
        one["billed"],
        one["points"],
        one["rounds"],
        one["regret"],
        float(one["wrong"]),
        float(one["state"] == "undetermined"),
        one["decision_s_mean"],
        one["decision_s_max"],
        (),
        tuple(curve),
    )


def _drawn(
    common: tuple[str, str, float],
    method: str,
    everything: float,
    limit: dict[str, Any],
    many: dict[str, Any],
) -> Row:
    return Row(
        *common,
        method,
        everything,
        limit["lower"],
        limit["found"],
        _mean(many["windows"]),
        _mean(many["billed"]),
        _mean(many["points"]),
        _mean(many["points"]),
        max(many["regrets"]),
        _mean(float(regret > TOLERANCE * (1 + 1e-6)) for regret in many["regrets"]),
        0.0,
        None,
        None,
        tuple(many["windows"]),
        tuple(many["curve"]),
    )


def _tables(rows: Sequence[Row]) -> dict[str, Any]:
    """Return statistics by family, by demand scale and over all fleets, per method."""
    return {
        "families": _by(rows, lambda row: row.family),
        "scales": _by(rows, lambda row: f"{row.scale:g}x"),
        "all": _by(rows, lambda row: "all").get("all", {}),
    }


def _by(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, Any]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return {name: _methods(groups[name]) for name in sorted(groups)}


def _methods(rows: Sequence[Row]) -> dict[str, Any]:
    windows: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        windows[row.fleet][row.method] = row.window
    random_mean = _mean(costs[RANDOM] for costs in windows.values())
    result = {}
    for name in NAMES:
        own = [row for row in rows if row.method == name]
        best = [min(cost for other, cost in windows[row.fleet].items() if other != name) for row in own]
        against = [row.window / other for row, other in zip(own, best, strict=True)]
        timed = [row for row in own if row.decision_s_mean is not None]
        result[name] = {
            "fleets": len(own),
            "window_mean": _mean(row.window for row in own),
            "window_ci95": _interval(own),
            "billed_mean": _mean(row.billed for row in own),
            "points_mean": _mean(row.points for row in own),
            "rounds_mean": _mean(row.rounds for row in own),
            "share_of_all_points": _mean(row.window / row.everything for row in own),
            "to_random": _mean(row.window for row in own) / random_mean,
            "to_random_mean_of_ratios": _mean(row.window / windows[row.fleet][RANDOM] for row in own),
            "to_best_other": _mean(against),
            "to_best_other_of_means": _mean(row.window for row in own) / _mean(best),
            "to_best_other_max": max(against),
            "to_limit_median": statistics.median(row.window / row.lower for row in own),
            "to_limit_p90": _quantile([row.window / row.lower for row in own], 0.9),
            "to_best_set_median": statistics.median(row.window / row.found for row in own),
            "to_best_set_p90": _quantile([row.window / row.found for row in own], 0.9),
            "limit_exact_share": _mean(float(row.found <= row.lower * (1 + 1e-9)) for row in own),
            "regret_max": max(row.regret for row in own),
            "wrong_share": _mean(row.wrong for row in own),
            "undetermined_share": _mean(row.undetermined for row in own),
            "decision_s_mean": _mean(row.decision_s_mean or 0.0 for row in timed) if timed else None,
            "decision_s_max": max((row.decision_s_max or 0.0 for row in timed), default=None),
        }
    return result


def _interval(rows: Sequence[Row]) -> list[float] | None:
    """Return the bootstrap interval over orders of the mean over fleets, None where nothing is random."""
    if not rows or not rows[0].orders:
        return None
    means = [_mean(column) for column in zip(*(row.orders for row in rows), strict=True)]
    rng = random.Random("bootstrap")  # noqa: S311
    resampled = sorted(_mean(rng.choices(means, k=len(means))) for _ in range(RESAMPLES))
    return [resampled[int(0.025 * RESAMPLES)], resampled[int(0.975 * RESAMPLES) - 1]]


def _losses(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """List the fleets on which some other method was cheaper, worst first."""
    cheapest: dict[str, Row] = {}
    for row in rows:
        if row.method != OURS and (row.fleet not in cheapest or row.window < cheapest[row.fleet].window):
            cheapest[row.fleet] = row
    losses = [
        {
            "fleet": row.fleet,
            "scale": row.scale,
            "ratio": row.window / cheapest[row.fleet].window,
            "method": cheapest[row.fleet].method,
            "share": row.window / row.everything,
            "to_limit": row.window / row.lower,
        }
        for row in rows
        if row.method == OURS and row.window > cheapest[row.fleet].window * (1 + 1e-9)
    ]
    return sorted(losses, key=lambda loss: -loss["ratio"])


def _paper(setting: Setting, store: Store) -> list[dict[str, Any]]:
    rows = []
    for (name, fleet), (scale, published) in zip(
        fleets_of(setting, "paper").items(), PUBLISHED.items(), strict=True
    ):
        ours = store[Task("paper", name, "play", OURS, 0).key(setting)]
        drawn = store[Task("paper", name, "orders", RANDOM, 0).key(setting)]
        limit = store[Task("paper", name, "limit", "", 0).key(setting)]
        others = {
            method: store[Task("paper", name, "play", method, 0).key(setting)]["window"]
            for method in STEPWISE
        }
        rows.append(
            {
                "scale": scale,
                "window": ours["window"],
                "regret": ours["regret"],
                "state": ours["state"],
                "plan": ours["plan"],
                "oracle": ours["oracle"],
                "rounds": ours["rounds"],
                "random_mean": _mean(drawn["windows"]),
                "everything": fleet.spec.measurement.duration_s
                * sum(len(c.loads) * fleet.spec.config(c.config).gpus for c in fleet.spec.candidates),
                "limit": limit["lower"],
                "others": others,
                "published_window": published.fleetsieve_window,
                "published_below_random": published.below_random,
                "published_oracle": published.oracle,
                "published_sparse_loss_rps": published.sparse_loss_rps,
            }
        )
    return rows


def _told(setting: Setting, store: Store, real: Sequence[Row]) -> dict[str, Any]:
    """Compare FleetSieve that believes the truth, and as it is on the same fleets, to the clairvoyant."""
    fleets = fleets_of(setting, "real")
    rows = [row for row in real if row.method == OURS and len(fleets[row.fleet].spec.workloads) <= TOLD_UPTO]
    told = [store[Task("real", row.fleet, "play", TOLD, 0).key(setting)]["window"] for row in rows]
    summary: dict[str, Any] = {"fleets": len(rows)}
    for name, windows in (("told", told), ("as_it_is", [row.window for row in rows])):
        ratios = [window / row.lower for window, row in zip(windows, rows, strict=True)]
        if ratios:
            summary[name] = {"median": statistics.median(ratios), "p90": _quantile(ratios, 0.9)}
    return summary


def _rooms(setting: Setting, store: Store) -> dict[str, Any]:
    """Return mean hours and window GPU-seconds per method and number of profiling GPUs."""
    found: dict[str, dict[int, list[dict[str, float]]]] = {
        name: {room: [] for room in ROOMS} for name in NAMES
    }
    for name, fleet in fleets_of(setting, "real").items():
        if len(fleet.spec.workloads) <= ROOMS_UPTO:
            for method in NAMES:
                result = store[Task("real", name, "rooms", method, 0).key(setting)]
                for room in ROOMS:
                    found[method][room].append(result[str(room)])
    return {
        method: {
            str(room): {key: _mean(one[key] for one in plays) for key in ("hours", "window", "rounds")}
            for room, plays in rooms.items()
        }
        for method, rooms in found.items()
    }


def _noise(setting: Setting, store: Store) -> dict[str, Any]:
    """Return, per method, what its certificates are worth when points show recorded runs."""
    result = {}
    names = [
        name for name, fleet in fleets_of(setting, "real").items() if len(fleet.spec.workloads) <= NOISE_UPTO
    ]
    for method in NAMES:
        plays = [store[Task("real", name, "noise", method, 0).key(setting)] for name in names]
        states = [state for play in plays for state in play["states"]]
        wrong = [bad for play in plays for bad in play["wrong"]]
        certified = [state != "undetermined" for state in states]
        result[method] = {
            "plays": len(states),
            "certified": sum(certified),
            "wrong": sum(wrong),
            "wrong_share_of_certified": sum(wrong) / max(1, sum(certified)),
            "wrong_share_of_plays": sum(wrong) / len(states),
            "regret_mean": _mean(regret for play in plays for regret in play["regrets"]),
            "window_mean": _mean(window for play in plays for window in play["windows"]),
        }
    return result


def _growth(setting: Setting, store: Store) -> list[dict[str, Any]]:
    rows = []
    for name, count in zip(fleets_of(setting, "growth"), setting.growth, strict=True):
        for method in NAMES:
            one = store[Task("growth", name, "play", method, 0).key(setting)]
            keys = ("window", "rounds", "hours", "decision_s_mean", "decision_s_max", "state", "regret")
            rows.append({"workloads": count, "method": method, **{key: one[key] for key in keys}})
    return rows


def _targets(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Hold the results to what the evaluation must show."""
    ours, families = summary["real"]["all"][OURS], summary["real"]["families"]
    noise, paper = summary["noise"][OURS], summary["paper"]
    best = [methods[OURS]["to_best_other"] for methods in families.values()]
    rows = [
        ("window GPU-seconds against uniform random, mean over all recorded fleets", ours["to_random"], 0.22),
        (
            "against the best other method of each fleet in hindsight, mean of the worst family",
            max(best),
            1.05,
        ),
        ("the same, mean over families", _mean(best), 0.75),
        ("against the clairvoyant's proved bound, median", ours["to_limit_median"], 1.5),
        ("against the clairvoyant's proved bound, 90th percentile", ours["to_limit_p90"], 2.5),
        ("regret at the stop without noise, worst fleet", ours["regret_max"], TOLERANCE * (1 + 1e-6)),
        (
            "wrong certificates under recorded noise, share of all certificates",
            noise["wrong_share_of_certified"],
            0.05,
        ),
        ("regret on the paper's grid, worst of three demands", max(row["regret"] for row in paper), 1e-9),
        ("window GPU-seconds on the paper's grid at 1.0x", paper[1]["window"], 7200.0),
        *(
            (f"CPU seconds of a decision, {row['size']}", row["seconds"], row["allowed"])
            for row in summary["decision_time"]
        ),
    ]
    return [
        {"what": what, "value": value, "target": target, "met": value <= target}
        for what, value, target in rows
    ]


def _mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    return [_mean(column) for column in zip(*curves, strict=True)]


def _mean(values: Iterable[float]) -> float:
    rows = list(values)
    return sum(rows) / len(rows)


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
