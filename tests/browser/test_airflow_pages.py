"""Airflow's pages in a browser: the list of plans and the tab of a DAG run, below a base path."""

from __future__ import annotations

import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Frame, expect

from fleetsieve_airflow.demo.rest import AirflowApi
from tests.browser.conftest import BASE_PATH, STRANGER, History
from tests.browser.screen import Screen, layout_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

ROUTES = (
    "fleetsieve/plans",
    "fleetsieve/report?conn_id=mlflow_default&fleet=shop-h100&campaign_id=weekly",
    "fleetsieve/dag-run?dag_id=fleet_plan&run_id=weekly__r01",
)


def framed(screen: Screen, heading: str) -> Frame:
    """Return our page inside Airflow's, once it is there."""
    page = screen.page
    expect(page.frame_locator("iframe").get_by_role("heading", name=heading, level=1)).to_be_visible()
    (frame,) = [frame for frame in page.frames if frame is not page.main_frame]
    assert urlsplit(frame.url).path.startswith(f"{BASE_PATH}/fleetsieve/")
    return frame


def row_of(frame: Frame, fleet: str, name: str = "") -> str:
    """Return the text of a campaign's row."""
    return frame.locator("tr", has_text=fleet).filter(has_text=name).inner_text()


def status(url: str, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("route", ROUTES)
def test_pages_need_a_login_and_the_right_to_read_the_dag(history: History, route: str) -> None:
    url = history.airflow(route)
    strangers = AirflowApi.login(history.airflow("").rstrip("/"), STRANGER, history.password(STRANGER))
    assert (status(url), status(url, strangers.token), status(url, history.lab.api.token)) == (401, 403, 200)


@pytest.mark.usefixtures("airflow_user")
def test_the_list_of_plans_is_one_click_away_and_says_what_was_decided(
    history: History, screen: Screen
) -> None:
    screen.page.goto(history.airflow(""))
    screen.page.get_by_role("button", name="Browse").or_(
        screen.page.get_by_role("link", name="Browse")
    ).click()
    screen.page.get_by_text("Fleet plans", exact=True).click()
    frame = framed(screen, "Fleet plans")
    expect(frame.get_by_text("shop-h100")).to_be_visible()
    screen.picture("airflow-plans")
    assert layout_of(frame).problems() == []
    decided = row_of(frame, "shop-h100")
    assert "certified" in decided
    assert "chat-1 2 x TP4\ncode-1 2 x TP4" in decided
    assert "3,600" in decided
    assert "running" in row_of(frame, "support-h100")
    assert "demand cannot be met" in row_of(frame, "search-h100", "peak")
    assert history.last_month.name in row_of(frame, "search-h100", "monthly")


@pytest.mark.usefixtures("airflow_user")
def test_a_campaign_in_the_list_opens_its_report(history: History, screen: Screen) -> None:
    screen.page.goto(history.airflow("plugin/fleet-plans"))
    framed(screen, "Fleet plans").get_by_role("link", name="shop-h100").click()
    frame = framed(screen, "Fleet plan: shop-h100")
    screen.picture("airflow-report")
    assert layout_of(frame).problems() == []
    assert "Decided: chat-1 2 x TP4; code-1 2 x TP4 (16 of 16 GPUs)." in frame.locator("body").inner_text()


@pytest.mark.usefixtures("airflow_user")
def test_the_tab_of_a_decided_run_shows_verdict_cost_and_how_to_check_it(
    history: History, screen: Screen
) -> None:
    screen.page.goto(history.airflow("dags/fleet_plan/runs/weekly__r01"))
    screen.page.get_by_role("link", name="Fleet plan", exact=True).click()
    frame = framed(screen, "Fleet plan: shop-h100")
    screen.picture("airflow-tab-decided")
    assert layout_of(frame).problems() == []
    text = frame.locator("body").inner_text()
    assert "Decided: chat-1 2 x TP4; code-1 2 x TP4 (16 of 16 GPUs)." in text
    assert "GPU-seconds saved: 89.3 % of measuring everything" in text
    assert "fleetsieve verify certificate.json" in text
    frame.get_by_role("heading", name="Certificate").scroll_into_view_if_needed()
    screen.picture("airflow-tab-decided-end")


@pytest.mark.usefixtures("airflow_user")
def test_the_tab_of_a_running_campaign_says_what_is_measured_next(history: History, screen: Screen) -> None:
    screen.page.goto(history.airflow("dags/fleet_plan/runs/trial__r01/plugin/fleet-plan"))
    frame = framed(screen, "Fleet plan: support-h100")
    screen.picture("airflow-tab-running")
    assert layout_of(frame).problems() == []
    text = frame.locator("body").inner_text()
    assert "Measuring: not decided after round 1." in text
    assert "Measured next" in text
    assert "There is none yet" in text
    assert "saved" not in text


@pytest.mark.usefixtures("airflow_user")
def test_a_run_of_another_dag_says_that_it_has_no_plan(history: History, screen: Screen) -> None:
    screen.page.goto(history.airflow("fleetsieve/dag-run?dag_id=fleet_plan&run_id=nobody"))
    expect(screen.page.get_by_text("This run has no fleet campaign")).to_be_visible()
    screen.picture("airflow-tab-none")
    assert layout_of(screen.page).problems() == []
