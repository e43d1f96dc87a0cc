from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.evidence import Evidence
from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from tests.builders import make_spec

SPEC = make_spec()
ROUTES = ("/plans", "/report?conn_id=mlflow_default&fleet=test&campaign_id=c1", "/dag-run?dag_id=d&run_id=r")


@pytest.fixture(scope="module")
def airflow_app(airflow_db: Path) -> Iterator[FastAPI]:
    """Airflow's own API server, with the plugin mounted below a base path as an entry point would."""
    from airflow.api_fastapi.app import create_app, purge_cached_app

    from fleetsieve_airflow.plugin_app import PREFIX, app

    purge_cached_app()
    server = create_app(apps="core")
    # The user interface answers every path it is asked for, so what is mounted must come before it.
    server.mount(PREFIX, app)
    server.router.routes.insert(0, server.router.routes.pop())
    yield server
    purge_cached_app()


@pytest.fixture
def hook(tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowHook:
    database = shutil.copy(mlflow_database, tmp_path / "mlflow.db")
    connection = {"conn_type": "mlflow", "host": f"sqlite:///{database}"}
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_DEFAULT", json.dumps(connection))
    return MlflowHook()


def open_campaign(hook: MlflowHook, campaign_id: str, dag_id: str = "") -> CampaignRef:
    """A campaign after its first round, with a report."""
    campaign = hook.open_campaign(SPEC, campaign_id, airflow={"dag_id": dag_id})
    hook.log_round(campaign, SPEC, decide(SPEC, Evidence()), Evidence())
    hook.log_report(campaign, f"<p>report of {campaign_id}</p><script>alert(1)</script>")
    return campaign


def client(server: FastAPI, role: str | None) -> TestClient:
    """A browser of a user with a role of Airflow's simple auth manager, or of nobody."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    headers = {}
    if role is not None:
        user = SimpleAuthManagerUser(username="somebody", role=role or None)
        headers = {"Authorization": f"Bearer {get_auth_manager().generate_jwt(user)}"}
    return TestClient(server, headers=headers)


@pytest.mark.parametrize("route", ROUTES)
def test_no_page_is_shown_without_credentials(airflow_app: FastAPI, route: str) -> None:
    assert client(airflow_app, None).get(f"/fleetsieve{route}").status_code == 401


@pytest.mark.parametrize("route", ROUTES)
def test_no_page_is_shown_without_the_right_to_read_dags(airflow_app: FastAPI, route: str) -> None:
    assert client(airflow_app, "").get(f"/fleetsieve{route}").status_code == 403


def test_every_route_asks_airflow_for_the_user() -> None:
    from airflow.api_fastapi.core_api.security import get_user

    from fleetsieve_airflow.plugin_app import app

    def asks(dependant: Any) -> bool:
        return dependant.call is get_user or any(asks(part) for part in dependant.dependencies)

    routes = [route for route in app.routes if hasattr(route, "dependant")]
    assert len(routes) == len(app.routes) == 3
    assert all(asks(route.dependant) for route in routes)
    assert all(route.methods == {"GET"} for route in routes)


def test_the_list_shows_campaigns_with_verdict_gap_and_spend(airflow_app: FastAPI, hook: MlflowHook) -> None:
    open_campaign(hook, "c1")
    page = client(airflow_app, "viewer").get("/fleetsieve/plans")
    assert page.status_code == 200
    assert "running" in page.text
    assert 'href="report?conn_id=mlflow_default&amp;fleet=test&amp;campaign_id=c1"' in page.text
    assert '<td class="n">1</td>' in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_a_long_list_has_pages_on_which_every_campaign_is_once(
    airflow_app: FastAPI, hook: MlflowHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetsieve_airflow.plugin_app.CAMPAIGNS_SHOWN", 2)
    ids = [open_campaign(hook, f"c{number}").campaign_id for number in range(5)]
    browser, url, found = client(airflow_app, "viewer"), "plans", list[str]()
    while url:
        page = browser.get(f"/fleetsieve/{unescape(url)}").text
        found += re.findall(r"campaign_id=([^\"&]+)", page)
        assert ("Newest campaigns" in page) == (url != "plans")
        url = (re.findall(r'href="(plans\?[^"]+)">Older campaigns', page) or [""])[0]
    assert sorted(found) == sorted(ids)


@pytest.mark.parametrize("query", ["before=soon", "before=-1", "before=999999999999999"])
def test_a_time_that_is_none_is_refused(airflow_app: FastAPI, query: str) -> None:
    assert client(airflow_app, "viewer").get(f"/fleetsieve/plans?{query}").status_code == 422


def test_a_campaign_of_a_dag_that_the_user_may_not_read_is_neither_listed_nor_shown(
    airflow_app: FastAPI, hook: MlflowHook
) -> None:
    open_campaign(hook, "c1", dag_id="a_dag_that_is_not_theirs")
    browser = client(airflow_app, "viewer")
    assert "No campaign yet" in browser.get("/fleetsieve/plans").text
    assert browser.get(f"/fleetsieve{ROUTES[1]}").status_code == 404


def test_a_report_is_shown_without_scripts_and_without_airflows_origin(
    airflow_app: FastAPI, hook: MlflowHook
) -> None:
    open_campaign(hook, "c1")
    page = client(airflow_app, "viewer").get(f"/fleetsieve{ROUTES[1]}")
    policy = page.headers["content-security-policy"]
    assert "report of c1" in page.text
    assert "default-src 'none'" in policy
    assert "sandbox" in policy
    assert "allow-same-origin" not in policy
    assert "allow-scripts" not in policy


def test_a_connection_that_is_not_configured_is_not_used(airflow_app: FastAPI, hook: MlflowHook) -> None:
    open_campaign(hook, "c1")
    route = "/fleetsieve/report?conn_id=aws_default&fleet=test&campaign_id=c1"
    assert client(airflow_app, "admin").get(route).status_code == 404


def test_a_connection_that_fails_does_not_hide_the_others(
    airflow_app: FastAPI, hook: MlflowHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_campaign(hook, "c1")
    monkeypatch.setenv("AIRFLOW__FLEETSIEVE__MLFLOW_CONN_IDS", "missing, mlflow_default,nowhere")
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", json.dumps({"conn_type": "mlflow", "host": "ftp//x"}))
    page = client(airflow_app, "viewer").get("/fleetsieve/plans")
    assert page.status_code == 200
    assert "Airflow has no connection &#x27;missing&#x27;" in page.text
    assert "campaign_id=c1" in page.text
    assert page.text.count('class="alert"') == 2


def test_a_run_of_another_dag_has_no_campaign_and_says_so(airflow_app: FastAPI, hook: MlflowHook) -> None:
    page = client(airflow_app, "viewer").get("/fleetsieve/dag-run?dag_id=other&run_id=r")
    assert page.status_code == 200
    assert "no fleet campaign" in page.text


def test_the_tab_shows_the_report_of_the_runs_campaign(
    airflow_app: FastAPI, hook: MlflowHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import asdict

    from fleetsieve_airflow import plugin_app

    campaign = open_campaign(hook, "c1")
    monkeypatch.setattr(plugin_app, "opened_campaign", lambda dag_id, run_id: asdict(campaign))
    browser = client(airflow_app, "viewer")
    assert "report of c1" in browser.get("/fleetsieve/dag-run?dag_id=d&run_id=r").text
    monkeypatch.setenv("AIRFLOW__FLEETSIEVE__MLFLOW_CONN_IDS", "")
    assert "mlflow_conn_ids" in browser.get("/fleetsieve/dag-run?dag_id=d&run_id=r").text


def test_names_from_mlflow_are_escaped(airflow_app: FastAPI, hook: MlflowHook) -> None:
    campaign = open_campaign(hook, "c1")
    hook.get_conn().update_run(campaign.run_id, name="<script>alert(1)</script>")
    text = client(airflow_app, "viewer").get("/fleetsieve/plans").text
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_the_pages_stay_below_airflows_base_path() -> None:
    from fleetsieve_airflow.plugin import FleetSievePlugin

    hrefs = [view["href"] for view in FleetSievePlugin.external_views]
    assert all(not href.startswith(("/", "http")) for href in hrefs)
    assert {view["destination"] for view in FleetSievePlugin.external_views} == {"nav", "dag_run"}


def test_a_task_loads_the_plugin_without_what_only_its_pages_need() -> None:
    code = (
        "import sys, airflow.plugins_manager; before = set(sys.modules); import fleetsieve_airflow.plugin\n"
        "print(sorted(name.split('.')[0] for name in set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(done.stdout.splitlines()[-1])) == {"fleetsieve_airflow"}
