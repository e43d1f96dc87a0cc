"""The HTML of the plugin's own pages: no script, nothing loaded, every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

from fleetsieve_airflow.reporting.report_style import STYLE

if TYPE_CHECKING:
    from fleetsieve_airflow.hooks.mlflow import CampaignSummary

NO_CAMPAIGN = "This run has no fleet campaign: it is of another DAG, or its campaign is not open yet."
NOT_FOUND = (
    "The campaign of this run is in none of the MLflow servers of [fleetsieve] mlflow_conn_ids: "
    "add the DAG's connection to that setting."
)
NO_REPORT_YET = "The first round is not decided yet: the report appears with its first decision."
VERDICTS = {
    "running": "running",
    "certified": "certified",
    "infeasible": "demand cannot be met",
    "undetermined": "no certificate",
}
HEADINGS = (
    ("Campaign", ""),
    ("Verdict", ""),
    ("Round", "n"),
    ("Plan", ""),
    ("GPUs", "n"),
    ("Gap", "n"),
    ("Regret", "n"),
    ("Points measured (reused)", "n"),
    ("GPU-seconds spent", "n"),
    ("saved", "n"),
)


@dataclass(frozen=True)
class Row:
    """One campaign in the list."""

    summary: CampaignSummary
    report_url: str
    mlflow_url: str


@dataclass(frozen=True)
class Section:
    """A page of the campaigns of one MLflow connection, or why they cannot be shown."""

    title: str
    rows: tuple[Row, ...] = ()
    problem: str = ""
    older_url: str = ""
    newest_url: str = ""


def plans_page(sections: Sequence[Section]) -> str:
    """Return the list of campaigns."""
    parts = [_section(section, named=len(sections) > 1) for section in sections]
    return _page("Fleet plans", "\n".join(parts) or f"<p>{escape('No MLflow connection is configured.')}</p>")


def message_page(*messages: str) -> str:
    """Return a page that says why there is nothing to see."""
    return _page("Fleet plan", "".join(f"<p>{escape(message)}</p>" for message in messages))


def _section(section: Section, *, named: bool) -> str:
    head = f"<h2>{escape(section.title)}</h2>" if named else ""
    if section.problem:
        return f'{head}<div class="alert"><p>{escape(section.problem)}</p></div>'
    if not section.rows:
        return (
            f"{head}<p>No campaign yet. Trigger a DAG made with <code>fleet_plan</code> to plan a fleet.</p>"
        )
    cells = "".join(f'<th class="{kind}">{escape(text)}</th>' for text, kind in HEADINGS)
    rows = "\n".join(_row(row) for row in section.rows)
    ways = {"Newest campaigns": section.newest_url, "Older campaigns": section.older_url}
    links = " · ".join(f'<a href="{escape(url)}">{text}</a>' for text, url in ways.items() if url)
    foot = f"<p>{links}</p>" if links else ""
    return f"{head}<table><thead><tr>{cells}</tr></thead><tbody>\n{rows}\n</tbody></table>{foot}"


def _row(row: Row) -> str:
    item, campaign = row.summary, row.summary.campaign
    began = datetime.fromtimestamp(campaign.started_ms / 1000, UTC)
    verdict = VERDICTS[item.verdict]
    if item.verdict == "running" and item.status != "RUNNING":
        verdict = "broken off"
    measured = _count(item.points_measured)
    if item.points_reused:
        measured += f" ({item.points_reused})"
    mlflow = f' · <a href="{escape(row.mlflow_url)}" target="_blank">MLflow</a>' if row.mlflow_url else ""
    cells = (
        f'<a href="{escape(row.report_url)}"><b>{escape(campaign.fleet)}</b></a>'
        f'<br><span class="k">{escape(campaign.name)}</span>'
        f'<br><small class="k">{began:%H:%M} UTC{mlflow}</small>',
        escape(verdict),
        str(item.round or ""),
        "<br>".join(f'<span class="k">{escape(part)}</span>' for part in item.plan.split("; ")),
        _count(item.gpus),
        _share(item.gap),
        _share(item.regret),
        measured,
        _count(item.gpu_seconds_window),
        _count(item.gpu_seconds_window_saved),
    )
    kinds = [kind for _, kind in HEADINGS]
    tds = "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(cells, kinds, strict=True))
    return f"<tr>{tds}</tr>"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _page(title: str, body: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n<h1>{escape(title)}</h1>\n{body}\n</main></body></html>\n"
    )
