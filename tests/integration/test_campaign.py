"""A whole campaign in a real Airflow, with its history in a real MLflow."""

from __future__ import annotations

import pytest

from fleetsieve_airflow.dag import HAS_TASK_LOOPS
from fleetsieve_airflow.demo.campaign import runs_of
from tests.integration.lab import Lab, undisturbed

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("airflow")]


def test_a_campaign_in_airflow_ends_with_the_certificate_of_one_without_airflow(lab: Lab) -> None:
    fleet = lab.fleet("plain")
    expected = undisturbed(fleet)
    lab.start(fleet, "plain")
    outcome = lab.follow(fleet, "plain")
    assert outcome.certificate["state"] == "certified_feasible"
    assert outcome.certificate["certificate_sha256"] == expected.certificate["certificate_sha256"]
    assert [decision.points for decision in outcome.decisions] == [item.points for item in expected.decisions]
    assert sorted(fleet.measured()) == sorted(lab.finished_runs(fleet))
    # One DAG run is a campaign where Airflow has task loops, and a round where it has not.
    assert len(runs_of(lab.api, "plain")) == (1 if HAS_TASK_LOOPS else len(expected.decisions))


def test_mapped_tasks_are_named_by_what_they_measure(lab: Lab) -> None:
    fleet = lab.fleet("named")
    lab.start(fleet, "named")
    outcome = lab.follow(fleet, "named")
    shown = {task["rendered_map_index"] for task in lab.task("named", 1, "round.profile")}
    assert shown == {planned.point.label for planned in outcome.decisions[0].points}


def test_a_second_campaign_pays_for_nothing_that_is_measured_already(lab: Lab) -> None:
    fleet = lab.fleet("again")
    lab.start(fleet, "first")
    first = lab.follow(fleet, "first")
    paid = fleet.measured()
    lab.start(fleet, "second")
    second = lab.follow(fleet, "second")
    assert fleet.measured() == paid
    assert second.decisions[-1].spend.gpu_seconds_window == 0
    assert second.decisions[-1].conservative.replicas() == first.decisions[-1].conservative.replicas()
