"""What is published besides the certificate: files to deploy the plan with, and what changes by it."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import yaml
from airflow.sdk.exceptions import AirflowFailException

from fleetsieve_airflow.deployment.plan import read_plan
from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.hooks.mlflow_files import find_text, read_text, write_files
from fleetsieve_airflow.operators.publish import NoCertificateOperator, PublishPlanOperator
from fleetsieve_airflow.records import FleetSpec
from tests.builders import make_spec
from tests.fakes import FAKE, make_context
from tests.operators.rounds import decide
from tests.operators.test_publish import settle


def publish(campaign: CampaignRef, number: int) -> dict[str, object]:
    operator = PublishPlanOperator(task_id="publish_plan", campaign=asdict(campaign), round=number)
    return operator.execute(make_context())


def greater_demand(hook: MlflowHook) -> CampaignRef:
    """Decide a second campaign on what the first has measured: the same replicas serve 16 req/s."""
    campaign = hook.open_campaign(make_spec(demand={"chat": 16.0}, measurement={"backend": FAKE}), "c2")
    decide(campaign, 1)
    return campaign


def test_a_published_plan_can_be_deployed_from_its_run(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    settle(campaign, spec)
    publish(campaign, 2)

    def text(name: str) -> str:
        return read_text(hook.client, campaign.run_id, f"deployment/{name}")

    assert "\nvllm serve base " in text("commands.sh")
    assert [item["kind"] for item in yaml.safe_load_all(text("kubernetes.yaml"))] == ["Deployment", "Service"]
    assert yaml.safe_load(text("values.yaml"))["servingEngineSpec"]["modelSpec"][0]["replicaCount"] == 2
    plan = read_plan(json.loads(text("plan.json")))
    assert plan.certificate_sha256 == hook.load_certificate(campaign)["certificate_sha256"]


def test_the_first_plan_of_a_fleet_changes_nothing(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    settle(campaign, spec)
    assert publish(campaign, 2)["changes"] == []
    assert "Against the plan in force" not in read_text(hook.client, campaign.run_id, "report.html")


def test_summary_and_report_say_what_changes_against_the_plan_in_force(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    settle(campaign, spec)
    publish(campaign, 2)
    later = greater_demand(hook)
    changes = publish(later, 1)["changes"]
    assert changes == [
        "chat: 2 x TP4 stays, demand 12 -> 16 req/s",
        "fleet: 8 -> 8 GPUs; served the same at 1x",
    ]
    report = read_text(hook.client, later.run_id, "report.html")
    assert (
        "<h2>Against the plan in force</h2><ul><li>chat: 2 x TP4 stays, demand 12 -&gt; 16 req/s</li>"
        in report
    )
    assert publish(later, 1)["changes"] == changes


def test_a_plan_in_force_that_cannot_be_read_keeps_nobody_from_publishing(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    settle(campaign, spec)
    publish(campaign, 2)
    write_files(hook.client, campaign.run_id, {"certificate.json": '{"kind": "Certificate"}'})
    (change,) = publish(greater_demand(hook), 1)["changes"]
    assert change.startswith(
        f"The plan in force, of {campaign.name}, cannot be compared: Expected a certificate"
    )


def test_a_plan_that_is_not_certified_is_nothing_to_deploy(hook: MlflowHook) -> None:
    campaign = hook.open_campaign(make_spec(budget={"rounds": 1}), "tight")
    decide(campaign, 1)
    decide(campaign, 2)
    operator = NoCertificateOperator(task_id="no_certificate", campaign=asdict(campaign), round=2)
    with pytest.raises(AirflowFailException, match="No certificate for fleet test"):
        operator.execute(make_context())
    assert hook.load_certificate(campaign)["state"] == "undetermined"
    assert find_text(hook.client, campaign.run_id, "deployment/plan.json") is None
