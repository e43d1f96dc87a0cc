"""64 measuring tasks that end at the same moment; MLflow has the settings that the documents ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.reporting import layout
from tests.builders import make_measurement, make_spec
from tests.postgres.server import PostgresServer
from tests.servers import MlflowServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

TASKS = 64
LOADS = tuple(1.0 + number for number in range(TASKS))
SPEC = make_spec(loads=LOADS)
FILES = {
    "logs/vllm.log": "INFO ready\n" * 200,
    "requests/requests_head.csv": "sent_s,ttft_s\n" + "0.1,0.2\n" * 200,
}


@pytest.fixture(params=["postgresql", "sqlite"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, mlflow_database: Path, postgres: PostgresServer
) -> Iterator[MlflowServer]:
    """An MLflow server on either database."""
    store = postgres.database("measurements") if request.param == "postgresql" else ""
    server = MlflowServer(tmp_path, mlflow_database, store=store)
    server.start()
    yield server
    server.stop()


def measure(server: MlflowServer, campaign: CampaignRef, load: float, all_at_once: Barrier) -> str:
    """Do what a mapped task does, with a hook of its own; all tasks end their measuring together."""
    hook = MlflowHook(tracking_uri=server.url)
    measurement = make_measurement(SPEC, config="TP4", load=load)
    claim = hook.claim_measurement(measurement.point, campaign, 1)
    assert claim.state == "ours"
    all_at_once.wait(timeout=600)
    hook.finish_measurement(claim.run_id, measurement, SPEC, files=FILES)
    return claim.run_id


def test_none_is_lost_doubled_or_left_running(server: MlflowServer) -> None:
    hook = MlflowHook(tracking_uri=server.url)
    campaign = hook.open_campaign(SPEC, "many")
    all_at_once = Barrier(TASKS)
    with ThreadPoolExecutor(TASKS) as pool:
        written = list(pool.map(lambda load: measure(server, campaign, load, all_at_once), LOADS))
    runs = hook.get_conn().search_runs([campaign.measurements_id], max_results=1000)
    assert Counter(run.info.status for run in runs) == {"FINISHED": TASKS}
    assert sorted(run.info.run_id for run in runs) == sorted(written)
    assert max(Counter(run.data.tags[layout.TAG_KEY] for run in runs).values()) == 1
    evidence = hook.load_evidence(SPEC, campaign, rounds_done=1)
    expected = {
        item.point.key: item for item in (make_measurement(SPEC, config="TP4", load=load) for load in LOADS)
    }
    assert {item.measurement.point.key: item.measurement for item in evidence.items} == expected
    for run in runs:
        stored = {entry.path for entry in hook.get_conn().list_artifacts(run.info.run_id)}
        assert {"logs", "requests"} <= stored
    assert hook.sweep(campaign) == ()
