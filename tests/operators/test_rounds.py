from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from fleetsieve_airflow.hooks.mlflow import CampaignRef, MlflowHook
from fleetsieve_airflow.operators.rounds import CloseRoundOperator
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serialization import to_document
from tests.builders import make_point, make_spec
from tests.fakes import EVERY_POINT, FAKE, fake_backend, make_context, went_away
from tests.operators.rounds import decide, profile


@pytest.fixture
def points(spec: FleetSpec, campaign: CampaignRef) -> list[dict[str, Any]]:
    """Three points of a first round that was decided."""
    decide(campaign)
    return [to_document(make_point(spec, config=config, load=2.0)) for config in ("TP2", "TP4", "TP8")]


def close(campaign: CampaignRef, points: Any, rows: Any, number: int = 1) -> dict[str, Any]:
    operator = CloseRoundOperator(
        task_id="close_round", campaign=asdict(campaign), round=str(number), points=points, rows=rows
    )
    return operator.execute(make_context())


def test_a_round_counts_what_was_measured_reused_and_failed(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, points: list[dict[str, Any]]
) -> None:
    with fake_backend(errors={"chat TP2 2 req/s": went_away()}):
        profile(hook.open_campaign(spec, "c2"), points[2])
        rows = [profile(campaign, point) for point in points]
    result = close(campaign, points, rows)
    assert (result["failed"], result["measured"], result["reused"]) == (1, 1, 1)
    assert (result["campaign_id"], result["round"], result["state"]) == ("c1", 1, "measure")
    assert 0.0 < result["regret"] <= result["gap"]


def test_a_settled_round_closes_without_rows(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef
) -> None:
    decide(campaign, 1)
    with fake_backend():
        profile(campaign, to_document(make_point(spec, config="TP4", load=8.0)))
    assert decide(campaign, 2) == []
    result = close(campaign, [], None, 2)
    assert (result["state"], result["gap"]) == ("certified_feasible", 0.0)
    assert (result["measured"], result["reused"], result["failed"]) == (0, 0, 0)


def test_a_point_whose_task_ended_without_a_word_is_noted_as_failed_once(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, points: list[dict[str, Any]]
) -> None:
    for _ in range(2):
        assert close(campaign, points, [None] * len(points))["failed"] == len(points)
    failures = hook.load_evidence(spec, campaign, rounds_done=1).failures
    assert sorted(failure.key for failure in failures) == sorted(point["key"] for point in points)
    assert {(failure.kind, failure.round) for failure in failures} == {("infrastructure", 1)}


def test_a_failure_that_the_task_recorded_itself_is_not_counted_twice(
    hook: MlflowHook, spec: FleetSpec, campaign: CampaignRef, points: list[dict[str, Any]]
) -> None:
    with fake_backend(errors={EVERY_POINT: OSError("disk full")}):
        for point in points:
            with pytest.raises(OSError, match="disk full"):
                profile(campaign, point)
    assert close(campaign, points, [])["failed"] == len(points)
    assert len(hook.load_evidence(spec, campaign, rounds_done=1).failures) == len(points)


def test_a_point_that_was_measured_by_a_task_that_then_died_counts_as_measured(
    campaign: CampaignRef, points: list[dict[str, Any]]
) -> None:
    with fake_backend():
        for point in points:
            profile(campaign, point)
    result = close(campaign, points, [])
    assert (result["measured"], result["failed"]) == (len(points), 0)


def test_a_round_whose_points_all_failed_asks_again_and_gives_up_in_the_end(hook: MlflowHook) -> None:
    measurement = {"backend": FAKE, "repeats": 1, "failed_attempts": 2}
    spec = make_spec(configs={"TP4": 4}, loads=[8.0], measurement=measurement)
    campaign = hook.open_campaign(spec, "all-fail")
    states: list[str] = []
    with fake_backend(errors={EVERY_POINT: went_away()}) as backend:
        while not states or states[-1] == "measure":
            number = len(states) + 1
            points = decide(campaign, number)
            rows = [profile(campaign, point, number) for point in points]
            states.append(close(campaign, points, rows, number)["state"])
    assert states == ["measure", "measure", "undetermined"]
    assert backend.measured == {"chat TP4 8 req/s": 2}
    assert hook.load_evidence(spec, campaign, rounds_done=9).items == ()


def test_a_round_without_a_decision_fails_and_says_which_task_to_clear(campaign: CampaignRef) -> None:
    with pytest.raises(
        AirflowFailException, match="Round 1 has no decision: its fit, allocate or decide task"
    ):
        close(campaign, None, None)
