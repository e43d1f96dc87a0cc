"""Where a campaign's prior is taken from, among all that a fleet's history holds."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fleetsieve_airflow.evidence import PriorCapacity
from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.hooks.mlflow_priors import find_earlier_release, read_priors, write_priors
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.reporting import layout
from tests.builders import make_spec


@pytest.fixture
def hook(tmp_path: Path, mlflow_database: Path) -> MlflowHook:
    return MlflowHook(tracking_uri=f"sqlite:///{shutil.copy(mlflow_database, tmp_path / 'mlflow.db')}")


def at(revision: str) -> FleetSpec:
    spec = make_spec()
    return replace(spec, models=(replace(spec.models[0], revision=revision),))


def planned(hook: MlflowHook, revision: str, verdict: str = "certified") -> CampaignRef:
    """A campaign that ended with a verdict."""
    campaign = hook.open_campaign(at(revision), f"{revision} {verdict}")
    hook.get_conn().set_tag(campaign.run_id, layout.TAG_VERDICT, verdict)
    return campaign


def found(hook: MlflowHook, revision: str) -> str:
    campaign = hook.open_campaign(at(revision), "now")
    earlier = find_earlier_release(hook.client, at(revision), campaign)
    return earlier.campaign_id if earlier else ""


def test_the_newest_certified_campaign_of_another_revision_is_the_earlier_release(hook: MlflowHook) -> None:
    for revision in ("r1", "r2", "r3"):
        planned(hook, revision)
    assert found(hook, "r3") == "r2 certified"


def test_a_campaign_without_a_certificate_is_none(hook: MlflowHook) -> None:
    planned(hook, "r1")
    planned(hook, "r2", "undetermined")
    planned(hook, "r2", "running")
    assert found(hook, "r3") == "r1 certified"


def test_a_certificate_that_no_plan_serves_the_demand_counts_too(hook: MlflowHook) -> None:
    planned(hook, "r1")
    planned(hook, "r2", "infeasible")
    assert found(hook, "r3") == "r2 infeasible"


def test_the_first_release_has_none_before_it(hook: MlflowHook) -> None:
    planned(hook, "r1")
    assert found(hook, "r1") == ""


def test_a_campaign_that_began_later_is_not_earlier(hook: MlflowHook) -> None:
    now = hook.open_campaign(at("r1"), "now")
    planned(hook, "r2")
    assert find_earlier_release(hook.client, at("r1"), replace(now, started_ms=now.started_ms - 1)) is None


def test_what_is_settled_is_read_back_and_part_of_the_evidence(hook: MlflowHook) -> None:
    spec = at("r1")
    campaign = hook.open_campaign(spec, "now")
    assert read_priors(hook.client, campaign) is None
    assert hook.load_evidence(spec, campaign).priors == ()
    prior = PriorCapacity(workload="chat", config="TP4", source="simulator", lower_rps=1.0, upper_rps=2.0)
    write_priors(hook.client, campaign, [prior], "simulator: 1 candidates")
    assert read_priors(hook.client, campaign) == (prior,)
    assert hook.load_evidence(spec, campaign).priors == (prior,)
