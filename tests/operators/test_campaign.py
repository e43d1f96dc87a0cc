from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from fleetsieve_airflow.backends.replay import ReplayBackend
from fleetsieve_airflow.campaign import run_campaign
from fleetsieve_airflow.core.earlier import prior_of
from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.hooks.mlflow_priors import read_priors
from fleetsieve_airflow.operators.campaign import OpenCampaignOperator, campaign_name, limit_rounds
from fleetsieve_airflow.operators.priors import settle_priors
from fleetsieve_airflow.spec import load_spec
from tests.builders import PAPER_FLEET, make_spec
from tests.fakes import FAKE, fake_backend, make_context

FLEET, MODEL = "chat-and-code-h100", "open-weight-31b"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of fleet files."""
    (tmp_path / "fleets").mkdir()
    (tmp_path / "fleets" / "a.yaml").write_text(PAPER_FLEET.read_text())
    return tmp_path / "fleets"


def open_campaign(folder: Path, fleet: str = "a.yaml", **fields: Any) -> dict[str, Any]:
    fields = {"campaign_id": "weekly", **fields}
    operator = OpenCampaignOperator(task_id="open_campaign", fleet=fleet, fleet_folder=str(folder), **fields)
    return operator.execute(make_context())


def test_a_campaign_is_opened_with_the_spec_of_its_file(hook: MlflowHook, folder: Path) -> None:
    campaign = CampaignRef(**open_campaign(folder, demand_scale="1.3", max_rounds="7", reason="release"))
    spec = load_spec(folder / "a.yaml", demand_scale=1.3)
    assert hook.load_spec(campaign) == limit_rounds(spec, 7)
    assert campaign.name.endswith("-release")
    assert (campaign.fleet, campaign.campaign_id) == (FLEET, "weekly")


def test_opening_it_again_finds_the_same_campaign(hook: MlflowHook, folder: Path) -> None:
    assert open_campaign(folder) == open_campaign(folder)
    assert len(hook.list_campaigns(FLEET)) == 1


def test_a_run_says_which_airflow_task_opened_it(hook: MlflowHook, folder: Path) -> None:
    run_id = open_campaign(folder)["run_id"]
    tags = hook.get_conn().get_run(run_id).data.tags
    assert (tags["airflow.dag_id"], tags["airflow.run_id"]) == ("fleet_plan", "manual__1")


@pytest.mark.parametrize("fleet", ["../secrets.yaml", "/etc/hostname", "x/../../secrets.yaml"])
def test_a_file_outside_the_fleet_folder_is_not_read(folder: Path, fleet: str) -> None:
    (folder.parent / "secrets.yaml").write_text("password: hunter2")
    with pytest.raises(AirflowFailException, match="is not below") as error:
        open_campaign(folder, fleet)
    assert "hunter2" not in str(error.value)


def test_a_wrong_fleet_file_fails_at_once_and_nothing_is_opened(hook: MlflowHook, folder: Path) -> None:
    text = (folder / "a.yaml").read_text()
    (folder / "bad.yaml").write_text(text.replace("demand_rps: 12.0", "demand_rps: -1"))
    with pytest.raises(AirflowFailException, match="demand_rps"):
        open_campaign(folder, "bad.yaml")
    assert hook.list_fleets() == ()


def test_a_backend_that_cannot_measure_the_fleet_is_refused_before_anything_is_opened(
    hook: MlflowHook, folder: Path
) -> None:
    text = (folder / "a.yaml").read_text().replace("backend: replay", f"backend: {FAKE}")
    text = text.replace("  grid: package:paper_grid.csv", "  # no grid")
    loads = "    loads: {offered_load_rps: [2, 4]}\n    engine_configs: [TP2, TP4, TP8]\n"
    text = text.replace("    engine_configs: [TP2, TP4, TP8]\n", loads)
    (folder / "other.yaml").write_text(text)
    with (
        fake_backend(refuses="No GPU of that kind is here."),
        pytest.raises(AirflowFailException, match="No GPU of that kind is here"),
    ):
        open_campaign(folder, "other.yaml")
    assert hook.list_fleets() == ()


def test_a_campaign_under_way_keeps_its_spec_when_the_file_changes(hook: MlflowHook, folder: Path) -> None:
    first = open_campaign(folder)
    text = (folder / "a.yaml").read_text()
    (folder / "a.yaml").write_text(text.replace("demand_rps: 12.0", "demand_rps: 13.0"))
    assert open_campaign(folder, round="2") == first
    assert hook.load_spec(CampaignRef(**first)).workload("chat").demand_rps == 12.0


def test_an_id_that_is_taken_by_a_campaign_of_another_spec_is_refused(hook: MlflowHook, folder: Path) -> None:
    open_campaign(folder)
    with pytest.raises(AirflowFailException, match=r"was opened with another fleet spec .* start a new one"):
        open_campaign(folder, demand_scale="1.3")


def test_a_release_is_planned_at_its_revision_and_says_so(hook: MlflowHook, folder: Path) -> None:
    campaign = CampaignRef(**open_campaign(folder, revisions='{"open-weight-31b": "v7"}'))
    assert hook.load_spec(campaign).model("open-weight-31b").revision == "v7"
    assert open_campaign(folder, round=2, revisions={"open-weight-31b": "v7"})["run_id"] == campaign.run_id


@pytest.mark.parametrize(
    "revisions", ["nonsense", "[]", {"open-weight-31b": 7}, {"open-weight-31b": ""}, {"another": "v7"}]
)
def test_revisions_that_mean_nothing_are_refused(hook: MlflowHook, folder: Path, revisions: Any) -> None:
    with pytest.raises(AirflowFailException, match="revisions"):
        open_campaign(folder, revisions=revisions)
    assert hook.list_fleets() == ()


def test_characters_that_a_run_id_cannot_hold_are_replaced() -> None:
    assert campaign_name("scheduled__2026-11-30T15:14:33+00:00") == "scheduled__2026-11-30T15-14-33-00-00"


@pytest.mark.parametrize(("given", "own", "rounds"), [(7, None, 7), (7, 3, 3), (7, 9, 7), (None, 9, 9)])
def test_the_tighter_limit_of_rounds_holds(given: int | None, own: int | None, rounds: int) -> None:
    assert limit_rounds(make_spec(budget={"rounds": own}), given).budget.rounds == rounds


class TestPrior:
    """A new release is planned with what the campaign of the release before found."""

    @pytest.fixture
    def certified(self, hook: MlflowHook, folder: Path) -> CampaignRef:
        """A certified campaign of the first release."""
        spec = load_spec(folder / "a.yaml")
        campaign = CampaignRef(**open_campaign(folder, campaign_id="first"))
        result = run_campaign(hook.load_spec(campaign), ReplayBackend(), campaign_id="first")
        assert hook.load_spec(campaign) == spec
        hook.finish_campaign(campaign, result.certificate, result.decision.state)
        return campaign

    def test_the_first_release_starts_from_nothing_and_says_so(self, hook: MlflowHook, folder: Path) -> None:
        campaign = CampaignRef(**open_campaign(folder))
        assert read_priors(hook.client, campaign) == ()
        assert hook.get_conn().get_run(campaign.run_id).data.tags["fleetsieve.prior"] == "none"

    def test_a_new_revision_starts_from_the_certified_campaign_of_the_one_before(
        self, hook: MlflowHook, folder: Path, certified: CampaignRef
    ) -> None:
        campaign = CampaignRef(**open_campaign(folder, revisions={MODEL: "r2"}))
        spec = hook.load_spec(campaign)
        evidence = hook.load_evidence(spec, campaign)
        assert evidence.items == ()  # nothing of another revision is reused
        assert evidence.priors == prior_of(spec, hook.load_certificate(certified))
        assert evidence.priors
        tag = hook.get_conn().get_run(campaign.run_id).data.tags["fleetsieve.prior"]
        assert tag == f"earlier release (first): {len(evidence.priors)} candidates"

    def test_a_retried_task_finds_what_was_settled(
        self, hook: MlflowHook, folder: Path, certified: CampaignRef
    ) -> None:
        campaign = CampaignRef(**open_campaign(folder, revisions={MODEL: "r2"}))
        before = read_priors(hook.client, campaign)
        hook.get_conn().set_tag(certified.run_id, "fleetsieve.verdict", "undetermined")
        assert CampaignRef(**open_campaign(folder, revisions={MODEL: "r2"})) == campaign
        assert read_priors(hook.client, campaign) == before

    def test_the_same_revision_reuses_and_believes_nothing(
        self, hook: MlflowHook, folder: Path, certified: CampaignRef
    ) -> None:
        assert read_priors(hook.client, CampaignRef(**open_campaign(folder, campaign_id="again"))) == ()

    def test_a_fleet_file_may_leave_the_earlier_release_out(
        self, hook: MlflowHook, folder: Path, certified: CampaignRef
    ) -> None:
        text = (folder / "a.yaml").read_text()
        (folder / "a.yaml").write_text(text.replace("earlier_release: true", "earlier_release: false"))
        campaign = CampaignRef(**open_campaign(folder, revisions={MODEL: "r2"}))
        assert read_priors(hook.client, campaign) == ()

    def test_a_campaign_that_has_begun_without_a_prior_goes_on_without(
        self, hook: MlflowHook, folder: Path, certified: CampaignRef
    ) -> None:
        spec = load_spec(folder / "a.yaml", revisions={MODEL: "r2"})
        campaign = hook.open_campaign(spec, "old")
        hook.get_conn().set_tag(campaign.run_id, "fleetsieve.rounds_done", "1")
        assert settle_priors(hook, campaign, spec) == ""
        assert read_priors(hook.client, campaign) is None
