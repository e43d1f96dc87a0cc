from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetsieve_airflow.dag import HAS_TASK_LOOPS
from fleetsieve_airflow.dag_release import release_asset, replan_on_release
from fleetsieve_airflow.hooks.mlflow import MlflowHook
from fleetsieve_airflow.plugin_webhook import record
from fleetsieve_airflow.releases import Release
from fleetsieve_airflow.triggers.release import MlflowAliasTrigger
from tests.dags.driver import heavy_imports_of, load_dag, run_campaign

pytestmark = pytest.mark.xdist_group("airflow-in-process")

DAG_ID = "replan_on_release"
MODEL, FLEET = "open-weight-31b", "chat-and-code-h100"
SHIPPED = "fleets/chat_and_code_h100.yaml"
CAMPAIGN = f"release-chat_and_code_h100-{MODEL}-v2"


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Iterator[MlflowHook]:
    """An MLflow with two versions of the model that the shipped fleet serves."""
    database = shutil.copy(mlflow_database, tmp_path_factory.mktemp("mlflow") / "mlflow.db")
    connection = {"conn_type": "mlflow", "host": f"sqlite:///{database}"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_MLFLOW_DEFAULT", json.dumps(connection))
        hook = MlflowHook()
        client = hook.get_conn()
        client.create_registered_model(MODEL)
        for _ in range(2):
            client.create_model_version(MODEL, "s3://models/31b")
        yield hook


def tell(model: str, version: str, delivery_id: str) -> dict[str, Any]:
    """Record a release as the webhook does."""
    return record("mlflow_default", Release(model=model, version=version, alias="production"), delivery_id)


def run(folder: Path) -> str:
    """Run the DAG once; the state of its task."""
    ended = load_dag(folder, DAG_ID).test()
    assert str(ended.state) == "success"
    (instance,) = ended.get_task_instances()
    return str(instance.state)


def planned() -> dict[str, dict[str, Any]]:
    """Run id -> conf of the campaigns of the shipped fleet that were started for releases.

    Other tests of this process put fleets of their own into Airflow's only DAG folder.
    """
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        runs = session.scalars(select(DagRun).where(DagRun.dag_id == "fleet_plan"))
        return {
            run.run_id: run.conf
            for run in runs
            if run.run_id.startswith("release-") and run.conf["fleet"] == SHIPPED
        }


@pytest.fixture(scope="module")
def released(dags_folder: Path, hook: MlflowHook) -> Path:
    """A release that was told and planned for; the folder of the DAGs."""
    # The first run writes the DAG and its asset to the database; there is nothing to plan for yet.
    assert run(dags_folder) == "skipped"
    assert tell(MODEL, "2", "d1") == {"status": "recorded"}
    assert tell("of-no-fleet", "9", "d2") == {"status": "recorded"}
    assert run(dags_folder) == "success"
    return dags_folder


def test_parsing_the_dag_file_imports_nothing_heavy() -> None:
    assert heavy_imports_of("dags/replan_on_release.py") == (DAG_ID, [])


def test_the_shipped_dag_watches_the_alias_and_looks_below_fleets(dags_folder: Path) -> None:
    dag = load_dag(dags_folder, DAG_ID)
    (asset,) = dag.timetable.asset_condition.objects
    assert asset == release_asset("mlflow_default", "production", asset.watchers)
    (watcher,) = asset.watchers
    assert watcher.trigger.serialize() == MlflowAliasTrigger(alias="production").serialize()
    plan = dag.get_task("plan_fleets")
    assert (plan.fleet_folder, plan.relative_to) == (str(dags_folder / "fleets"), str(dags_folder))
    assert plan.plan_dag_id == "fleet_plan"


def test_where_only_the_webhook_tells_nothing_is_watched_and_a_folder_elsewhere_names_its_own_files(
    tmp_path: Path,
) -> None:
    dag = replan_on_release(
        dag_id="eu", fleets=tmp_path, alias="live", mlflow_conn_id="ml", watch=False, tags=["eu"]
    )
    (asset,) = dag.timetable.asset_condition.objects
    assert (asset.uri, asset.watchers) == ("fleetsieve://release/ml/live", [])
    plan = dag.get_task("plan_fleets")
    assert (plan.fleet_folder, plan.relative_to) == (str(tmp_path), str(tmp_path))
    assert (dag.tags, dag.fileloc) == ({"eu"}, __file__)


def test_a_release_starts_one_campaign_of_each_fleet_that_serves_the_model(released: Path) -> None:
    runs = planned()
    assert list(runs) == [f"{CAMPAIGN}__r01"]
    assert runs[f"{CAMPAIGN}__r01"] == {
        "fleet": SHIPPED,
        "campaign_id": CAMPAIGN,
        "reason": f"release {MODEL} v2",
        "revisions": {MODEL: "v2"},
    }


def test_the_same_release_told_again_starts_nothing(released: Path) -> None:
    assert tell(MODEL, "2", "d1") == {"status": "already"}
    assert tell(MODEL, "2", "d3") == {"status": "recorded"}
    assert run(released) == "skipped"
    assert list(planned()) == [f"{CAMPAIGN}__r01"]


def test_the_campaign_plans_the_released_version_and_tags_it_with_the_plan(
    released: Path, hook: MlflowHook
) -> None:
    runs = run_campaign(released, planned()[f"{CAMPAIGN}__r01"])
    assert {item.state for item in runs} == {"success"}
    assert len(runs) == 1 or not HAS_TASK_LOOPS
    published = runs[-1].published
    assert published["models"] == {MODEL: "v2"}
    campaign = hook.find_campaign(FLEET, CAMPAIGN)
    assert campaign.name.endswith(f"-release-{MODEL}-v2")
    assert hook.load_certificate(campaign)["spec"]["models"][0]["revision"] == "v2"
    client = hook.get_conn()
    told = json.loads(client.get_model_version(MODEL, "2").tags[f"fleetsieve.plan.{FLEET}"])
    assert told["plan"] == published["plan"] == {"chat": {"TP4": 2}, "code": {"TP4": 2}}
    assert told["campaign_id"] == CAMPAIGN
    assert client.get_model_version(MODEL, "1").tags == {}
