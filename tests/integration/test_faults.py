"""What breaks in the middle of a campaign must neither change its plan nor be paid for twice."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from fleetsieve_airflow.demo.campaign import runs_of
from tests.integration.lab import Fleet, Lab, disturbed, is_asked_for_again, undisturbed

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("airflow"), pytest.mark.timeout(2400)]

MLFLOW_OUTAGE_S = 30.0
#: As the DAG file says: a measuring task is tried once more.
PROFILE_TRIES = 2


def third_round_is_measuring(lab: Lab, fleet: Fleet) -> bool:
    """Whether an attempt at a point of the third round has begun and none has ended."""
    keys = {planned.point.key for planned in undisturbed(fleet).decisions[2].points}
    assert keys, "the third round must measure something, or nothing can break in it"
    return bool(keys & set(fleet.attempts())) and not keys & set(fleet.measured())


def test_a_killed_scheduler_neither_changes_the_certificate_nor_pays_twice(lab: Lab) -> None:
    fleet = lab.fleet("no-scheduler", delay_s=4.0, demand_scale=1.3)
    lab.start(fleet, "no-scheduler")
    lab.wait(lambda: third_round_is_measuring(lab, fleet), "measuring in round 3")
    lab.kill("scheduler")
    lab.restart("scheduler")
    outcome = lab.follow(fleet, "no-scheduler")
    assert outcome.certificate["certificate_sha256"] == undisturbed(fleet).certificate["certificate_sha256"]
    assert set(Counter(fleet.measured()).values()) == {1}
    assert sorted(fleet.measured()) == sorted(lab.finished_runs(fleet))


def test_an_mlflow_that_is_away_for_half_a_minute_is_waited_for(lab: Lab) -> None:
    fleet = lab.fleet("no-mlflow", delay_s=4.0, demand_scale=1.3)
    lab.start(fleet, "no-mlflow")
    lab.wait(lambda: third_round_is_measuring(lab, fleet), "measuring in round 3")
    lab.kill("mlflow")
    time.sleep(MLFLOW_OUTAGE_S)
    lab.restart("mlflow")
    outcome = lab.follow(fleet, "no-mlflow")
    assert outcome.certificate["certificate_sha256"] == undisturbed(fleet).certificate["certificate_sha256"]
    assert set(Counter(fleet.measured()).values()) == {1}
    assert sorted(fleet.measured()) == sorted(lab.finished_runs(fleet))


def test_a_point_that_fails_for_good_is_asked_for_again_later_and_never_read_as_missed(lab: Lab) -> None:
    fleet = lab.fleet("one-fails", copies=2)
    first = [planned.point for planned in undisturbed(fleet).decisions[0].points]
    assert len(first) >= 4
    victim = next(point for point in first if is_asked_for_again(fleet, point))
    fleet.fail(victim.label, times=PROFILE_TRIES)
    lab.start(fleet, "one-fails")
    certificate = lab.follow(fleet, "one-fails").certificate
    assert [(failure["key"], failure["round"]) for failure in certificate["failures"]] == [(victim.key, 1)]
    rounds = {row["measurement"]["point"]["key"]: row["round"] for row in certificate["evidence"]}
    assert rounds[victim.key] > 1
    assert {rounds[point.key] for point in first if point != victim} == {1}
    assert certificate["certificate_sha256"] == disturbed(fleet, victim).certificate["certificate_sha256"]
    assert set(Counter(fleet.measured()).values()) == {1}


def test_two_campaigns_of_one_fleet_at_once_share_what_they_measure(lab: Lab) -> None:
    fleet = lab.fleet("shared", delay_s=2.0)
    for campaign_id in ("shared-a", "shared-b"):
        lab.start(fleet, campaign_id)
    outcomes = [lab.follow(fleet, campaign_id) for campaign_id in ("shared-a", "shared-b")]
    plans = [outcome.certificate["conservative"] for outcome in outcomes]
    assert plans == [undisturbed(fleet).certificate["conservative"]] * 2
    assert set(Counter(fleet.measured()).values()) == {1}
    assert sorted(fleet.measured()) == sorted(lab.finished_runs(fleet))
    assert all(
        run["state"] == "success" for name in ("shared-a", "shared-b") for run in runs_of(lab.api, name)
    )
