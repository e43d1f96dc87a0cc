"""Draw the figures of RESULTS.md from the summary alone, as SVG that is the same for the same numbers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.matrix import OURS

#: One colour per method wherever it appears; ours is dark, sweeps and random orders are grey.
COLOURS = {
    OURS: "#0b3d91",
    "all points": "#bbbbbb",
    "uniform random": "#888888",
    "random, undetermined only": "#5f5f5f",
    "coverage grid": "#c9a227",
    "largest interval": "#e07b39",
    "cheapest bisection": "#2a9d5c",
    "independent best config": "#8ac926",
    "successive halving": "#a05195",
    "Bayesian optimisation": "#d45087",
    "feasible-set bandit": "#d00000",
}


def draw_figures(summary: dict[str, Any], folder: Path) -> None:
    """Write the figures; without matplotlib (the extra ``benchmark``) say so and write none."""
    try:
        import matplotlib as mpl
    except ImportError:
        warnings.warn("matplotlib is not installed: no figures; install the extra 'benchmark'.", stacklevel=2)
        return
    mpl.use("svg")
    mpl.rcParams.update(
        {"svg.hashsalt": "fleetsieve", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False}
    )
    mpl.rcParams.update({"axes.spines.right": False, "legend.frameon": False, "axes.axisbelow": True})
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (
        ("savings", _savings),
        ("clairvoyant", _clairvoyant),
        ("anytime", _anytime),
        ("growth", _growth),
    ):
        figure = draw(summary)
        figure.savefig(folder / f"{name}.svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})


def _figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (8.5, 3.8)) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns)


def _savings(summary: dict[str, Any]) -> Any:
    figure, axes = _figure()
    families = {
        **summary["real"]["families"],
        **{f"{k}*": v for k, v in summary["synthetic"]["families"].items()},
    }
    methods = [name for name in COLOURS if name not in ("all points", "uniform random")]
    width = 0.85 / len(methods)
    for k, method in enumerate(methods):
        at = [x + (k - (len(methods) - 1) / 2) * width for x in range(len(families))]
        axes.bar(
            at,
            [family[method]["to_random"] for family in families.values()],
            width,
            color=COLOURS[method],
            label=method,
        )
    axes.axhline(1.0, color=COLOURS["uniform random"], linewidth=1.0, linestyle="--")
    axes.set_xticks(range(len(families)), [name.replace(" ", "\n", 1) for name in families])
    axes.set_ylabel("window GPU-seconds, uniform random = 1")
    axes.grid(axis="y", color="#eeeeee")
    figure.legend(loc="outside upper center", ncols=4)
    return figure


def _clairvoyant(summary: dict[str, Any]) -> Any:
    figure, axes = _figure()
    for method, colour in COLOURS.items():
        ratios: Sequence[float] = summary["limit_ratios"][method]
        shares = [(k + 1) / len(ratios) for k in range(len(ratios))]
        axes.step(
            ratios, shares, where="post", color=colour, label=method, linewidth=2.4 if method == OURS else 1.2
        )
    axes.set_xscale("log")
    axes.set_xlim(left=1.0)
    axes.set_ylim(0.0, 1.02)
    axes.set_xlabel("window GPU-seconds, clairvoyant's proved bound = 1")
    axes.set_ylabel("share of fleets within")
    axes.grid(color="#eeeeee", which="both")
    figure.legend(loc="outside right center")
    return figure


def _anytime(summary: dict[str, Any]) -> Any:
    figure, axes = _figure()
    for method, colour in COLOURS.items():
        curve = summary["curves"][method]
        shares = [100.0 * k / (len(curve) - 1) for k in range(len(curve))]
        axes.plot(shares, curve, color=colour, label=method, linewidth=2.4 if method == OURS else 1.2)
    axes.set_xlabel("GPU-seconds spent, % of measuring every point")
    axes.set_ylabel("true regret of the plan so far, fulfilment")
    axes.set_ylim(bottom=0.0)
    axes.grid(color="#eeeeee")
    figure.legend(loc="outside right center")
    return figure


def _growth(summary: dict[str, Any]) -> Any:
    figure, (left, right) = _figure(columns=2)
    for method, colour in COLOURS.items():
        rows = [row for row in summary["growth"] if row["method"] == method]
        counts = [row["workloads"] for row in rows]
        width = 2.4 if method == OURS else 1.2
        left.plot(
            counts, [row["window"] for row in rows], "o-", ms=3, color=colour, label=method, linewidth=width
        )
        right.plot(
            counts,
            [max(row["decision_s_max"], 1e-4) for row in rows],
            "o-",
            ms=3,
            color=colour,
            linewidth=width,
        )
    for axes, label in (
        (left, "window GPU-seconds to the stop"),
        (right, "CPU seconds of the slowest round's decision"),
    ):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
        axes.minorticks_off()
        axes.set_xlabel("workloads")
        axes.set_ylabel(label)
        axes.grid(color="#eeeeee")
    figure.legend(loc="outside upper center", ncols=4)
    return figure
