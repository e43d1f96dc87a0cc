"""Write RESULTS.md from the summary: every number in it comes from one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from textwrap import fill
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
    return _prose(
        "# What measuring only what can change the decision saves",
        f"""Written by `make benchmark`; nothing here is edited by hand. {counts["real"]} fleets of 2 to 20
        workloads were built from {setting["grids"]} recorded grids, {counts["synthetic"]} from made-up shapes
        and {counts["paper"]} from the paper's grid, each with a known truth. Every method sees the same
        evidence, the same bounds and the same stop rule (regret at most 0.01 of demand); they differ in what
        they measure next. Costs are window GPU-seconds, as the paper counts; random orders are means over
        {setting["orders"]} orders of each fleet. Grids `{setting["grids_sha256_12"]}`, code
        `{setting["code_sha256_12"]}`.""",
    )


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
    return _prose("## What it must show", _table(("what", "value", "target", "met"), rows))


def _families(summary: dict[str, Any], group: str, title: str) -> str:
    tables = summary[group]
    if not tables["all"]:
        return f"## {title}\n\nNone were played."
    columns = {**tables["families"], "all": tables["all"]}
    methods = list(tables["all"])
    head = ("method", *columns)
    pictures = group == "real"

    def table(show: Callable[[dict[str, Any]], str]) -> str:
        rows = [(_bold(method), *(show(column[method]) for column in columns.values())) for method in methods]
        return _table(head, rows)

    return _prose(
        f"## {title}",
        "Mean window GPU-seconds, uniform random = 1.",
        "![Savings by family](figures/savings.svg)" if pictures else "",
        table(lambda one: _number(one["to_random"])),
        """Against the cheapest other method of each fleet, known in hindsight: mean of the ratios. 1 is as
        good as a method chosen by an oracle.""",
        table(lambda one: _number(one["to_best_other"])),
        f"""Against the clairvoyant's proved bound, median / 90th percentile. The bound is exact for
        {tables["all"][OURS]["limit_exact_share"]:.0%} of the fleets.""",
        "![Cost against the clairvoyant](figures/clairvoyant.svg)" if pictures else "",
        table(lambda one: f"{_number(one['to_limit_median'])} / {_number(one['to_limit_p90'])}"),
        _told(summary["told"]) if pictures else "",
        "All fleets together, points one after the other.",
        _absolute(tables["all"]),
    )


def _told(told: dict[str, Any]) -> str:
    if not told["fleets"]:
        return ""
    right, usual = ([_number(told[key][of]) for of in ("median", "p90")] for key in ("told", "as_it_is"))
    return f"""Where the difference comes from: {told["fleets"]} of these fleets were also played with beliefs
    that are the truth (certificates still rest on measurements). Then FleetSieve pays {" / ".join(right)} of
    the bound, as it is {" / ".join(usual)}. The first is the price of its rule of choice, what is beyond it
    the price of not knowing the answers before they are paid for."""


def _absolute(methods: dict[str, Any]) -> str:
    rows = []
    for name, one in methods.items():
        interval = one["window_ci95"]
        spread = f" ({_number(interval[0])} to {_number(interval[1])})" if interval else ""
        timed = one["decision_s_mean"] is not None
        rows.append(
            (
                _bold(name),
                _number(one["window_mean"]) + spread,
                _number(one["billed_mean"]),
                f"{one['share_of_all_points']:.1%}",
                f"{one['rounds_mean']:.1f}",
                _number(one["regret_max"]),
                f"{one['wrong_share']:.1%}",
                f"{one['undetermined_share']:.1%}",
                f"{one['decision_s_mean']:.3f} / {one['decision_s_max']:.2f}" if timed else "",
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
    return _table(head, rows)


def _scales(summary: dict[str, Any]) -> str:
    scales = summary["real"]["scales"]
    keys = ("to_random", "to_best_other", "to_limit_median")
    rows = [
        (_bold(m), *(" · ".join(_number(scale[m][key]) for key in keys) for scale in scales.values()))
        for m in summary["real"]["all"]
    ]
    return _prose(
        "## Recorded grids, by demand",
        """Against uniform random · against the best other method · median against the clairvoyant. 1.0x is
        exactly what the best plan serves; at 1.3x the demand cannot be met, and that nothing better exists
        has to be proved.""",
        _table(("method", *(f"demand {s}" for s in scales)), rows),
        "![Regret of the plan so far](figures/anytime.svg)",
    )


def _losses(summary: dict[str, Any]) -> str:
    losses = summary["losses"]
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
    head = (
        "fleet",
        "demand",
        "FleetSieve / cheapest other",
        "which",
        "of all points",
        "against the clairvoyant",
    )
    more = f" The worst {LISTED}:" if len(losses) > LISTED else ""
    return _prose(
        "## Where FleetSieve loses",
        f"""On {len(losses)} of {summary["setting"]["fleets"]["real"]} recorded fleets some other method was
        cheaper.{more}""",
        _table(head, rows) if rows else "",
    )


def _paper(summary: dict[str, Any]) -> str:
    rows = []
    for row in summary["paper"]:
        window, below = row["published_window"], row["published_below_random"]
        rows.append(
            (
                f"{row['scale']:g}x",
                row["plan"],
                _same(row),
                row["state"].replace("_", " "),
                f"{row['window']:,.0f}",
                "" if window is None else f"{window:,.0f}",
                f"{row['random_mean']:,.0f}",
                f"{1 - row['window'] / row['random_mean']:.1%}",
                "" if below is None else f"{below:.1%}",
                f"{row['limit']:,.0f}",
                f"{row['everything']:,.0f}",
                f"{row['published_sparse_loss_rps']:g}",
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
        "sparse rule loses, req/s (published)",
    )
    return _prose(
        "## The paper's grid",
        f"""The published oracle plan at 1.0x is {summary["paper"][1]["published_oracle"]}. The grid agrees
        with every published decision, but most of its points are reconstructed: costs compare only
        roughly.""",
        _table(head, rows),
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
    return _prose(
        "## Hours with several GPUs for profiling",
        f"""Mean wall-clock hours (the longest job of each round, one after the other) · window GPU-seconds,
        recorded fleets of up to {summary["setting"]["rooms_upto_workloads"]} workloads. Fixed orders fill the
        GPUs and share server starts; methods that learn take one point of a server per round.""",
        _table(("method", *(f"{r} GPUs" for r in ROOMS)), rows),
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
    head = (
        "method",
        "certified",
        "wrong",
        "wrong of certified",
        "wrong of all",
        "mean regret",
        "window GPU-s",
    )
    return _prose(
        "## Recorded noise",
        f"""Every point shows one of its cell's recorded runs, a repeat another one; a cell without further
        runs cannot be repeated, so a close call there stays open and the fleet may end undetermined.
        Certificates at {setting["confidence"]:.0%} confidence, shared among their bounds, with a declared
        run-to-run spread of {setting["run_to_run_cv"]:.1%} (pooled over all cells with several runs), up to
        {setting["repeats"]} repeats, {setting["draws"]} draws of each fleet of up to
        {summary["setting"]["noise_upto_workloads"]} workloads. Truth is the median of a cell; a certificate
        is wrong when its plan loses more than the tolerance. At 1.0x and 1.3x that is hardly provable: rates
        that are known to several per cent cannot tell plans apart to one.""",
        _table(head, rows),
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
    return _prose(
        "## Growth",
        f"""Window GPU-seconds to the stop · CPU seconds of the slowest decision. {GROWTH_GPUS} GPUs and
        {GROWTH_ROOM} for profiling per workload, demand 1.0x.""",
        "![Growth](figures/growth.svg)",
        _table(("method", *(f"{n} workloads" for n in counts)), rows),
    )


def _decision_time(summary: dict[str, Any]) -> str:
    rows = [
        (row["size"], row["measurements"], f"{row['seconds']:.2f}", f"{row['allowed']:g}", row["points"])
        for row in summary["decision_time"]
    ]
    head = ("campaign, half-way", "measurements", "CPU s", "allowed s", "points chosen")
    return _prose("## Decision time", _table(head, rows))


def _method_notes() -> str:
    return """## How it was done

- Truth: the median of each cell's runs, made non-decreasing along the loads. SLO: a multiple (1.25 to 5) of
  the grid's best p99 E2E latency. Demands: drawn, then scaled so that the best plan serves exactly 1.0x.
- All points stops too, as soon as the decision is settled; "of all points" is against measuring everything.
- Uniform random is stopped by bisection over its order, which is exact where more evidence never unsettles a
  decision.
- The clairvoyant knows every answer and buys the cheapest proof. Its bound holds for any set of points that
  the stop rule accepts; how it is proved is said in `benchmarks/clairvoyant.py`.
- Decision times are CPU seconds of one core and include the stop test."""


def _prose(*parts: str) -> str:
    """Join paragraphs, each line-broken anew, and tables as they are."""
    return "\n\n".join(
        part
        if part.startswith(("|", "#", "!"))
        else fill(" ".join(part.split()), 110, break_on_hyphens=False)
        for part in parts
        if part
    )


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
