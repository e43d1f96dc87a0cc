"""Write RESULTS.md from the summary: every number in it comes from one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.matrix import OURS
from benchmarks.tasks import GROWTH_GPUS, GROWTH_ROOM, ROOMS

#: Most losses that are listed one by one.
LISTED = 15


def results_text(summary: dict[str, Any]) -> str:
    """Return the whole document."""
    parts = [
        _head(summary),
        _targets(summary),
        _families(summary, "real", "Recorded grids, by hardware and engine"),
        _scales(summary),
        _families(summary, "synthetic", "Made-up shapes, open-loop ladders"),
        _losses(summary),
        _paper(summary),
        _rooms(summary),
        _noise(summary),
        _growth(summary),
        _decision_time(summary),
        _method_notes(),
    ]
    return "\n\n".join(parts) + "\n"


def _head(summary: dict[str, Any]) -> str:
    setting = summary["setting"]
    counts = setting["fleets"]
    return f"""# What measuring only what can change the decision saves

Written by `make benchmark`; nothing here is edited by hand. {counts["real"]} fleets of 2 to 20 workloads were built from
{setting["grids"]} recorded grids, {counts["synthetic"]} from made-up shapes, 3 from the paper's grid, each with a known truth. Every method
sees the same evidence, the same bounds and the same stop rule (regret at most 0.01 of demand); they differ in what they measure
next. Costs are window GPU-seconds, as the paper counts; random orders are means over {setting["orders"]} orders of each fleet.
Grids `{setting["grids_sha256_12"]}`, code `{setting["code_sha256_12"]}`."""


def _targets(summary: dict[str, Any]) -> str:
    rows = [
        (
            row["what"],
            _number(row["value"]),
            f"at most {_number(row['target'])}",
            "yes" if row["met"] else "**no**",
        )
        for row in summary["targets"]
    ]
    return "## What it must show\n\n" + _table(("what", "value", "target", "met"), rows)


def _families(summary: dict[str, Any], group: str, title: str) -> str:
    tables = summary[group]
    families = list(tables["families"])
    methods = list(tables["all"])

    def row(method: str, key: str) -> list[str]:
        return [_number(tables["families"][family][method][key]) for family in families]

    relative = [(_bold(m), *row(m, "to_random"), _number(tables["all"][m]["to_random"])) for m in methods]
    against = [
        (_bold(m), *row(m, "to_best_other"), _number(tables["all"][m]["to_best_other"])) for m in methods
    ]
    limit = [
        (
            _bold(m),
            *(
                f"{_number(tables['families'][f][m]['to_limit_median'])} / {_number(tables['families'][f][m]['to_limit_p90'])}"
                for f in families
            ),
            f"{_number(tables['all'][m]['to_limit_median'])} / {_number(tables['all'][m]['to_limit_p90'])}",
        )
        for m in methods
    ]
    exact = tables["all"][OURS]["limit_exact_share"]
    figure = "\n\n![Savings by family](figures/savings.svg)" if group == "real" else ""
    clairvoyant = "\n\n![Cost against the clairvoyant](figures/clairvoyant.svg)" if group == "real" else ""
    return (
        f"## {title}\n\nMean window GPU-seconds, uniform random = 1.{figure}\n\n{_table(('method', *families, 'all'), relative)}\n\n"
        f"Against the cheapest other method of each fleet, known in hindsight; mean of the ratios (1 = as good as a method chosen by an oracle).\n\n"
        f"{_table(('method', *families, 'all'), against)}\n\n"
        f"Against the clairvoyant's proved bound, median / 90th percentile; the bound is exact for {exact:.0%} of the fleets.{clairvoyant}\n\n"
        f"{_table(('method', *families, 'all'), limit)}\n\n{_absolute(tables['all'])}"
    )


def _absolute(methods: dict[str, Any]) -> str:
    rows = []
    for name, one in methods.items():
        interval = one["window_ci95"]
        rows.append(
            (
                _bold(name),
                _number(one["window_mean"])
                + (f" ({_number(interval[0])} to {_number(interval[1])})" if interval else ""),
                _number(one["billed_mean"]),
                f"{one['share_of_all_points']:.1%}",
                f"{one['rounds_mean']:.1f}",
                _number(one["regret_max"]),
                f"{one['wrong_share']:.1%}",
                f"{one['undetermined_share']:.1%}",
                ""
                if one["decision_s_mean"] is None
                else f"{one['decision_s_mean']:.3f} / {one['decision_s_max']:.2f}",
            )
        )
    head = (
        "method",
        "window GPU-s (95 %)",
        "billed GPU-s",
        "of all points",
        "rounds",
        "worst regret",
        "wrong",
        "undetermined",
        "decision CPU s, mean / worst",
    )
    return "All fleets together, points one after the other.\n\n" + _table(head, rows)


def _scales(summary: dict[str, Any]) -> str:
    scales = summary["real"]["scales"]
    rows = [
        (
            _bold(m),
            *(
                f"{_number(scales[s][m]['to_random'])} · {_number(scales[s][m]['to_best_other'])} · {_number(scales[s][m]['to_limit_median'])}"
                for s in scales
            ),
        )
        for m in summary["real"]["all"]
    ]
    return (
        "## Recorded grids, by demand\n\nAgainst uniform random · against the best other method · median against the clairvoyant. 1.0x is exactly what "
        "the best plan serves; at 1.3x the demand cannot be met, and that nothing better exists has to be proved too.\n\n"
        + _table(("method", *(f"demand {s}" for s in scales)), rows)
        + "\n\n![Regret of the plan so far](figures/anytime.svg)"
    )


def _losses(summary: dict[str, Any]) -> str:
    losses = summary["losses"]
    total = summary["setting"]["fleets"]["real"]
    if not losses:
        return "## Where FleetSieve loses\n\nOn no recorded fleet was another method cheaper."
    rows = [
        (
            loss["fleet"],
            f"{loss['scale']:g}x",
            _number(loss["ratio"]),
            loss["method"],
            f"{loss['share']:.1%}",
            _number(loss["to_limit"]),
        )
        for loss in losses[:LISTED]
    ]
    more = f" The worst {LISTED}:" if len(losses) > LISTED else ""
    return (
        f"## Where FleetSieve loses\n\nOn {len(losses)} of {total} recorded fleets some other method was cheaper.{more}\n\n"
        + _table(
            (
                "fleet",
                "demand",
                "FleetSieve / cheapest other",
                "which",
                "of all points",
                "against the clairvoyant",
            ),
            rows,
        )
    )


def _paper(summary: dict[str, Any]) -> str:
    rows = []
    for row in summary["paper"]:
        below = f"{1 - row['window'] / row['random_mean']:.1%}"
        published = "" if row["published_window"] is None else f"{row['published_window']:,.0f}"
        published_below = (
            "" if row["published_below_random"] is None else f"{row['published_below_random']:.1%}"
        )
        rows.append(
            (
                f"{row['scale']:g}x",
                row["plan"],
                _same(row),
                row["state"].replace("_", " "),
                f"{row['window']:,.0f}",
                published,
                f"{row['random_mean']:,.0f}",
                below,
                published_below,
                f"{row['limit']:,.0f}",
                f"{row['everything']:,.0f}",
            )
        )
    head = (
        "demand",
        "plan",
        "the oracle's",
        "state",
        "window GPU-s",
        "published",
        "uniform random",
        "below random",
        "published",
        "clairvoyant",
        "all points",
    )
    oracle = summary["paper"][1]["published_oracle"]
    return (
        f"## The paper's grid\n\nThe published oracle plan at 1.0x is {oracle}. The grid agrees with every published decision, but most of its points are "
        f"reconstructed, so costs compare only roughly.\n\n" + _table(head, rows)
    )


def _same(row: dict[str, Any]) -> str:
    if row["plan"] == row["oracle"]:
        return "the same"
    return f"{'as good' if row['regret'] < 1e-9 else 'better'}: {row['oracle']}"


def _rooms(summary: dict[str, Any]) -> str:
    rows = [
        (
            _bold(m),
            *(f"{_number(rooms[str(r)]['hours'])} h · {_number(rooms[str(r)]['window'])}" for r in ROOMS),
        )
        for m, rooms in summary["rooms"].items()
    ]
    upto = summary["setting"]["rooms_upto_workloads"]
    return (
        f"## Hours with several GPUs for profiling\n\nMean wall-clock hours (the longest job of each round, one after the other) · window GPU-seconds, recorded "
        f"fleets of up to {upto} workloads. Fixed orders fill the GPUs and share server starts; methods that learn take one point of a server per round.\n\n"
        + _table(("method", *(f"{r} GPUs" for r in ROOMS)), rows)
    )


def _noise(summary: dict[str, Any]) -> str:
    setting = summary["setting"]["noise"]
    rows = [
        (
            _bold(m),
            f"{one['certified']} of {one['plays']}",
            f"{one['wrong']}",
            f"{one['wrong_share_of_certified']:.1%}",
            f"{one['wrong_share_of_plays']:.1%}",
            _number(one["regret_mean"]),
            _number(one["window_mean"]),
        )
        for m, one in summary["noise"].items()
    ]
    return (
        f"## Recorded noise\n\nEvery point shows one of its cell's recorded runs, a repeat another one; a cell without further runs cannot be repeated. Verdicts at "
        f"{setting['confidence']:.0%} confidence with a run-to-run spread of {setting['run_to_run_cv']:.1%} (pooled over all cells with several runs), up to {setting['repeats']} "
        f"repeats, {setting['draws']} draws of each fleet of up to {summary['setting']['noise_upto_workloads']} workloads. Truth is the median of a cell; a certificate is wrong when its "
        "plan loses more than the tolerance.\n\n"
        + _table(
            (
                "method",
                "certified",
                "wrong",
                "wrong of certified",
                "wrong of all",
                "mean regret",
                "window GPU-s",
            ),
            rows,
        )
    )


def _growth(summary: dict[str, Any]) -> str:
    found = {(row["method"], row["workloads"]): row for row in summary["growth"]}
    methods = list(dict.fromkeys(row["method"] for row in summary["growth"]))
    counts = list(dict.fromkeys(row["workloads"] for row in summary["growth"]))
    rows = [
        (
            _bold(m),
            *(f"{_number(found[m, n]['window'])} · {found[m, n]['decision_s_max']:.2f} s" for n in counts),
        )
        for m in methods
    ]
    return (
        f"## Growth\n\nWindow GPU-seconds to the stop · CPU seconds of the slowest decision. {GROWTH_GPUS} GPUs and {GROWTH_ROOM} for profiling per workload, demand 1.0x.\n\n"
        "![Growth](figures/growth.svg)\n\n" + _table(("method", *(f"{n} workloads" for n in counts)), rows)
    )


def _decision_time(summary: dict[str, Any]) -> str:
    rows = [
        (
            row["size"],
            row["measurements"],
            f"{row['seconds']:.2f}",
            f"{row['allowed']:g}",
            row["state"],
            row["points"],
        )
        for row in summary["decision_time"]
    ]
    head = ("campaign, half-way", "measurements", "CPU s", "allowed s", "state", "points chosen")
    return "## Decision time\n\n" + _table(head, rows)


def _method_notes() -> str:
    return """## How it was done

- Truth: the median of each cell's runs, made non-decreasing along the loads. SLO: a multiple (1.25 to 5) of the grid's best p99
  E2E latency. Demands: drawn, then scaled so that the best plan serves exactly 1.0x.
- All points stops too, as soon as the decision is settled; "of all points" is against measuring everything.
- Uniform random is stopped by bisection over its order, which is exact where more evidence never unsettles a decision.
- The clairvoyant knows every answer and buys the cheapest proof. Its bound holds for any set of points that the stop rule
  accepts; how it is proved is said in `benchmarks/clairvoyant.py`.
- Decision times are CPU seconds of one core and include the stop test."""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(["---"] + ["---:"] * (len(head) - 1)) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _bold(method: str) -> str:
    return f"**{method}**" if method == OURS else method


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
