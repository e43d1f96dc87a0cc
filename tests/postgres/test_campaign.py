"""A whole campaign, and releases that two API servers are told of, with everything kept in PostgreSQL."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from fleetsieve_airflow.demo import processes
from fleetsieve_airflow.demo.campaign import wait_for_dag
from tests.integration.deliveries import post, signed
from tests.integration.lab import Lab, undisturbed
from tests.servers import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

DELIVERIES, TIMES_EACH = 6, 8


def test_a_campaign_ends_with_the_certificate_of_one_without_airflow(lab: Lab) -> None:
    assert lab.stack.environment()["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].startswith("postgresql+psycopg2://")
    fleet = lab.fleet("planned")
    lab.start(fleet, "planned")
    outcome = lab.follow(fleet, "planned")
    expected = undisturbed(fleet).certificate
    assert outcome.certificate["certificate_sha256"] == expected["certificate_sha256"]
    assert len(set(fleet.measured())) == len(fleet.measured())
    assert sorted(fleet.measured()) == sorted(lab.finished_runs(fleet))


@pytest.fixture
def api_servers(lab: Lab) -> Iterator[tuple[str, str]]:
    """The addresses of two API servers, two processes on one database."""
    wait_for_dag(lab.stack, lab.api, "replan_on_webhook")
    port, first = free_port(), lab.stack.service("api-server")
    second = replace(
        first,
        name="api-server-2",
        environment={**first.environment, "AIRFLOW__API__PORT": str(port)},
        log=lab.stack.home.logs / "api-server-2.log",
        pid_file=lab.stack.home.pids / "api-server-2.pid",
    )
    processes.start(second)
    urls = lab.stack.settings.airflow_url, f"http://127.0.0.1:{port}"
    try:
        version = f"{urls[1]}/api/v2/version"
        processes.wait_until(lambda: processes.answers(version), "the second", [second], timeout_s=300.0)
        assert len({processes.find(server.pid_file) for server in (first, second)} - {None}) == 2
        yield urls
    finally:
        processes.stop([second.pid_file])


def test_a_delivery_that_reaches_two_api_servers_at_once_counts_once(
    lab: Lab, api_servers: tuple[str, str]
) -> None:
    data = {"name": "nobodys-model", "alias": "live", "version": "3"}
    body = json.dumps({"entity": "model_version_alias", "action": "created", "data": data}).encode()
    ids = [f"delivery-{number}-{time.time_ns()}" for number in range(DELIVERIES)]
    sent = [(server, name) for name in ids for server in api_servers for _ in range(TIMES_EACH // 2)]

    def deliver(one: tuple[str, str]) -> tuple[str, str, tuple[int, str]]:
        server, name = one
        return server, name, post(server, body, signed(body, name))

    with ThreadPoolExecutor(len(sent)) as pool:
        answers = list(pool.map(deliver, sent))
    assert {answer for _, _, answer in answers} == {(202, "recorded"), (200, "already")}
    assert Counter(name for _, name, answer in answers if answer[0] == 202) == Counter(ids)
    assert {server for server, _, _ in answers} == set(api_servers)
    recorded = [event["extra"]["delivery_id"] for event in _events(lab) if "delivery_id" in event["extra"]]
    assert sorted(recorded) == sorted(ids)


def _events(lab: Lab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lab.api.get("assets/events", {"limit": 100})["asset_events"]
    return found
