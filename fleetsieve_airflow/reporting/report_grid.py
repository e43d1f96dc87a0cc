"""The grid of a campaign: every load of every candidate, and what became of it.

A cell says by its letter and its border, not only by its colour, whether the load was measured and met or
missed its SLO, was reused, ended early, is measured next, or was skipped and why.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

from fleetsieve_airflow.evidence import Decision, Evidence, EvidenceItem, Measurement
from fleetsieve_airflow.records import Candidate, FleetSpec
from fleetsieve_airflow.reporting import report_words as words
from fleetsieve_airflow.reporting.charts_svg import cut, escape, name_html, percent
from fleetsieve_airflow.serialization import points_of

CellKind = Literal["met", "missed", "marginal", "refused", "failed", "next", "skipped", "open"]

#: Kind of a cell -> (its letter, its class in the style sheet, what the legend says).
KINDS: Final[dict[CellKind, tuple[str, str, str]]] = {
    "met": ("M", "m", "measured, SLO met"),
    "missed": ("X", "x", "measured, SLO missed"),
    "marginal": ("?", "q", "measured, verdict in doubt"),
    "refused": ("R", "x", "the engine refused to start"),
    "failed": ("!", "f", "asked for, not measured"),
    "next": ("\u25b8", "n", "measured next"),
    "skipped": ("", "s", "skipped: cannot change the decision"),
    "open": ("", "o", "open: may still matter"),
}
#: How the reason of a point begins that was left unmeasured although it may matter: the budget ended first.
_OPEN: Final = "open"
#: Ladders with more loads than this are always folded.
_LONGEST_LADDER: Final = 12
#: Longest explanation shown on hover; the tables below hold the rest.
_HOVER_LENGTH: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load of a candidate: what became of it, why, its measurements, whether it is measured again."""

    load: float
    kind: CellKind
    reason: str
    items: tuple[EvidenceItem, ...] = ()
    again: bool = False

    @property
    def reused(self) -> bool:
        """Whether all that is known of the load was measured before this campaign."""
        return bool(self.items) and all(item.reused for item in self.items)

    @property
    def curtailed(self) -> bool:
        """Whether a window ended early because its verdict was already certain."""
        return any(item.measurement.curtailed for item in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A candidate with the cells of its ladder, in ladder order."""

    candidate: Candidate
    cells: tuple[Cell, ...]


def grid_rows(
    spec: FleetSpec, decision: Decision, evidence: Evidence, verdicts: Mapping[str, str]
) -> tuple[Row, ...]:
    """Return a row for every candidate that can run, in the spec's order.

    :param verdicts: point key -> ``met``, ``missed``, ``marginal`` or ``refused``.
    """
    known: dict[tuple[str, str, float], list[EvidenceItem]] = defaultdict(list)
    for item in evidence.items:
        point = item.measurement.point
        known[point.workload, point.config, point.load].append(item)
    ahead = {
        (plan.point.workload, plan.point.config, plan.point.load): plan.reason for plan in decision.points
    }
    skipped = {(point.workload, point.config, point.load): point.reason for point in decision.skipped}
    failed = _failures(spec, evidence)

    def cell(candidate: Candidate, load: float) -> Cell:
        key = (candidate.workload, candidate.config, load)
        if items := known.get(key):
            told = [measurement_text(spec, item, verdicts) for item in items]
            if key in ahead:
                told.append(f"measured again next: {ahead[key]}")
            kind = _kind(items, verdicts)
            return Cell(load=load, kind=kind, reason=" | ".join(told), items=tuple(items), again=key in ahead)
        if key in ahead:
            return Cell(load=load, kind="next", reason=f"measured next: {ahead[key]}")
        if key in failed:
            return Cell(load=load, kind="failed", reason=f"not measured: {failed[key]}")
        if key in skipped and not skipped[key].startswith(_OPEN):
            return Cell(load=load, kind="skipped", reason=f"skipped: {skipped[key]}")
        return Cell(load=load, kind="open", reason=skipped.get(key, "open: may still matter"))

    return tuple(
        Row(candidate=candidate, cells=tuple(cell(candidate, load) for load in candidate.loads))
        for candidate in spec.candidates
        if not candidate.excluded
    )


def _failures(spec: FleetSpec, evidence: Evidence) -> dict[tuple[str, str, float], str]:
    if not evidence.failures:
        return {}
    messages = {failure.key: failure.message for failure in evidence.failures}
    return {
        (point.workload, point.config, point.load): messages[point.key]
        for candidate in spec.candidates
        for point in points_of(spec, candidate, spec.measurement.repeats)
        if point.key in messages
    }


def _kind(items: Sequence[EvidenceItem], verdicts: Mapping[str, str]) -> CellKind:
    """Return one kind for all measurements of a load: the majority's; ``marginal`` where there is none."""
    counted = Counter(verdict_of(item.measurement, verdicts) for item in items)
    if counted["refused"]:
        return "refused"
    if counted["met"] == counted["missed"]:
        return "marginal"
    return "met" if counted["met"] > counted["missed"] else "missed"


def verdict_of(measurement: Measurement, verdicts: Mapping[str, str]) -> str:
    """Return a measurement's verdict; one that nobody judged is in doubt, never met."""
    return "refused" if measurement.refused else verdicts.get(measurement.point.key, "marginal")


def measurement_text(spec: FleetSpec, item: EvidenceItem, verdicts: Mapping[str, str]) -> str:
    """Say what a measurement found against its SLO, in one line."""
    measurement = item.measurement
    point = measurement.point
    parts = [f"{point.label}: {verdict_of(measurement, verdicts)}"]
    if measurement.refused:
        parts.append(f"engine refused to start: {cut(measurement.refused, 120)}")
    else:
        slo = spec.workload(point.workload).slo
        for limit in slo.limits:
            value = measurement.percentile(limit.name)
            found = "no finite value" if value is None else words.seconds(value)
            parts.append(f"{words.percentile_text(limit.name)} {found} of {words.seconds(limit.limit_s)}")
        if slo.success_rate is not None and measurement.success_rate is not None:
            parts.append(f"success {percent(measurement.success_rate)} of {percent(slo.success_rate)}")
        if measurement.curtailed:
            parts.append("ended early: its verdict was already certain")
    parts.append("reused from an earlier campaign" if item.reused else f"round {item.round}")
    return "; ".join(parts)


def grid_table(rows: Sequence[Row], run_url: str = "", *, fold: bool = False) -> str:
    """Return the grid as an HTML table, a row per candidate, its loads wrapping where they do not fit.

    :param run_url: address of a measurement's run with ``{run_id}`` in it; empty: cells are not links.
    :param fold: show stretches of loads that were all skipped alike as one cell; long ladders always do.
    """
    span = Counter(row.candidate.workload for row in rows)
    lines, named = [], set()
    for row in rows:
        name = row.candidate.workload
        first = "" if name in named else f'<th scope="rowgroup" rowspan="{span[name]}">{name_html(name)}</th>'
        named.add(name)
        lines.append(_row_html(row, first, run_url, fold))
    names = ("workload", "engine config", "load per replica")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f'<table class="grid"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _row_html(row: Row, first: str, run_url: str, fold: bool) -> str:
    # A hover text is inherited: the row carries its most frequent one, which keeps large fleets small.
    common = Counter(cell.reason for cell in row.cells).most_common(1)[0][0]
    if fold or len(row.cells) > _LONGEST_LADDER:
        groups = [list(group) for _, group in groupby(row.cells, _fold_key)]
    else:
        groups = [[cell] for cell in row.cells]
    cells = "".join(_cells_html(group, common, run_url) for group in groups)
    unit = words.load_unit(row.candidate.load_kind)
    return (
        f'<tr title="{escape(cut(common, _HOVER_LENGTH))}">{first}<td>{name_html(row.candidate.config)}</td>'
        f'<td class="cells">{cells} <small>{unit}</small></td></tr>'
    )


def _fold_key(cell: Cell) -> tuple[object, ...]:
    """Return what neighbouring loads must share to be shown as one cell; measured ones share nothing."""
    return (cell.load,) if cell.items or cell.kind == "next" else (cell.kind, cell.reason)


def _cells_html(group: Sequence[Cell], common: str, run_url: str) -> str:
    """Return one cell for one load, or for a stretch of loads that all have the same fate."""
    cell = group[0]
    letter, style, _ = KINDS[cell.kind]
    marks = ("r" if cell.reused else "") + ("c" if cell.curtailed else "")
    if cell.again:
        letter += KINDS["next"][0]
    loads = f"{cell.load:g}"
    if len(group) > 1:
        loads += f" \u2026 {group[-1].load:g} ({len(group)} loads)"
    text = f"{loads}{f' {letter}' if letter else ''}{f'<sup>{marks}</sup>' if marks else ''}"
    run_id = cell.items[-1].run_id if cell.items else ""
    if run_url and run_id:
        text = f'<a href="{escape(words.run_address(run_url, run_id))}">{text}</a>'
    title = "" if cell.reason == common else f' title="{escape(cut(cell.reason, _HOVER_LENGTH))}"'
    return f'<span class="{style}{" r" if cell.reused else ""}"{title}>{text}</span>'


def grid_legend(rows: Sequence[Row]) -> str:
    """Return the legend with how many cells are of each kind; kinds that do not occur are left out."""
    cells = [cell for row in rows for cell in row.cells]
    counted = Counter(cell.kind for cell in cells)
    entries = [
        (style, letter or "&nbsp;", text, counted[kind])
        for kind, (letter, style, text) in KINDS.items()
        if counted[kind]
    ]
    if reused := sum(cell.reused for cell in cells):
        entries.append(("o r", "<sup>r</sup>", "of these, reused from an earlier campaign", reused))
    if curtailed := sum(cell.curtailed for cell in cells):
        entries.append(
            ("o", "<sup>c</sup>", "of these, ended early: the verdict was already certain", curtailed)
        )
    lines = "".join(
        f'<li><span class="{style}">{letter}</span><div>{escape(text)}: <b>{quantity:,}</b></div></li>'
        for style, letter, text, quantity in entries
    )
    return f'<ul class="legend">{lines}</ul>'
