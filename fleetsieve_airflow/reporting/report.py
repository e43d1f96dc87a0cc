"""The report of a finished or a running campaign: one self-contained HTML page, the verdict first.

No script, no address of its own, no I/O, no clock: the same input gives the same bytes. A part that has
nothing to show yet says when it will. Pages stay under :data:`LIMIT_BYTES`; a fleet too large for that is
shown in part, with counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleetsieve_airflow.evidence import Decision, Evidence, EvidenceItem
from fleetsieve_airflow.records import Candidate, FleetSpec
from fleetsieve_airflow.reporting import charts, report_certificate, report_grid, report_tables
from fleetsieve_airflow.reporting import report_words as words
from fleetsieve_airflow.reporting.charts_svg import count, cut, escape, number, percent
from fleetsieve_airflow.reporting.report_style import STYLE
from fleetsieve_airflow.reporting.report_verdict import contradictions, verdict_text

LIMIT_BYTES: Final = 100_000
#: Most rows of any part, and whether the grid is short (folded, without links): tried until the page fits.
_DETAILS: Final = ((240, False), (240, True), (120, True), (60, True), (40, True), (25, True), (12, True))
#: Pixels of a grid beside which its legend still has room.
_WIDEST_GRID: Final = 640
#: Name of the link that is a template for the run of a measurement.
RUN_LINK: Final = "run"


def render_report(
    spec: FleetSpec,
    rounds: Sequence[Decision],
    evidence: Evidence,
    certificate: Mapping[str, Any] | None,
    *,
    verdicts: Mapping[str, str],
    links: Mapping[str, str] | None = None,
    generated_at: str = "",
    changes: Sequence[str] = (),
) -> str:
    """Render a campaign as one HTML page.

    :param rounds: the campaign's decisions so far, one per round; empty while the first round runs.
    :param certificate: the certificate of a campaign that has ended, else None.
    :param verdicts: point key -> ``met``, ``missed``, ``marginal`` or ``refused``, for every measurement.
    :param links: name -> address, shown under the title; the name ``run`` is a template with ``{run_id}`` for
        the runs of measurements. Addresses that are neither http(s) nor relative are left out.
    :param generated_at: when the page was made, as text; empty: not said.
    :param changes: what changes against the plan in force, in lines; empty: there was none.
    """
    safe = {name: url for name, url in (links or {}).items() if _is_safe(url)}
    page = _Page(
        spec,
        words.latest_of_each_round(rounds),
        evidence,
        certificate,
        verdicts,
        safe,
        generated_at,
        tuple(changes),
    )
    fixed = page.fixed_parts()
    text = ""
    for most, short in _DETAILS:
        text = page.render(fixed, most, short)
        if len(text.encode()) <= LIMIT_BYTES:
            break
    return text


def _is_safe(url: str) -> bool:
    scheme, colon, _ = url.partition(":")
    return not colon or scheme.lower() in ("http", "https") or any(mark in scheme for mark in "/?#")


@dataclass(frozen=True, slots=True)
class _Page:
    """Everything a page is made of; each part returns HTML, empty where there is nothing to say."""

    spec: FleetSpec
    rounds: tuple[Decision, ...]
    evidence: Evidence
    certificate: Mapping[str, Any] | None
    verdicts: Mapping[str, str]
    links: Mapping[str, str]
    generated_at: str
    changes: tuple[str, ...]

    def fixed_parts(self) -> dict[str, str]:
        """Return the parts whose size does not grow with the fleet."""
        parts = {"head": self._head(), "verdict": self._verdict(), "certificate": self._certificate()}
        if self.rounds:
            decision = self.rounds[-1]
            parts["five"] = self._five(decision)
            parts["contradictions"] = self._contradictions(decision)
            parts["scenarios"] = self._scenarios(decision)
        return parts

    def render(self, fixed: Mapping[str, str], most: int, short: bool) -> str:
        """Return the page with at most ``most`` rows in each part, and a short or a full grid."""
        parts = [fixed["head"], fixed["verdict"]]
        if self.rounds:
            decision = self.rounds[-1]
            parts += [
                fixed["five"],
                fixed["contradictions"],
                self._plans(decision, most),
                self._changes(most),
                self._next(decision, most),
                self._charts(decision, most),
                self._grid(decision, most, short),
                fixed["scenarios"],
            ]
        parts += [self._failures(most), self._warnings(most), fixed["certificate"]]
        title = escape(f"Fleet plan: {self.spec.fleet}")
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>{title}</title><style>{STYLE}</style></head>\n<body><main>\n"
            + "\n".join(part for part in parts if part)
            + "\n</main></body></html>\n"
        )

    def _head(self) -> str:
        spec = self.spec
        facts = []
        if self.rounds:
            limit = f" of at most {spec.budget.rounds}" if spec.budget.rounds else ""
            facts.append(f"round {self.rounds[-1].round}{limit}")
        gpus = ", ".join(f"{pool.gpus:,} x {pool.gpu}" for pool in spec.pools[:3])
        engines = sorted({f"{config.engine} {config.engine_version}".strip() for config in spec.configs})
        facts.append(f"{cut(', '.join(engines), 80)} on {cut(gpus, 120)}")
        facts.append(f"measured by {spec.measurement.backend}")
        if spec.decision.confidence is not None:
            facts.append(f"confidence {percent(spec.decision.confidence)}")
        if steered := words.prior_text(self.evidence.priors):
            facts.append(steered)
        if self.generated_at:
            facts.append(self.generated_at)
        named = [
            f'<a href="{escape(url)}">{escape(name)}</a>'
            for name, url in self.links.items()
            if name != RUN_LINK
        ]
        nav = f'<nav class="sub">{" &middot; ".join(named)}</nav>' if named else ""
        told = " &middot; ".join(escape(fact) for fact in facts)
        return f'<header><h1>Fleet plan: {escape(spec.fleet)}</h1><div class="sub">{told}</div>{nav}</header>'

    def _verdict(self) -> str:
        verdict = verdict_text(self.spec, self.rounds)
        trust = f'<p class="trust">{escape(verdict.trust)}</p>' if verdict.trust else ""
        return (
            f'<section class="verdict {verdict.kind}" aria-label="Verdict">'
            f'<p class="head">{escape(verdict.headline)}</p>'
            f"<p>{escape(verdict.meaning)}</p>{trust}</section>"
        )

    def _five(self, decision: Decision) -> str:
        spec, spend, plan = self.spec, decision.spend, decision.conservative
        if words.counts_need(spec):
            first = words.need_card(spec, plan)
        else:
            first = (
                percent(plan.min_fulfilment),
                f"of each demand served at least, within its SLO, on {words.gpus_text(spec, plan)}",
            )
        other, value = (
            ("gap", decision.regret) if spec.decision.stop_on == "regret" else ("regret", decision.gap)
        )
        rest = words.loss_text(spec, decision, decision.gap if other == "gap" else decision.regret)
        saved = spend.gpu_seconds_window_all - spend.gpu_seconds_window
        share = percent(saved / spend.gpu_seconds_window_all) if spend.gpu_seconds_window_all > 0 else "0 %"
        reused = f"; {spend.points_reused:,} more reused" if spend.points_reused else ""
        numbers = (
            first,
            (
                words.loss_text(spec, decision, value),
                f"{spec.decision.stop_on}: the most this plan can lose (tolerance "
                f"{words.objective_text(spec, spec.decision.tolerance)}; {other} {rest})",
            ),
            (
                f"{spend.points_measured:,} / {spend.points_all:,}",
                f"points measured / all{reused}",
            ),
            (
                number(spend.gpu_seconds_window),
                f"GPU-seconds of measuring ({number(spend.gpu_seconds_billed)} billed with start-up)",
            ),
            # What is not spent while there is something to measure may still be.
            (number(spend.gpu_seconds_window_all), "GPU-seconds that measuring everything would take")
            if decision.state == "measure"
            else (number(saved), f"GPU-seconds saved: {share} of measuring everything"),
        )
        cards = "".join(
            f"<div><b>{escape(big)}</b><span>{escape(small)}</span></div>" for big, small in numbers
        )
        return f'<section class="five" aria-label="Five numbers">{cards}</section>'

    def _contradictions(self, decision: Decision) -> str:
        found = contradictions(decision)
        if not found:
            return ""
        tables = "".join(
            report_tables.contradiction_table(self.spec, item, self.evidence, self.verdicts, self._run_link)
            for item in found[:4]
        )
        more = f"<p>and {count(len(found) - 4, 'more candidate')}</p>" if len(found) > 4 else ""  # noqa: PLR2004
        return (
            '<section class="alert"><h2>The evidence contradicts itself</h2>'
            "<p>A load met its SLO above one that missed it. Nothing is averaged away: "
            "the span between them counts as unknown again, and a repeat is due.</p>"
            f"{tables}{more}</section>"
        )

    def _run_link(self, item: EvidenceItem) -> str:
        short = f"<code>{escape(item.run_id[:12])}</code>"
        if not item.run_id or RUN_LINK not in self.links:
            return short if item.run_id else ""
        return f'<a href="{escape(words.run_address(self.links[RUN_LINK], item.run_id))}">{short}</a>'

    def _plans(self, decision: Decision, most: int) -> str:
        spec = self.spec
        low = report_tables.plan_table(spec, decision, decision.conservative, most)
        low += self._plan_note(decision.conservative)
        decided = decision.state in ("certified_feasible", "certified_infeasible")
        same = decision.conservative.replicas() == decision.optimistic.replicas()
        if decided or same:
            shared = (
                "" if decided else "<p>Both plans run these replicas: open is how much they can serve.</p>"
            )
            return f"<section><h2>Allocation</h2>{shared}{low}</section>"
        high = report_tables.plan_table(spec, decision, decision.optimistic, most, optimistic=True)
        high += self._plan_note(decision.optimistic)
        return (
            f"<section><h2>Both plans</h2><h3>Conservative: every capacity at its lower bound</h3>{low}"
            f"<h3>Optimistic: every capacity at its upper bound</h3>{high}</section>"
        )

    def _plan_note(self, plan: Any) -> str:
        cost = "" if plan.cost_per_hour is None else f", {number(plan.cost_per_hour)} per hour"
        told = f"In all {words.gpus_text(self.spec, plan)}{cost}; serves {number(plan.served_rps)} req/s."
        lines = "<br>".join(escape(line) for line in (told, *words.split_texts(self.spec, plan)))
        return f"<p><small>{lines}</small></p>"

    def _changes(self, most: int) -> str:
        if not self.changes:
            return ""
        # The last line is of the whole fleet.
        shown = self.changes if len(self.changes) <= most else (*self.changes[: most - 1], self.changes[-1])
        lines = "".join(f"<li>{escape(cut(line, 300))}</li>" for line in shown)
        hidden = len(self.changes) - len(shown)
        more = f"<p><small>and {count(hidden, 'more workload')}</small></p>" if hidden else ""
        return f"<section><h2>Against the plan in force</h2><ul>{lines}</ul>{more}</section>"

    def _next(self, decision: Decision, most: int) -> str:
        if not decision.points:
            return ""
        total = sum(planned.gpu_seconds_billed for planned in decision.points)
        head = "Measured next" if decision.state == "measure" else "What would close the gap"
        jobs = len({planned.job for planned in decision.points})
        points = count(len(decision.points), "point")
        told = f"{points} in {count(jobs, 'job')}, {number(total)} GPU-seconds billed."
        return (
            f"<section><h2>{head}</h2><p>{escape(told)}</p>"
            f"{report_tables.next_points_table(self.spec, decision, most)}</section>"
        )

    def _charts(self, decision: Decision, most: int) -> str:
        spec = self.spec
        known = {(interval.workload, interval.config) for interval in decision.intervals}
        runnable = [item for item in spec.candidates if (item.workload, item.config) in known]
        shown = self._shown(decision, runnable, most)
        half = len(shown) <= charts.HALF_WIDTH_ROWS
        bounds = charts.bounds_by_round(
            spec, self.rounds, width=charts.HALF_WIDTH if half else charts.FULL_WIDTH
        )
        intervals = charts.capacity_intervals(spec, decision, shown)
        more = " Above the pool: no plan is sure to serve the demand yet." if words.counts_need(spec) else ""
        left = (
            f"<div><h2>{escape(words.objective_title(spec))} by round</h2>{bounds}<br>"
            "<small>The best plan lies in the band. GPU-s: GPU-seconds spent on measuring up to that round."
            f"{more}</small></div>"
        )
        rest = self._shown_text(len(shown), len(runnable))
        right = (
            f"<div><h2>What is known of each engine config</h2>{intervals}<br>"
            "<small>Bar: what one replica can serve within its SLO; dark and bold: in the plan; "
            "dashed: in the optimistic plan only. Grey lines: where one replica more or fewer is needed. "
            f"A bar that crosses no line is settled, however wide it is.{rest}</small></div>"
        )
        return (
            f'<section class="two">{left}{right}</section>' if half else f"<section>{left}{right}</section>"
        )

    def _shown(self, decision: Decision, candidates: Sequence[Candidate], most: int) -> list[Candidate]:
        """Return what to show: all if there is room, else what is in a plan, then what was measured."""
        if len(candidates) <= most:
            return list(candidates)
        plans = (decision.conservative, decision.optimistic)
        in_plan = {(item.workload, item.config) for plan in plans for item in words.used(plan)}
        points = [item.measurement.point for item in self.evidence.items]
        points += [planned.point for planned in decision.points]
        touched = {(point.workload, point.config) for point in points} - in_plan
        ranked = [item for item in candidates if (item.workload, item.config) in in_plan]
        ranked += [item for item in candidates if (item.workload, item.config) in touched]
        chosen = {item.label for item in ranked[:most]}
        return [item for item in candidates if item.label in chosen]

    @staticmethod
    def _shown_text(shown: int, of: int) -> str:
        if shown == of:
            return ""
        return f" Shown: {shown:,} of {count(of, 'candidate')}, those in a plan first, then those measured."

    def _grid(self, decision: Decision, most: int, short: bool) -> str:
        spec = self.spec
        rows = report_grid.grid_rows(spec, decision, self.evidence, self.verdicts)
        shown = {item.label for item in self._shown(decision, [row.candidate for row in rows], most)}
        visible = [row for row in rows if row.candidate.label in shown]
        grid = report_grid.grid_table(visible, "" if short else self.links.get(RUN_LINK, ""), fold=short)
        rest = ""
        if len(visible) < len(rows):
            rest = f"<p><small>{self._shown_text(len(visible), len(rows))} The counts are of all.</small></p>"
        longest = max((len(row.cells) * 68 + len(row.candidate.label) * 8 for row in visible), default=0)
        box = "gridbox" if longest < _WIDEST_GRID else "gridbox below"
        skipped = ""
        if decision.skipped:
            skipped = f"<h3>Why points were not measured</h3>{report_tables.skipped_table(decision, most)}"
        return (
            "<section><h2>What was measured, what was skipped</h2>"
            f'<div class="{box}">{grid}{report_grid.grid_legend(rows)}</div>{rest}{skipped}'
            f"{report_tables.excluded_list(spec, most)}</section>"
        )

    def _scenarios(self, decision: Decision) -> str:
        if len(decision.scenarios) < 2:  # noqa: PLR2004
            return ""
        return (
            "<section><h2>If the demand were different</h2>"
            f"{report_tables.scenario_table(self.spec, decision)}"
            "<p><small>The conservative plan above, at the lower bounds of its capacities.</small></p>"
            "</section>"
        )

    def _failures(self, most: int) -> str:
        if not self.evidence.failures:
            return ""
        return (
            "<section><h2>Asked for and not measured</h2>"
            "<p>A point that could not be measured says nothing about its SLO.</p>"
            f"{report_tables.failures_table(self.evidence, most)}</section>"
        )

    def _certificate(self) -> str:
        body = report_certificate.certificate_html(self.spec, self.certificate, self.rounds)
        return f"<section><h2>Certificate</h2>{body}</section>"

    def _warnings(self, most: int) -> str:
        warnings = self.rounds[-1].warnings if self.rounds else ()
        if not warnings:
            return ""
        lines = "".join(f"<li>{escape(cut(warning, 400))}</li>" for warning in warnings[:most])
        more = f"<li>and {count(len(warnings) - most, 'more warning')}</li>" if len(warnings) > most else ""
        return f"<section><h2>Warnings</h2><ul>{lines}{more}</ul></section>"
