"""What is seen in a browser: `make test-browser` installs one and asks for these tests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.history import Store, write_campaign
from fleetsieve_airflow.demo.campaign import wait_for_dag
from fleetsieve_airflow.demo.home import USER, password_file
from fleetsieve_airflow.hooks.mlflow import CampaignRef, FleetRef
from tests.integration.lab import Fleet, Lab, make_lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

    from tests.browser.screen import Screen

# Collected on request only: the default suite must not need a browser
collect_ignore_glob = [] if os.environ.get("FLEETSIEVE_TEST_BROWSER") else ["test_*.py"]

BASE_PATH = "/airflow"
#: A user without any role, who may log in and nothing else.
STRANGER = "stranger"
FOREVER_S = "100000"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Servers with campaigns in every state: decided, under way, and of last month.

    :param decided: a fleet with one campaign, that was certified in Airflow.
    :param running: a fleet whose campaign waits for its first measurements for as long as anybody looks.
    :param past: a fleet that was planned last month, and again later for a demand that could not be met.
    """

    lab: Lab
    decided: Fleet
    running: Fleet
    past: FleetRef
    last_month: CampaignRef

    def password(self, user: str) -> str:
        """The password with which a user logs in to Airflow."""
        return str(json.loads(password_file(self.lab.stack.home).read_text())[user])

    def airflow(self, path: str) -> str:
        """The address of a page of Airflow."""
        return f"{self.lab.stack.settings.airflow_url}/{path}"


def _in_the_past(lab: Lab) -> tuple[FleetRef, CampaignRef]:
    spec = replace(lab.fleet("last-month").spec, fleet="search-h100")
    more = replace(
        spec, workloads=tuple(replace(one, demand_rps=3 * one.demand_rps) for one in spec.workloads)
    )
    store, found = Store(lab.stack.home.mlflow / "mlflow.db"), []
    for campaign_id, asked, days in (("monthly", spec, 31), ("peak", more, 17)):
        campaign = write_campaign(lab.hook, asked, campaign_id, reason=campaign_id)
        store.backdate(campaign, days)
        found.append(lab.hook.find_campaign(spec.fleet, campaign_id))
    assert found[0]
    return lab.hook.ensure_fleet(spec.fleet), found[0]


def _under_way(lab: Lab) -> Fleet:
    fleet = lab.fleet("support-h100")
    (fleet.control / "delay_s").write_text(FOREVER_S)
    lab.start(fleet, "trial")
    lab.wait(lambda: bool(fleet.attempts()), "the first measurement")
    return fleet


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """Start Airflow below a base path and MLflow, and let campaigns happen."""
    users = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin,{STRANGER}:"}
    lab = make_lab(tmp_path_factory.mktemp("browser"), base_path=BASE_PATH, options=users)
    try:
        wait_for_dag(lab.stack, lab.api)
        decided = lab.fleet("shop-h100")
        lab.start(decided, "weekly")
        # MLflow's front page lists the five newest experiments, two for each fleet.
        lab.wait(lambda: lab.hook.find_campaign(decided.name, "weekly") is not None, "a campaign")
        past, last_month = _in_the_past(lab)
        lab.follow(decided, "weekly")
        running = _under_way(lab)
        yield History(lab=lab, decided=decided, running=running, past=past, last_month=last_month)
    finally:
        lab.stack.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    from tests.browser.screen import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="session", params=(1080, 1440), ids=lambda width: f"{width}px")
def width(request: pytest.FixtureRequest) -> int:
    """How wide windows are, pixels."""
    found: int = request.param
    return found


@pytest.fixture(scope="session")
def visitor(browser: Browser, width: int) -> Iterator[BrowserContext]:
    """A visitor who has been here before: their browser need not read the same scripts for every page."""
    from tests.browser.screen import new_visitor

    with new_visitor(browser, width) as context:
        yield context


@pytest.fixture(scope="session")
def airflow_user(visitor: BrowserContext, history: History) -> BrowserContext:
    """The visitor, logged in to Airflow as people do."""
    from playwright.sync_api import expect

    page = visitor.new_page()
    page.goto(history.airflow(""))
    page.fill("input[name=username]", USER)
    page.fill("input[name=password]", history.password(USER))
    page.click("button[type=submit]")
    expect(page.get_by_role("link", name="Dags").first).to_be_visible()
    page.close()
    return visitor


@pytest.fixture
def screen(visitor: BrowserContext, width: int) -> Iterator[Screen]:
    """A new window of the visitor; nothing may have gone wrong on its pages."""
    from tests.browser.screen import window

    with window(visitor, width) as opened:
        yield opened


@pytest.fixture
def strangers_screen(browser: Browser, width: int) -> Iterator[Screen]:
    """A window of somebody who was never here."""
    from tests.browser.screen import new_visitor, window

    with new_visitor(browser, width) as context, window(context, width) as opened:
        yield opened
