from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from fleetsieve_airflow.errors import TrackingError
from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.links import MlflowRunLink
from fleetsieve_airflow.operators.profile import ProfileOperator, kept_alive
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serialization import to_document
from fleetsieve_airflow.triggers.measurement import MeasurementWaitTrigger
from tests.builders import make_measurement, make_point
from tests.fakes import fake_backend, make_context, went_away
from tests.operators.rounds import profile

LABEL = "chat TP4 8 req/s"


@pytest.fixture
def document(spec: FleetSpec) -> dict[str, Any]:
    return to_document(make_point(spec))


def operator(campaign: CampaignRef, document: dict[str, Any], number: int = 1) -> ProfileOperator:
    return ProfileOperator(task_id="profile", campaign=asdict(campaign), round=str(number), point=document)


def test_a_point_is_measured_and_becomes_evidence_of_its_round(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, document: dict[str, Any]
) -> None:
    with fake_backend() as backend:
        row = profile(campaign, document, 3)
    (item,) = hook.load_evidence(spec, campaign, rounds_done=3).items
    assert (row["outcome"], row["label"], row["key"]) == ("measured", LABEL, document["key"])
    assert (item.run_id, item.round, item.reused) == (row["run_id"], 3, False)
    assert item.measurement.point.label == LABEL
    assert backend.measured == {LABEL: 1}


def test_a_cleared_task_does_not_measure_again(campaign: CampaignRef, document: dict[str, Any]) -> None:
    with fake_backend() as backend:
        first = profile(campaign, document)
        again = profile(campaign, document, try_number=2)
    assert again == {**first, "outcome": "reused"}
    assert backend.measured == {LABEL: 1}


def test_a_task_killed_while_measuring_goes_on_with_its_own_claim(
    hook: MlflowHook, campaign: CampaignRef, spec: FleetSpec, document: dict[str, Any]
) -> None:
    left_by_the_killed_try = hook.claim_measurement(make_point(spec), campaign, 1)
    with fake_backend():
        assert profile(campaign, document, try_number=2)["run_id"] == left_by_the_killed_try.run_id


def test_a_point_that_another_campaign_measured_is_reused(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, document: dict[str, Any]
) -> None:
    other = hook.open_campaign(spec, "c2")
    with fake_backend() as backend:
        profile(other, document)
        assert profile(campaign, document, 2)["outcome"] == "reused"
    (item,) = hook.load_evidence(spec, campaign, rounds_done=2).items
    assert item.reused
    assert backend.measured == {LABEL: 1}


def test_a_point_that_another_campaign_is_measuring_is_waited_for_without_a_worker(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, document: dict[str, Any]
) -> None:
    other = hook.open_campaign(spec, "c2")
    theirs = hook.claim_measurement(make_point(spec), other, 1)
    with fake_backend() as backend:
        with pytest.raises(TaskDeferred) as deferred:
            operator(campaign, document).execute(make_context())
        hook.finish_measurement(theirs.run_id, make_measurement(spec), spec)
        resumed = getattr(operator(campaign, document), deferred.value.method_name)
        row = resumed(make_context(), event={"run_id": theirs.run_id})
    trigger = deferred.value.trigger
    assert isinstance(trigger, MeasurementWaitTrigger)
    assert trigger.run_id == theirs.run_id
    assert (row["outcome"], row["run_id"]) == ("reused", theirs.run_id)
    assert not backend.measured


def test_a_point_that_another_campaign_gave_up_is_measured_after_the_wait(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, document: dict[str, Any]
) -> None:
    theirs = hook.claim_measurement(make_point(spec), hook.open_campaign(spec, "c2"), 1)
    with fake_backend() as backend:
        with pytest.raises(TaskDeferred):
            operator(campaign, document).execute(make_context())
        hook.kill_measurement(theirs.run_id)
        row = operator(campaign, document).execute(make_context(), event={"run_id": theirs.run_id})
    assert row["outcome"] == "measured"
    assert backend.measured == {LABEL: 1}


def test_an_expected_failure_is_a_row_and_a_failure_in_the_evidence_never_a_missed_slo(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, document: dict[str, Any]
) -> None:
    with fake_backend(errors={LABEL: went_away()}):
        row = profile(campaign, document)
    evidence = hook.load_evidence(spec, campaign, rounds_done=1)
    (failure,) = evidence.failures
    assert (row["outcome"], row["message"]) == ("failed", "The node went away.")
    assert evidence.items == ()
    assert (failure.label, failure.round, failure.kind) == (LABEL, 1, "infrastructure")
    assert failure.gpu_seconds_billed == 12.0


def test_a_point_that_failed_can_be_measured_in_a_later_round(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, document: dict[str, Any]
) -> None:
    with fake_backend(errors={LABEL: went_away()}):
        profile(campaign, document, 1)
    with fake_backend():
        assert profile(campaign, document, 2)["outcome"] == "measured"
    evidence = hook.load_evidence(spec, campaign, rounds_done=2)
    assert [item.round for item in evidence.items] == [2]
    assert [failure.round for failure in evidence.failures] == [1]


def test_an_unexpected_error_is_left_to_airflows_retries_and_recorded_after_the_last(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, document: dict[str, Any]
) -> None:
    with fake_backend(errors={LABEL: OSError("disk full")}):
        with pytest.raises(OSError, match="disk full"):
            operator(campaign, document).execute(make_context(try_number=1, max_tries=1))
        assert hook.load_evidence(spec, campaign, rounds_done=1).failures == ()
        with pytest.raises(OSError, match="disk full"):
            operator(campaign, document).execute(make_context(try_number=2, max_tries=1))
    (failure,) = hook.load_evidence(spec, campaign, rounds_done=1).failures
    assert (failure.kind, failure.message) == ("infrastructure", "disk full")


def test_the_task_is_named_after_its_point_and_links_to_its_run(
    hook: MlflowHook, campaign: CampaignRef, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MlflowHook, "measurement_url", lambda self, campaign, run_id: f"https://ml/{run_id}")
    task, context = operator(campaign, document), make_context()
    with fake_backend():
        row = task.execute(context)
    assert context["point_label"] == LABEL
    assert MlflowRunLink().get_link(task, ti_key=None) == f"https://ml/{row['run_id']}"


def test_a_long_measurement_renews_its_claim(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    claim = hook.claim_measurement(make_point(spec), campaign, 1)
    renewed = Renewals(enough=3)
    with kept_alive(renewed, claim.run_id, every_s=0.001):
        assert renewed.wait()
    assert set(renewed.run_ids) == {claim.run_id}


def test_a_renewal_that_fails_does_not_stop_the_measuring(campaign: CampaignRef) -> None:
    renewed = Renewals(enough=2, error=TrackingError("MLflow is away."))
    with kept_alive(renewed, "r1", every_s=0.001):
        assert renewed.wait()


class Renewals:
    """Counts renewals of a lease."""

    def __init__(self, *, enough: int, error: Exception | None = None) -> None:
        from logging import getLogger
        from threading import Event

        self.run_ids: list[str] = []
        self.log = getLogger(__name__)
        self._enough, self._error, self._reached = enough, error, Event()

    def renew_lease(self, run_id: str) -> None:
        self.run_ids.append(run_id)
        if len(self.run_ids) >= self._enough:
            self._reached.set()
        if self._error:
            raise self._error

    def wait(self) -> bool:
        return self._reached.wait(30.0)
