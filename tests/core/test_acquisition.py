"""Which points a round measures: only those that can still change the decision, in jobs that fit."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.core.allocation import problem_of
from fleetsieve_airflow.core.bounds import box_of
from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.core.dominance import dominated
from fleetsieve_airflow.core.intervals import fit_intervals
from fleetsieve_airflow.core.ladder import ladders_of
from fleetsieve_airflow.evidence import Decision, Evidence, PointFailure, PriorCapacity
from fleetsieve_airflow.records import FleetSpec
from tests.builders import (
    add_round,
    make_evidence,
    make_failure,
    make_measurement,
    make_point,
    make_spec,
    paper_spec,
)
from tests.core.test_milp import mixed_pools
from tests.core.worlds import TrueServer, places, servers


def asked(decision: Decision) -> list[str]:
    return [planned.point.label for planned in decision.points]


def beaten(spec: FleetSpec, evidence: Evidence) -> dict[str, bool]:
    """Return which candidates can never matter."""
    problem, ladders = problem_of(spec), ladders_of(spec, evidence)
    box = box_of(spec, problem, fit_intervals(spec, evidence))
    out = dominated(problem, ladders, box)
    return {row.candidate.label: is_out for row, is_out in zip(ladders, out, strict=True)}


class TestBatch:
    @settings(max_examples=60)
    @given(st.data())
    def test_points_share_servers_and_servers_share_the_profiling_gpus(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers(workloads=3))
        spec = server.spec
        decision = decide(spec, server.evidence(data.draw(places(server))))
        jobs: dict[int, set[tuple[str, str]]] = defaultdict(set)
        gpus: dict[int, int] = {}
        for planned in decision.points:
            jobs[planned.job].add((spec.workload(planned.point.workload).model, planned.point.config))
            gpus[planned.job] = planned.point.gpus
        assert all(len(servers_of) == 1 for servers_of in jobs.values())
        assert len({next(iter(servers_of)) for servers_of in jobs.values()}) == len(jobs)
        assert sorted(jobs) == list(range(len(jobs)))
        room = spec.measurement.profiling_gpus or 0
        if decision.points:  # one replica may be larger than the profiling GPUs; beside it nothing runs then
            assert sum(gpus.values()) <= max(room, gpus[0])

    @settings(max_examples=60)
    @given(st.data())
    def test_only_loads_whose_verdict_is_open_are_measured_each_once(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers(workloads=3))
        evidence = server.evidence(data.draw(places(server)))
        decision = decide(server.spec, evidence)
        ladders = {ladder.candidate.label: ladder for ladder in ladders_of(server.spec, evidence)}
        keys = [planned.point.key for planned in decision.points]
        assert len(set(keys)) == len(keys)
        assert not set(keys) & {item.measurement.point.key for item in evidence.items}
        for planned in decision.points:
            ladder = ladders[f"{planned.point.workload} {planned.point.config}"]
            assert ladder.candidate.loads.index(planned.point.load) in ladder.unknown()

    @settings(max_examples=60)
    @given(st.data())
    def test_every_point_says_why_what_it_costs_and_how_likely_it_is_met(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers())
        spec = replace(server.spec, measurement=replace(server.spec.measurement, startup_s=180.0))
        decision = decide(spec, Evidence())
        started: set[int] = set()
        for planned in decision.points:
            start = 0.0 if planned.job in started else 180.0
            started.add(planned.job)
            assert planned.gpu_seconds_billed == planned.point.gpus * (planned.point.duration_s + start)
            assert 0.0 < planned.probability_met < 1.0
            assert planned.expected_fall_per_gpu_second >= 0.0
            assert planned.point.workload in planned.reason and planned.point.config in planned.reason
            assert planned.reason.endswith(".") and not re.search(r"nan|inf\b|None|e-\d\d", planned.reason)

    def test_several_workloads_of_one_model_are_measured_on_one_server(self) -> None:
        spec = make_spec(
            demand={"chat": 4.0, "code": 4.0}, configs={"TP8": 8}, measurement={"startup_s": 180.0}
        )
        priors = tuple(
            PriorCapacity(workload=name, config="TP8", source="simulator", lower_rps=9.0, upper_rps=15.0)
            for name in ("chat", "code")
        )
        first, other = decide(spec, Evidence(priors=priors)).points
        assert {first.point.workload, other.point.workload} == {"chat", "code"}
        assert first.job == other.job == 0
        assert first.gpu_seconds_billed == 8 * 480.0
        assert other.gpu_seconds_billed == 8 * 300.0  # the server runs already

    def test_a_point_is_measured_even_where_its_replica_is_larger_than_the_profiling_gpus(self) -> None:
        spec = make_spec(demand={"chat": 12.0}, configs={"TP8": 8}, measurement={"profiling_gpus": 1})
        assert len(decide(spec, Evidence()).points) == 1


class TestWhatIsNotAskedAgain:
    def given_up(self, spec: FleetSpec, failures: list[PointFailure]) -> bool:
        evidence = make_evidence(failures=failures, rounds_done=len(failures))
        return failures[0].key not in {planned.point.key for planned in decide(spec, evidence).points}

    def test_a_failed_point_is_asked_again_until_its_attempts_are_used_up(self) -> None:
        spec = make_spec(measurement={"failed_attempts": 2, "repeats": 1})
        point = decide(spec, Evidence()).points[0].point
        once, twice = ([make_failure(point, round=1 + i) for i in range(n)] for n in (1, 2))
        assert not self.given_up(spec, once)
        assert self.given_up(spec, twice)

    def test_what_was_never_recorded_is_given_up_at_once(self) -> None:
        spec = make_spec(measurement={"repeats": 1})
        point = decide(spec, Evidence()).points[0].point
        assert self.given_up(spec, [make_failure(point, kind="missing_in_grid")])

    def test_a_failure_is_never_read_as_missed(self) -> None:
        spec = make_spec(measurement={"failed_attempts": 1, "repeats": 1})
        failures = [
            make_failure(make_point(spec, config=config, load=load))
            for config in ("TP2", "TP4", "TP8")
            for load in (2.0, 4.0, 8.0, 12.0)
        ]
        decision = decide(spec, make_evidence(failures=failures, rounds_done=1))
        assert decision.state == "undetermined"
        assert all(row.lower.value_rps == 0.0 and row.upper.value_rps == 12.0 for row in decision.intervals)
        assert any("counts as unknown, not as missed" in warning for warning in decision.warnings)
        assert "nothing that can still be measured" in decision.reason


class TestRepeats:
    def test_a_contradiction_asks_for_a_repeat_of_what_contradicts(self) -> None:
        spec = make_spec(demand={"chat": 16.0}, configs={"TP8": 8}, loads=(4.0, 8.0))
        evidence = make_evidence(
            make_measurement(spec, "chat", "TP8", 4.0, met=False), make_measurement(spec, "chat", "TP8", 8.0)
        )
        decision = decide(spec, evidence)
        assert decision.state == "measure"
        assert asked(decision)[0] in ("chat TP8 4 req/s seed 1", "chat TP8 8 req/s seed 1")
        assert "a repeat is due" in decision.points[0].reason
        assert any("unknown again" in warning for warning in decision.warnings)

    def test_a_marginal_verdict_asks_for_repeats_until_they_are_used_up(self) -> None:
        spec = make_spec(
            demand={"chat": 16.0},
            configs={"TP8": 8},
            loads=(8.0,),
            decision={"confidence": 0.95, "run_to_run_cv": 0.2},
            measurement={"repeats": 3},
        )
        close: dict[str, Any] = {"percentiles": {"ttft_p99_s": 2.0}}
        evidence = make_evidence(make_measurement(spec, "chat", "TP8", 8.0, **close))
        for repeat in (1, 2):
            decision = decide(spec, evidence)
            assert asked(decision) == [f"chat TP8 8 req/s seed {repeat}"]
            evidence = add_round(evidence, make_measurement(spec, "chat", "TP8", 8.0, repeat=repeat, **close))
        assert decide(spec, evidence).state == "undetermined"

    def test_repeats_that_agree_settle_it(self) -> None:
        spec = make_spec(
            demand={"chat": 16.0},
            configs={"TP8": 8},
            loads=(8.0,),
            decision={"confidence": 0.95, "run_to_run_cv": 0.2},
        )
        rows = [
            make_measurement(spec, "chat", "TP8", 8.0, repeat=i, percentiles={"ttft_p99_s": 1.4})
            for i in range(3)
        ]
        assert decide(spec, make_evidence(rows[0])).state == "measure"
        assert decide(spec, make_evidence(*rows)).state == "certified_feasible"


class TestDominated:
    def test_a_replica_is_out_once_its_gpus_are_proved_to_do_as_well_otherwise(self) -> None:
        spec = make_spec(demand={"chat": 99.0})
        rows = [
            make_measurement(spec, "chat", "TP4", 8.0),
            make_measurement(spec, "chat", "TP8", 12.0, met=True),
        ]
        out = beaten(spec, make_evidence(rows[0]))
        assert out == {"chat TP2": False, "chat TP4": False, "chat TP8": True}  # 2 x 8 against at most 12
        assert not beaten(spec, make_evidence(*rows))["chat TP8"]  # what is proved itself stays a choice

    def test_smaller_replicas_than_the_known_ones_stay_a_choice(self) -> None:
        spec = make_spec(demand={"chat": 99.0})
        assert not beaten(spec, make_evidence(make_measurement(spec, "chat", "TP8", 12.0)))["chat TP4"]

    def test_gpus_of_one_pool_do_not_stand_in_for_those_of_another(self) -> None:
        spec = mixed_pools()
        known = make_evidence(make_measurement(spec, "chat", "TP4", 12.0))
        assert not beaten(spec, known)["chat A4"]

    def test_where_replicas_are_limited_two_do_not_stand_in_for_one(self) -> None:
        spec = make_spec(demand={"chat": 99.0}, workload={"max_replicas": 1})
        assert not beaten(spec, make_evidence(make_measurement(spec, "chat", "TP4", 8.0)))["chat TP8"]

    def test_replicas_that_do_not_divide_a_node_stand_in_by_nodes(self) -> None:
        spec = make_spec(
            demand={"chat": 99.0}, configs={"TP3": 3, "TP16": 16}, loads={"TP3": (4.0,), "TP16": (18.0,)}
        )
        known = make_evidence(make_measurement(spec, "chat", "TP3", 4.0))
        assert not beaten(spec, known)["chat TP16"]  # two nodes hold 4 x TP3 = 16 req/s, not 5 = 20


class TestBudget:
    def test_points_that_cannot_be_paid_for_are_not_chosen(self) -> None:
        spec = make_spec(measurement={"startup_s": 100.0}, budget={"gpu_seconds": 2 * 400.0})
        for planned in decide(spec, Evidence()).points:
            assert planned.point.config == "TP2"

    @settings(max_examples=20)
    @given(left=st.floats(600.0, 9000.0))
    def test_a_batch_spends_no_more_than_is_left(self, left: float) -> None:
        spec = replace(paper_spec(), budget=replace(paper_spec().budget, gpu_seconds=left))
        decision = decide(spec, Evidence())
        if decision.state == "measure":
            assert 0.0 < sum(planned.gpu_seconds_billed for planned in decision.points) <= left


@pytest.mark.parametrize("objective", ["max_min_fulfilment", "fewest_gpus"])
def test_several_pools_are_asked_about_until_settled(objective: str) -> None:
    spec = mixed_pools((8, 8), objective=objective)
    server = TrueServer(spec, {"chat TP4": 2, "chat A4": 1})
    evidence = Evidence()
    for _ in range(12):
        decision = decide(spec, evidence)
        if decision.state != "measure":
            break
        evidence = add_round(evidence, *(server.measure(spec, planned.point) for planned in decision.points))
    assert decision.state == "certified_feasible"
    assert {label.split()[1] for label in server.asked} == {"TP4", "A4"}
    assert decision.conservative.min_fulfilment == 1.0
    assert decision.conservative.solver == "PuLP HiGHS"
