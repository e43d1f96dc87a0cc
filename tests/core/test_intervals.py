"""What the evidence proves of capacities, and what each bound rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_airflow.core.intervals import apply_interior_peak, fit_intervals
from fleetsieve_airflow.errors import EvidenceError
from fleetsieve_airflow.evidence import CapacityInterval, Evidence, PriorCapacity
from fleetsieve_airflow.records import FleetSpec, Source
from tests.builders import add_round, make_evidence, make_measurement, make_spec
from tests.core.worlds import TrueServer, places, servers

USERS = (4.0, 8.0, 16.0, 32.0)
DEGREES = {"TP2": 2, "TP4": 4, "TP8": 8}


def fit(spec: FleetSpec, evidence: Evidence, config: str = "TP4") -> CapacityInterval:
    """Fit one candidate of chat."""
    return next(row for row in fit_intervals(spec, evidence) if row.label == f"chat {config}")


def known(spec: FleetSpec, verdicts: Mapping[float, bool], config: str = "TP4", **fields: Any) -> Evidence:
    rows = [make_measurement(spec, "chat", config, load, met=met, **fields) for load, met in verdicts.items()]
    return make_evidence(*rows)


def ends(interval: CapacityInterval) -> tuple[float | None, float | None]:
    return interval.lower.value_rps, interval.upper.value_rps


def sources(interval: CapacityInterval) -> tuple[Source, Source]:
    return interval.lower.source, interval.upper.source


class TestSources:
    @pytest.mark.parametrize(
        ("verdicts", "bounds", "named"),
        [
            ({}, (0.0, 12.0), ("none", "ladder")),
            ({4.0: True}, (4.0, 12.0), ("measured", "ladder")),
            ({8.0: False}, (0.0, 4.0), ("none", "monotone")),
            ({2.0: True, 12.0: False}, (2.0, 8.0), ("measured", "monotone")),
            ({4.0: True, 8.0: False}, (4.0, 4.0), ("measured", "measured")),
            ({12.0: True}, (12.0, 12.0), ("measured", "measured")),
            ({2.0: False}, (0.0, 0.0), ("measured", "measured")),
        ],
    )
    def test_every_bound_names_what_it_rests_on(
        self, verdicts: dict[float, bool], bounds: tuple[float, float], named: tuple[Source, Source]
    ) -> None:
        spec = make_spec()
        interval = fit(spec, known(spec, verdicts))
        assert ends(interval) == bounds
        assert sources(interval) == named

    def test_bounds_name_the_measurements_they_follow_from(self) -> None:
        spec = make_spec()
        met, missed = make_measurement(spec, load=2.0), make_measurement(spec, load=12.0, met=False)
        interval = fit(spec, make_evidence(missed, met))
        assert interval.lower.evidence == (met.point.key,)
        assert interval.upper.evidence == (missed.point.key,)
        assert interval.operating_load == 2.0

    def test_an_engine_that_refuses_serves_nothing(self) -> None:
        spec = make_spec()
        no = make_measurement(spec, load=8.0, refused="does not fit", served_rps=0.0, percentiles={})
        interval = fit(spec, make_evidence(no))
        assert ends(interval) == (0.0, 0.0) and sources(interval) == ("measured", "measured")
        assert interval.upper.evidence == (no.point.key,) and interval.operating_load is None

    def test_rates_between_concurrencies_come_from_littles_law(self) -> None:
        spec = make_spec(loads=USERS, load_kind="concurrency", decision={"closed_loop_slack": 0.0})
        rows = [
            make_measurement(spec, load=8.0, served_rps=4.0),
            make_measurement(spec, load=32.0, met=False, served_rps=9.0),
        ]
        interval = fit(spec, make_evidence(*rows))
        assert ends(interval) == (4.0, 8.0) and sources(interval) == ("measured", "closed_loop")
        assert interval.upper.evidence == tuple(row.point.key for row in rows)

    def test_a_concurrency_never_measured_has_no_bound_yet(self) -> None:
        spec = make_spec(loads=USERS, load_kind="concurrency")
        interval = fit(spec, Evidence())
        assert ends(interval) == (0.0, None) and sources(interval) == ("none", "none")

    def test_a_measurement_without_what_the_slo_limits_is_an_error_and_not_a_verdict(self) -> None:
        spec = make_spec()
        with pytest.raises(EvidenceError, match="did not record it"):
            fit_intervals(spec, known(spec, {4.0: True}, percentiles={}))


class TestContradiction:
    def test_the_span_is_unknown_again_and_named(self) -> None:
        spec = make_spec()
        before = fit(spec, known(spec, {2.0: True, 4.0: False}))
        after = fit(spec, known(spec, {2.0: True, 4.0: False, 12.0: True}))
        assert (ends(before), ends(after)) == ((2.0, 2.0), (2.0, 12.0))
        assert (before.contradiction, after.contradiction) == ((), (4.0, 12.0))
        assert after.operating_load == 2.0

    def test_repeats_resolve_it(self) -> None:
        spec = make_spec()
        evidence = known(spec, {2.0: True, 4.0: False, 12.0: True})
        for repeat in (1, 2):
            evidence = add_round(evidence, make_measurement(spec, load=4.0, repeat=repeat))
        interval = fit(spec, evidence)
        assert interval.contradiction == () and ends(interval) == (12.0, 12.0)


class TestAgainstTheTruth:
    @settings(max_examples=150)
    @given(st.data())
    def test_the_interval_contains_the_capacity(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers())
        intervals = fit_intervals(server.spec, server.evidence(data.draw(places(server))))
        for interval in intervals:
            capacity = server.capacity(server.spec.candidate(interval.workload, interval.config))
            low, high = ends(interval)
            assert (low or 0.0) <= capacity * (1 + 1e-9)
            assert high is None or capacity <= high * (1 + 1e-9)
            assert interval.contradiction == ()

    @settings(max_examples=100)
    @given(st.data())
    def test_it_never_widens_when_evidence_is_added(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers())
        order = data.draw(places(server))
        cut = data.draw(st.integers(0, len(order)))
        earlier = fit_intervals(server.spec, server.evidence(order[:cut]))
        later = fit_intervals(server.spec, server.evidence(order))
        for before, after in zip(earlier, later, strict=True):
            low, high = ends(before)
            assert (after.lower.value_rps or 0.0) >= (low or 0.0) * (1 - 1e-9)
            if high is not None:
                assert after.upper.value_rps is not None
                assert after.upper.value_rps <= high * (1 + 1e-9)

    @settings(max_examples=50)
    @given(st.data())
    def test_it_does_not_depend_on_the_order_of_the_evidence(self, data: st.DataObject) -> None:
        server: TrueServer = data.draw(servers())
        order = data.draw(places(server))
        shuffled = data.draw(st.permutations(order))
        one = fit_intervals(server.spec, server.evidence(order))
        assert fit_intervals(server.spec, server.evidence(shuffled)) == one


def prior(source: Source = "simulator", lower: float = 3.0, upper: float = 9.0) -> PriorCapacity:
    return PriorCapacity(workload="chat", config="TP4", source=source, lower_rps=lower, upper_rps=upper)


class TestPriors:
    @pytest.mark.parametrize("source", ["simulator", "earlier_release"])
    def test_they_narrow_only_where_the_spec_lets_them_certify(self, source: Source) -> None:
        trusting = make_spec(decision={"certify_on": ("measured", "monotone", source)})
        evidence = Evidence(priors=(prior(source),))
        assert ends(fit(make_spec(), evidence)) == (0.0, 12.0)
        assert ends(fit(trusting, evidence)) == (3.0, 9.0)
        assert sources(fit(trusting, evidence)) == (source, source)

    def test_measurements_go_before_a_prior_that_contradicts_them(self) -> None:
        spec = make_spec(decision={"certify_on": ("measured", "monotone", "simulator")})
        evidence = replace(known(spec, {2.0: True, 4.0: False}), priors=(prior(),))
        assert ends(fit(spec, evidence)) == (2.0, 2.0)
        low = replace(known(spec, {12.0: True}), priors=(prior(),))
        assert ends(fit(spec, low)) == (12.0, 12.0)

    def test_a_bound_that_a_measurement_proves_keeps_its_source(self) -> None:
        spec = make_spec(decision={"certify_on": ("measured", "monotone", "simulator")})
        interval = fit(spec, replace(known(spec, {4.0: True}), priors=(prior(),)))
        assert ends(interval) == (4.0, 9.0) and sources(interval) == ("measured", "simulator")

    def test_a_prior_of_an_unknown_candidate_is_left_out(self) -> None:
        spec = make_spec(decision={"certify_on": ("measured", "simulator")})
        stranger = replace(prior(), config="TP16")
        assert fit_intervals(spec, Evidence(priors=(stranger,))) == fit_intervals(spec, Evidence())


PEAK = make_spec(
    demand={"chat": 90.0},
    loads={"TP2": (1.0, 2.0, 4.0, 8.0), "TP4": (2.0, 4.0, 8.0, 16.0), "TP8": (4.0, 8.0, 16.0, 32.0)},
    decision={"interior_peak": True, "certify_on": ("measured", "monotone", "interior_peak")},
)


def per_gpu(spec: FleetSpec, **verdicts: Mapping[float, bool]) -> Evidence:
    rows = [
        make_measurement(spec, "chat", config, load, met=met)
        for config, row in verdicts.items()
        for load, met in row.items()
    ]
    return make_evidence(*rows)


class TestInteriorPeak:
    def test_a_degree_between_two_others_is_no_worse_than_the_worse_of_them(self) -> None:
        evidence = per_gpu(PEAK, TP2={4.0: True}, TP8={8.0: True})
        middle = fit(PEAK, evidence)
        assert ends(middle) == (4.0, 16.0)  # 1 req/s per GPU on TP8, 2 on TP2
        assert middle.lower.source == "interior_peak" and middle.lower.evidence == ()

    def test_past_a_proved_fall_it_only_falls(self) -> None:
        evidence = per_gpu(PEAK, TP2={8.0: True}, TP4={8.0: False})
        assert ends(fit(PEAK, evidence)) == (0.0, 4.0)
        last = fit(PEAK, evidence, "TP8")
        assert ends(last) == (0.0, 8.0) and last.upper.source == "interior_peak"

    def test_before_a_proved_rise_it_only_rises(self) -> None:
        evidence = per_gpu(PEAK, TP8={32.0: True}, TP4={8.0: False})
        first = fit(PEAK, evidence, "TP2")
        assert ends(first) == (0.0, 2.0) and first.upper.source == "interior_peak"

    def test_it_is_dropped_with_a_warning_where_the_evidence_contradicts_it(self) -> None:
        valley = per_gpu(PEAK, TP2={8.0: True}, TP4={4.0: False}, TP8={32.0: True})
        bare = [replace(row) for row in fit_intervals(replace_peak(PEAK, False), valley)]
        assert list(fit_intervals(PEAK, valley)) == bare
        warnings = {warning for _, warning in apply_interior_peak(PEAK, bare)}
        assert warnings == {
            "chat: capacity per GPU has no single peak over the degrees; the assumption was dropped."
        }

    def test_it_is_off_unless_the_spec_turns_it_on_and_lets_it_certify(self) -> None:
        evidence = per_gpu(PEAK, TP2={4.0: True}, TP8={8.0: True})
        guiding = replace(PEAK, decision=replace(PEAK.decision, certify_on=("measured", "monotone")))
        for spec in (replace_peak(PEAK, False), guiding):
            assert ends(fit(spec, evidence)) == (0.0, 16.0)

    def test_it_says_nothing_of_two_degrees_or_of_two_configs_of_one_size(self) -> None:
        for configs in ({"TP2": 2, "TP4": 4}, {"TP2": 2, "TP4": 4, "B4": 4}):
            spec = make_spec(configs=configs, decision=vars_of(PEAK))
            evidence = make_evidence(make_measurement(spec, "chat", "TP2", 8.0))
            bare = fit_intervals(replace_peak(spec, False), evidence)
            assert fit_intervals(spec, evidence) == bare

    @settings(max_examples=80)
    @given(st.data())
    def test_it_holds_for_every_truth_with_one_peak(self, data: st.DataObject) -> None:
        rates = sorted(data.draw(st.lists(st.integers(0, 8), min_size=3, max_size=3)))
        peak = data.draw(st.integers(0, 2))
        truth = unimodal(rates, peak)  # capacity per GPU over the degrees
        ladders = {name: tuple(float(g * x) for x in range(1, 9)) for name, g in DEGREES.items()}
        spec = make_spec(demand={"chat": 200.0}, loads=ladders, decision=vars_of(PEAK))
        highest = {f"chat {name}": int(x) - 1 for name, x in zip(DEGREES, truth, strict=True)}
        server = TrueServer(spec, highest)
        evidence = server.evidence(data.draw(places(server)))
        for interval in fit_intervals(spec, evidence):
            capacity = server.capacity(spec.candidate("chat", interval.config))
            low, high = ends(interval)
            assert (low or 0.0) - 1e-9 <= capacity <= (math.inf if high is None else high) + 1e-9


def unimodal(values: Sequence[int], peak: int) -> list[int]:
    """Order ascending values so that they rise to a peak at the given place and fall after it."""
    low, middle, high = values
    return [[high, middle, low], [low, high, middle], [low, middle, high]][peak]


def replace_peak(spec: FleetSpec, on: bool) -> FleetSpec:
    return replace(spec, decision=replace(spec.decision, interior_peak=on))


def vars_of(spec: FleetSpec) -> dict[str, Any]:
    return {"interior_peak": True, "certify_on": spec.decision.certify_on}
