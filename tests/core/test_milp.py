"""The general model: equal to the exact programme where both apply, right where only it does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.core import milp
from fleetsieve_airflow.core.allocation import Problem, allocate_exact, problem_of
from fleetsieve_airflow.errors import SolverError
from fleetsieve_airflow.records import Candidate, EngineConfig, FleetSpec, Pool
from tests.builders import make_spec
from tests.core.worlds import Capacities, Counts, all_plans, best_rank, fewest_gpus, gpus_of, rank, shares

#: Instances on which both solvers are compared, in three tests.
INSTANCES = 540


def fleet_of(
    sizes: Sequence[Sequence[int]],
    demands: Sequence[float],
    *,
    pools: Sequence[int] | None = None,
    totals: Sequence[int] = (16,),
    **fields: Any,
) -> Problem:
    """Build the numbers of a fleet whose workload w draws on pool ``pools[w]``."""
    homes = tuple(pools or (0,) * len(sizes))
    base = Problem(
        names=tuple(f"w{w}" for w in range(len(sizes))),
        demands=np.array(demands),
        gpus=tuple(tuple(row) for row in sizes),
        pools=tuple((home,) * len(row) for home, row in zip(homes, sizes, strict=True)),
        labels=tuple(tuple(f"c{c}" for c in range(len(row))) for row in sizes),
        totals=tuple(totals),
        prices=(None,) * len(totals),
        node_sizes=(8,) * len(totals),
        objective="max_min_fulfilment",
        required=1.0,
        min_replicas=(0,) * len(sizes),
        max_replicas=(None,) * len(sizes),
        cost_per_hour_max=None,
        home=homes,
    )
    return replace(base, **fields)


@st.composite
def instances(draw: Callable[..., Any], objective: str, pools: int = 1) -> tuple[Problem, Capacities]:
    """Draw a fleet of up to four workloads and four replica sizes, and capacities with ties and zeros."""
    count = draw(st.integers(pools, 4))
    sizes = [
        draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4, unique=True))
        for _ in range(count)
    ]
    rate = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 4.0]), st.floats(0.05, 12.0))
    capacities = [[draw(rate) for _ in row] for row in sizes]
    homes = [w % pools for w in range(count)]
    fleet = fleet_of(
        sizes,
        [draw(st.floats(0.5, 40.0)) for _ in range(count)],
        pools=homes,
        totals=[draw(st.sampled_from([8, 16, 24])) for _ in range(pools)],
        objective=objective,
        required=draw(st.sampled_from([0.5, 0.9, 1.0])) if objective == "fewest_gpus" else 1.0,
    )
    return fleet, capacities


def compare(fleet: Problem, capacities: Capacities) -> None:
    """Hold both solvers' plans equal in worst fulfilment, served rate and GPUs, in the order that counts."""
    exact = allocate_exact(fleet, capacities)
    general, status = milp.solve(fleet, capacities)
    assert status == "Optimal"
    one, other = rank(fleet, capacities, exact), rank(fleet, capacities, general)
    reached = min(one[0], other[0]) >= fleet.required * (1 - 1e-9)
    if fleet.objective == "fewest_gpus" and reached:
        assert one[2] == other[2]
        return
    assert one[0] == pytest.approx(other[0], abs=1e-6)
    assert one[1] == pytest.approx(other[1], rel=1e-8, abs=1e-8)
    # plans that serve the same but for the solver's tolerance may differ in GPUs
    assert one[2] == other[2] or one[1] != pytest.approx(other[1], rel=1e-12)


def nearly_tied(demands: Sequence[float], rates: Sequence[float], total: int) -> tuple[Problem, Capacities]:
    """Build a fleet in which one more replica serves a hundred-thousandth of a request per second more."""
    fleet = fleet_of([[1], [1], [1, 2]], demands, pools=[0, 1, 0], totals=[total, 8])
    return fleet, [[0.0], [rates[0]], [0.0, rates[1]]]


class TestBothSolversAgree:
    @settings(max_examples=INSTANCES // 3)
    @given(drawn=instances("max_min_fulfilment"))
    def test_on_the_fulfilment_of_one_pool(self, drawn: tuple[Problem, Capacities]) -> None:
        compare(*drawn)

    @settings(max_examples=INSTANCES // 3)
    @given(drawn=instances("fewest_gpus"))
    def test_on_the_fewest_gpus_of_one_pool(self, drawn: tuple[Problem, Capacities]) -> None:
        compare(*drawn)

    @settings(max_examples=INSTANCES // 3)
    @given(drawn=instances("max_min_fulfilment", pools=2))
    @example(drawn=nearly_tied([1.0, 2.00001, 6.0], [2.0, 1.0], 16))
    @example(drawn=nearly_tied([1.0, 6.0, 3.00001], [1.0, 1.0], 8))
    def test_on_the_fulfilment_of_two_pools(self, drawn: tuple[Problem, Capacities]) -> None:
        compare(*drawn)


def packs(sizes: Sequence[int], counts: Sequence[int], nodes: Sequence[int]) -> bool:
    """Say by trying whether replicas fit into nodes, each replica into one."""
    left = [size for size, n in zip(sizes, counts, strict=True) for _ in range(n)]

    def place(rest: list[int], room: tuple[int, ...]) -> bool:
        if not rest:
            return True
        return any(
            place(rest[1:], tuple(sorted((*room[:i], have - rest[0], *room[i + 1 :]))))
            for i, have in enumerate(room)
            if have >= rest[0] and have not in room[:i]
        )

    return place(sorted(left, reverse=True), tuple(sorted(nodes)))


class TestNodePacking:
    @settings(max_examples=40)
    @given(
        sizes=st.lists(st.sampled_from([1, 2, 3, 5, 6]), min_size=1, max_size=3, unique=True).map(sorted),
        total=st.sampled_from([8, 11, 16, 19]),
        demands=st.lists(st.floats(1.0, 20.0), min_size=3, max_size=3),
        rates=st.lists(st.floats(0.2, 6.0), min_size=3, max_size=3),
    )
    def test_replicas_fit_into_nodes_and_no_packing_is_missed(
        self, sizes: list[int], total: int, demands: list[float], rates: list[float]
    ) -> None:
        fleet = fleet_of([[size] for size in sizes], demands[: len(sizes)], totals=[total], home=None)
        capacities = [[rate] for rate in rates[: len(sizes)]]
        counts, _ = milp.solve(fleet, capacities)
        nodes = [8] * (total // 8) + ([total % 8] if total % 8 else [])
        fitting = [plan for plan in all_plans(fleet) if packs(sizes, [row[0] for row in plan], nodes)]
        assert packs(sizes, [row[0] for row in counts], nodes)
        best = best_rank(fleet, capacities, fitting)
        assert rank(fleet, capacities, counts) == pytest.approx(best, rel=1e-5)

    def test_three_gpus_fit_twice_into_a_node_of_eight(self) -> None:
        fleet = fleet_of([[3]], [99.0], totals=[16], home=None)
        assert milp.solve(fleet, [[1.0]])[0] == [[4]]  # 16 // 3 would be 5

    def test_replicas_of_whole_nodes_leave_no_room_beside_them(self) -> None:
        fleet = fleet_of([[8, 3]], [99.0], totals=[24], home=None)
        assert milp.solve(fleet, [[10.0, 4.0]])[0] == [[3, 0]]
        assert milp.solve(fleet, [[7.0, 4.0]])[0] == [[0, 6]]

    @pytest.mark.parametrize(("sizes", "node"), [((2, 3), 8), ((1, 3, 5), 8), ((3,), 8), ((2, 3, 4), 9)])
    def test_the_patterns_are_all_maximal_fillings(self, sizes: tuple[int, ...], node: int) -> None:
        ranges = [range(node // size + 1) for size in sizes]
        fits = {
            counts
            for counts in itertools.product(*ranges)
            if sum(n * size for n, size in zip(counts, sizes, strict=True)) <= node
        }
        maximal = {
            counts
            for counts in fits
            if not any(tuple(n + (i == s) for i, n in enumerate(counts)) in fits for s in range(len(sizes)))
        }
        assert set(milp._patterns(sizes, node)) == maximal


def within(fleet: Problem, plan: Counts) -> bool:
    """Say whether a plan keeps the fleet's side constraints."""
    replicas = [sum(row) for row in plan]
    cost = sum(
        (fleet.prices[fleet.pools[w][c]] or 0.0) * fleet.gpus[w][c] * n
        for w, row in enumerate(plan)
        for c, n in enumerate(row)
    )
    return (
        all(n >= low for n, low in zip(replicas, fleet.min_replicas, strict=True))
        and all(high is None or n <= high for n, high in zip(replicas, fleet.max_replicas, strict=True))
        and (fleet.cost_per_hour_max is None or cost <= fleet.cost_per_hour_max + 1e-9)
    )


class TestSideConstraints:
    @settings(max_examples=40)
    @given(
        drawn=st.tuples(
            st.lists(st.floats(0.5, 6.0), min_size=4, max_size=4),
            st.lists(st.floats(2.0, 20.0), min_size=2, max_size=2),
        ),
        least=st.integers(0, 2),
        most=st.none() | st.integers(2, 3),
        cost=st.none() | st.floats(9.0, 40.0),
        objective=st.sampled_from(["max_min_fulfilment", "fewest_gpus"]),
    )
    def test_the_plan_is_the_best_of_those_that_keep_them(
        self,
        drawn: tuple[list[float], list[float]],
        least: int,
        most: int | None,
        cost: float | None,
        objective: str,
    ) -> None:
        rates, demands = drawn
        fleet = fleet_of(
            [[2, 4], [2, 4]],
            demands,
            home=None,
            objective=objective,
            min_replicas=(least, 0),
            max_replicas=(most, most),
            prices=(2.0,),
            cost_per_hour_max=cost,
        )
        capacities = [rates[:2], rates[2:]]
        counts = milp.solve(fleet, capacities)[0]
        allowed = [plan for plan in all_plans(fleet) if within(fleet, plan)]
        assert tuple(tuple(row) for row in counts) in allowed
        fewest = fewest_gpus(fleet, capacities, allowed) if objective == "fewest_gpus" else None
        if fewest is not None:
            assert gpus_of(fleet, counts) == fewest
        else:
            best = best_rank(fleet, capacities, allowed)
            assert rank(fleet, capacities, counts) == pytest.approx(best, rel=1e-5)

    def test_constraints_that_leave_no_plan_are_a_solver_error_with_a_remedy(self) -> None:
        fleet = fleet_of([[8]], [5.0], min_replicas=(3,), home=None)
        with pytest.raises(SolverError, match="Check min_replicas, max_replicas and cost_per_hour_max"):
            milp.solve(fleet, [[1.0]])

    def test_of_plans_with_as_many_gpus_the_one_with_most_headroom(self) -> None:
        fleet = fleet_of([[4, 4]], [5.0], home=None, objective="fewest_gpus")
        assert milp.solve(fleet, [[5.0, 9.0]])[0] == [[0, 1]]


def mixed_pools(gpus: tuple[int, int] = (8, 8), **decision: Any) -> FleetSpec:
    """Build a fleet whose one workload may run in either of two pools."""
    spec = make_spec(demand={"chat": 20.0}, configs={"TP4": 4}, gpus=gpus[0], decision=decision)
    pool = Pool(name="a100", gpu="NVIDIA A100", gpus=gpus[1], gpus_per_node=8)
    config = EngineConfig(label="A4", pool="a100", tensor_parallel=4)
    more = Candidate(workload="chat", config="A4", load_kind="offered_load_rps", loads=(2.0, 4.0, 8.0, 12.0))
    return replace(
        spec,
        pools=(*spec.pools, pool),
        configs=(*spec.configs, config),
        candidates=(*spec.candidates, more),
    )


class TestSeveralPools:
    def test_a_workload_draws_on_both(self) -> None:
        fleet = problem_of(mixed_pools())
        assert fleet.home is None
        counts, _ = milp.solve(fleet, [[6.0, 4.0]])
        assert counts == [[2, 2]]
        assert shares(fleet, [[6.0, 4.0]], counts) == [1.0]

    @settings(max_examples=25)
    @given(
        rates=st.lists(st.just(0.0) | st.floats(0.05, 9.0), min_size=2, max_size=2),
        objective=st.sampled_from(["max_min_fulfilment", "fewest_gpus"]),
    )
    def test_the_plan_is_the_best_of_all(self, rates: list[float], objective: str) -> None:
        fleet = problem_of(mixed_pools((16, 8), objective=objective))
        counts, _ = milp.solve(fleet, [rates])
        plans = all_plans(fleet)
        fewest = fewest_gpus(fleet, [rates], plans) if objective == "fewest_gpus" else None
        if fewest is not None:
            assert gpus_of(fleet, counts) == fewest
        else:
            assert rank(fleet, [rates], counts) == pytest.approx(best_rank(fleet, [rates], plans), rel=1e-5)

    def test_ties_are_broken_the_same_way_every_time(self) -> None:
        fleet = problem_of(mixed_pools((16, 16)))
        assert len({str(milp.solve(fleet, [[5.0, 5.0]])) for _ in range(5)}) == 1
