"""The tables of a report as HTML: plans, next points, scenarios, contradicting runs, failures, exclusions.

Every table takes how many rows it may have at most and says in a last row how many it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fleetsieve_airflow.evidence import CapacityInterval, Decision, Evidence, EvidenceItem, Plan, SkippedPoint
from fleetsieve_airflow.records import PERCENTILE_NAMES, FleetSpec, Workload
from fleetsieve_airflow.reporting import report_words as words
from fleetsieve_airflow.reporting.charts_svg import count, cut, escape, name_html, number, percent
from fleetsieve_airflow.reporting.report_grid import verdict_of
from fleetsieve_airflow.reporting.report_verdict import sentence

#: A column: its heading, and whether it holds numbers.
Column = tuple[str, bool]
_LONGEST_TEXT = 400
_MOST_NAMED = 4


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], most: int, what: str) -> str:
    """Return a table of cells that are HTML already.

    :param most: rows at most; one more says how many of ``what`` are left out.
    """
    head = "".join(f'<th scope="col"{_class(numeric)}>{escape(name)}</th>' for name, numeric in columns)
    starts = [f"<td{_class(numeric)}>" for _, numeric in columns]
    lines = [
        "".join(f"{start}{cell}</td>" for start, cell in zip(starts, row, strict=True)) for row in rows[:most]
    ]
    if len(rows) > most:
        left_out = count(len(rows) - most, f"more {what}")
        lines.append(f'<td colspan="{len(columns)}">and {left_out} not shown</td>')
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _class(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def plan_table(
    spec: FleetSpec, decision: Decision, plan: Plan, most: int, *, optimistic: bool = False
) -> str:
    """Return what a plan runs for each workload, what it counts on, and the headroom that leaves."""
    bound = "upper" if optimistic else "lower"
    columns: list[Column] = [
        ("workload", False),
        ("model", False),
        ("SLO", False),
        ("demand [req/s]", True),
        ("engine config", False),
        ("replicas", True),
        ("GPUs", True),
        ("capacity per replica [req/s]", True),
        (f"headroom at the {bound} bound", True),
    ]
    known = {(interval.workload, interval.config): interval for interval in decision.intervals}
    capacities: dict[tuple[str, str], float] = {}
    for item in words.used(plan):
        key = (item.workload, item.config)
        capacities[key] = item.capacity_rps
        if interval := known.get(key):
            end = interval.upper if optimistic else interval.lower
            # A plan counts no replica for more than its workload's demand; headroom is what lies beyond.
            capacities[key] = item.capacity_rps if end.value_rps is None else end.value_rps
    rows = [row for workload in spec.workloads for row in _plan_rows(spec, workload, plan, known, capacities)]
    return table(columns, rows, most, "allocation")


def _plan_rows(
    spec: FleetSpec,
    workload: Workload,
    plan: Plan,
    known: Mapping[tuple[str, str], CapacityInterval],
    capacities: Mapping[tuple[str, str], float],
) -> list[list[str]]:
    mine = [item for item in words.used(plan) if item.workload == workload.name]
    capacity_rps = sum(item.replicas * capacities[item.workload, item.config] for item in mine)
    share = words.headroom(spec, workload, capacity_rps)
    left = f"+{percent(share)}" if share >= words.EXACT else "0 %"
    if share < -words.EXACT:
        left = f"<b>short by {percent(-share)}</b>"
    left = left.replace(" %", "&nbsp;%")
    asked = [
        f"<b>{name_html(workload.name)}</b>",
        name_html(workload.model),
        _slo_html(workload),
        number(workload.demand_rps),
    ]
    if not mine:
        return [[*asked, '<span class="k">no replicas</span>', "0", "0", "", left]]
    rows = []
    for i, item in enumerate(mine):
        interval = known.get((item.workload, item.config))
        capacity = words.interval_text(interval) if interval else number(item.capacity_rps)
        rows.append(
            [
                *(asked if i == 0 else [""] * len(asked)),
                f"<b>{name_html(item.config)}</b>",
                f"<b>{item.replicas:,}</b>",
                f"{item.gpus:,}",
                capacity.replace(" ", "&nbsp;"),
                left if i == 0 else "",
            ]
        )
    return rows


def _slo_html(workload: Workload) -> str:
    """Return the limits of a workload's SLO, each kept on one line with its comma."""
    *heads, last = words.slo_texts(workload.slo)
    return " ".join(
        f'<span class="k">{escape(text)}</span>' for text in [*(f"{head}," for head in heads), last]
    )


def next_points_table(spec: FleetSpec, decision: Decision, most: int) -> str:
    """Return the points that would be measured next, by job, with reason, chance and price."""
    need = words.counts_need(spec)
    unit = {"fewest_gpus": " [GPUs]", "lowest_cost": " [cost per hour]"}.get(spec.decision.objective, "")
    columns: list[Column] = [
        ("point", False),
        ("why", False),
        ("chance to meet the SLO", True),
        (f"expected fall of the regret per 1,000 GPU-seconds{unit}", True),
        ("GPU-seconds billed", True),
        ("job", True),
    ]
    rows = [
        [
            f"<b>{escape(planned.point.label)}</b>",
            escape(cut(sentence(planned.reason), _LONGEST_TEXT)),
            percent(planned.probability_met),
            _fall(planned.expected_fall_per_gpu_second * 1000.0, need),
            number(planned.gpu_seconds_billed),
            str(planned.job + 1),
        ]
        for planned in sorted(decision.points, key=lambda planned: planned.job)
    ]
    return table(columns, rows, most, "point")


def _fall(value: float, fewest: bool) -> str:
    if value <= 0.0:
        return ""  # only the first points of a round are looked ahead for
    return number(round(value, 3)) if fewest else percent(value)


def scenario_table(spec: FleetSpec, decision: Decision) -> str:
    """Return what the conservative plan does when every demand is scaled; the certified scale is marked."""
    columns: list[Column] = [
        ("demand", False),
        ("worst-served workload gets at least", True),
        ("", False),
        ("rate not served [req/s]", True),
    ]
    rows = []
    for item in decision.scenarios:
        planned = ' <b class="k">planned for</b>' if abs(item.demand_scale - 1.0) < words.EXACT else ""
        total = sum(workload.demand_rps for workload in spec.workloads) * item.demand_scale
        rows.append(
            [
                f"{number(item.demand_scale)} x ({number(total)} req/s){planned}",
                percent(item.min_fulfilment),
                _meter(item.min_fulfilment),
                f"up to {number(item.lost_rps)}" if item.lost_rps > words.EXACT else "0",
            ]
        )
    return table(columns, rows, len(rows), "scenario")


def _meter(share: float) -> str:
    width = round(100 * min(max(share, 0.0), 1.0), 1)
    return f'<span class="meter"><span style="width:{width:g}%"></span></span>'


def contradiction_table(
    spec: FleetSpec,
    interval: CapacityInterval,
    evidence: Evidence,
    verdicts: Mapping[str, str],
    run_link: Callable[[EvidenceItem], str],
) -> str:
    """Return the runs that contradict each other side by side, a column per run.

    :param run_link: HTML that names a run, as a link where there is one.
    """
    items = sorted(
        (
            item
            for item in evidence.items
            if (item.measurement.point.workload, item.measurement.point.config)
            == (interval.workload, interval.config)
            and item.measurement.point.load in interval.contradiction
        ),
        key=lambda item: (item.measurement.point.load, item.measurement.point.seed),
    )[:6]
    runs = [item.measurement for item in items]
    names = [name for name in PERCENTILE_NAMES if any(run.percentile(name) is not None for run in runs)]
    limits = {limit.name: limit.limit_s for limit in spec.workload(interval.workload).slo.limits}
    rows = [
        ["verdict", *(f"<b>{escape(verdict_of(run, verdicts))}</b>" for run in runs)],
        ["served [req/s]", *(number(run.served_rps) for run in runs)],
        ["success", *("" if run.success_rate is None else percent(run.success_rate) for run in runs)],
    ]
    for name in names:
        limit = f" (limit {words.seconds(limits[name])})" if name in limits else ""
        values = [run.percentile(name) for run in runs]
        rows.append(
            [
                f"{words.percentile_text(name)}{limit}",
                *("" if v is None else words.seconds(v) for v in values),
            ]
        )
    rows += [
        ["seed", *(str(run.point.seed) for run in runs)],
        ["round", *("reused" if item.reused else str(item.round) for item in items)],
        ["measured at", *(escape(item.measured_at) for item in items)],
        ["run", *(run_link(item) for item in items)],
    ]
    columns: list[Column] = [(interval.label, False)]
    columns += [(words.load_text(run.point.load_kind, run.point.load), True) for run in runs]
    return table(columns, rows, len(rows), "row")


def skipped_table(decision: Decision, most: int) -> str:
    """Return the points that were not measured grouped by reason, the most GPU-seconds first."""
    groups: dict[str, list[SkippedPoint]] = {}
    for point in decision.skipped:
        groups.setdefault(point.reason, []).append(point)
    saved = {reason: sum(point.gpu_seconds_window for point in points) for reason, points in groups.items()}
    columns: list[Column] = [
        ("why", False),
        ("candidates", False),
        ("points", True),
        ("GPU-seconds not spent", True),
    ]
    rows = [
        [
            escape(cut(sentence(reason), _LONGEST_TEXT)),
            escape(_named([f"{point.workload} {point.config}" for point in groups[reason]])),
            f"{len(groups[reason]):,}",
            number(saved[reason]),
        ]
        for reason in sorted(groups, key=lambda reason: (-saved[reason], reason))
    ]
    return table(columns, rows, most, "reason")


def _named(labels: Sequence[str]) -> str:
    """List the first few different labels and count the rest."""
    different = list(dict.fromkeys(labels))
    named = ", ".join(cut(label, 48) for label in different[:_MOST_NAMED])
    left_out = len(different) - _MOST_NAMED
    return f"{named} and {count(left_out, 'more candidate')}" if left_out > 0 else named


def failures_table(evidence: Evidence, most: int) -> str:
    """Return the points that were asked for and not measured, the latest first."""
    columns: list[Column] = [("point", False), ("round", True), ("kind", False), ("what happened", False)]
    rows = [
        [
            escape(failure.label),
            str(failure.round),
            escape(failure.kind.replace("_", " ")),
            escape(cut(failure.message, _LONGEST_TEXT)),
        ]
        for failure in reversed(evidence.failures)
    ]
    return table(columns, rows, most, "failure")


def excluded_list(spec: FleetSpec, most: int) -> str:
    """Return the candidates that can never run, with the reason; empty where there are none."""
    excluded = [candidate for candidate in spec.candidates if candidate.excluded]
    if not excluded:
        return ""
    lines = [
        f"<li><b>{escape(item.label)}</b>: {escape(cut(item.excluded, _LONGEST_TEXT))}</li>"
        for item in excluded[:most]
    ]
    if len(excluded) > most:
        lines.append(f"<li>and {count(len(excluded) - most, 'more candidate')}</li>")
    return f"<h3>Excluded before anything was paid for</h3><ul>{''.join(lines)}</ul>"
