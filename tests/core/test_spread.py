"""What single runs may differ by, and how a certificate's confidence is shared among its bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fleetsieve_airflow.core.decision import decide
from fleetsieve_airflow.core.ladder import Ladder, ladders_of
from fleetsieve_airflow.core.spread import (
    DECLARED_WEIGHT,
    UNDECLARED,
    Noise,
    noise_of,
    of_falls,
    of_repeats,
    pooled,
)
from fleetsieve_airflow.core.verdict import judge_repeats, sampling_spread
from fleetsieve_airflow.evidence import Evidence, EvidenceItem, Measurement, MissShare
from fleetsieve_airflow.records import DecisionSettings, FleetSpec
from tests.builders import make_evidence, make_measurement, make_slo, make_spec

LOGS = st.lists(st.lists(st.floats(-3.0, 3.0), max_size=3), max_size=5)
USERS = (4.0, 8.0, 16.0)


def spec_of(**decision: Any) -> FleetSpec:
    """Return a closed loop of one workload on two configs."""
    return make_spec(
        demand={"chat": 8.0},
        configs={"TP2": 2, "TP4": 4},
        loads=USERS,
        load_kind="concurrency",
        gpus=16,
        decision={"confidence": 0.95, "run_to_run_cv": 0.05, **decision},
        measurement={"repeats": 3},
    )


def run(spec: FleetSpec, load: float, rate: float, seconds: float, repeat: int = 0) -> Measurement:
    """Measure chat TP4 once."""
    percentiles = {"ttft_p99_s": seconds}
    return make_measurement(
        spec, "chat", "TP4", load, repeat=repeat, served_rps=rate, percentiles=percentiles, success_rate=None
    )


def ladder_of(spec: FleetSpec, *rows: Measurement) -> Ladder:
    """Return the ladder of chat TP4."""
    return next(row for row in ladders_of(spec, make_evidence(*rows)) if row.candidate.config == "TP4")


class TestSharedConfidence:
    def test_all_bounds_together_may_be_wrong_as_often_as_the_certificate(self) -> None:
        spec = spec_of()
        assert spec.bound_confidence == pytest.approx(1.0 - 0.05 / (2 * 4 * 3))  # candidates, claims, looks
        opened = make_spec(decision={"confidence": 0.9}, measurement={"repeats": 2})
        assert opened.bound_confidence == pytest.approx(1.0 - 0.1 / (len(opened.candidates) * 2 * 2))

    def test_what_can_never_run_takes_no_share(self) -> None:
        spec = spec_of()
        first, second = spec.candidates
        less = replace(spec, candidates=(first, replace(second, excluded="does not fit")))
        assert less.bound_confidence == pytest.approx(1.0 - 0.05 / (4 * 3))

    def test_without_a_confidence_nothing_is_uncertain(self) -> None:
        spec = make_spec()
        assert spec.bound_confidence is None
        assert noise_of(spec, [[[make_measurement(spec)]]]) is None


class TestSpread:
    def test_the_declared_spread_stands_until_something_shows_another(self) -> None:
        assert pooled(0.08, []) == pytest.approx(0.08)
        assert noise_of(spec_of(run_to_run_cv=0.0), []) == Noise(
            pytest.approx(1 - 0.05 / 24), (("ttft_p99_s", UNDECLARED),), UNDECLARED
        )

    def test_repeats_show_their_variance(self) -> None:
        assert of_repeats([[1.0, 1.2], [], [3.0]]) == (pytest.approx(0.02), 1)
        assert pooled(0.1, [(0.02, 1)]) == pytest.approx(
            math.sqrt((DECLARED_WEIGHT * 0.01 + 0.02) / (DECLARED_WEIGHT + 1))
        )

    @given(low=st.floats(-2, 2), fall=st.floats(0.01, 2))
    def test_a_tail_that_falls_with_the_load_shows_half_its_square(self, low: float, fall: float) -> None:
        squares, freedom = of_falls([[low + fall], [low]])
        assert (squares, freedom) == (pytest.approx(fall**2 / 2), 1)
        assert of_falls([[low], [low + fall]]) == (0.0, 0)

    @given(cells=LOGS)
    def test_a_ladder_never_shows_more_freedom_than_it_has_runs(self, cells: list[list[float]]) -> None:
        for squares, freedom in (of_repeats(cells), of_falls(cells)):
            assert squares >= 0.0
            assert 0 <= freedom <= max(0, sum(map(len, cells)) - 1)

    def test_many_runs_show_the_true_spread_whatever_was_declared(self) -> None:
        rng = np.random.default_rng(7)
        cells = [rng.normal(j, 0.1, size=3).tolist() for j in range(2000)]
        assert pooled(0.01, [of_repeats(cells)]) == pytest.approx(0.1, rel=0.03)


class TestNumberOfRequests:
    @given(index=st.floats(0.8, 10.0), sent=st.integers(20, 100_000))
    def test_it_is_exact_for_pareto_tails(self, index: float, sent: int) -> None:
        slo = make_slo(e2e_p99_s=30.0)
        tail = {f"e2e_p{p}_s": (1.0 - p / 100.0) ** (-1.0 / index) for p in (95, 99)}
        row = make_measurement(make_spec(slo=slo), percentiles=tail, sent=sent)
        assert sampling_spread(row, slo.limits[0]) == pytest.approx(math.sqrt(0.99 / (0.01 * sent)) / index)

    def test_few_requests_with_a_heavy_tail_decide_nothing(self) -> None:
        slo = make_slo(e2e_p99_s=4.0)
        heavy = {"e2e_p95_s": 2.1, "e2e_p99_s": 5.9}
        settings = DecisionSettings(confidence=0.95, run_to_run_cv=0.02)
        spec = make_spec(slo=slo)
        few, many = (make_measurement(spec, percentiles=heavy, sent=n) for n in (167, 20_000))
        assert judge_repeats([few], slo, settings) == "marginal"
        assert judge_repeats([many], slo, settings) == "missed"

    def test_unknown_counts_add_nothing(self) -> None:
        slo = make_slo(e2e_p99_s=4.0)
        row = make_measurement(make_spec(slo=slo), percentiles={"e2e_p95_s": 2.0, "e2e_p99_s": 3.0})
        assert sampling_spread(row, slo.limits[0]) == 0.0


def test_counts_that_clear_the_limit_are_held_against_a_declared_spread_too() -> None:
    slo = make_slo(ttft_p99_s=2.0)
    row = make_measurement(
        make_spec(slo=slo),
        sent=30_000,
        failed=0,
        percentiles={"ttft_p99_s": 1.96},
        miss_shares=(MissShare(limit="ttft_p99_s", limit_s=2.0, share=0.008),),
    )
    spread = DecisionSettings(confidence=0.95, run_to_run_cv=0.05)
    assert judge_repeats([row], slo, replace(spread, run_to_run_cv=0.0)) == "met"
    assert judge_repeats([row], slo, spread) == "marginal"


class TestRates:
    def test_a_rate_is_known_to_what_the_spread_leaves(self) -> None:
        spec = spec_of()
        one = ladder_of(spec, run(spec, 8.0, 5.0, 0.5))
        reach = norm.ppf(1 - 0.05 / 24) * 0.05
        assert (one.capacity_lower, one.rates[1][1]) == (  # type: ignore[index]
            pytest.approx(5.0 * math.exp(-reach)),
            pytest.approx(5.0 * math.exp(reach)),
        )
        alike = ladder_of(spec, *(run(spec, 8.0, 5.0, 0.5, repeat) for repeat in range(3)))
        pooled_reach = norm.ppf(1 - 0.05 / 24) * pooled(0.05, [(0.0, 2)]) / math.sqrt(3)
        assert alike.capacity_lower == pytest.approx(5.0 * math.exp(-pooled_reach))

    def test_the_highest_met_load_is_worth_repeats_only_while_its_rate_is_uncertain(self) -> None:
        spec = spec_of()
        rows = [run(spec, 8.0, 5.0, 0.5), run(spec, 16.0, 6.0, 9.0)]
        assert ladder_of(spec, *rows).open_loads() == [1]
        exact = replace(spec, decision=replace(spec.decision, confidence=None))
        assert ladder_of(exact, *rows).open_loads() == []

    def test_a_demand_within_the_spread_of_the_rate_is_not_certified(self) -> None:
        spec = spec_of()
        served = [run(spec, 16.0, 2.02, 0.5, repeat) for repeat in range(3)]  # 4 x TP4 for 8 req/s
        assert decide(spec, make_evidence(*served)).state != "certified_feasible"
        ample = [run(spec, 16.0, 2.6, 0.5, repeat) for repeat in range(3)]
        assert decide(spec, make_evidence(*ample)).state == "certified_feasible"


def test_noisy_campaigns_end_in_a_wrong_certificate_no_oftener_than_they_say() -> None:
    rates = {"TP2": (0.9, 1.4, 1.9), "TP4": (1.2, 2.1, 2.6)}
    tails = {"TP2": (1.1, 1.9, 3.5), "TP4": (0.8, 1.6, 2.1)}
    wrong = certified = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        spec = spec_of(run_to_run_cv=0.08)
        demand = 8.4 * float(rng.uniform(0.5, 1.3))  # the truth serves 4 x TP4 at 2.1 or 8 x TP2 at 1.4
        spec = replace(spec, workloads=(replace(spec.workloads[0], demand_rps=demand),))
        evidence = Evidence()
        while (decision := decide(spec, evidence)).state == "measure":
            rows = []
            for planned in decision.points:
                point, j = planned.point, USERS.index(planned.point.load)
                noise = rng.normal(0.0, 0.08, size=2)
                shown = {"ttft_p99_s": tails[point.config][j] * math.exp(noise[0])}
                measured = make_measurement(
                    spec,
                    "chat",
                    point.config,
                    point.load,
                    repeat=point.seed - spec.measurement.seed,
                    served_rps=rates[point.config][j] * math.exp(noise[1]),
                    percentiles=shown,
                    success_rate=None,
                )
                rows.append(EvidenceItem(measurement=measured, round=decision.round))
            evidence = replace(evidence, items=evidence.items + tuple(rows), rounds_done=decision.round)
        true = {"TP2": 1.4, "TP4": 2.1}
        replicas = decision.conservative.replicas().get("chat", {})
        served = min(1.0, sum(n * true[config] for config, n in replicas.items()) / demand)
        best = min(1.0, 11.2 / demand)
        certified += decision.state != "undetermined"
        wrong += decision.state != "undetermined" and best - served > spec.decision.tolerance + 1e-9
    assert certified >= 30
    assert wrong <= 0.05 * certified
