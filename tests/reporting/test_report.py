"""The report: what a reader learns from it in every state of a campaign, and that the page is sound."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from fleetsieve_airflow.core.certificate import build_certificate
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.evidence import Evidence, PriorCapacity
from fleetsieve_airflow.reporting.report import LIMIT_BYTES, RUN_LINK, render_report
from fleetsieve_airflow.reporting.report_grid import grid_rows
from fleetsieve_airflow.reporting.report_verdict import verdict_text
from fleetsieve_airflow.serialization import spec_digest
from tests.reporting import campaigns
from tests.reporting.campaigns import Campaign

VOID = {"meta", "br", "link", "img", "hr", "input"}
STATES: dict[str, Callable[[], Campaign]] = {
    "before the first round": lambda: Campaign(campaigns.chat_and_code()),
    "first round": lambda: campaigns.paper_campaign(1),
    "running": lambda: campaigns.paper_campaign(2),
    "decided": campaigns.paper_campaign,
    "impossible": campaigns.infeasible_campaign,
    "undetermined": campaigns.undetermined_campaign,
    "fewest GPUs": campaigns.fewest_gpus_campaign,
    "nasty names": lambda: campaigns.paper_campaign(chat=campaigns.NASTY),
    "large": campaigns.large_campaign,
}


class _Page(HTMLParser):
    """Reads a page strictly: tags close in order, attributes are unique; keeps texts, tables and links."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.titles: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> repeats an attribute"
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        self.titles += [value or "" for name, value in attrs if name == "title"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes out of order"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def _render(campaign: Campaign, **fields: object) -> str:
    given = {"verdicts": campaign.verdicts, **fields}
    return render_report(campaign.spec, campaign.rounds, campaign.evidence, campaign.certificate, **given)  # type: ignore[arg-type]


def _text(campaign: Campaign) -> str:
    return _Page(_render(campaign)).text


class TestEveryPage:
    @pytest.fixture(params=STATES)
    def campaign(self, request: pytest.FixtureRequest) -> Campaign:
        return STATES[request.param]()

    def test_is_well_formed_with_a_title_and_a_language(self, campaign: Campaign) -> None:
        html = _render(campaign)
        page = _Page(html)
        assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
        assert page.tags.count("title") >= 1
        for picture in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL):
            root = ET.fromstring(picture)  # noqa: S314 - a picture of our own
            assert root.get("role") == "img"
            assert len(root.get("aria-label", "")) > 20

    def test_needs_nothing_but_itself_and_runs_nothing(self, campaign: Campaign) -> None:
        html = _render(campaign)
        page = _Page(html)
        assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
        assert page.links == []
        assert "url(" not in html
        assert "@import" not in html

    def test_is_small_and_the_same_for_the_same_input(self, campaign: Campaign) -> None:
        html = _render(campaign)
        assert len(html.encode()) <= LIMIT_BYTES
        assert html == _render(campaign)

    def test_says_the_verdict_before_anything_else(self, campaign: Campaign) -> None:
        verdict = verdict_text(campaign.spec, campaign.rounds)
        text = _text(campaign)
        assert verdict.headline in text
        first_heading = min(
            (text.find(name) for name in ("Allocation", "Both plans") if name in text), default=10**9
        )
        assert text.index(verdict.headline) < first_heading


class TestVerdict:
    def test_headline_and_meaning_make_one_sentence_for_other_places(self) -> None:
        verdict = verdict_text(campaigns.chat_and_code(), campaigns.paper_campaign().rounds)
        assert verdict.sentence == f"{verdict.headline} {verdict.meaning}"

    def test_an_undetermined_campaign_without_further_points_says_what_could_help(self) -> None:
        campaign = campaigns.undetermined_campaign()
        verdict = verdict_text(campaign.spec, [replace(campaign.rounds[-1], points=(), reason="")])
        assert verdict.headline.endswith("no point within the budget would settle it.")
        assert "More budget, more repeats or further loads on the ladders could." in verdict.meaning
        assert verdict.trust == ""

    def test_fewest_gpus_within_a_tolerance_says_how_many_may_be_saved(self) -> None:
        campaign = campaigns.fewest_gpus_campaign()
        spec = replace(campaign.spec, decision=replace(campaign.spec.decision, tolerance=2.0))
        verdict = verdict_text(spec, [replace(campaign.rounds[-1], gap=2.0, regret=2.0)])
        assert "No plan can do so with more than 2 GPUs fewer: within the tolerance." in verdict.meaning

    def test_a_reached_plan_is_named_with_what_it_is_sure_of(self) -> None:
        verdict = verdict_text(campaigns.chat_and_code(), campaigns.paper_campaign().rounds)
        assert verdict.kind == "decided"
        assert verdict.headline == "Decided: chat 2 x TP4; code 2 x TP4 (16 of 16 GPUs)."
        assert "serves every workload's whole demand within its SLO" in verdict.meaning
        assert "chat TP4 at 6.6 req/s, code TP4 at 3.6 req/s" in verdict.trust
        assert "21 of 24 points stayed unmeasured" in verdict.trust

    def test_a_plan_certified_by_regret_says_what_it_may_lose(self) -> None:
        campaign = campaigns.paper_campaign()
        last = campaign.rounds[-1]
        plan = replace(last.conservative, min_fulfilment=0.939, value=0.939)
        decision = replace(last, conservative=plan, regret=0.004, gap=0.05)
        verdict = verdict_text(campaign.spec, [decision])
        assert "at least 93.9 % of every workload's demand" in verdict.meaning
        assert (
            "no other plan can raise that by more than 0.4 % of demand (regret; tolerance 1 %)"
            in verdict.meaning
        )

    def test_a_plan_certified_by_gap_says_what_no_plan_can_do(self) -> None:
        campaign = campaigns.paper_campaign()
        spec = replace(campaign.spec, decision=replace(campaign.spec.decision, stop_on="gap"))
        last = campaign.rounds[-1]
        low = replace(last.conservative, min_fulfilment=0.939, value=0.939)
        high = replace(last.optimistic, min_fulfilment=0.945, value=0.945)
        decision = replace(last, conservative=low, optimistic=high, gap=0.006, regret=0.0)
        meaning = verdict_text(spec, [decision]).meaning
        assert (
            "no plan serves more than 94.5 % even at the highest: a gap of 0.6 %, tolerance 1 %." in meaning
        )

    def test_a_partial_requirement_is_not_called_the_whole_demand(self) -> None:
        campaign = campaigns.paper_campaign()
        spec = replace(campaign.spec, decision=replace(campaign.spec.decision, required_fulfilment=0.9))
        assert "at least 90 % of every workload's demand" in verdict_text(spec, campaign.rounds).meaning

    def test_bounds_that_are_not_measured_name_their_source(self) -> None:
        campaign = campaigns.paper_campaign()
        last = campaign.rounds[-1]
        intervals = tuple(
            replace(interval, lower=replace(interval.lower, source="simulator"))
            for interval in last.intervals
        )
        trust = verdict_text(campaign.spec, [replace(last, intervals=intervals)]).trust
        assert "rest on: simulated and calibrated on this campaign" in trust
        assert "was measured and met" not in trust

    def test_an_impossible_demand_names_the_best_plan_and_what_is_lost(self) -> None:
        campaign = campaigns.infeasible_campaign()
        verdict = verdict_text(campaign.spec, campaign.rounds)
        assert verdict.kind == "impossible"
        assert verdict.headline.startswith("Not possible: 16 GPUs cannot serve every workload's whole demand")
        assert "no plan serves more than 84.6 %" in verdict.meaning
        assert "chat 2 x TP4; code 2 x TP4, serves at least 84.6 %" in verdict.meaning
        assert "chat loses up to 2.4 of 15.6 req/s, code loses up to 1.25 of 8.45 req/s" in verdict.meaning

    def test_an_undetermined_campaign_names_both_plans_the_gap_and_the_price_of_closing_it(self) -> None:
        campaign = campaigns.undetermined_campaign()
        verdict = verdict_text(campaign.spec, campaign.rounds)
        assert verdict.kind == "undetermined"
        assert "at least 36.7 % of every workload's demand; up to 100 % may be possible" in verdict.meaning
        assert "The gap is 63.3 % and the regret at most 35 %, where 1 % is tolerated." in verdict.meaning
        assert "Measuring 2 more points (5,040 GPU-seconds)" in verdict.meaning
        assert "the budget of 3 rounds is used up." in verdict.trust

    def test_a_running_campaign_says_what_is_open_and_never_that_it_is_decided(self) -> None:
        campaign = campaigns.paper_campaign(2)
        verdict = verdict_text(campaign.spec, campaign.rounds)
        assert verdict.kind == "measuring"
        assert verdict.headline == "Measuring: not decided after round 2."
        assert (
            "Nothing is proved yet for chat; up to 100 % of every demand may be possible." in verdict.meaning
        )
        assert "1 point can still change the decision and is measured next." in verdict.meaning

    def test_fewest_gpus_is_told_in_gpus(self) -> None:
        campaign = campaigns.fewest_gpus_campaign()
        verdict = verdict_text(campaign.spec, campaign.rounds)
        assert "(12 of 16 GPUs)" in verdict.headline
        assert "No plan with fewer GPUs does so even at the highest." in verdict.meaning
        unsure = verdict_text(campaign.spec, campaign.rounds[:1])
        assert "No plan is sure to serve the demand yet; 4 GPUs may be enough." in unsure.meaning
        assert "The regret is open" in unsure.meaning

    def test_a_large_plan_is_counted_not_listed(self) -> None:
        campaign = campaigns.large_campaign()
        assert verdict_text(campaign.spec, campaign.rounds).headline == "Decided: 904 of 1,024 GPUs."


class TestFiveNumbers:
    @staticmethod
    def _cards(campaign: Campaign) -> list[tuple[str, str]]:
        section = re.search(r'<section class="five".*?</section>', _render(campaign), flags=re.DOTALL)
        assert section
        found = re.findall(r"<div><b>(.*?)</b><span>(.*?)</span></div>", section.group(0))
        return [(unescape(big), unescape(small)) for big, small in found]

    def test_of_a_decided_campaign(self) -> None:
        fulfilled, regret, points, spent, saved = self._cards(campaigns.paper_campaign())
        assert fulfilled == ("100 %", "of each demand served at least, within its SLO, on 16 of 16 GPUs")
        assert regret == ("0 %", "regret: the most this plan can lose (tolerance 1 %; gap 0 %)")
        assert points == ("3 / 24", "points measured / all")
        assert spent == ("3,600", "GPU-seconds of measuring (5,040 billed with start-up)")
        assert saved == ("30,000", "GPU-seconds saved: 89.3 % of measuring everything")

    def test_nothing_is_called_saved_while_it_may_still_be_spent(self) -> None:
        *_, last = self._cards(campaigns.paper_campaign(2))
        assert last == ("33,600", "GPU-seconds that measuring everything would take")

    def test_count_reused_points_apart_from_paid_ones(self) -> None:
        points = self._cards(campaigns.undetermined_campaign())[2]
        assert points == ("4 / 24", "points measured / all; 1 more reused")

    def test_of_the_fewest_gpus_before_and_after_a_plan_is_sure(self) -> None:
        campaign = campaigns.fewest_gpus_campaign()
        assert self._cards(campaign)[0] == ("12 / 16", "GPUs needed / in the pool")
        unsure = self._cards(replace(campaign, rounds=campaign.rounds[:1]))
        assert unsure[0] == ("? / 16", "GPUs needed / in the pool: no plan is certain yet")
        assert unsure[1][0] == "open"


class TestHead:
    def test_says_round_engine_gpus_device_confidence_and_time(self) -> None:
        campaign = campaigns.paper_campaign()
        spec = replace(campaign.spec, decision=replace(campaign.spec.decision, confidence=0.95))
        text = _Page(_render(replace(campaign, spec=spec), generated_at="2026-11-30 09:00 UTC")).text
        engines = "vllm 0.30.1 on 16 x NVIDIA H100 80GB HBM3"
        told = f"round 4 of at most 12 \u00b7 {engines} \u00b7 measured by replay \u00b7 confidence 95 %"
        assert f"{told} \u00b7 2026-11-30 09:00 UTC" in text


class TestPlans:
    def test_a_decided_plan_has_slo_interval_and_headroom_at_the_lower_bound(self) -> None:
        text = _text(campaigns.paper_campaign())
        assert "Optimistic: every capacity" not in text
        assert "success \u2265 99 %, TTFT p99 \u2264 2 s, E2E p99 \u2264 30 s" in text
        assert re.search(r"open-31b-fp8 success .{0,40} 6\.5 TP4 2 8 \[3\.6, 6\] \+10\.8 %", text)
        assert "40 per hour" in text

    def test_an_open_campaign_shows_both_plans(self) -> None:
        text = _text(campaigns.paper_campaign(2))
        assert "Conservative: every capacity at its lower bound" in text
        assert "Optimistic: every capacity at its upper bound" in text
        assert "no replicas" in text
        assert "short by 100 %" in text

    def test_next_points_come_with_reason_chance_price_and_job(self) -> None:
        text = _text(campaigns.paper_campaign(2))
        assert "1 point in 1 job, 1,680 GPU-seconds billed." in text
        assert "If met, two replicas of chat TP4 serve the demand; if missed, they never can. 62 %" in text
        assert "What would close the gap" in _text(campaigns.undetermined_campaign())

    def test_scenarios_mark_the_demand_that_was_planned_for(self) -> None:
        assert "1 x (18.5 req/s) planned for 100 %" in _text(campaigns.paper_campaign())


class TestGrid:
    def test_every_fate_of_a_point_has_a_letter_of_its_own(self) -> None:
        campaign = campaigns.undetermined_campaign()
        rows = grid_rows(campaign.spec, campaign.rounds[-1], campaign.evidence, campaign.verdicts)
        kinds = {(row.candidate.label, cell.load): cell for row in rows for cell in row.cells}
        assert kinds["code TP4", 3.6].kind == "met"
        assert kinds["code TP4", 3.6].reused
        assert kinds["chat TP4", 4.4].kind == "missed"
        assert kinds["chat TP4", 4.4].again
        assert kinds["chat TP4", 6.6].kind == "marginal"
        assert kinds["chat TP4", 6.6].curtailed
        assert kinds["chat TP2", 2.2].kind == "refused"
        assert kinds["chat TP8", 11.27].kind == "next"
        assert kinds["chat TP8", 2.2].kind == "skipped"
        text = _text(campaign)
        assert "2.2 R" in text
        assert "11.27 \u25b8" in text
        assert "4.4 X\u25b8" in text
        assert "reused from an earlier campaign: 1" in text

    def test_a_point_that_failed_is_never_shown_as_missed(self) -> None:
        campaign = campaigns.undetermined_campaign()
        decision = replace(campaign.rounds[-1], points=())
        rows = grid_rows(campaign.spec, decision, campaign.evidence, campaign.verdicts)
        (cell,) = (
            c for row in rows if row.candidate.label == "chat TP8" for c in row.cells if c.load == 11.27
        )
        assert cell.kind == "failed"
        assert cell.reason == "not measured: node dgx-07 went down"
        page = _Page(_render(replace(campaign, rounds=(decision,))))
        assert "chat TP8 11.27 req/s 2 infrastructure node dgx-07 went down" in page.text

    def test_a_measurement_nobody_judged_is_in_doubt_never_met(self) -> None:
        campaign = campaigns.paper_campaign()
        rows = grid_rows(campaign.spec, campaign.rounds[-1], campaign.evidence, {})
        measured = [cell for row in rows for cell in row.cells if cell.items]
        assert {cell.kind for cell in measured} == {"marginal"}

    def test_a_point_the_budget_left_out_is_open_not_skipped_safely(self) -> None:
        campaign = campaigns.undetermined_campaign()
        last = campaign.rounds[-1]
        reason = "open: the budget ended before it was measured"
        skipped = tuple(replace(point, reason=reason) for point in last.skipped)
        decision = replace(last, skipped=skipped)
        rows = grid_rows(campaign.spec, decision, campaign.evidence, campaign.verdicts)
        assert {cell.kind for row in rows for cell in row.cells if not cell.items} == {"next", "open"}

    def test_measured_cells_say_their_numbers_against_the_limits_on_hover(self) -> None:
        titles = _Page(_render(campaigns.paper_campaign())).titles
        wanted = "TTFT p99 1.1 s of 2 s; E2E p99 16.5 s of 30 s; success 99.9 % of 99 %; round 2"
        assert f"chat TP4 6.6 req/s: met; {wanted}" in titles
        assert any("ended early: its verdict was already certain" in title for title in titles)

    def test_skipped_points_are_grouped_by_reason_with_what_they_would_have_cost(self) -> None:
        text = _text(campaigns.paper_campaign())
        assert "No outcome changes the replicas of any plan. chat TP8, code TP8 8 19,200" in text
        assert "skipped: cannot change the decision: 21" in text

    def test_a_long_ladder_folds_loads_of_the_same_fate_and_counts_them(self) -> None:
        text = _text(campaigns.large_campaign(2, 2, 40, name_length=12))
        assert re.search(r"1\.5 \u2026 [\d.e+]+ \(40 loads\)", text)
        assert "(20 loads)" in text

    def test_excluded_candidates_are_listed_with_their_reason(self) -> None:
        assert "chat TP1 : weights of 62 GiB and one request's KV cache" in _text(campaigns.paper_campaign())

    def test_closed_loop_ladders_are_told_in_users(self) -> None:
        campaign = campaigns.paper_campaign()
        candidates = tuple(replace(item, load_kind="concurrency") for item in campaign.spec.candidates)
        spec = replace(campaign.spec, candidates=candidates)
        text = _text(replace(campaign, spec=spec))
        assert "2.2 4.4 6.6 11.27 users" in text
        assert "chat TP4 at 6.6 users" in text


class TestTrouble:
    def test_contradicting_runs_stand_side_by_side(self) -> None:
        text = _text(campaigns.undetermined_campaign())
        assert "The evidence contradicts itself" in text
        assert "chat TP4 4.4 req/s 6.6 req/s 6.6 req/s verdict missed met missed" in text
        assert "E2E p99 (limit 30 s) 63 s 16.5 s 63 s" in text

    def test_only_the_first_contradictions_are_laid_out_and_the_rest_counted(self) -> None:
        campaign = campaigns.undetermined_campaign()
        last = campaign.rounds[-1]
        everywhere = tuple(replace(interval, contradiction=(2.2,)) for interval in last.intervals)
        text = _text(replace(campaign, rounds=(replace(last, intervals=everywhere),)))
        assert "and 2 more candidates" in text

    def test_warnings_are_shown(self) -> None:
        assert "a load above a missed one is met (measured loads 4.4, 6.6)." in _text(
            campaigns.undetermined_campaign()
        )

    def test_names_cannot_become_markup(self) -> None:
        html = _render(
            campaigns.paper_campaign(chat=campaigns.NASTY, code="</title></svg><img src=x onerror=1>")
        )
        page = _Page(html)
        assert "script" not in page.tags
        assert "img" not in page.tags
        assert campaigns.NASTY in page.text


class TestLinks:
    def test_named_links_are_shown_and_run_links_are_filled_in(self) -> None:
        campaign = campaigns.paper_campaign()
        html = _render(
            campaign, links={"Campaign": "https://m.example/c?a=1&b=2", RUN_LINK: "/runs/{run_id}"}
        )
        links = _Page(html).links
        assert links[0] == "https://m.example/c?a=1&b=2"
        assert "/runs/chat-tp4-6.6-0" in links
        assert "{run_id}" not in html

    def test_contradicting_runs_are_linked(self) -> None:
        links = _Page(_render(campaigns.undetermined_campaign(), links={RUN_LINK: "/runs/{run_id}"})).links
        assert links.count("/runs/chat-tp4-4.4-0") == 2

    def test_ids_are_quoted_in_addresses(self) -> None:
        campaign = campaigns.paper_campaign()
        items = tuple(replace(item, run_id='a/"b') for item in campaign.evidence.items)
        odd = replace(campaign, evidence=replace(campaign.evidence, items=items))
        assert "/runs/a%2F%22b" in _Page(_render(odd, links={RUN_LINK: "/runs/{run_id}"})).links

    @pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "JaVaScRiPt:1", "vbscript:x"])
    def test_an_address_that_could_run_something_is_left_out(self, url: str) -> None:
        html = _render(campaigns.paper_campaign(), links={"bad": url, RUN_LINK: url})
        assert _Page(html).links == []

    @pytest.mark.parametrize("url", ["https://a/b", "/fleetsieve/x:y", "?a=b:c", "#x:y", "a/b:c"])
    def test_web_and_relative_addresses_are_kept(self, url: str) -> None:
        assert _Page(_render(campaigns.paper_campaign(), links={"good": url})).links == [url]


class TestCertificate:
    def test_a_running_campaign_says_when_there_will_be_one(self) -> None:
        assert "There is none yet" in _text(campaigns.paper_campaign(2))

    def test_digests_solvers_software_and_assumptions_are_those_of_the_document(self) -> None:
        campaign = campaigns.paper_campaign()
        decision = decide(campaign.spec, campaign.evidence)
        assert decision.state == "certified_feasible"
        document = build_certificate(campaign.spec, campaign.evidence, decision, campaign_id="weekly")
        text = _text(replace(campaign, rounds=(decision,), certificate=document))
        assert "fleetsieve verify certificate.json" in text
        for digest in (
            spec_digest(campaign.spec),
            document["evidence_sha256"],
            document["certificate_sha256"],
        ):
            assert f"sha256:{digest}" in text
        assert "over 3 measurements" in text
        assert "weekly" in text
        assert "conservative: exact dynamic programme, Optimal; optimistic: exact dynamic" in text
        assert f"numpy {document['software']['numpy']}" in text
        assert "monotone: a load above a missed one is not met" in text


class TestSize:
    def test_a_large_fleet_with_ordinary_names_is_shown_whole(self) -> None:
        campaign = campaigns.large_campaign(20, 6, 8, name_length=12)
        html = _render(campaign)
        assert len(html.encode()) <= LIMIT_BYTES
        assert "Shown:" not in html

    def test_what_does_not_fit_is_left_out_and_counted(self) -> None:
        campaign = campaigns.large_campaign(40, 20, 8)
        html = _render(campaign, links={RUN_LINK: "https://mlflow.example/" + "x" * 200 + "/{run_id}"})
        assert len(html.encode()) <= LIMIT_BYTES
        text = _Page(html).text
        assert re.search(r"Shown: \d+ of 800 candidates", text)
        assert re.search(r"and \d+ more allocations not shown", text)
        assert "measured, SLO met: 40" in text

    def test_long_words_of_an_engine_and_many_failures_do_not_break_the_limit(self) -> None:
        campaign = campaigns.undetermined_campaign()
        (failure,) = campaign.evidence.failures
        failures = tuple(replace(failure, message="x" * 5000, round=number) for number in range(1, 500))
        decision = replace(campaign.rounds[-1], warnings=tuple(f"{n} " + "w" * 3000 for n in range(500)))
        evidence = replace(campaign.evidence, failures=failures)
        html = _render(replace(campaign, evidence=evidence, rounds=(decision,)))
        assert len(html.encode()) <= LIMIT_BYTES
        assert re.search(r"and \d+ more failures not shown", html)
        assert re.search(r"and \d+ more warnings", html)


def test_a_repeated_round_counts_as_it_came_out_last() -> None:
    campaign = campaigns.paper_campaign()
    stale = replace(campaign.rounds[-1], state="measure")
    assert _render(replace(campaign, rounds=(*campaign.rounds[:-1], stale, campaign.rounds[-1]))) == _render(
        campaign
    )


def test_before_the_first_round_ends_the_page_says_what_will_appear() -> None:
    text = _text(Campaign(campaigns.chat_and_code(), evidence=Evidence()))
    assert "Measuring: the first round has not ended yet." in text
    assert "appear here when it has" in text


def test_what_changes_against_the_plan_in_force_is_told_below_the_allocation() -> None:
    changes = [f"w{number}: 1 x <TP8> -> 2 x TP4" for number in range(300)] + ["fleet: 16 -> 16 GPUs"]
    html = _render(campaigns.paper_campaign(), changes=changes)
    text = _Page(html).text
    assert "Against the plan in force w0: 1 x <TP8> -> 2 x TP4 w1:" in text
    assert "fleet: 16 -> 16 GPUs and 61 more workloads" in text
    assert len(html.encode()) <= LIMIT_BYTES


def test_a_page_says_what_steered_the_first_measurements() -> None:
    campaign = campaigns.paper_campaign(1)
    told = "steered at first by what the earlier release showed of 2 candidates and simulated capacities of 1"
    assert "steered" not in _Page(_render(campaign)).text
    priors = tuple(
        PriorCapacity(workload="chat", config=config, source=source, lower_rps=1.0, upper_rps=2.0)
        for config, source in (
            ("TP2", "earlier_release"),
            ("TP4", "earlier_release"),
            ("TP8", "simulator"),
        )
    )
    steered = replace(campaign, evidence=replace(campaign.evidence, priors=priors))
    assert told in _Page(_render(steered)).text
