"""Automatic ladders: bounded steps, and rungs exactly where the replica count changes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsieve_airflow.ladders import concurrency_ladder, ladder_length, rate_ladder

RATES = st.floats(min_value=0.01, max_value=100.0)
RESOLUTIONS = st.sampled_from([0.02, 0.05, 0.1, 0.5])


@given(
    lowest=RATES, factor=st.floats(1.2, 50.0), resolution=RESOLUTIONS, needed=RATES, most=st.integers(1, 64)
)
def test_a_ladder_of_rates_keeps_its_ends_and_its_steps(
    lowest: float, factor: float, resolution: float, needed: float, most: int
) -> None:
    loads = rate_ladder(lowest, lowest * factor, resolution, needed, most)
    assert (loads[0], loads[-1]) == (lowest, lowest * factor)
    assert all(low < high for low, high in pairwise(loads))
    # A rung of the decision may replace one step on either side, so a gap is at most two steps wide.
    assert max(high / low for low, high in pairwise(loads)) <= (1 + resolution) ** 2 * 1.0001


@given(needed=RATES, most=st.integers(1, 20))
def test_n_replicas_at_their_rung_serve_what_is_needed_and_hardly_more(needed: float, most: int) -> None:
    loads = rate_ladder(needed / 40, needed * 2, 0.05, needed, most)
    for n in range(1, most + 1):
        rung = min(load for load in loads if load * n >= needed * (1 - 1e-9))
        assert rung * n <= needed * 1.00002


@given(needed=RATES)
def test_loads_of_a_ladder_differ_within_the_digits_that_labels_show(needed: float) -> None:
    loads = rate_ladder(0.05, 500.0, 0.05, needed, 64)
    assert len({f"{load:g}" for load in loads}) == len(loads)


@pytest.mark.parametrize(
    ("ends", "resolution", "loads"),
    [
        ((1, 64), 1.0, (1, 2, 4, 8, 16, 32, 64)),
        ((3, 20), 1.0, (3, 6, 12, 20)),
        ((1, 5), 0.1, (1, 2, 3, 4, 5)),
    ],
)
def test_a_ladder_of_concurrency_holds_whole_numbers(
    ends: tuple[float, float], resolution: float, loads: tuple[float, ...]
) -> None:
    assert concurrency_ladder(*ends, resolution) == loads


def test_the_length_of_a_ladder_is_known_before_it_is_built() -> None:
    assert ladder_length(1.0, 2.0, 1.0) == 2
    assert math.isclose(ladder_length(1.0, 1e6, 0.001), 13823, abs_tol=1)
