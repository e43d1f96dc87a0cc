"""The loop's one step: measure on, or stop with what is certified or out of budget."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.campaign import CampaignResult, replay_campaign, run_campaign
from fleetsieve_airflow.core.bounds import counts_of, value_of
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.errors import SolverError
from fleetsieve_airflow.evidence import Decision, Evidence, PriorCapacity
from fleetsieve_airflow.records import FleetSpec
from fleetsieve_airflow.serialization import canonical_json, to_plain
from tests.builders import (
    REPOSITORY,
    make_evidence,
    make_failure,
    make_measurement,
    make_point,
    make_spec,
    paper_spec,
)
from tests.core.worlds import (
    TrueServer,
    all_plans,
    fewest_gpus,
    loss,
    places,
    problem_from,
    servers,
    truths_in,
    with_decision,
)

TOLERANCE = 0.05


def text(decision: Decision) -> str:
    return canonical_json(to_plain(decision))


def campaign(server: TrueServer) -> CampaignResult:
    return run_campaign(server.spec, server)


def ends(decision: Decision) -> tuple[list[list[float]], list[list[float]]]:
    """Return the lower and upper capacities a decision rests on, by workload."""
    rows: dict[str, tuple[list[float], list[float]]] = {}
    for interval in decision.intervals:
        low, high = rows.setdefault(interval.workload, ([], []))
        low.append(interval.lower.value_rps or 0.0)
        high.append(math.inf if interval.upper.value_rps is None else interval.upper.value_rps)
    return [low for low, _ in rows.values()], [high for _, high in rows.values()]


class TestWholeCampaigns:
    @settings(max_examples=25)
    @given(server=servers(tolerance=TOLERANCE))
    def test_they_end_certified_and_lose_at_most_the_tolerance_whatever_the_truth(
        self, server: TrueServer
    ) -> None:
        decision = campaign(server).decision
        assert decision.state in ("certified_feasible", "certified_infeasible", "undetermined")
        fleet = problem_from(server)
        plan, plans = counts_of(fleet, decision.conservative), all_plans(fleet)
        lower, upper = ends(decision)
        if decision.state == "undetermined":
            # Nothing can be served at all: nobody would call that plan feasible.
            assert decision.regret <= TOLERANCE and decision.conservative.min_fulfilment == 0.0
        lowest = [[fleet.cap(w, low) for low in row] for w, row in enumerate(lower)]
        highest = [[fleet.cap(w, high) for high in row] for w, row in enumerate(upper)]
        drawn = truths_in(lowest, highest, 15, seed=7)
        offered = server.spec.candidates[0].load_kind == "offered_load_rps"
        for truth in [server.capacities(), *([] if offered else drawn)]:
            assert loss(fleet, truth, plan, plans) <= TOLERANCE + 1e-8

    @settings(max_examples=25)
    @given(server=servers(tolerance=TOLERANCE))
    def test_what_was_skipped_changes_nothing(self, server: TrueServer) -> None:
        decision = campaign(server).decision
        fleet, truth = problem_from(server), server.capacities()
        everything = decide(server.spec, server.evidence(server.everything()))
        assert everything.gap == pytest.approx(0.0, abs=1e-9)
        best = value_of(fleet, truth)
        assert everything.conservative.value == pytest.approx(best)
        assert (
            best - loss(fleet, truth, counts_of(fleet, decision.conservative), all_plans(fleet))
            >= best - TOLERANCE - 1e-8
        )
        if decision.state == "certified_feasible":
            assert decision.conservative.value >= min(best, 1.0) - TOLERANCE - 1e-8
        if decision.state == "certified_infeasible":
            assert best < 1.0

    @settings(max_examples=30)
    @given(server=servers(objective="fewest_gpus", tolerance=0.0, required_fulfilment=0.9))
    def test_the_fewest_gpus_are_found(self, server: TrueServer) -> None:
        decision = campaign(server).decision
        fleet = problem_from(server)
        fewest = fewest_gpus(fleet, server.capacities(), all_plans(fleet))
        if fewest is None:
            assert decision.state in ("certified_infeasible", "undetermined")
            assert decision.conservative.min_fulfilment < 0.9
        else:
            assert (decision.state, decision.conservative.gpus) == ("certified_feasible", fewest)
            assert decision.conservative.min_fulfilment >= 0.9 * (1 - 1e-9)

    @settings(max_examples=25)
    @given(server=servers())
    def test_no_point_is_measured_twice_and_every_round_asks_for_something(self, server: TrueServer) -> None:
        result = campaign(server)
        assert len(set(server.asked)) == len(server.asked)
        assert all(decision.points for decision in result.decisions[:-1])
        assert result.decision.spend.points_measured == len(server.asked) <= result.decision.spend.points_all

    @settings(max_examples=25)
    @given(server=servers())
    def test_the_gap_never_grows_from_round_to_round(self, server: TrueServer) -> None:
        gaps = [decision.gap for decision in campaign(server).decisions]
        assert all(later <= earlier + 1e-9 for earlier, later in pairwise(gaps))
        assert all(decision.regret <= decision.gap for decision in campaign(server).decisions)

    @settings(max_examples=20)
    @given(server=servers())
    def test_they_replay_to_the_byte_from_what_was_revealed(self, server: TrueServer) -> None:
        result = campaign(server)
        again = replay_campaign(server.spec, result.evidence)
        assert [text(decision) for decision in again] == [text(decision) for decision in result.decisions]


class TestPurity:
    @settings(max_examples=30)
    @given(st.data())
    def test_the_same_input_gives_the_same_decision_to_the_byte(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers(workloads=3))
        order = data.draw(places(server))
        once = decide(server.spec, server.evidence(order))
        assert text(decide(server.spec, server.evidence(order))) == text(once)

    def test_the_order_in_which_names_came_into_a_mapping_does_not_matter(self) -> None:
        percentiles = {"ttft_p99_s": 1.0, "e2e_p99_s": 9.0}
        spec = make_spec()
        one, other = (
            make_evidence(make_measurement(spec, load=8.0, percentiles=dict(row)))
            for row in (percentiles.items(), reversed(percentiles.items()))
        )
        assert text(decide(spec, one)) == text(decide(spec, other))

    def test_the_hash_seed_of_the_process_does_not_matter(self) -> None:
        code = (
            "from tests.builders import paper_spec; from fleetsieve_airflow.core.decision import decide; "
            "from fleetsieve_airflow.evidence import Evidence; "
            "from fleetsieve_airflow.serialization import canonical_json, to_plain; "
            "print(canonical_json(to_plain(decide(paper_spec(), Evidence()))))"
        )
        texts = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY)},
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in ("1", "2")
        }
        assert texts == {text(decide(paper_spec(), Evidence())) + "\n"}

    def test_the_order_of_the_evidence_changes_no_plan_and_no_point(self) -> None:
        spec = make_spec(demand={"chat": 12.0, "code": 6.0})
        rows = [
            make_measurement(spec, "chat", "TP4", 4.0),
            make_measurement(spec, "code", "TP8", 8.0, met=False),
        ]
        one, other = decide(spec, make_evidence(*rows)), decide(spec, make_evidence(*reversed(rows)))
        assert text(one) == text(other)


def known(spec: FleetSpec, verdicts: Mapping[tuple[str, float], bool]) -> Evidence:
    return make_evidence(
        *(make_measurement(spec, "chat", config, load, met=met) for (config, load), met in verdicts.items())
    )


class TestStates:
    def test_nothing_known_means_measuring(self) -> None:
        decision = decide(make_spec(), Evidence())
        assert (decision.state, decision.round) == ("measure", 1)
        assert decision.conservative.min_fulfilment == 0.0 and decision.conservative.allocations == ()
        assert decision.points and "points can settle it" in decision.reason
        assert decision.spend.points_measured == 0 and decision.spend.points_all == 12

    def test_a_plan_that_serves_everything_at_proved_capacities_is_certified_whatever_the_gap(self) -> None:
        spec = make_spec()
        decision = decide(spec, known(spec, {("TP4", 8.0): True}))
        assert decision.state == "certified_feasible"
        assert decision.conservative.replicas() == {"chat": {"TP4": 2}}
        assert decision.reason == "The plan serves 1 of every demand at the lowest proved capacities."
        assert decision.points == ()

    def test_less_may_be_asked_of_a_plan(self) -> None:
        spec = make_spec(demand={"chat": 20.0}, decision={"required_fulfilment": 0.8})
        evidence = known(spec, {("TP4", 4.0): True})
        assert decide(with_decision(spec, required_fulfilment=1.0), evidence).state == "measure"
        decision = decide(spec, evidence)
        assert decision.state == "certified_feasible"
        assert decision.conservative.value == pytest.approx(0.8)

    def test_a_demand_that_no_gpus_can_meet_is_certified_infeasible_with_the_best_plan(self) -> None:
        spec = make_spec(demand={"chat": 400.0}, configs={"TP8": 8})
        decision = decide(spec, known(spec, {("TP8", 8.0): True, ("TP8", 12.0): False}))
        assert decision.state == "certified_infeasible"
        assert decision.conservative.replicas() == {"chat": {"TP8": 2}}
        assert "Even at the highest capacities still possible only 0.04 of 1 is served" in decision.reason

    def test_engines_that_all_refuse_end_infeasible(self) -> None:
        spec = make_spec(configs={"TP4": 4, "TP8": 8})
        rows = [
            make_measurement(
                spec, "chat", config, 8.0, refused="does not fit", served_rps=0.0, percentiles={}
            )
            for config in ("TP4", "TP8")
        ]
        decision = decide(spec, make_evidence(*rows))
        assert decision.state == "certified_infeasible"
        assert {row.reason for row in decision.skipped} == {
            "implied: a lower load of this candidate is missed, or its engine refused to start"
        }

    def test_a_plan_within_the_tolerance_is_certified_without_the_last_word(self) -> None:
        spec = make_spec(
            demand={"chat": 16.4}, configs={"TP8": 8}, loads=(8.0, 8.2), decision={"tolerance": 0.03}
        )
        decision = decide(spec, known(spec, {("TP8", 8.0): True}))
        assert decision.state == "certified_feasible"
        assert "No other plan can be better by more than the tolerance" in decision.reason

    def test_the_regret_may_stop_what_the_gap_would_not(self) -> None:
        spec = make_spec(demand={"chat": 24.0}, configs={"TP8": 8}, decision={"tolerance": 0.01})
        evidence = known(spec, {("TP8", 8.0): True})
        by_regret, by_gap = decide(spec, evidence), decide(with_decision(spec, stop_on="gap"), evidence)
        assert (by_regret.regret, by_regret.gap) == pytest.approx((0.0, 1 / 3))
        assert (by_regret.state, by_gap.state) == ("certified_feasible", "measure")
        assert by_gap.reason.startswith("gap 0.3333 is above the tolerance of 0.01")

    def test_limits_that_leave_no_plan_are_an_error(self) -> None:
        spec = make_spec(configs={"TP8": 8}, workload={"min_replicas": 3})
        with pytest.raises(SolverError):
            decide(spec, Evidence())

    @pytest.mark.parametrize("certify", [True, False])
    def test_a_prior_certifies_only_where_the_spec_says_so(self, certify: bool) -> None:
        sources = ("measured", "monotone", *(("simulator",) if certify else ()))
        spec = make_spec(decision={"certify_on": sources})
        prior = PriorCapacity(workload="chat", config="TP4", source="simulator", lower_rps=7.0, upper_rps=9.0)
        decision = decide(spec, Evidence(priors=(prior,)))
        assert decision.state == ("certified_feasible" if certify else "measure")


class TestBudget:
    @pytest.mark.parametrize(
        ("budget", "words"),
        [
            ({"rounds": 1}, "the budget of 1 rounds is used up"),
            ({"points": 1}, "the budget of 1 points is used up"),
            ({"gpu_seconds": 1500.0}, "of the budget 300 GPU-seconds are left"),
        ],
        ids=["rounds", "points", "GPU-seconds"],
    )
    def test_used_up_it_ends_undetermined_with_both_plans_and_the_reason(
        self, budget: dict[str, Any], words: str
    ) -> None:
        spec = make_spec(demand={"chat": 30.0}, budget=budget)
        decision = decide(spec, known(spec, {("TP4", 4.0): True}))
        assert decision.state == "undetermined"
        assert words in decision.reason and "above the tolerance" in decision.reason
        assert decision.optimistic.value > decision.conservative.value > 0.0
        assert decision.gap > 0.01
        assert any(row.reason.startswith("open: the budget ended") for row in decision.skipped)

    def test_it_says_what_would_settle_it_and_what_that_costs(self) -> None:
        for budget in ({"rounds": 1}, {"points": 1}, {"gpu_seconds": 1500.0}):
            spec = make_spec(demand={"chat": 30.0}, budget=budget)
            decision = decide(spec, known(spec, {("TP4", 4.0): True}))
            assert decision.points
            assert all(planned.gpu_seconds_billed > 0.0 for planned in decision.points)

    def test_points_are_held_to_what_is_left(self) -> None:
        spec = replace(paper_spec(), budget=replace(paper_spec().budget, points=1))
        assert len(decide(spec, Evidence()).points) == 1

    def test_failures_are_paid_for_and_reused_measurements_are_not(self) -> None:
        spec = make_spec()
        reused = make_evidence(make_measurement(spec, load=4.0))
        items = tuple(replace(item, reused=True) for item in reused.items)
        failed = (make_failure(make_point(spec, load=8.0), gpu_seconds_billed=40.0),)
        spend = decide(spec, replace(reused, items=items, failures=failed)).spend
        assert (spend.gpu_seconds_window, spend.gpu_seconds_billed) == (0.0, 40.0)
        assert (spend.points_measured, spend.points_reused) == (0, 1)

    def test_everything_costs_what_all_ladders_cost(self) -> None:
        assert decide(paper_spec(), Evidence()).spend.gpu_seconds_window_all == 33600.0


class TestWords:
    @settings(max_examples=30)
    @given(server=servers())
    def test_reasons_can_be_read(self, server: TrueServer) -> None:
        for decision in campaign(server).decisions:
            rows = [decision.reason, *decision.warnings, *(row.reason for row in decision.skipped)]
            for row in rows:
                assert row and not re.search(r"\bnan\b|\binf\b|None|\{|\d\.\d{9}", row)
                assert row[0].isupper() or row.split()[0].rstrip(":") in {
                    "regret", "gap", "implied", "cannot", "open"
                }  # fmt: skip

    def test_every_load_is_measured_or_skipped_with_a_reason_in_the_end(self) -> None:
        spec = make_spec()
        decision = campaign(TrueServer(spec, {"chat TP2": 0, "chat TP4": 2, "chat TP8": 3})).decision
        assert decision.state == "certified_feasible"
        assert decision.spend.points_measured + len(decision.skipped) == decision.spend.points_all == 12

    def test_an_assumption_that_the_evidence_contradicts_is_named(self) -> None:
        spec = make_spec(
            demand={"chat": 90.0},
            loads={"TP2": (8.0,), "TP4": (4.0, 8.0), "TP8": (32.0,)},
            decision={"interior_peak": True, "certify_on": ("measured", "monotone", "interior_peak")},
        )
        valley = known(spec, {("TP2", 8.0): True, ("TP4", 4.0): False, ("TP8", 32.0): True})
        assert any("the assumption was dropped" in warning for warning in decide(spec, valley).warnings)
