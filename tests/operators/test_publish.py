from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException

from fleetsieve_airflow.core.certificate import verify_certificate
from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.hooks.mlflow_files import read_text
from fleetsieve_airflow.operators.publish import NoCertificateOperator, PublishPlanOperator
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serialization import to_document
from tests.builders import make_point, make_spec
from tests.fakes import FAKE, fake_backend, make_context
from tests.operators.rounds import decide, profile

PLAN = Asset(name="plan", uri="fleetsieve://plan/test")


def settle(campaign: CampaignRef, spec: FleetSpec) -> None:
    """Decide, measure the one point that settles it, decide again."""
    decide(campaign, 1)
    with fake_backend():
        profile(campaign, to_document(make_point(spec, config="TP4", load=8.0)))
    decide(campaign, 2)


def test_a_settled_campaign_gets_a_certificate_that_holds_a_report_and_an_event(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    settle(campaign, spec)
    event = SimpleNamespace(extra={})
    operator = PublishPlanOperator(
        task_id="publish_plan", campaign=asdict(campaign), round="2", outlets=[PLAN]
    )
    summary = operator.execute(make_context(outlet_events={PLAN: event}))
    certificate = hook.load_certificate(campaign)
    assert verify_certificate(certificate) == ()
    assert event.extra == summary
    assert summary["state"] == "certified_feasible"
    assert summary["plan"] == {"chat": {"TP4": 2}}
    assert summary["certificate_sha256"] == certificate["certificate_sha256"]
    assert certificate["certificate_sha256"][:12] in read_text(hook.client, campaign.run_id, "report.html")
    assert [item.verdict for item in hook.list_campaigns("test")] == ["certified"]


def test_publishing_twice_gives_the_same_certificate(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    settle(campaign, spec)
    operator = PublishPlanOperator(task_id="publish_plan", campaign=asdict(campaign), round=2)
    assert operator.execute(make_context()) == operator.execute(make_context())


def test_a_demand_that_cannot_be_met_is_certified_and_published_too(hook: MlflowHook) -> None:
    spec = make_spec(configs={"TP8": 8}, loads=[2.0], measurement={"backend": FAKE})
    campaign = hook.open_campaign(spec, "too-much")
    decide(campaign, 1)
    with fake_backend({"chat TP8": 2.0}):
        profile(campaign, to_document(make_point(spec, config="TP8", load=2.0)))
    decide(campaign, 2)
    summary = PublishPlanOperator(task_id="publish_plan", campaign=asdict(campaign), round=2).execute(
        make_context()
    )
    assert summary["state"] == "certified_infeasible"
    assert summary["plan"] == {"chat": {"TP8": 2}}
    assert [item.verdict for item in hook.list_campaigns("test")] == ["infeasible"]


def test_a_campaign_that_is_not_settled_cannot_be_published(campaign: CampaignRef) -> None:
    decide(campaign, 1)
    operator = PublishPlanOperator(task_id="publish_plan", campaign=asdict(campaign), round=1)
    with pytest.raises(AirflowFailException, match="Round 1 is measure: there is nothing to publish"):
        operator.execute(make_context())


def test_an_undetermined_campaign_fails_its_run_and_keeps_both_plans(hook: MlflowHook) -> None:
    spec = make_spec(budget={"rounds": 1})
    campaign = hook.open_campaign(spec, "tight")
    decide(campaign, 1)
    decide(campaign, 2)
    operator = NoCertificateOperator(task_id="no_certificate", campaign=asdict(campaign), round="2")
    with pytest.raises(AirflowFailException) as error:
        operator.execute(make_context())
    text = str(error.value)
    assert "No certificate for fleet test: undetermined in round 2" in text
    assert "the budget of 1 rounds is used up" in text
    assert "Measuring chat " in text
    assert "billed GPU-seconds: raise the budget" in text
    assert hook.load_certificate(campaign)["state"] == "undetermined"
    assert [item.verdict for item in hook.list_campaigns("test")] == ["undetermined"]


def test_a_campaign_stopped_by_the_dags_own_limit_can_be_resumed(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    decide(campaign, 1)
    operator = NoCertificateOperator(task_id="no_certificate", campaign=asdict(campaign), round="1")
    with pytest.raises(AirflowFailException, match="No certificate for fleet test: measure in round 1"):
        operator.execute(make_context())
    assert [item.status for item in hook.list_campaigns("test")] == ["FAILED"]
    assert hook.open_campaign(spec, "c1") == campaign
    assert [item.status for item in hook.list_campaigns("test")] == ["RUNNING"]
