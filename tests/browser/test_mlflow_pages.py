"""MLflow's pages in a browser: saved views, reports, the way from its front page to an old decision."""

from __future__ import annotations

import pytest
from playwright.sync_api import Frame, expect

from fleetsieve_airflow.reporting import layout
from tests.browser.conftest import History
from tests.browser.screen import Screen, layout_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]


def reported(screen: Screen, heading: str) -> Frame:
    """Return the report inside MLflow's page, once it is there."""
    page = screen.page
    expect(page.frame_locator("iframe").get_by_role("heading", name=heading, level=1)).to_be_visible()
    (frame,) = [frame for frame in page.frames if frame is not page.main_frame]
    return frame


def test_the_plans_view_shows_verdict_plan_and_cost_of_every_campaign(
    history: History, screen: Screen
) -> None:
    page = screen.page
    page.goto(history.lab.hook.experiment_url(history.past))
    for text in ("2 matching runs", "certified", "infeasible", "fleetsieve.plan", "fleet/gpu_seconds_window"):
        expect(page.get_by_text(text).first).to_be_visible()
    expect(page.get_by_text("chat-1 2 x TP4; code-1 2 x TP4").first).to_be_visible()
    expect(page.get_by_text("7200", exact=True)).to_be_visible()
    screen.picture("mlflow-plans")


def test_the_charts_of_plans_show_how_both_bounds_met(history: History, screen: Screen) -> None:
    page = screen.page
    page.goto(history.lab.hook.experiment_url(history.past, charts=True))
    expect(page.get_by_text("Decision by round")).to_be_visible()
    expect(page.locator(".js-plotly-plot .scatterlayer path.js-line").first).to_be_visible()
    screen.picture("mlflow-plans-charts")


def test_the_running_campaign_is_in_the_plans_view(history: History, screen: Screen) -> None:
    hook, page = history.lab.hook, screen.page
    page.goto(hook.experiment_url(hook.ensure_fleet(history.running.name)))
    expect(page.get_by_text("1 matching run")).to_be_visible()
    expect(page.get_by_text("running", exact=True)).to_be_visible()
    expect(page.get_by_text("nothing yet")).to_be_visible()
    screen.picture("mlflow-plans-running")


def test_the_measurements_view_lists_what_was_measured_with_its_latencies(
    history: History, screen: Screen
) -> None:
    page = screen.page
    page.goto(history.lab.hook.experiment_url(history.past, layout.MEASUREMENTS))
    for text in ("13 matching runs", "chat-1 TP4 11.27 req/s", "engine_config", "offered_load_rps"):
        expect(page.get_by_text(text).first).to_be_visible()
    screen.picture("mlflow-measurements")


def test_the_charts_of_measurements_show_latency_against_load(history: History, screen: Screen) -> None:
    page = screen.page
    page.goto(history.lab.hook.experiment_url(history.past, layout.MEASUREMENTS, charts=True))
    expect(page.get_by_text("Latency and served rate against load")).to_be_visible()
    expect(page.locator(".js-plotly-plot .scatterlayer path.point").first).to_be_visible()
    screen.picture("mlflow-measurements-charts")


def test_the_report_is_read_in_mlflow(history: History, screen: Screen) -> None:
    hook = history.lab.hook
    campaign = hook.find_campaign(history.decided.name, "weekly")
    assert campaign
    screen.page.goto(hook.campaign_url(campaign, artifact=layout.REPORT_FILE))
    frame = reported(screen, "Fleet plan: shop-h100")
    screen.picture("mlflow-report")
    assert layout_of(frame).problems() == []
    assert "Decided: chat-1 2 x TP4; code-1 2 x TP4 (16 of 16 GPUs)." in frame.locator("body").inner_text()


def test_the_report_of_a_running_campaign_is_read_in_mlflow(history: History, screen: Screen) -> None:
    hook = history.lab.hook
    campaign = hook.find_campaign(history.running.name, "trial")
    assert campaign
    screen.page.goto(hook.campaign_url(campaign, artifact=layout.REPORT_FILE))
    frame = reported(screen, "Fleet plan: support-h100")
    screen.picture("mlflow-report-running")
    assert layout_of(frame).problems() == []
    assert "Measuring: not decided after round 1." in frame.locator("body").inner_text()


def test_a_stranger_finds_last_months_decision_its_evidence_and_its_cost_in_three_clicks(
    history: History, strangers_screen: Screen
) -> None:
    screen, page = strangers_screen, strangers_screen.page
    # Where it keeps traces, MLflow greets everybody once; what is looked for is not behind that greeting.
    page.add_locator_handler(page.get_by_role("button", name="Got it"), lambda greeting: greeting.click())
    page.goto(history.lab.stack.settings.mlflow_url)
    expect(page.get_by_role("link", name="fleetsieve/search-h100-plans")).to_be_visible()
    screen.picture("mlflow-stranger-0")
    page.get_by_role("link", name="fleetsieve/search-h100-plans").click()
    expect(page.get_by_role("link", name="verdicts and costs")).to_be_visible()
    screen.picture("mlflow-stranger-1")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="verdicts and costs").click()
    plans = Screen(page=opened.value, width=screen.width)
    expect(plans.page.get_by_text("certified", exact=True)).to_be_visible()
    plans.picture("mlflow-stranger-2")
    plans.page.get_by_role("link", name=history.last_month.name).click()
    for text in (
        "Decided: chat-1 2 x TP4; code-1 2 x TP4 (16 of 16 GPUs).",
        "4 points measured, 0 reused, of 24; 3,600 of 33,600 GPU-seconds of windows spent.",
        "all measurements",
    ):
        found = plans.page.get_by_text(text)
        found.scroll_into_view_if_needed()
        # MLflow folds long descriptions.
        expect(found).to_be_in_viewport()
    plans.picture("mlflow-stranger-3")
