"""Bounds by round as a PNG, for chat and wherever else SVG is not shown.

Drawn with matplotlib, which the extra ``png`` installs; it is imported only when a picture is made, and needs
no display.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fleetsieve_airflow.errors import FleetsieveError
from fleetsieve_airflow.evidence import Decision
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import report_words as words
from fleetsieve_airflow.reporting.charts_svg import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PALE, cut
from fleetsieve_airflow.reporting.report_verdict import verdict_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE_INCHES: Final = (9.6, 4.8)
_DPI: Final = 100
_TITLE_WIDTH: Final = 88


def bounds_png(spec: FleetSpec, rounds: Sequence[Decision]) -> bytes:
    """Draw the bounds of both plans by round under the verdict, 960 x 480 pixels.

    :param rounds: the campaign's decisions so far, at least one.
    :return: the PNG file.
    :raises FleetsieveError: matplotlib is not installed, or there is no round to draw yet.
    """
    if not rounds:
        raise FleetsieveError(
            f"Fleet {spec.fleet!r}: there is no round to draw yet.", hint="Draw after the first one."
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FleetsieveError(
            "A PNG needs matplotlib, which is not installed.", hint="Install fleetsieve-airflow[png]."
        ) from error
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, spec, words.bounds_series(spec, rounds))
    title = f"{spec.fleet}: {verdict_text(spec, rounds).headline}"
    lines = textwrap.wrap(cut(title, 2 * _TITLE_WIDTH), _TITLE_WIDTH)
    # Names are shown as they are: a dollar sign in one is no formula.
    figure.suptitle(
        "\n".join(lines),
        x=0.01,
        ha="left",
        y=0.985,
        fontsize=11,
        fontweight="bold",
        color=INK,
        parse_math=False,
    )
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw(axes: Axes, spec: FleetSpec, series: words.BoundsSeries) -> None:
    edges = [slot - 0.5 for slot in range(len(series.rounds) + 1)]
    scale = 1.0 if words.counts_need(spec) else 100.0
    low, high = ([scale * value for value in values] for values in (series.conservative, series.optimistic))
    axes.stairs(high, edges, baseline=low, fill=True, color=PALE, alpha=0.7)
    axes.stairs(low, edges, baseline=None, color=BLUE, linewidth=2.5, label="conservative plan")
    axes.stairs(
        high, edges, baseline=None, color=ORANGE, linewidth=2.5, linestyle="--", label="optimistic plan"
    )
    axes.axhline(scale * series.limit, color=MUTED, linestyle=":", label=series.limit_name, zorder=1)
    if series.decided:
        axes.plot(series.last, low[-1], "o", color=GREEN, markersize=9, label="decided", zorder=3)
        text = words.plan_value_text(spec, series.conservative[-1])
        below = low[-1] > 0.85 * scale * series.limit
        axes.annotate(
            text,
            (series.last, low[-1]),
            xytext=(0, -20 if below else 10),
            textcoords="offset points",
            ha="center",
            color=GREEN,
            fontweight="bold",
        )
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0.0, 1.06 * (words.beyond(spec) if words.counts_need(spec) else scale))
    axes.set_ylabel(series.title + ("" if words.counts_need(spec) else " [%]"))
    axes.set_xlabel("round")
    axes.locator_params(axis="y", integer=True)
    every = -(-len(series.rounds) // 20)
    shown = list(range(series.last, -1, -every))
    axes.set_xticks(shown, [str(series.rounds[slot]) for slot in shown])
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # Outside the plot, where no bound can run through it.
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, frameon=False, borderaxespad=0.2)
