"""Tables and descriptions that MLflow shows beside a campaign, in the form MLflow reads. Pure.

A table is JSON in pandas' ``split`` form, which MLflow's browser opens as a table; it is written without
pandas. A description is Markdown whose first line is the verdict, because only the first lines show at first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleetsieve_airflow.evidence import Decision, Evidence, Measurement, Plan
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import report_words as words
from fleetsieve_airflow.reporting.charts_svg import count, number, percent
from fleetsieve_airflow.reporting.layout import chosen_interval, gpus_of, run_url
from fleetsieve_airflow.reporting.report_verdict import verdict_text

MEASUREMENTS_TABLE = "tables/measurements.json"
SKIPPED_TABLE = "tables/skipped.json"
_PERCENTILES = ("ttft_p99_s", "tpot_p99_s", "e2e_p99_s")


def measurements_table(evidence: Evidence, verdicts: Mapping[str, str]) -> dict[str, Any]:
    """Return what a campaign knows, a row per measurement in the order it became known.

    :param verdicts: point key -> verdict (``met``, ``missed``, ...) where the caller has judged it.
    """
    # MLflow's browser shows the first four columns until one asks for more.
    columns = [
        *("point", "verdict", "round", "served_rps", "success_rate", *_PERCENTILES, "reused"),
        *("gpu_seconds_window", "gpu_seconds_billed", "measured_at", "run_id"),
        *("workload", "engine_config", "load", "key"),
    ]
    rows = []
    for item in evidence.items:
        measurement, point = item.measurement, item.measurement.point
        rows.append(
            [
                point.label,
                verdicts.get(point.key),
                item.round,
                measurement.served_rps,
                measurement.success_rate,
                *(measurement.percentile(name) for name in _PERCENTILES),
                item.reused,
                measurement.gpu_seconds_window,
                measurement.gpu_seconds_billed,
                item.measured_at,
                item.run_id,
                point.workload,
                point.config,
                point.load,
                point.key,
            ]
        )
    return _table(columns, rows)


def skipped_table(spec: FleetSpec, decision: Decision) -> dict[str, Any]:
    """Return what was not measured, why that is safe, and what it would have cost."""
    columns = ("point", "reason", "gpu_seconds_window", "workload", "engine_config", "load")
    rows = []
    for item in decision.skipped:
        load = words.load_text(spec.candidate(item.workload, item.config).load_kind, item.load)
        label = f"{item.workload} {item.config} {load}"
        rows.append([label, item.reason, item.gpu_seconds_window, item.workload, item.config, item.load])
    return _table(columns, rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {"columns": list(columns), "data": [list(row) for row in rows]}


def plan_words(plan: Plan) -> str:
    """Return a whole plan on one line, e.g. ``chat 2 x TP4; code 2 x TP4``, for lists."""
    by_workload: dict[str, list[str]] = {}
    for item in words.used(plan):
        by_workload.setdefault(item.workload, []).append(words.replicas_text(item))
    return "; ".join(f"{name} {' + '.join(parts)}" for name, parts in by_workload.items()) or "nothing yet"


def plan_note(spec: FleetSpec, decision: Decision, links: Mapping[str, str] | None = None) -> str:
    """Return a campaign's description: the verdict, its evidence and cost, then the plan and warnings.

    MLflow shows some five lines of it and hides the rest until it is asked for more.

    :param links: where more is said, by what stands there.
    """
    spend, verdict = decision.spend, verdict_text(spec, [decision])
    lines = [
        f"**{verdict.headline}** {verdict.meaning}",
        "",
        f"{count(spend.points_measured, 'point')} measured, {spend.points_reused} reused, of "
        f"{spend.points_all}; {number(spend.gpu_seconds_window)} of {number(spend.gpu_seconds_window_all)} "
        "GPU-seconds of windows spent.",
        *([" · ".join(f"[{text}]({url})" for text, url in links.items())] if links else []),
        "",
        "| workload | demand, req/s | replicas | GPUs | capacity of one, req/s | served at least |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_workload_row(spec, decision, workload.name) for workload in spec.workloads),
    ]
    lines += [
        f"\n{text}" for text in (verdict.trust, *(f"Warning: {text}" for text in decision.warnings)) if text
    ]
    return "\n".join(lines)


def _workload_row(spec: FleetSpec, decision: Decision, workload: str) -> str:
    plan = decision.conservative
    held = [words.replicas_text(item) for item in words.used(plan) if item.workload == workload]
    interval = chosen_interval(decision, workload)
    cells = (
        workload,
        number(spec.workload(workload).demand_rps),
        " + ".join(held) or "none",
        str(gpus_of(plan, workload)),
        words.interval_text(interval) if interval else "",
        percent(dict(plan.fulfilment).get(workload, 0.0)),
    )
    return "| " + " | ".join(cells) + " |"


def measurement_note(
    measurement: Measurement, *, round: int, plan_name: str, plan_ids: tuple[str, str]
) -> str:
    """Return a measurement's description.

    :param plan_ids: experiment id and run id of the campaign that paid for it.
    """
    point = measurement.point
    said = [
        f"{words.percentile_text(name)} {words.seconds(value)}"
        for name, value in measurement.percentiles
        if name in _PERCENTILES
    ]
    outcome = ", ".join(said) + "." if said else "No percentile."
    if measurement.refused:
        outcome = f"The engine refused to start: {measurement.refused}"
    ended = " The window ended early, its verdict was certain." if measurement.curtailed else ""
    plan = f"[{plan_name}]({run_url('', *plan_ids)})"
    served = f"**{point.label}: {number(measurement.served_rps)} req/s served.**"
    return f"{served} {outcome}{ended}\n\nMeasured in round {round} of {plan}."
