from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsieve_airflow.simulator.curves import (
    Curve,
    PerfDataError,
    add,
    blend,
    blend_surfaces,
    constant,
    surface_from_cells,
)


def test_between_knots_a_curve_is_linear_and_below_the_first_it_is_flat() -> None:
    curve = Curve(np.array([10.0, 20.0]), np.array([1.0, 3.0]))
    assert curve.at([5.0, 10.0, 15.0, 20.0]).tolist() == [1.0, 1.0, 2.0, 3.0]


def test_beyond_the_last_knot_the_last_segment_goes_on_and_is_flagged() -> None:
    curve = Curve(np.array([10.0, 20.0]), np.array([1.0, 3.0]))
    assert curve.at(30.0) == pytest.approx(5.0)
    assert curve.outside([20.0, 20.1]).tolist() == [False, True]


def test_a_curve_that_falls_at_its_end_is_continued_level_and_never_becomes_negative() -> None:
    curve = Curve(np.array([10.0, 20.0]), np.array([3.0, 1.0]))
    assert curve.at(1000.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("knots", "values", "words"),
    [
        ([1.0, 1.0], [1.0, 2.0], "strictly increase"),
        ([1.0, 2.0], [1.0], "matching"),
        ([1.0, 2.0], [1.0, np.nan], "finite"),
        ([], [], "matching"),
    ],
)
def test_a_curve_refuses_knots_and_values_it_cannot_hold(
    knots: list[float], values: list[float], words: str
) -> None:
    with pytest.raises(PerfDataError, match=words):
        Curve(np.array(knots), np.array(values))


@given(
    st.lists(st.floats(0.1, 1e3), min_size=2, max_size=6, unique=True),
    st.lists(st.floats(0.1, 1e3), min_size=2, max_size=6, unique=True),
    st.floats(0.0, 1.0),
)
def test_a_sum_and_a_blend_of_curves_are_what_they_say_everywhere_both_are_known(
    first: list[float], second: list[float], share: float
) -> None:
    a = Curve(np.sort(first), np.arange(1.0, len(first) + 1))
    b = Curve(np.sort(second), np.arange(1.0, len(second) + 1) ** 2)
    sizes = np.linspace(0.0, min(a.x[-1], b.x[-1]), 20)
    assert np.allclose(add([a, b]).at(sizes), a.at(sizes) + b.at(sizes))
    assert np.allclose(blend(a, b, share).at(sizes), (1 - share) * a.at(sizes) + share * b.at(sizes))


def test_a_sum_is_known_only_as_far_as_its_shortest_part() -> None:
    total = add([constant(1.0, 5.0), constant(2.0, 50.0)])
    assert total.outside([5.0, 6.0]).tolist() == [False, True]


def test_stretching_a_curve_asks_it_for_a_multiple_of_the_size() -> None:
    curve = Curve(np.array([0.0, 100.0]), np.array([0.0, 10.0]))
    assert curve.scaled(2.0, 1.0 / 4.0).at(10.0) == pytest.approx(2.0 * curve.at(40.0))


def test_a_surface_continues_what_was_not_measured_and_says_so() -> None:
    surface = surface_from_cells(
        np.array([1.0, 1.0, 1.0, 2.0, 2.0]),
        np.array([10.0, 20.0, 30.0, 10.0, 20.0]),
        np.array([1.0, 2.0, 3.0, 2.0, 4.0]),
    )
    assert surface.at(1.5, 15.0) == pytest.approx(2.25)
    assert surface.at(2.0, 30.0) == pytest.approx(6.0)
    assert surface.outside([1.0, 2.0, 2.0, 3.0], [30.0, 20.0, 30.0, 10.0]).tolist() == [
        False,
        False,
        True,
        True,
    ]


def test_a_surface_grows_in_proportion_beyond_its_first_size() -> None:
    surface = surface_from_cells(np.array([1.0, 2.0]), np.array([10.0, 10.0]), np.array([1.0, 3.0]))
    assert surface.at(4.0, 10.0) == pytest.approx(6.0)
    assert surface.row(4.0).at(10.0) == pytest.approx(6.0)


def test_of_repeated_cells_a_surface_keeps_the_middle_one() -> None:
    cells = np.array([1.0, 1.0, 1.0])
    assert surface_from_cells(cells, cells, np.array([9.0, 2.0, 1.0])).at(1.0, 1.0) == pytest.approx(2.0)


def test_a_row_of_a_surface_and_the_surface_agree() -> None:
    x, y = np.repeat([1.0, 2.0, 8.0], 3), np.tile([1.0, 10.0, 100.0], 3)
    surface = surface_from_cells(x, y, 0.5 * x + 0.01 * x * y)
    for size in (0.5, 1.0, 1.7, 5.0, 8.0, 16.0):
        assert np.allclose(surface.row(size).at([1.0, 7.0, 60.0]), surface.at(size, [1.0, 7.0, 60.0]))


def test_two_surfaces_blend_over_the_knots_of_both() -> None:
    low = surface_from_cells(np.array([1.0, 4.0]), np.array([1.0, 1.0]), np.array([1.0, 4.0]))
    high = surface_from_cells(np.array([1.0, 2.0]), np.array([1.0, 1.0]), np.array([3.0, 6.0]))
    assert blend_surfaces(low, high, 0.5).at(2.0, 1.0) == pytest.approx((2.0 + 6.0) / 2)
