"""What a terminal shows of a campaign: a line for each round, and the outcome with its plan as a table."""

from __future__ import annotations

from collections.abc import Sequence

from fleetsieve_airflow.evidence import Decision
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import report_words as words
from fleetsieve_airflow.reporting.report_verdict import verdict_text

#: Points of one round that its line names.
POINTS_NAMED = 3


def round_line(decision: Decision) -> str:
    """Return one round in a line: what is still open, what was spent, what is measured next."""
    head = (
        f"round {decision.round}: gap {decision.gap:.4g}, regret {decision.regret:.4g}, "
        f"spent {decision.spend.gpu_seconds_window:,.0f} GPU-seconds"
    )
    if decision.state != "measure":
        return f"{head}; {decision.state.replace('_', ' ')}"
    labels = [planned.point.label for planned in decision.points]
    more = len(labels) - POINTS_NAMED
    return f"{head}; measuring {', '.join(labels[:POINTS_NAMED])}" + (f" and {more} more" if more > 0 else "")


def outcome_text(spec: FleetSpec, decisions: Sequence[Decision]) -> str:
    """Return verdict, plan and price of a campaign whose rounds decided this, in order."""
    decision = decisions[-1]
    spend = decision.spend
    saved = spend.gpu_seconds_window_all - spend.gpu_seconds_window
    share = saved / spend.gpu_seconds_window_all if spend.gpu_seconds_window_all else 0.0
    verdict = verdict_text(spec, decisions)
    reused = f" ({spend.points_reused} reused)" if spend.points_reused else ""
    return "\n".join(
        [
            verdict.sentence,
            *([verdict.trust] if verdict.trust else []),
            "",
            *_table(_plan_rows(spec, decision)),
            *words.split_texts(spec, decision.conservative),
            "",
            f"Measured {spend.points_measured} of {spend.points_all} points{reused} in {decision.round - 1} "
            f"rounds: {spend.gpu_seconds_window:,.0f} GPU-seconds spent, {saved:,.0f} ({share:.0%}) saved.",
            *(f"Warning: {warning}" for warning in decision.warnings),
        ]
    )


def _plan_rows(spec: FleetSpec, decision: Decision) -> list[list[str]]:
    plan = decision.conservative
    rows = [["workload", "demand req/s", "replicas", "GPUs", "sure req/s", "fulfilment"]]
    for workload in spec.workloads:
        held = [item for item in plan.allocations if item.workload == workload.name and item.replicas]
        rows.append(
            [
                workload.name,
                f"{workload.demand_rps:g}",
                " + ".join(f"{item.replicas} x {item.config}" for item in held) or "none",
                str(sum(item.gpus for item in held)),
                f"{sum(item.replicas * item.capacity_rps for item in held):.4g}",
                f"{dict(plan.fulfilment)[workload.name]:.1%}",
            ]
        )
    return rows


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
