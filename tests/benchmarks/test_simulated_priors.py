"""The parts of the simulator's benchmark of priors that need no simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.simulator.priors import capacities_of, mirrored, scaled, true_regret, with_demands
from fleetsieve_airflow.campaign import run_campaign
from fleetsieve_airflow.core.allocation import problem_of
from fleetsieve_airflow.core.bounds import value_of
from fleetsieve_airflow.evidence import PriorCapacity
from tests.builders import make_spec
from tests.core.worlds import TrueServer

SPEC = make_spec(demand={"chat": 3.0, "code": 1.0})
SERVER: Any = TrueServer(
    SPEC, {f"{name} {label}": j for name in ("chat", "code") for j, label in enumerate(("TP2", "TP4", "TP8"))}
)
PRIORS = tuple(
    PriorCapacity(workload="chat", config=label, source="simulator", lower_rps=low, upper_rps=2 * low)
    for label, low in (("TP2", 1.0), ("TP4", 3.0), ("TP8", 5.0))
)


def test_capacities_are_the_highest_loads_up_to_which_all_are_met() -> None:
    assert capacities_of(SPEC, SERVER) == [[2.0, 4.0, 8.0], [2.0, 4.0, 8.0]]


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.3])
def test_the_best_plan_serves_the_share_of_demand_that_was_asked_for(scale: float) -> None:
    capacities = capacities_of(SPEC, SERVER)
    spec = with_demands(SPEC, capacities, scale)
    value = value_of(problem_of(spec), capacities)
    assert value == pytest.approx(min(1.0, 1.0 / scale), rel=1e-6)


def test_a_certified_plan_loses_nothing_and_another_one_what_it_lacks() -> None:
    spec = with_demands(SPEC, capacities_of(SPEC, SERVER), 1.3)
    decision = run_campaign(spec, SERVER).decision
    assert true_regret(spec, decision, SERVER) <= spec.decision.tolerance
    empty = replace(decision, conservative=replace(decision.conservative, allocations=()))
    assert true_regret(spec, empty, SERVER) == pytest.approx(1.0 / 1.3, rel=1e-6)


def test_wrong_priors_are_wrong_as_they_are_called() -> None:
    assert [(p.lower_rps, p.upper_rps) for p in scaled(PRIORS, 2.0)] == [
        (2.0, 4.0),
        (6.0, 12.0),
        (10.0, 20.0),
    ]
    turned = {prior.config: prior.lower_rps for prior in mirrored(SPEC, PRIORS)}
    assert turned == {"TP2": 5.0, "TP4": 3.0, "TP8": 1.0}
