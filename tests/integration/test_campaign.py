"""A whole campaign in a real Airflow, with its history in a real MLflow."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fleetsieve_airflow.dag import HAS_TASK_LOOPS
from fleetsieve_airflow.demo.campaign import Outcome, runs_of
from tests.integration.lab import Fleet, Lab, undisturbed

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("airflow"), pytest.mark.timeout(2400)]

CAMPAIGN = "planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A fleet with a campaign that has come to its end."""

    fleet: Fleet
    outcome: Outcome


@pytest.fixture(scope="module")
def planned(lab: Lab) -> Planned:
    """Plan one fleet once, for the tests that look at what a campaign leaves behind."""
    fleet = lab.fleet(CAMPAIGN)
    lab.start(fleet, CAMPAIGN)
    return Planned(fleet=fleet, outcome=lab.follow(fleet, CAMPAIGN))


def test_a_campaign_in_airflow_ends_with_the_certificate_of_one_without_airflow(planned: Planned) -> None:
    expected = undisturbed(planned.fleet)
    certificate = planned.outcome.certificate
    assert certificate["state"] == "certified_feasible"
    assert certificate["certificate_sha256"] == expected.certificate["certificate_sha256"]
    assert [decision.points for decision in planned.outcome.decisions] == [
        decision.points for decision in expected.decisions
    ]


def test_a_dag_run_is_a_campaign_where_airflow_has_task_loops_and_a_round_where_not(
    lab: Lab, planned: Planned
) -> None:
    runs = runs_of(lab.api, CAMPAIGN)
    assert len(runs) == (1 if HAS_TASK_LOOPS else len(planned.outcome.decisions))
    assert {run["state"] for run in runs} == {"success"}


def test_mapped_tasks_are_named_by_what_they_measure(lab: Lab, planned: Planned) -> None:
    shown = {task["rendered_map_index"] for task in lab.task(CAMPAIGN, 1, "round.profile")}
    assert shown == {item.point.label for item in planned.outcome.decisions[0].points}


def test_every_point_is_measured_once_and_has_one_run_in_mlflow(lab: Lab, planned: Planned) -> None:
    measured = planned.fleet.measured()
    assert len(set(measured)) == len(measured) == planned.outcome.decisions[-1].spend.points_measured
    assert sorted(measured) == sorted(lab.finished_runs(planned.fleet))


def test_a_second_campaign_pays_for_nothing_that_is_measured_already(lab: Lab, planned: Planned) -> None:
    attempts = planned.fleet.attempts()
    lab.start(planned.fleet, "replanned")
    outcome = lab.follow(planned.fleet, "replanned")
    assert planned.fleet.attempts() == attempts
    assert outcome.decisions[-1].spend.gpu_seconds_window == 0
    assert outcome.certificate["conservative"] == planned.outcome.certificate["conservative"]


def test_a_cleared_profile_task_finds_its_measurement_and_the_campaign_ends_the_same(
    lab: Lab, planned: Planned
) -> None:
    attempts = planned.fleet.attempts()
    task = lab.task(CAMPAIGN, 1, "round.profile")[0]
    lab.clear(task)
    outcome = lab.follow(planned.fleet, CAMPAIGN)
    assert planned.fleet.attempts() == attempts
    assert outcome.certificate["certificate_sha256"] == planned.outcome.certificate["certificate_sha256"]
    assert lab.task(CAMPAIGN, 1, "round.profile")[0]["try_number"] == task["try_number"] + 1
