"""Both ends of the allocation: how far apart they are, and what the conservative plan can lose."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.core.allocation import problem_of
from fleetsieve_airflow.core.bounds import (
    Box,
    allocate_both,
    box_of,
    counts_of,
    fulfilments,
    plan_at,
    ranges_between,
    regret_of,
    scenarios_of,
    value_of,
)
from fleetsieve_airflow.core.intervals import fit_intervals
from fleetsieve_airflow.evidence import Evidence
from tests.builders import make_evidence, make_measurement, make_spec
from tests.core.test_milp import mixed_pools
from tests.core.worlds import (
    Capacities,
    TrueServer,
    all_plans,
    gaps_of,
    loss,
    places,
    problem_from,
    servers,
    shares,
    truths_in,
)


def box_from(server: TrueServer, evidence: Evidence) -> Box:
    return box_of(server.spec, problem_from(server), fit_intervals(server.spec, evidence))


class TestGap:
    @settings(max_examples=100)
    @given(st.data())
    def test_it_is_never_negative_and_never_grows_when_evidence_is_added(self, data: st.DataObject) -> None:
        objective = data.draw(st.sampled_from(["max_min_fulfilment", "fewest_gpus"]))
        server: TrueServer = data.draw(servers(objective=objective, required_fulfilment=0.9))
        gaps = gaps_of(server, data.draw(places(server)))
        assert all(gap >= -1e-9 for gap in gaps)
        assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(gaps))

    @settings(max_examples=60)
    @given(st.data())
    def test_the_true_optimum_lies_between_the_ends(self, data: st.DataObject) -> None:
        objective = data.draw(st.sampled_from(["max_min_fulfilment", "fewest_gpus"]))
        server: TrueServer = data.draw(servers(objective=objective, required_fulfilment=0.9))
        intervals = fit_intervals(server.spec, server.evidence(data.draw(places(server))))
        conservative, optimistic = allocate_both(server.spec, intervals)
        truth = value_of(problem_from(server), server.capacities())
        assert conservative.value - 1e-9 <= truth <= optimistic.value + 1e-9

    @settings(max_examples=60)
    @given(st.data())
    def test_values_never_fall_as_capacities_grow(self, data: st.DataObject) -> None:
        objective = data.draw(st.sampled_from(["max_min_fulfilment", "fewest_gpus"]))
        server: TrueServer = data.draw(servers(objective=objective))
        fleet, capacities = problem_from(server), server.capacities()
        more = [[rate * data.draw(st.floats(1.0, 3.0)) for rate in row] for row in capacities]
        assert value_of(fleet, more) >= value_of(fleet, capacities) - 1e-9


class TestRegret:
    @settings(max_examples=60)
    @given(st.data())
    def test_no_truth_inside_the_intervals_costs_more_than_it(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers())
        box = box_from(server, server.evidence(data.draw(places(server))))
        fleet = problem_from(server)
        plan = counts_of(fleet, plan_at(fleet, box.lower))
        plans = all_plans(fleet)
        regret = regret_of(fleet, box, plan)
        gap = max(0.0, value_of(fleet, box.upper) - value_of(fleet, box.lower))
        assert 0.0 <= regret <= gap + 1e-9
        offered = server.spec.candidates[0].load_kind == "offered_load_rps"
        for drawn in truths_in(box.lower, box.upper, 25, seed=len(plans)):
            truth = on_ladders(drawn, box) if offered else drawn
            assert loss(fleet, truth, plan, plans) <= regret + 1e-9

    @settings(max_examples=40)
    @given(st.data())
    def test_over_ladders_of_offered_loads_it_is_exact(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers(kinds=["offered_load_rps"]))
        box = box_from(server, server.evidence(data.draw(places(server))))
        fleet = problem_from(server)
        plan = counts_of(fleet, plan_at(fleet, box.lower))
        plans = all_plans(fleet)
        choices = [[value for value, _ in ranges] for row in box.ranges for ranges in row]
        total = 1
        for choice in choices:
            total *= len(choice)
        if total > 600:
            return
        width = len(box.lower[0])
        worst = max(
            loss(fleet, [list(truth[i : i + width]) for i in range(0, len(truth), width)], plan, plans)
            for truth in itertools.product(*choices)
        )
        assert regret_of(fleet, box, plan) == pytest.approx(worst, abs=1e-9)

    @settings(max_examples=60)
    @given(st.data())
    def test_it_never_grows_while_the_plan_stays(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers(kinds=["offered_load_rps"]))
        order = data.draw(places(server))
        fleet = problem_from(server)
        plan = counts_of(fleet, plan_at(fleet, box_from(server, server.evidence([])).lower))
        regrets = [
            regret_of(fleet, box_from(server, server.evidence(order[:count])), plan)
            for count in range(len(order) + 1)
        ]
        assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(regrets))

    def test_it_may_grow_when_the_plan_changes_yet_never_above_the_gap(self) -> None:
        # A second kind proved a little better takes over, with less known of it: the old plan shared more of
        # what is unknown with its rivals.
        spec = make_spec(
            demand={"chat": 16.0}, configs={"A4": 4, "B4": 4}, gpus=4, loads=(4.0, 5.0, 8.0, 16.0)
        )
        fleet = problem_of(spec)
        before = Box([[4.0, 0.0]], [[16.0, 5.0]], [[((4.0, 4.0), (16.0, 16.0)), ((0.0, 0.0), (5.0, 5.0))]])
        after = replace(before, lower=[[4.0, 5.0]], ranges=[[before.ranges[0][0], ((5.0, 5.0),)]])
        regrets, gaps = [], []
        for box in (before, after):
            plan = counts_of(fleet, plan_at(fleet, box.lower))
            regrets.append(regret_of(fleet, box, plan))
            gaps.append(value_of(fleet, box.upper) - value_of(fleet, box.lower))
        assert regrets == pytest.approx([1 / 16, 11 / 16])
        assert gaps == pytest.approx([12 / 16, 11 / 16])

    def test_plans_that_share_an_uncertain_replica_share_its_uncertainty(self) -> None:
        spec = make_spec(demand={"chat": 90.0}, configs={"TP8": 8}, gpus=8)
        fleet, box = (
            problem_of(spec),
            Box([[2.0]], [[12.0]], [[ranges_between(2.0, 12.0, (2.0, 4.0, 8.0, 12.0))]]),
        )
        assert value_of(fleet, box.upper) - value_of(fleet, box.lower) == pytest.approx(10 / 90)
        assert regret_of(fleet, box, [[1]]) == pytest.approx(0.0)

    def test_for_the_fewest_gpus_it_is_the_gap(self) -> None:
        spec = make_spec(demand={"chat": 8.0}, configs={"TP4": 4}, decision={"objective": "fewest_gpus"})
        fleet = problem_of(spec)
        box = Box([[4.0]], [[8.0]], [[((4.0, 4.0), (8.0, 8.0))]])
        assert regret_of(fleet, box, [[2]]) == 4.0  # 8 GPUs are planned, 4 may do

    def test_looking_may_stop_once_it_is_large_enough(self) -> None:
        spec = make_spec(demand={"chat": 10.0, "code": 10.0}, configs={"TP8": 8})
        fleet, box = problem_of(spec), box_of(spec, problem_of(spec), fit_intervals(spec, Evidence()))
        full = regret_of(fleet, box, [[0], [0]])
        assert 0.0 < regret_of(fleet, box, [[0], [0]], enough=0.0) <= full

    def test_many_uncertain_replicas_are_grouped_and_never_underrated(self) -> None:
        loads = tuple(float(x) for x in range(1, 13))
        configs = {f"C{i}": 1 for i in range(4)}
        spec = make_spec(demand={"chat": 48.0}, configs=configs, gpus=8, loads=loads)
        fleet = problem_of(spec)
        box = box_of(spec, fleet, fit_intervals(spec, Evidence()))
        plan = [[2, 2, 2, 2]]  # 13 ^ 4 truths, far more than are looked at one by one
        regret = regret_of(fleet, box, plan)
        assert regret <= value_of(fleet, box.upper)
        for truth in truths_in(box.lower, box.upper, 200, seed=1):
            held = min(1.0, sum(2 * rate for rate in truth[0]) / 48.0)
            assert value_of(fleet, truth) - held <= regret + 1e-9

    @settings(max_examples=10)
    @given(rates=st.lists(st.sampled_from([0.0, 2.0, 4.0, 8.0]), min_size=4, max_size=4))
    def test_over_several_pools_the_general_model_answers(self, rates: list[float]) -> None:
        spec = mixed_pools()
        fleet = problem_of(spec)
        low, high = rates[:2], [rate + extra for rate, extra in zip(rates[:2], rates[2:], strict=True)]
        ranges = [[ranges_between(a, b, (2.0, 4.0, 8.0)) for a, b in zip(low, high, strict=True)]]
        box = Box([low], [high], ranges)
        plan = counts_of(fleet, plan_at(fleet, box.lower))
        regret, plans = regret_of(fleet, box, plan), all_plans(fleet)
        for truth in itertools.product(*([value for value, _ in pairs] for pairs in ranges[0])):
            assert loss(fleet, [list(truth)], plan, plans) <= regret + 1e-6


def on_ladders(truth: Capacities, box: Box) -> Capacities:
    """Move each capacity down to one that the ladder allows."""
    return [
        [
            max(value for value, _ in ranges if value <= rate + 1e-12)
            for rate, ranges in zip(row, cover, strict=True)
        ]
        for row, cover in zip(truth, box.ranges, strict=True)
    ]


class TestRanges:
    @given(low=st.floats(0.0, 50.0), width=st.floats(0.0, 50.0), loads=st.none() | st.just((3.0, 9.0, 27.0)))
    @example(low=0.0, width=5e-324, loads=None)
    @example(low=5e-324, width=50.0, loads=None)
    def test_they_cover_the_interval(self, low: float, width: float, loads: tuple[float, ...] | None) -> None:
        ranges = ranges_between(low, low + width, loads)
        assert ranges[0][0] == low and ranges[-1][1] == low + width
        if loads is None:
            for (_, end), (start, _) in itertools.pairwise(ranges):
                assert start <= end  # without a hole between them
        else:
            assert {value for value, _ in ranges} == {low, low + width} | {
                x for x in loads if low < x < low + width
            }


class TestPlans:
    def test_a_plan_says_what_it_holds_serves_and_costs(self) -> None:
        spec = make_spec(demand={"chat": 12.0, "code": 6.5}, price_per_gpu_hour=2.5)
        plan = plan_at(problem_of(spec), [[2.2, 6.6, 11.27], [1.2, 3.0, 6.0]])
        assert plan.replicas() == {"chat": {"TP4": 2}, "code": {"TP8": 1}}
        assert plan.cost_per_hour == pytest.approx(16 * 2.5)
        assert plan.min_fulfilment == min(share for _, share in plan.fulfilment)
        assert plan.served_rps == pytest.approx(
            sum(s * d for (_, s), d in zip(plan.fulfilment, (12.0, 6.5), strict=True))
        )
        assert plan.solver_status == "Optimal"

    def test_a_plan_without_prices_has_no_cost(self) -> None:
        assert plan_at(problem_of(make_spec()), [[2.0, 4.0, 8.0]]).cost_per_hour is None

    @pytest.mark.parametrize(
        ("fields", "solver"),
        [({}, "exact dynamic programme"), ({"workload": {"min_replicas": 1}}, "PuLP HiGHS")],
    )
    def test_a_plan_names_its_solver(self, fields: dict[str, Any], solver: str) -> None:
        assert plan_at(problem_of(make_spec(**fields)), [[2.0, 4.0, 8.0]]).solver == solver

    @settings(max_examples=30)
    @given(server=servers())
    def test_a_plan_reads_back_into_its_counts(self, server: TrueServer) -> None:
        fleet, capacities = problem_from(server), server.capacities()
        plan = plan_at(fleet, capacities)
        counts = counts_of(fleet, plan)
        assert [min(1.0, share) for share in fulfilments(fleet, capacities, counts)] == pytest.approx(
            shares(fleet, capacities, counts)
        )
        assert sum(item.gpus for item in plan.allocations) == plan.gpus

    def test_both_plans_follow_from_the_intervals(self) -> None:
        spec = make_spec()
        evidence = make_evidence(
            make_measurement(spec, load=8.0), make_measurement(spec, load=12.0, met=False)
        )
        conservative, optimistic = allocate_both(spec, fit_intervals(spec, evidence))
        assert conservative.replicas() == {"chat": {"TP4": 2}} and conservative.min_fulfilment == 1.0
        assert optimistic.gpus == 2  # a TP2 that might meet 12 req/s


class TestScenarios:
    def test_they_scale_every_demand(self) -> None:
        spec = make_spec(demand={"chat": 10.0}, decision={"demand_scenarios": (0.5, 1.0, 2.0)})
        rows = scenarios_of(spec, [[0, 2, 0]], [[2.0, 4.0, 8.0]])
        assert [row.demand_scale for row in rows] == [0.5, 1.0, 2.0]
        assert [row.min_fulfilment for row in rows] == pytest.approx([1.0, 0.8, 0.4])
        assert [row.lost_rps for row in rows] == pytest.approx([0.0, 2.0, 12.0])
