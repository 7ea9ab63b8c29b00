from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tersor.errors import SpecError
from tersor.planning import Line, RatioCurve
from tersor.planning.curves import link_fit, nonnegative_fit


@given(fixed=st.floats(0, 1.0), each=st.floats(1e-12, 1e-6))
def test_a_line_is_found_again(fixed, each):
    line = Line(fixed, each)
    found = Line.fit((n, line.at(n)) for n in (1e4, 1e5, 1e6))
    assert found.fixed_s == pytest.approx(fixed, abs=1e-6 * line.at(1e4))
    assert found.each_s == pytest.approx(each, rel=1e-6)


def test_costs_are_never_negative_and_small_ones_count_as_much_as_large_ones():
    # a straight line through these would be below 0 at 0
    found = Line.fit([(1.0, 1.0), (2.0, 3.0)])
    assert found.fixed_s == 0
    assert found.each_s > 0
    # relative errors: the fixed cost of small calls is not drowned by a noisy large one
    found = Line.fit([(0.0, 1.0), (1000.0, 90.0), (1000.0, 112.0)])
    assert found.fixed_s == pytest.approx(1.0, rel=0.02)


def test_one_size_tells_a_speed_and_no_fixed_cost():
    assert Line.fit([(100.0, 1.0), (100.0, 1.0)]) == Line(0.0, pytest.approx(0.01))


def test_sizes_that_are_close_tell_no_fixed_cost():
    # twice the bytes in the same time is noise, not a fixed cost
    found = Line.fit([(1e6, 1.0), (2e6, 1.0)])
    assert found.fixed_s == 0
    assert Line.fit([(1e6, 1.0), (4e6, 1.0)]).fixed_s == pytest.approx(1.0)


@given(amount=st.floats(1e3, 1e10), seconds=st.lists(st.floats(1e-7, 10.0), min_size=1, max_size=3))
def test_rounding_does_not_turn_a_speed_into_a_fixed_cost(amount, seconds):
    found = Line.fit((amount, one) for one in seconds)
    assert found.fixed_s == 0
    assert found.at(amount) > 0


def test_columns_that_cannot_be_told_apart_go_to_the_first():
    columns = [[1.0, 2.0], [2.0, 4.0]]
    assert nonnegative_fit(columns, [3.0, 6.0], [1.0, 1.0]) == [pytest.approx(3.0), 0.0]


def test_no_link_is_faster_than_itself_and_what_is_left_is_fitted():
    ring, pairwise, calls = [4.0, 1.0, 0.0, 8.0], [0.0, 3.0, 2.0, 1.0], [5.0, 1.0, 7.0, 2.0]
    columns = list(zip(ring, pairwise, calls, strict=True))
    slow = [1.5 * a + 2.0 * b + 0.25 * c for a, b, c in columns]
    assert link_fit([ring, pairwise], [calls], slow) == (
        pytest.approx([1.5, 2.0]), pytest.approx([0.25]),
    )  # fmt: skip
    # the second would be twice as fast as its link: it is as fast, and calls cost what that leaves
    fast = [1.5 * a + 0.5 * b + 0.25 * c for a, b, c in columns]
    slowdowns, [call_s] = link_fit([ring, pairwise], [calls], fast)
    assert slowdowns[1] == 1.0
    assert 0.0 <= call_s < 0.25


def test_ratios_are_interpolated_by_logarithms():
    curve = RatioCurve.of({1000.0: 20.0, 10.0: 5.0})
    assert curve.at(10) == pytest.approx(5.0)
    assert curve.at(100) == pytest.approx(10.0)
    assert curve.at(1000) == pytest.approx(20.0)


def test_beyond_the_slices_measured_ratios_fall_but_do_not_grow_and_it_is_reported():
    curve = RatioCurve.of({10.0: 5.0, 1000.0: 20.0})
    assert curve.at(1) == pytest.approx(2.5)
    assert curve.at(1e6) == 20.0
    assert [curve.is_extrapolated(rows) for rows in (1, 10, 500, 1000, 1e6)] == [
        True, False, False, False, True,
    ]  # fmt: skip


def test_a_fixed_rate_is_never_a_guess():
    curve = RatioCurve.of({10.0: 2.0, 1000.0: 2.0})
    assert not curve.is_extrapolated(1)
    assert curve.at(1) == 2.0


def test_a_curve_needs_a_point():
    with pytest.raises(SpecError, match="at least one"):
        RatioCurve(())
