"""What the published case study decided, held against the reconstructed grid that ships with the project.

Two workloads on 16 H100: chat (12 req/s at 1.0x) and code (6.5 req/s); each candidate measured at four loads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from fleetsieve_airflow.backends.replay import ReplayBackend
from fleetsieve_airflow.campaign import CampaignResult, run_campaign
from fleetsieve_airflow.core.allocation import problem_of
from fleetsieve_airflow.core.bounds import (
    Capacities,
    fulfilments,
    plan_at,
    plan_of,
    scenarios_of,
    solve,
    value_of,
)
from fleetsieve_airflow.core.certificate import verify_certificate
from fleetsieve_airflow.core.intervals import fit_intervals
from fleetsieve_airflow.core.ladder import ladders_of
from fleetsieve_airflow.evidence import Evidence
from fleetsieve_airflow.records import FleetSpec, Slo, Workload
from tests.builders import make_evidence, make_slo, paper_measurement, paper_spec

FULL_PLAN = {"chat": {"TP4": 2}, "code": {"TP4": 2}}
#: Counts in the order TP2, TP4, TP8 of each workload.
FULL = [[0, 2, 0], [0, 2, 0]]
SPARSE = [[0, 0, 1], [0, 2, 0]]
SCALES = (0.7, 1.0, 1.3)


@lru_cache(maxsize=1)
def everything() -> Evidence:
    """Measure all 24 points of the grid."""
    return make_evidence(
        *(
            paper_measurement(item.workload, item.config, load)
            for item in paper_spec().candidates
            for load in item.loads
        )
    )


def capacities(spec: FleetSpec) -> Capacities:
    """Return the true capacities: what full profiling finds."""
    rows: dict[str, list[float]] = {}
    for ladder in ladders_of(spec, everything()):
        assert ladder.capacity_lower == ladder.capacity_upper
        rows.setdefault(ladder.candidate.workload, []).append(ladder.capacity_lower)
    return list(rows.values())


def asking_of_chat(slo: Slo, **fields: object) -> FleetSpec:
    """Return the fleet with chat alone, judged by another SLO."""
    spec = paper_spec()
    workload: Workload = replace(spec.workload("chat"), slo=slo, **fields)  # type: ignore[arg-type]
    candidates = tuple(item for item in spec.candidates if item.workload == "chat")
    return replace(spec, workloads=(workload,), candidates=candidates)


@lru_cache(maxsize=8)
def campaign(scale: float, profiling_gpus: int) -> CampaignResult:
    spec = paper_spec(scale)
    spec = replace(spec, measurement=replace(spec.measurement, profiling_gpus=profiling_gpus))
    return run_campaign(spec, ReplayBackend())


class TestFullProfiling:
    def test_it_measures_33600_gpu_seconds(self) -> None:
        assert sum(item.measurement.gpu_seconds_window for item in everything().items) == 33600.0

    def test_it_chooses_two_tp4_for_each_workload(self) -> None:
        spec = paper_spec()
        plan = plan_at(problem_of(spec), capacities(spec))
        assert plan.replicas() == FULL_PLAN
        assert plan.min_fulfilment == 1.0 and plan.gpus == 16

    def test_capacity_per_gpu_peaks_at_tp4_for_both_workloads(self) -> None:
        for row in capacities(paper_spec()):
            tp2, tp4, tp8 = (rate / gpus for rate, gpus in zip(row, (2, 4, 8), strict=True))
            assert tp4 > max(tp2, tp8)

    def test_capacity_is_not_proportional_to_the_degree(self) -> None:
        chat, code = capacities(paper_spec())
        assert (chat, code) == ([2.2, 6.6, 11.27], [1.2, 3.6, 6.0])


class TestSparseIndependentRule:
    """It chooses 1 x TP8 for chat and 2 x TP4 for code; held against the plan of full profiling."""

    @pytest.mark.parametrize(
        ("scale", "lost_rps", "lost_points"), [(0.7, 0.0, 0.0), (1.0, 0.73, 6.1), (1.3, 1.93, 12.4)]
    )
    def test_what_it_loses(self, scale: float, lost_rps: float, lost_points: float) -> None:
        spec = paper_spec()
        spec = replace(spec, decision=replace(spec.decision, demand_scenarios=(scale,)))
        truth = capacities(spec)
        (full,), (sparse,) = (scenarios_of(spec, counts, truth) for counts in (FULL, SPARSE))
        assert sparse.lost_rps - full.lost_rps == pytest.approx(lost_rps, abs=0.005)
        assert 100 * (full.min_fulfilment - sparse.min_fulfilment) == pytest.approx(lost_points, abs=0.05)

    def test_the_better_plan_uses_no_more_gpus(self) -> None:
        problem = problem_of(paper_spec())
        used = [plan_of(problem, capacities(paper_spec()), plan, "", "").gpus for plan in (FULL, SPARSE)]
        assert used == [16, 16]

    @pytest.mark.parametrize("scale", SCALES)
    def test_no_plan_beats_that_of_full_profiling_by_its_worst_workload(self, scale: float) -> None:
        problem, truth = problem_of(paper_spec(), scale), capacities(paper_spec())
        best = value_of(problem, truth)
        assert min(1.0, *fulfilments(problem, truth, FULL)) == pytest.approx(best)


CAPACITY_ONLY = make_slo(0.99)
JOINT = make_slo(0.99, ttft_p99_s=2.0, e2e_p99_s=30.0)


class TestCapacityAndTailTogether:
    def test_at_11_27_req_s_both_degrees_serve_the_same_rate_and_not_the_same_tail(self) -> None:
        tp4, tp8 = (paper_measurement("chat", config, 11.27) for config in ("TP4", "TP8"))
        assert tp4.served_rps == tp8.served_rps == 11.27
        assert (tp4.percentile("e2e_p99_s"), tp8.percentile("e2e_p99_s")) == (46.4, 25.2)

    @pytest.mark.parametrize(("slo", "config"), [(CAPACITY_ONLY, "TP4"), (JOINT, "TP8")])
    def test_the_replica_chosen_for_11_27_req_s(self, slo: Slo, config: str) -> None:
        spec = asking_of_chat(slo, demand_rps=11.27, max_replicas=1)
        plan = plan_at(problem_of(spec), capacities(spec))
        assert plan.replicas() == {"chat": {config: 1}} and plan.min_fulfilment == 1.0

    def test_capacity_alone_overrates_tp4(self) -> None:
        alone, joint = (capacities(asking_of_chat(slo))[0] for slo in (CAPACITY_ONLY, JOINT))
        assert (alone[1], joint[1]) == (11.27, 6.6)


class TestCampaigns:
    @pytest.mark.parametrize("profiling_gpus", [1, 8, 16])
    def test_at_1_0_it_takes_at_most_7200_window_gpu_seconds(self, profiling_gpus: int) -> None:
        decision = campaign(1.0, profiling_gpus).decision
        assert decision.state == "certified_feasible"
        assert decision.conservative.replicas() == FULL_PLAN
        assert decision.spend.gpu_seconds_window <= 7200.0

    @pytest.mark.parametrize("scale", SCALES)
    def test_every_demand_is_certified_with_no_regret_beyond_the_tolerance(self, scale: float) -> None:
        result = campaign(scale, 16)
        spec, decision = paper_spec(scale), result.decision
        assert decision.state.startswith("certified")
        problem, truth = problem_of(spec), capacities(spec)
        counts = [
            [decision.conservative.replicas().get(name, {}).get(label, 0) for label in labels]
            for name, labels in zip(problem.names, problem.labels, strict=True)
        ]
        got = min(1.0, *fulfilments(problem, truth, counts))
        assert value_of(problem, truth) - got <= spec.decision.tolerance + 1e-9
        assert verify_certificate(result.certificate) == ()

    def test_too_much_is_asked_at_1_3_and_said_to_be(self) -> None:
        decision = campaign(1.3, 16).decision
        assert decision.state == "certified_infeasible"
        assert decision.optimistic.min_fulfilment < 1.0

    def test_the_certificate_agrees_with_full_profiling(self) -> None:
        decision, spec = campaign(1.0, 16).decision, paper_spec()
        counts, _, _ = solve(problem_of(spec), capacities(spec))
        assert counts == FULL
        proved = {(row.workload, row.config): row for row in decision.intervals}
        for row in fit_intervals(spec, everything()):
            interval = proved[row.workload, row.config]
            value = row.lower.value_rps or 0.0
            assert (interval.lower.value_rps or 0.0) <= value
            assert interval.upper.value_rps is None or value <= interval.upper.value_rps
