from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG

from fleetsieve_airflow.backends.replay import ReplayBackend
from fleetsieve_airflow.campaign import run_campaign as run_offline
from fleetsieve_airflow.core.certificate import verify_certificate
from fleetsieve_airflow.dag import HAS_TASK_LOOPS, fleet_plan, plan_asset, settled
from fleetsieve_airflow.hooks.mlflow import MlflowHook
from fleetsieve_airflow.links import MlflowRunLink
from tests.builders import PAPER_FLEET, paper_spec
from tests.dags.driver import Run, heavy_imports_of, load_dag, run_campaign, xcom
from tests.fakes import FAKE, fake_backend, went_away

pytestmark = pytest.mark.xdist_group("airflow-in-process")

CAPACITY_RPS = {"chat TP2": 2.2, "chat TP4": 6.6, "chat TP8": 11.27}
MLFLOW_PAGES = "https://mlflow.example.com"
FLEET = "chat-and-code-h100"
ROUND_TASKS = {"round.fit", "round.allocate", "round.decide", "round.profile", "round.close_round"}


@dataclass(frozen=True)
class Campaign:
    """What a campaign in Airflow left behind."""

    dag: DAG
    runs: list[Run]
    hook: MlflowHook

    @property
    def last(self) -> Run:
        return self.runs[-1]


@pytest.fixture(scope="module")
def dag(dags_folder: Path) -> DAG:
    """The DAG that ships."""
    return load_dag(dags_folder)


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> MlflowHook:
    """An MLflow for the campaigns of this module."""
    database = shutil.copy(mlflow_database, tmp_path_factory.mktemp("mlflow") / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        host, extra = f"sqlite:///{database}", {"ui_url": MLFLOW_PAGES}
        connection = {"conn_type": "mlflow", "host": host, "extra": extra}
        patch.setenv("AIRFLOW_CONN_MLFLOW_DEFAULT", json.dumps(connection))
        yield MlflowHook()


@pytest.fixture(scope="module")
def certified(dag: DAG, dags_folder: Path, hook: MlflowHook) -> Campaign:
    """The shipped fleet, planned to its certificate."""
    return Campaign(dag, run_campaign(dags_folder, {"campaign_id": "certified", "reason": "test"}), hook)


def test_parsing_a_dag_file_imports_nothing_heavy() -> None:
    assert heavy_imports_of("dags/fleet_plan.py") == ("fleet_plan", [])


def test_the_dag_has_the_same_tasks_for_both_kinds_of_loop(dag: DAG) -> None:
    own = {"round.settled"} if HAS_TASK_LOOPS else {"next_round"}
    assert (
        set(dag.task_ids) == ROUND_TASKS | {"open_campaign", "route", "publish_plan", "no_certificate"} | own
    )
    assert dag.get_task("round.close_round").trigger_rule == "all_done"
    assert dag.get_task("publish_plan").trigger_rule == "all_success"
    assert dag.get_task("publish_plan").outlets == [plan_asset("fleet_plan")]


def test_the_trigger_form_offers_the_fleet_file_relative_to_the_dags_folder(
    dag: DAG, dags_folder: Path
) -> None:
    assert dag.params["fleet"] == "fleets/chat_and_code_h100.yaml"
    assert dag.get_task("open_campaign").fleet_folder == str(dags_folder)
    expected = {"fleet", "campaign_id", "demand_scale", "reason", "revisions", "max_rounds"}
    assert set(dag.params) == (expected if HAS_TASK_LOOPS else expected | {"round"})


def test_a_fleet_file_elsewhere_makes_its_own_folder_the_only_one_that_is_read(tmp_path: Path) -> None:
    dag = fleet_plan(dag_id="elsewhere", fleet=tmp_path / "mine.yaml", tags=["prod"], max_active_runs=2)
    assert dag.params["fleet"] == "mine.yaml"
    assert dag.get_task("open_campaign").fleet_folder == str(tmp_path)
    assert (dag.tags, dag.max_active_runs, dag.fileloc) == ({"prod"}, 2, __file__)


def test_measuring_tasks_take_the_pool_and_whatever_else_they_are_given() -> None:
    arguments = {"retries": 7, "max_active_tis_per_dagrun": 3}
    dag = fleet_plan(dag_id="pooled", fleet="x.yaml", pool="h100", profile_args=arguments)
    profile = dag.get_task("round.profile")
    assert (profile.pool, profile.retries, profile.max_active_tis_per_dagrun) == ("h100", 7, 3)


def test_the_shipped_fleet_is_planned_to_a_certificate_that_holds(certified: Campaign) -> None:
    campaign = certified.hook.find_campaign(FLEET, "certified")
    certificate = certified.hook.load_certificate(campaign)
    assert {run.state for run in certified.runs} == {"success"}
    assert certified.last.published["plan"] == {"chat": {"TP4": 2}, "code": {"TP4": 2}}
    assert certificate["state"] == "certified_feasible"
    assert verify_certificate(certificate) == ()


def test_airflow_only_carries_the_loop_the_certificate_is_that_of_a_campaign_without_it(
    certified: Campaign,
) -> None:
    offline = run_offline(paper_spec(), ReplayBackend())
    assert certified.last.published["certificate_sha256"] == offline.certificate["certificate_sha256"]
    assert certified.last.published["round"] == len(offline.decisions)


def test_a_dag_run_is_a_campaign_with_task_loops_and_a_round_without(certified: Campaign) -> None:
    rounds = certified.last.published["round"]
    assert len(certified.runs) == (1 if HAS_TASK_LOOPS else rounds)
    assert sum(len(run.tasks["round.fit"]) for run in certified.runs) == rounds


def test_mapped_tasks_are_named_after_their_points(certified: Campaign) -> None:
    campaign = certified.hook.find_campaign(FLEET, "certified")
    evidence = certified.hook.load_evidence(paper_spec(), campaign, rounds_done=99)
    named = sorted(name for run in certified.runs for name in run.names)
    assert named == sorted(item.measurement.point.label for item in evidence.items)


def test_a_settled_round_has_nothing_to_measure_and_closes_all_the_same(certified: Campaign) -> None:
    assert certified.last.tasks["round.profile"][-1:] == ["skipped"]
    assert set(certified.last.tasks["round.close_round"]) == {"success"}
    assert certified.last.tasks["no_certificate"] == ["skipped"]


def test_tasks_link_to_what_they_wrote_to_mlflow(certified: Campaign) -> None:
    first = certified.runs[0].run_id
    campaign = certified.hook.find_campaign(FLEET, "certified")
    of_campaign = xcom(certified.dag, first, "open_campaign", MlflowRunLink().xcom_key)
    of_point = xcom(certified.dag, first, "round.profile", MlflowRunLink().xcom_key)
    assert of_campaign == certified.hook.campaign_url(campaign)
    assert of_point.startswith(f"{MLFLOW_PAGES}/#/experiments/{campaign.measurements_id}/runs/")


def test_a_certified_plan_is_announced_with_what_a_deployment_needs(certified: Campaign) -> None:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    run_id = certified.last.run_id
    with create_session() as session:
        (event,) = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == run_id)).all()
        extra = event.extra
    assert extra == certified.last.published
    assert extra["certificate"].startswith(MLFLOW_PAGES)


def test_the_plugin_finds_the_campaign_of_a_dag_run(certified: Campaign) -> None:
    from fleetsieve_airflow.plugin_app import opened_campaign

    campaign = certified.hook.find_campaign(FLEET, "certified")
    for run in certified.runs:
        assert opened_campaign("fleet_plan", run.run_id)["run_id"] == campaign.run_id
    assert opened_campaign("fleet_plan", "no such run") is None


def test_going_on_with_a_certified_campaign_pays_nothing_and_ends_with_the_same_certificate(
    certified: Campaign, dags_folder: Path
) -> None:
    (before,) = [
        item for item in certified.hook.list_campaigns(FLEET) if item.campaign.campaign_id == "certified"
    ]
    again = run_campaign(dags_folder, {"campaign_id": "certified", "reason": "test"})
    (after,) = [
        item for item in certified.hook.list_campaigns(FLEET) if item.campaign.campaign_id == "certified"
    ]
    assert again[-1].published["certificate_sha256"] == certified.last.published["certificate_sha256"]
    assert after.gpu_seconds_window == before.gpu_seconds_window


def test_a_campaign_that_runs_out_of_rounds_fails_its_run_and_publishes_nothing(
    dags_folder: Path, hook: MlflowHook
) -> None:
    # A fleet of its own, or what other campaigns of this module measured would settle it at once.
    text = PAPER_FLEET.read_text(encoding="utf-8").replace(f"fleet: {FLEET}", "fleet: tight-h100")
    (dags_folder / "fleets" / "tight.yaml").write_text(text, encoding="utf-8")
    params = {"fleet": "fleets/tight.yaml", "campaign_id": "tight", "max_rounds": 1, "reason": "test"}
    runs = run_campaign(dags_folder, params)
    (summary,) = hook.list_campaigns("tight-h100")
    assert runs[-1].state == "failed"
    assert runs[-1].tasks["no_certificate"] == ["failed"]
    assert runs[-1].tasks["publish_plan"] == ["skipped"]
    assert runs[-1].published is None
    assert (summary.verdict, summary.round) == ("undetermined", 2)


if HAS_TASK_LOOPS:

    @pytest.mark.parametrize(
        ("state", "stop"),
        [
            ("measure", False),
            ("certified_feasible", True),
            ("certified_infeasible", True),
            ("undetermined", True),
        ],
    )
    def test_the_loop_goes_on_only_to_measure_and_says_why(state: str, stop: bool) -> None:
        loop = SimpleNamespace(result={"round": 3, "state": state, "reason": "regret ≤ 0.1; " * 99})
        decision = settled(loop=loop)
        assert decision.stop is stop
        assert decision.reason.startswith("round 3: regret ≤ 0.1")
        assert len(decision.reason.encode()) <= 512

else:

    def test_the_next_round_has_a_run_id_of_its_own_and_is_told_little(certified: Campaign) -> None:
        first = certified.runs[0].run_id
        conf = xcom(certified.dag, first, "route", "conf")
        assert xcom(certified.dag, first, "route", "run_id") == "certified__r02"
        assert (conf["campaign_id"], conf["round"], conf["reason"]) == ("certified", 2, "test")
        assert len(json.dumps(conf)) < 500
        assert "round.profile" in certified.runs[0].tasks

    def test_clearing_the_task_that_triggers_runs_the_next_round_again(dag: DAG) -> None:
        following = dag.get_task("next_round")
        assert following.reset_dag_run
        assert following.logical_date is None
        assert not following.wait_for_completion


def test_a_point_that_fails_for_good_is_asked_for_again_and_never_read_as_missed(
    hook: MlflowHook, dags_folder: Path
) -> None:
    lost = "chat TP4 6.6 req/s"
    (dags_folder / "fleets" / "lossy.yaml").write_text(yaml.safe_dump(fake_fleet("lossy")))
    with fake_backend(CAPACITY_RPS, errors={lost: went_away()}) as backend:
        runs = run_campaign(dags_folder, {"campaign_id": "lossy", "fleet": "fleets/lossy.yaml"})
        campaign = hook.find_campaign("lossy", "lossy")
        evidence = hook.load_evidence(hook.load_spec(campaign), campaign, rounds_done=99)
    rounds = [failure.round for failure in evidence.failures]
    assert {failure.label for failure in evidence.failures} == {lost}
    assert len(set(rounds)) == len(rounds) == backend.measured[lost] >= 2
    assert lost not in {item.measurement.point.label for item in evidence.items}
    assert len(evidence.items) == sum(backend.measured.values()) - len(rounds)
    assert runs[-1].published["state"] == "certified_feasible"
    assert {state for run in runs for state in run.tasks["round.profile"]} <= {"success", "skipped"}


def fake_fleet(name: str) -> dict[str, Any]:
    """The chat half of the shipped fleet on the fake backend; a point is given up after two failures."""
    document = yaml.safe_load(PAPER_FLEET.read_text())
    del document["workloads"]["code"], document["measurement"]["grid"]
    document["fleet"] = name
    document["pools"]["h100"]["gpus"] = 8
    document["workloads"]["chat"]["loads"] = {"offered_load_rps": [2.2, 4.4, 6.6, 11.27]}
    document["measurement"] |= {"backend": FAKE, "failed_attempts": 2}
    return document
