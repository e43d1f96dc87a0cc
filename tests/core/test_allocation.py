"""The exact programme: replica counts for fleets whose workloads each draw on one pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.core import allocation
from fleetsieve_airflow.core.allocation import Problem, allocate_exact, best_level, curve, curves, problem_of
from fleetsieve_airflow.records import EngineConfig, FleetSpec, Pool
from tests.builders import make_spec
from tests.core.worlds import (
    Capacities,
    all_plans,
    best_rank,
    fewest_gpus,
    gpus_of,
    problem_from,
    rank,
    servers,
)


def problem(
    *,
    demand: dict[str, float] | None = None,
    configs: dict[str, int] | None = None,
    gpus: int = 16,
    **decision: Any,
) -> Problem:
    return problem_of(make_spec(demand=demand, configs=configs, gpus=gpus, decision=decision))


def two_pools(spec: FleetSpec, **fields: Any) -> FleetSpec:
    """Give the second workload of a fleet a pool and a TP4 of its own."""
    pools = (*spec.pools, Pool(name="a100", gpu="NVIDIA A100", gpus=8, gpus_per_node=8))
    own = EngineConfig(label="A4", pool="a100", tensor_parallel=4)
    first, second = (workload.name for workload in spec.workloads)
    candidates = tuple(row for row in spec.candidates if row.workload == first)
    other = replace(spec.candidates[0], workload=second, config="A4")
    return replace(spec, pools=pools, configs=(*spec.configs, own), candidates=(*candidates, other), **fields)


class TestAgainstEveryPlan:
    @settings(max_examples=60)
    @given(server=servers(workloads=2))
    def test_the_plan_is_the_best_of_all(self, server: Any) -> None:
        fleet, capacities = problem_from(server), server.capacities()
        plan = allocate_exact(fleet, capacities)
        plans = all_plans(fleet)
        assert tuple(tuple(row) for row in plan) in plans
        assert rank(fleet, capacities, plan) == pytest.approx(best_rank(fleet, capacities, plans), rel=1e-7)
        assert best_level(fleet, curves(fleet, capacities)) == pytest.approx(rank(fleet, capacities, plan)[0])

    @settings(max_examples=60)
    @given(server=servers(workloads=2, objective="fewest_gpus", required_fulfilment=0.9))
    def test_the_fewest_gpus_are_the_fewest_of_all(self, server: Any) -> None:
        fleet, capacities = problem_from(server), server.capacities()
        plan, plans = allocate_exact(fleet, capacities), all_plans(fleet)
        fewest = fewest_gpus(fleet, capacities, plans)
        if fewest is not None:
            assert gpus_of(fleet, plan) == fewest
        else:  # no plan reaches it: the nearest one then, and the most served
            best = best_rank(fleet, capacities, plans)
            assert rank(fleet, capacities, plan) == pytest.approx(best, rel=1e-7)

    @given(
        sizes=st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=4, unique=True),
        rates=st.lists(st.floats(0.0, 9.0), min_size=4, max_size=4),
    )
    def test_a_curve_is_the_best_of_every_mix(self, sizes: list[int], rates: list[float]) -> None:
        fleet = problem(configs={f"C{size}": size for size in sizes}, gpus=16, demand={"chat": 99.0})
        fleet = replace(fleet, home=(0,))
        expected = np.zeros(17)
        for g in range(1, 17):
            fitting = [expected[g - s] + rate for s, rate in zip(sizes, rates, strict=False) if s <= g]
            expected[g] = max([expected[g - 1], *fitting])
        assert curve(fleet, 0, rates[: len(sizes)]) == pytest.approx(expected)


class TestOrderOfPreference:
    def test_the_worst_workload_goes_before_the_served_rate(self) -> None:
        fleet = problem(demand={"chat": 100.0, "code": 10.0}, configs={"TP8": 8})
        assert allocate_exact(fleet, [[10.0], [1.0]]) == [[1], [1]]  # not chat twice, though that serves more

    def test_gpus_left_over_go_where_they_serve_most(self) -> None:
        fleet = problem(demand={"chat": 10.0, "code": 100.0}, configs={"TP4": 4})
        assert allocate_exact(fleet, [[5.0], [8.0]]) == [[1], [3]]

    def test_no_gpu_is_used_that_serves_nobody(self) -> None:
        fleet = problem(demand={"chat": 8.0}, configs={"TP4": 4})
        assert allocate_exact(fleet, [[8.0]]) == [[1]]
        assert allocate_exact(problem(demand={"chat": 9.0}, configs={"TP4": 4}), [[0.0]]) == [[0]]

    def test_the_largest_of_equal_replicas_then_the_spec_order(self) -> None:
        sizes = {"TP2": 2, "TP4": 4, "other TP4": 4}
        fleet = problem(demand={"chat": 12.0}, configs=sizes)
        assert allocate_exact(fleet, [[2.0, 4.0, 4.0]]) == [[0, 3, 0]]

    def test_a_replica_counts_for_no_more_than_the_demand(self) -> None:
        fleet = problem(demand={"chat": 5.0})
        assert [fleet.cap(0, None), fleet.cap(0, 99.0), fleet.cap(0, 3.0)] == [5.0, 5.0, 3.0]

    def test_two_pools_spend_their_own_gpus(self) -> None:
        fleet = problem_of(two_pools(make_spec(demand={"chat": 90.0, "code": 30.0}, configs={"TP4": 4})))
        assert fleet.home == (0, 1)
        assert allocate_exact(fleet, [[10.0], [10.0]]) == [[4], [2]]

    def test_the_same_input_gives_the_same_plan_whatever_was_solved_before(self) -> None:
        fleet = problem(demand={"chat": 12.0, "code": 6.5})
        capacities: Capacities = [[2.2, 6.6, 11.27], [1.2, 3.6, 6.0]]
        first = allocate_exact(fleet, capacities)
        for other in (1.0, 3.0, 9.0):
            allocate_exact(fleet, [[other] * 3, [other] * 3])
        assert allocate_exact(fleet, capacities) == first == [[0, 2, 0], [0, 2, 0]]


class TestSizeLimits:
    """Large fleets forget curves and spend left-over GPUs greedily; neither may show in small ones."""

    def test_forgotten_curves_are_worked_out_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(allocation, "MAX_CURVES", 1)
        fleet = problem(demand={"chat": 12.0, "code": 6.5})
        rows: list[Capacities] = [[[2.2, 6.6, x], [1.2, 3.6, 6.0]] for x in (11.27, 9.0, 11.27)]
        plans = [allocate_exact(fleet, row) for row in rows]
        assert plans[0] == plans[2] and len(fleet._curves) <= 2

    @settings(max_examples=25)
    @given(server=servers(workloads=3))
    def test_greedy_spending_keeps_the_worst_workload_and_the_gpus(self, server: Any) -> None:
        fleet, capacities = problem_from(server), server.capacities()
        exact = allocate_exact(fleet, capacities)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(allocation, "MAX_TABLE", 0)
            greedy = allocate_exact(fleet, capacities)
        assert gpus_of(fleet, greedy) <= fleet.totals[0]
        level, served, _ = rank(fleet, capacities, greedy)
        assert level == pytest.approx(rank(fleet, capacities, exact)[0])
        assert served <= rank(fleet, capacities, exact)[1] * (1 + 1e-9)


class TestProblem:
    def test_spare_nodes_are_kept_free(self) -> None:
        assert problem_of(make_spec(gpus=32, spare_nodes=1)).totals == (24,)

    def test_demands_scale(self) -> None:
        assert problem_of(make_spec(demand={"chat": 10.0}), 1.3).demands == pytest.approx([13.0])

    def test_candidates_that_cannot_run_are_no_choice(self) -> None:
        fleet = problem_of(make_spec(excluded={"chat TP2": "does not fit"}))
        assert fleet.labels == (("TP4", "TP8"),)

    @pytest.mark.parametrize(
        ("fields", "exact"),
        [
            ({}, True),
            ({"configs": {"TP2": 2, "TP3": 3}}, False),  # 2 x TP3 + 1 x TP2 fill a node, 3 x TP3 do not fit
            ({"configs": {"TP3": 3}}, False),
            ({"configs": {"TP4": 4, "TP16": 16}}, True),
            ({"workload": {"min_replicas": 1}}, False),
            ({"workload": {"max_replicas": 3}}, False),
            ({"decision": {"cost_per_hour_max": 10.0}, "price_per_gpu_hour": 1.0}, False),
        ],
        ids=["plain", "sizes 2 and 3", "size 3 of 8", "whole nodes", "fewest", "most", "cost"],
    )
    def test_side_constraints_and_node_packing_need_the_general_model(
        self, fields: dict[str, Any], exact: bool
    ) -> None:
        assert (problem_of(make_spec(**fields)).home is not None) is exact

    def test_the_exact_programme_refuses_what_it_cannot_solve(self) -> None:
        fleet = problem_of(make_spec(workload={"max_replicas": 3}))
        with pytest.raises(ValueError, match="without side constraints"):
            curve(fleet, 0, [1.0, 2.0, 3.0])

    def test_fewest_gpus_over_two_pools_needs_the_general_model(self) -> None:
        spec = two_pools(make_spec(demand={"chat": 9.0, "code": 3.0}, decision={"objective": "fewest_gpus"}))
        assert problem_of(spec).home is None


@pytest.mark.parametrize("loads", [(2.2, 6.6, 11.27)])
def test_the_paper_plan_follows_from_the_paper_capacities(loads: Sequence[float]) -> None:
    fleet = problem(demand={"chat": 12.0, "code": 6.5})
    assert allocate_exact(fleet, [list(loads), [1.2, 3.6, 6.0]]) == [[0, 2, 0], [0, 2, 0]]
