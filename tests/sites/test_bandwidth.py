"""Bandwidths are gigabits per second; the old argument, which counted gigabytes, still works."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tersor.errors import SpecError
from tersor.sites.embeddings import Exchange


def test_gigabytes_are_converted_with_a_warning_that_names_the_new_argument():
    with pytest.warns(DeprecationWarning, match=r"give bandwidth_gbit_s=20\b") as warned:
        old = Exchange([0], 8, codec="auto", bandwidth_gbps=2.5)
    assert [one.filename for one in warned] == [__file__]
    new = Exchange([0], 8, codec="auto", bandwidth_gbit_s=20.0)
    assert old.plan.bandwidth_gbit_s == new.plan.bandwidth_gbit_s == 20.0
    with pytest.warns(DeprecationWarning, match="bandwidth_gbit_s"):
        assert new.plan.bandwidth_gbps == 2.5


def test_without_either_a_link_of_10_gbit_is_planned_for_and_nothing_warns(recwarn):
    assert Exchange([0], 8).plan.bandwidth_gbit_s == 10.0
    assert list(recwarn) == []


def test_both_are_refused_and_what_is_no_bandwidth_is_in_either_unit():
    with pytest.raises(SpecError, match="bandwidth_gbit_s alone"):
        Exchange([0], 8, bandwidth_gbit_s=5.0, bandwidth_gbps=1.0)
    for name in ("bandwidth_gbit_s", "bandwidth_gbps"):
        with (
            pytest.raises(SpecError, match="above 0 Gbit/s"),
            pytest.warns(DeprecationWarning, match="gigabytes")
            if name == "bandwidth_gbps"
            else nullcontext(),
        ):
            Exchange([0], 8, **{name: 0.0})
