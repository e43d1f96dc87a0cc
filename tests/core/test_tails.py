"""Bounds in seconds on the percentiles an SLO limits, at loads measured and not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from fleetsieve_airflow.core.intervals import fit_intervals
from fleetsieve_airflow.core.spread import isotonic
from fleetsieve_airflow.evidence import Evidence, TailInterval
from fleetsieve_airflow.records import FleetSpec
from tests.builders import make_evidence, make_measurement, make_slo, make_spec

LOADS = (1.0, 2.0, 4.0, 8.0, 16.0)


def tails_of(
    spec: FleetSpec, seconds: Mapping[str, Mapping[float, float]]
) -> dict[str, dict[float, TailInterval]]:
    """Return the TTFT p99 bounds by config and load after measuring these seconds."""
    rows = [
        make_measurement(spec, "chat", config, load, percentiles={"ttft_p99_s": value})
        for config, row in seconds.items()
        for load, value in row.items()
    ]
    intervals = fit_intervals(spec, make_evidence(*rows) if rows else Evidence())
    return {
        interval.config: {tail.load: tail for tail in interval.tails if tail.metric == "ttft_p99_s"}
        for interval in intervals
    }


@given(st.lists(st.floats(-50.0, 50.0), max_size=12))
def test_the_isotonic_fit_is_the_nearest_sequence_that_does_not_fall(values: list[float]) -> None:
    fitted = isotonic(values)
    assert all(low <= high + 1e-9 for low, high in pairwise(fitted))
    if values:
        assert fitted == pytest.approx(list(isotonic_regression(np.array(values)).x), abs=1e-8)


class TestBounds:
    def test_a_measured_load_has_what_was_measured(self) -> None:
        spec = make_spec(loads=LOADS)
        tail = tails_of(spec, {"TP4": {4.0: 1.2345}})["TP4"][4.0]
        assert (tail.lower_s, tail.upper_s, tail.source) == (1.2345, 1.2345, "measured")

    def test_between_measured_loads_the_tail_lies_between_theirs(self) -> None:
        spec = make_spec(loads=LOADS)
        row = tails_of(spec, {"TP4": {2.0: 0.5, 16.0: 3.0}})["TP4"]
        for load in (4.0, 8.0):
            assert (row[load].lower_s, row[load].upper_s) == pytest.approx((0.5, 3.0))
            assert row[load].source == "monotone"

    def test_outside_them_only_one_side_is_bounded(self) -> None:
        spec = make_spec(loads=LOADS)
        row = tails_of(spec, {"TP4": {4.0: 1.0}})["TP4"]
        assert (row[1.0].lower_s, row[1.0].upper_s) == (None, pytest.approx(1.0))
        assert (row[16.0].lower_s, row[16.0].upper_s) == (pytest.approx(1.0), None)

    def test_nothing_measured_bounds_nothing(self) -> None:
        assert tails_of(make_spec(loads=LOADS), {}) == {"TP2": {}, "TP4": {}, "TP8": {}}

    def test_noise_that_makes_a_tail_fall_is_smoothed_and_not_believed(self) -> None:
        spec = make_spec(loads=LOADS)
        row = tails_of(spec, {"TP4": {2.0: 2.0, 4.0: 0.5}})["TP4"]
        assert row[2.0].upper_s == row[4.0].lower_s == pytest.approx(1.0)  # their geometric mean

    def test_every_limit_of_the_slo_has_its_own(self) -> None:
        spec = make_spec(slo=make_slo(ttft_p99_s=2.0, e2e_p99_s=30.0))
        row = make_measurement(spec, load=4.0, percentiles={"ttft_p99_s": 1.0, "e2e_p99_s": 20.0})
        interval = fit_intervals(spec, make_evidence(row))[1]
        at = {tail.metric: tail.lower_s for tail in interval.tails if tail.load == 4.0}
        assert at == pytest.approx({"ttft_p99_s": 1.0, "e2e_p99_s": 20.0})


#: Two configs whose tails grow in proportion to the load: enough residuals, all of them zero.
SMOOTH = {config: {load: 0.1 * load for load in LOADS} for config in ("TP2", "TP8")}


class TestInterpolation:
    def test_a_smooth_fleet_narrows_what_monotony_leaves(self) -> None:
        spec = make_spec(loads=LOADS)
        row = tails_of(spec, {**SMOOTH, "TP4": {1.0: 0.2, 16.0: 3.2}})["TP4"]
        tail = row[4.0]
        assert tail.source == "interpolated"
        assert tail.lower_s is not None and tail.upper_s is not None
        assert 0.2 < tail.lower_s <= 0.8 * (1 + 1e-9) and 0.8 * (1 - 1e-9) <= tail.upper_s < 3.2

    def test_too_few_residuals_state_no_coverage(self) -> None:
        spec = make_spec(loads=LOADS)
        few = {"TP2": {load: 0.1 * load for load in LOADS}}  # three residuals
        assert tails_of(spec, {**few, "TP4": {1.0: 0.2, 16.0: 3.2}})["TP4"][4.0].source == "monotone"

    def test_a_rough_fleet_leaves_only_monotony(self) -> None:
        spec = make_spec(loads=LOADS)
        steps = dict(zip(LOADS, (0.01, 0.01, 10.0, 10.0, 100.0), strict=True))
        rough = {config: steps for config in ("TP2", "TP8")}
        assert tails_of(spec, {**rough, "TP4": {1.0: 0.2, 16.0: 0.3}})["TP4"][4.0].source == "monotone"

    @given(
        st.lists(st.floats(0.01, 30.0), min_size=5, max_size=5),
        st.sets(st.sampled_from(LOADS), min_size=1, max_size=4),
    )
    def test_bounds_are_finite_ordered_and_rise_along_the_ladder(
        self, seconds: list[float], at: set[float]
    ) -> None:
        spec = make_spec(loads=LOADS)
        known = dict(zip(LOADS, seconds, strict=True))
        row = tails_of(spec, {**SMOOTH, "TP4": {load: known[load] for load in at}})["TP4"]
        for tail in row.values():
            for value in (tail.lower_s, tail.upper_s):
                assert value is None or math.isfinite(value)
            if tail.lower_s is not None and tail.upper_s is not None:
                assert tail.lower_s <= tail.upper_s * (1 + 1e-9)
        lows = [tail.lower_s for tail in row.values() if tail.lower_s is not None]
        highs = [tail.upper_s for tail in row.values() if tail.upper_s is not None]
        for bounds in (lows, highs):
            assert all(a <= b * (1 + 1e-9) for a, b in pairwise(bounds))
