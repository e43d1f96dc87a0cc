"""Replicas that prefill and decode on engines of their own, pools at a price, the least money an hour.

Whatever the solver says is held to what trying every plan says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.campaign import replay_campaign, run_campaign
from fleetsieve_airflow.core import milp
from fleetsieve_airflow.core.allocation import Problem, allocate_exact, problem_of
from fleetsieve_airflow.core.bounds import (
    allocate_both,
    box_of,
    counts_of,
    plan_at,
    ranges_between,
    regret_of,
    value_of,
)
from fleetsieve_airflow.core.certificate import verify_certificate
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.core.dominance import dominated
from fleetsieve_airflow.core.intervals import apply_interior_peak, fit_intervals
from fleetsieve_airflow.core.ladder import ladders_of
from fleetsieve_airflow.errors import RecordError, SolverError
from fleetsieve_airflow.evidence import Evidence, Plan
from fleetsieve_airflow.records import Candidate, EngineConfig, EngineGroup, FleetSpec, Pool
from fleetsieve_airflow.serialization import canonical_json, profile_digest, spec_digest, to_plain
from tests.builders import make_evidence, make_measurement, make_spec, paper_spec
from tests.core.test_milp import packs
from tests.core.worlds import (
    Capacities,
    Counts,
    TrueServer,
    all_plans,
    best_rank,
    gaps_of,
    gpus_of,
    places,
    shares,
)

OBJECTIVES = ("max_min_fulfilment", "fewest_gpus", "lowest_cost")
LOADS = (1.0, 2.0, 4.0, 8.0)


def split(label: str, prefill: tuple[str, int, int], decode: tuple[str, int, int]) -> EngineConfig:
    """Build a disaggregated config from (pool, engines, tensor-parallel degree) of both phases."""
    groups = [
        EngineGroup(pool=pool, engines=engines, tensor_parallel=degree)
        for pool, engines, degree in (prefill, decode)
    ]
    return EngineConfig(label=label, prefill=groups[0], decode=groups[1])


CONFIGS = {
    "A4": EngineConfig(label="A4", pool="a", tensor_parallel=4),
    "B4": EngineConfig(label="B4", pool="b", tensor_parallel=4),
    "B8": EngineConfig(label="B8", pool="b", tensor_parallel=8),
    "AA": split("AA", ("a", 2, 2), ("a", 1, 4)),
    "AB": split("AB", ("a", 1, 2), ("b", 1, 4)),
    "BA": split("BA", ("b", 2, 2), ("a", 1, 8)),
}


def fleet(
    configs: Sequence[str],
    demand: Mapping[str, float],
    *,
    totals: tuple[int, int] = (8, 8),
    prices: tuple[float, float] = (2.0, 3.0),
    loads: Sequence[float] = LOADS,
    **fields: Any,
) -> FleetSpec:
    """Build a fleet of pools ``a`` and ``b`` in which every workload may run on these configs."""
    base = make_spec(demand=demand, loads=loads, **fields)
    pools = tuple(
        Pool(name=name, gpu=f"GPU {name}", gpus=total, gpus_per_node=8, price_per_gpu_hour=price)
        for name, total, price in zip("ab", totals, prices, strict=True)
    )
    candidates = tuple(
        Candidate(workload=name, config=label, load_kind="offered_load_rps", loads=tuple(loads))
        for name in demand
        for label in configs
    )
    return replace(
        base, pools=pools, configs=tuple(CONFIGS[label] for label in configs), candidates=candidates
    )


@st.composite
def fleets(draw: Callable[..., Any], objective: str, workloads: int = 2, **decision: Any) -> FleetSpec:
    """Draw a fleet that has a replica in two pools."""
    plain = draw(st.lists(st.sampled_from(["A4", "B4", "B8", "AA"]), min_size=1, max_size=2, unique=True))
    names = ["chat", "code"][: draw(st.integers(1, workloads))]
    required = draw(st.sampled_from([0.8, 1.0]))
    return fleet(
        [*plain, draw(st.sampled_from(["AB", "BA"]))],
        {name: draw(st.integers(2, 30)) / 2 for name in names},
        totals=(draw(st.sampled_from([8, 16])), draw(st.sampled_from([8, 16]))),
        prices=(draw(st.sampled_from([0.0, 1.0, 2.8])), draw(st.sampled_from([0.5, 1.5, 3.5]))),
        decision={"objective": objective, "required_fulfilment": required, **decision},
    )


@st.composite
def truths(draw: Callable[..., Any], objective: str, **decision: Any) -> TrueServer:
    """Draw such a fleet with the highest load that each candidate meets."""
    spec = draw(fleets(objective, **decision))
    return TrueServer(spec, {item.label: draw(st.integers(-1, len(LOADS) - 1)) for item in spec.candidates})


def need(problem: Problem, plan: Sequence[Sequence[int]]) -> float:
    """Add up by hand what a plan takes: GPUs, or money an hour."""
    if problem.objective != "lowest_cost":
        return float(gpus_of(problem, plan))
    return sum(
        replicas * size * engines * (problem.prices[k] or 0.0)
        for w, row in enumerate(plan)
        for c, replicas in enumerate(row)
        for k, size, engines in problem.parts_of(w, c)
    )


def reaching(problem: Problem, capacities: Capacities, plans: Sequence[Counts]) -> list[Counts]:
    """Return the plans that serve what is required."""
    return [plan for plan in plans if min(shares(problem, capacities, plan)) >= problem.required * (1 - 1e-9)]


def headroom(problem: Problem, capacities: Capacities, plan: Sequence[Sequence[int]]) -> float:
    return min(
        sum(n * rate for n, rate in zip(got, row, strict=True)) / float(demand)
        for got, row, demand in zip(plan, capacities, problem.demands, strict=True)
    )


def hold_to_enumeration(problem: Problem, capacities: Capacities, plans: Sequence[Counts]) -> None:
    """Hold the solver's plan to the best of these, in the documented order of preference."""
    counts, status = milp.solve(problem, capacities)
    found = tuple(tuple(row) for row in counts)
    assert status == "Optimal" and found in plans
    enough = reaching(problem, capacities, plans)
    if problem.counts_need and enough:
        least = min(need(problem, plan) for plan in enough)
        assert found in enough
        assert need(problem, found) == pytest.approx(least, abs=1e-6)
        alike = [plan for plan in enough if need(problem, plan) <= least + 1e-6]
        fewest = min(gpus_of(problem, plan) for plan in alike)
        assert gpus_of(problem, found) == fewest
        most = max(headroom(problem, capacities, p) for p in alike if gpus_of(problem, p) == fewest)
        assert headroom(problem, capacities, found) == pytest.approx(most, rel=1e-6)
        return
    got, best = shares(problem, capacities, found), best_rank(problem, capacities, plans)
    served = sum(share * float(demand) for share, demand in zip(got, problem.demands, strict=True))
    level = min(problem.ceiling, best[0])
    assert min(problem.ceiling, *got) == pytest.approx(level, abs=1e-6)
    if not problem.counts_need:
        assert served == pytest.approx(best[1], abs=1e-6)
        assert gpus_of(problem, found) == -best[2]


class TestTheSolverEqualsEnumeration:
    @settings(max_examples=60)
    @given(st.data())
    def test_over_two_pools_and_replicas_in_both(self, data: st.DataObject) -> None:
        spec = data.draw(fleets(data.draw(st.sampled_from(OBJECTIVES))))
        problem = problem_of(spec)
        rate = st.sampled_from([0.0, 1.0, 2.0]) | st.floats(0.1, 9.0)
        capacities = [[data.draw(rate) for _ in row] for row in problem.gpus]
        hold_to_enumeration(problem, capacities, all_plans(problem))

    @settings(max_examples=40)
    @given(
        rates=st.lists(st.floats(0.5, 6.0), min_size=6, max_size=6),
        most=st.none() | st.integers(1, 3),
        limit=st.none() | st.floats(4.0, 60.0),
        objective=st.sampled_from(OBJECTIVES),
    )
    def test_within_a_cost_limit_and_a_number_of_replicas(
        self, rates: list[float], most: int | None, limit: float | None, objective: str
    ) -> None:
        spec = fleet(
            ["A4", "B4", "AB"],
            {"chat": 9.0, "code": 4.0},
            workload={"max_replicas": most},
            decision={"objective": objective, "cost_per_hour_max": limit},
        )
        problem = problem_of(spec)
        allowed = [
            plan
            for plan in all_plans(problem)
            if all(most is None or sum(row) <= most for row in plan)
            and (limit is None or problem.cost_of(plan) <= limit)
        ]
        hold_to_enumeration(problem, [rates[:3], rates[3:]], allowed)

    @settings(max_examples=30)
    @given(
        rates=st.lists(st.floats(0.5, 6.0), min_size=2, max_size=2),
        demand=st.floats(1.0, 15.0),
        objective=st.sampled_from(OBJECTIVES),
    )
    def test_each_engine_takes_a_place_of_its_own_in_a_node(
        self, rates: list[float], demand: float, objective: str
    ) -> None:
        spec = fleet(["A4", "AB"], {"chat": demand}, totals=(16, 8), decision={"objective": objective})
        odd = (split("AB", ("a", 2, 3), ("b", 1, 2)), EngineConfig(label="A4", pool="a", tensor_parallel=5))
        problem = problem_of(replace(spec, configs=odd))
        # Pool a: two nodes of 8 for engines of 3 (two a replica) and replicas of 5.
        allowed = [plan for plan in all_plans(problem) if packs((5, 3), (plan[0][0], 2 * plan[0][1]), (8, 8))]
        assert len(allowed) < len(all_plans(problem))
        hold_to_enumeration(problem, [rates], allowed)

    @settings(max_examples=60)
    @given(st.data())
    def test_in_one_pool_the_exact_programme_finds_the_least_money_too(self, data: st.DataObject) -> None:
        demand = {"chat": data.draw(st.integers(2, 40)) / 2, "code": data.draw(st.integers(2, 20)) / 2}
        spec = make_spec(demand=demand, price_per_gpu_hour=2.5, decision={"objective": "lowest_cost"})
        problem = problem_of(spec)
        rate = st.sampled_from([0.0, 2.0, 4.0]) | st.floats(0.1, 12.0)
        capacities = [[data.draw(rate) for _ in row] for row in problem.gpus]
        exact, (general, _) = allocate_exact(problem, capacities), milp.solve(problem, capacities)
        assert problem.home is not None
        if reaching(problem, capacities, [tuple(tuple(row) for row in general)]):
            assert need(problem, exact) == pytest.approx(need(problem, general))

    def test_a_limit_below_the_fewest_replicas_is_a_solver_error_with_a_remedy(self) -> None:
        spec = fleet(
            ["A4", "AB"],
            {"chat": 4.0},
            workload={"min_replicas": 1},
            decision={"objective": "lowest_cost", "cost_per_hour_max": 1.0},
        )
        with pytest.raises(SolverError, match="cost_per_hour_max"):
            milp.solve(problem_of(spec), [[2.0, 3.0]])


class TestBounds:
    @settings(max_examples=40)
    @given(st.data())
    def test_the_gap_is_never_negative_and_never_grows(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(truths(data.draw(st.sampled_from(OBJECTIVES))))
        gaps = gaps_of(server, data.draw(places(server)))
        assert all(gap >= -1e-6 for gap in gaps)
        assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(gaps))

    @settings(max_examples=40)
    @given(st.data())
    def test_the_true_optimum_lies_between_the_ends(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(truths(data.draw(st.sampled_from(OBJECTIVES))))
        intervals = fit_intervals(server.spec, server.evidence(data.draw(places(server))))
        conservative, optimistic = allocate_both(server.spec, intervals)
        truth = value_of(problem_of(server.spec), server.capacities())
        assert conservative.value - 1e-6 <= truth <= optimistic.value + 1e-6

    @settings(max_examples=40)
    @given(st.data())
    def test_no_truth_makes_a_plan_dearer_against_the_best_than_its_regret(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(truths("lowest_cost"))
        spec, problem = server.spec, problem_of(server.spec)
        box = box_of(spec, problem, fit_intervals(spec, server.evidence(data.draw(places(server)))))
        plan = plan_at(problem, box.lower)
        counts = counts_of(problem, plan)
        regret = regret_of(problem, box, counts)
        cheapest = min(
            (need(problem, p) for p in reaching(problem, server.capacities(), all_plans(problem))),
            default=None,
        )
        if plan.min_fulfilment >= problem.required * (1 - 1e-9) and cheapest is not None:
            assert problem.cost_of(counts) - cheapest <= regret + 1e-6

    def test_for_the_least_money_the_regret_is_the_gap(self) -> None:
        spec = fleet(["A4", "B4"], {"chat": 8.0}, decision={"objective": "lowest_cost"}, prices=(2.0, 1.0))
        problem = problem_of(spec)
        lower, upper = [[4.0, 2.0]], [[4.0, 8.0]]
        pairs = zip(lower[0], upper[0], strict=True)
        box = box_of(spec, problem, fit_intervals(spec, Evidence()))
        box = replace(box, lower=lower, upper=upper, ranges=[[ranges_between(a, b, LOADS) for a, b in pairs]])
        # Sure: 2 x A4 for 16 an hour, or 1 x A4 + 2 x B4 for as much; at best 1 x B4 for 4.
        assert problem.cost_of(counts_of(problem, plan_at(problem, lower))) == 16.0
        assert regret_of(problem, box, [[2, 0]]) == 12.0

    def test_pools_that_all_are_free_do_not_hide_a_shortfall(self) -> None:
        spec = fleet(["A4", "B4"], {"chat": 99.0}, decision={"objective": "lowest_cost"}, prices=(0.0, 0.0))
        problem = problem_of(spec)
        assert value_of(problem, [[4.0, 4.0]]) < value_of(problem, [[8.0, 4.0]]) < 0.0


class TestWholeCampaigns:
    @settings(max_examples=25)
    @given(server=truths("lowest_cost", tolerance=0.5))
    def test_a_certified_plan_costs_at_most_the_tolerance_more_than_the_best(
        self, server: TrueServer
    ) -> None:
        result = run_campaign(server.spec, server)
        decision, problem = result.decision, problem_of(server.spec)
        plans, truth = all_plans(problem), server.capacities()
        counts = counts_of(problem, decision.conservative)
        enough = reaching(problem, truth, plans)
        assert verify_certificate(result.certificate) == ()
        if (
            decision.state == "certified_feasible"
            and decision.conservative.min_fulfilment >= problem.required
        ):
            assert tuple(tuple(row) for row in counts) in enough
            assert problem.cost_of(counts) <= min(need(problem, plan) for plan in enough) + 0.5 + 1e-6
        if decision.state == "certified_infeasible":
            assert enough == []
        assert decision.state != "undetermined"

    @settings(max_examples=10)
    @given(server=truths("max_min_fulfilment", tolerance=0.05))
    def test_the_worst_served_share_is_within_the_tolerance_of_the_best(self, server: TrueServer) -> None:
        result = run_campaign(server.spec, server)
        problem, truth = problem_of(server.spec), server.capacities()
        best = max(min(shares(problem, truth, plan)) for plan in all_plans(problem))
        got = min(shares(problem, truth, counts_of(problem, result.decision.conservative)))
        assert got >= min(best, problem.required) - 0.05 - 1e-6
        assert verify_certificate(result.certificate) == ()

    def test_replaying_a_campaign_decides_the_same_to_the_byte(self) -> None:
        spec = fleet(["A4", "B4", "AB"], {"chat": 9.0, "code": 4.0}, decision={"objective": "lowest_cost"})
        highest = {item.label: 2 if item.config == "AB" else 1 for item in spec.candidates}
        result = run_campaign(spec, TrueServer(spec, highest))
        again = replay_campaign(spec, result.evidence)
        assert [canonical_json(to_plain(row)) for row in again] == [
            canonical_json(to_plain(row)) for row in result.decisions
        ]

    def test_a_mixed_replica_is_chosen_where_it_is_cheaper_and_each_pool_is_counted(self) -> None:
        spec = fleet(["A4", "B4", "AB"], {"chat": 8.0}, decision={"objective": "lowest_cost"})
        highest = {"chat A4": 1, "chat B4": 1, "chat AB": 3}
        plan: Plan = run_campaign(spec, TrueServer(spec, highest)).decision.conservative
        assert plan.replicas() == {"chat": {"AB": 1}}
        assert (plan.gpus, plan.cost_per_hour) == (6, 2 * 2.0 + 4 * 3.0)

    def test_the_price_decides_what_is_asked_first(self) -> None:
        # By GPUs both would do with one replica; by money only the cheap pool is worth proving.
        spec = fleet(["A4", "B4"], {"chat": 4.0}, prices=(9.0, 1.0), decision={"objective": "lowest_cost"})
        (first,) = {planned.point.config for planned in decide(spec, Evidence()).points}
        assert first == "B4"


class TestDominance:
    def test_a_split_replica_is_out_once_plain_ones_serve_as_much_in_its_place(self) -> None:
        spec = fleet(["A4", "AA"], {"chat": 20.0}, loads=(1.0, 2.0, 4.0))
        evidence = make_evidence(
            make_measurement(spec, config="A4", load=4.0),
            make_measurement(spec, config="AA", load=4.0, met=False),
        )
        problem, ladders = problem_of(spec), ladders_of(spec, evidence)
        box = box_of(spec, problem, fit_intervals(spec, evidence, ladders))
        # AA takes places of 2, 2 and 4 GPUs: one A4 fits the last, and serves 4 where AA serves at most 2.
        assert dominated(problem, ladders, box) == [False, True]

    def test_a_replica_in_another_pool_does_not_take_its_place(self) -> None:
        spec = fleet(["B4", "AA"], {"chat": 20.0}, loads=(1.0, 2.0, 4.0))
        evidence = make_evidence(make_measurement(spec, config="B4", load=4.0))
        problem, ladders = problem_of(spec), ladders_of(spec, evidence)
        box = box_of(spec, problem, fit_intervals(spec, evidence, ladders))
        assert dominated(problem, ladders, box) == [False, False]


class TestRecords:
    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            (
                {"pool": "a", "prefill": EngineGroup(pool="a"), "decode": EngineGroup(pool="b")},
                "either a pool",
            ),
            ({}, "either a pool"),
            ({"prefill": EngineGroup(pool="a")}, "go together"),
            (
                {"tensor_parallel": 2, "prefill": EngineGroup(pool="a"), "decode": EngineGroup(pool="b")},
                "either a pool",
            ),
        ],
    )
    def test_a_config_is_built_in_one_way(self, fields: dict[str, Any], said: str) -> None:
        with pytest.raises(RecordError, match=said):
            EngineConfig(label="x", **fields)

    def test_a_group_has_engines(self) -> None:
        with pytest.raises(RecordError, match="at least one"):
            EngineGroup(pool="a", engines=0)

    def test_its_gpus_are_those_of_all_engines_by_pool(self) -> None:
        config = CONFIGS["BA"]
        assert config.gpus == 12 and config.pool_gpus == {"b": 4, "a": 8}
        assert [part.words for part in config.parts] == ["2 x TP2 in pool b", "1 x TP8 in pool a"]

    def test_arguments_of_a_phase_win_over_those_of_both(self) -> None:
        config = EngineConfig(
            label="x",
            engine_args=(("max-num-seqs", "256"), ("quantization", "fp8")),
            prefill=EngineGroup(pool="a", engine_args=(("max-num-seqs", "8"),)),
            decode=EngineGroup(pool="b"),
        )
        prefill, decode = (dict(part.engine.engine_args) for part in config.parts)
        assert prefill == {"max-num-seqs": "8", "quantization": "fp8"}
        assert decode["max-num-seqs"] == "256"

    def test_every_fact_of_a_phase_is_part_of_what_was_measured(self) -> None:
        spec = fleet(["AB"], {"chat": 1.0})
        other = fleet(["AB"], {"chat": 1.0}, totals=(8, 16))
        changed = split("AB", ("a", 1, 2), ("b", 2, 4))
        moved = split("AB", ("b", 1, 2), ("a", 1, 4))
        digests = {
            profile_digest(replace(spec, configs=(config,)), spec.candidates[0])
            for config in (CONFIGS["AB"], changed, moved)
        }
        assert len(digests) == 3
        assert profile_digest(spec, spec.candidates[0]) == profile_digest(other, other.candidates[0])

    def test_fleets_of_whole_replicas_keep_the_digests_they_had(self) -> None:
        spec = paper_spec()
        assert all("prefill" not in config for config in to_plain(spec)["configs"])
        assert spec_digest(spec)[:16] == "189e433494173bbe"
        assert profile_digest(spec, spec.candidates[0])[:16] == "4c75439e42dd1c6c"

    def test_one_peak_over_the_degrees_is_assumed_of_whole_replicas_only(self) -> None:
        base = make_spec(decision={"interior_peak": True})
        six = [
            EngineConfig(label="TP6", pool="h100", tensor_parallel=6),
            split("2+4", ("h100", 1, 2), ("h100", 1, 4)),
        ]
        lower = []
        for config in six:
            more = Candidate(workload="chat", config=config.label, load_kind="offered_load_rps", loads=LOADS)
            spec = replace(base, configs=(*base.configs, config), candidates=(*base.candidates, more))
            evidence = make_evidence(
                make_measurement(spec, config="TP4", load=8.0), make_measurement(spec, config="TP8", load=8.0)
            )
            row, _ = apply_interior_peak(spec, fit_intervals(spec, evidence))[-1]
            lower.append(row.lower.value_rps or 0.0)
        assert lower == [pytest.approx(6.0), 0.0]  # between 2 per GPU and 1 per GPU lies at least 1
