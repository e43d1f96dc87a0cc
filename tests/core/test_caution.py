"""A prior may say where to look, not that the goal is out of reach, nor that many answers are certain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetsieve_airflow.core.acquisition import HOPE
from fleetsieve_airflow.core.allocation import problem_of
from fleetsieve_airflow.core.caution import hoped_value, least_chance
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.core.ladder import ladders_of
from fleetsieve_airflow.core.priors import believe_given
from fleetsieve_airflow.core.proof import Question, Scene
from fleetsieve_airflow.evidence import Evidence, PriorCapacity
from fleetsieve_airflow.records import FleetSpec
from tests.builders import make_evidence, make_measurement, make_spec
from tests.core.test_proof import scene_of

LOADS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


def fleet(demand_rps: float) -> FleetSpec:
    demand = {"chat": demand_rps, "code": demand_rps}
    return make_spec(demand=demand, loads=LOADS, gpus=32, measurement={"profiling_gpus": 64})


def priors_of(spec: FleetSpec, capacity_rps: float) -> tuple[PriorCapacity, ...]:
    return tuple(
        PriorCapacity(
            workload=candidate.workload,
            config=candidate.config,
            source="simulator",
            lower_rps=capacity_rps * 0.9,
            upper_rps=capacity_rps * 1.1,
        )
        for candidate in spec.candidates
    )


def prompted(spec: FleetSpec, capacity_rps: float, evidence: Evidence | None = None) -> Scene:
    scene = scene_of(spec, evidence or Evidence())
    belief = believe_given(problem_of(spec), scene.ladders, priors_of(spec, capacity_rps))
    return replace(scene, belief=belief)


def test_a_prior_alone_does_not_put_the_goal_out_of_reach() -> None:
    spec = fleet(30.0)
    scene = prompted(spec, 0.3)
    assert hoped_value(replace(scene, unprompted=scene.belief), HOPE) < 1.0
    assert hoped_value(scene, HOPE) >= 1.0
    asked = decide(spec, Evidence(priors=priors_of(spec, 0.3))).points
    assert asked
    assert all("would carry the demand" in planned.reason for planned in asked)


def test_measurements_put_the_goal_out_of_reach_whatever_a_prior_says() -> None:
    spec = fleet(30.0)
    missed = make_evidence(
        *(
            make_measurement(spec, candidate.workload, candidate.config, LOADS[0], met=False)
            for candidate in spec.candidates
        )
    )
    ladders = ladders_of(spec, missed)
    assert all(ladder.capacity_upper < LOADS[0] for ladder in ladders)
    assert hoped_value(prompted(spec, 20.0, missed), HOPE) < 1.0


@pytest.mark.parametrize("hoped", ["met", "missed"])
def test_a_hoped_answer_counts_as_likely_as_both_beliefs_hold_it(hoped: str) -> None:
    scene = prompted(fleet(30.0), 20.0)
    met, alone = (float(belief.met[0][4]) for belief in (scene.belief, scene.unprompted))
    assert met > alone
    chance = met if hoped == "met" else 1.0 - met
    least = alone if hoped == "met" else 1.0 - met
    assert least_chance(scene, Question(0, 4, hoped, chance)) == pytest.approx(least)
