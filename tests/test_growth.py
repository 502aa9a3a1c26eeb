"""How benchmarks fit growth and extrapolate it: against known laws and plain arithmetic."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.growth import constant_and_share, extrapolate, power_law

SIZES = [10, 30, 100, 300, 1000]
positive = st.floats(1e-4, 1e2)


@given(factor=positive, exponent=st.floats(-1, 3))
def test_a_power_law_is_found_again(factor, exponent):
    found = power_law(SIZES, factor * np.array(SIZES, float) ** exponent)
    assert found["exponent"] == pytest.approx(exponent, abs=1e-9)
    assert found["factor"] == pytest.approx(factor)
    assert found["residual"] == pytest.approx(0, abs=1e-9)


@settings(deadline=None, max_examples=20)
@given(slope=positive, ratio=st.floats(1, 300))
def test_a_line_is_found_again_where_a_power_law_does_not_fit(slope, ratio):
    seconds = slope * (ratio + np.array(SIZES))
    found = constant_and_share(SIZES, seconds)
    assert found["constant"] == pytest.approx(slope * ratio, rel=1e-2)
    assert found["slope"] == pytest.approx(slope, rel=1e-2)
    assert found["residual"] < 1e-3
    assert found["residual"] < power_law(SIZES, seconds)["residual"]


def test_residuals_are_root_mean_squares_of_logarithms():
    # Up and down around a constant: neither law can follow.
    seconds = [math.e, 1 / math.e, 1 / math.e, math.e]
    assert power_law([1, 2, 4, 8], seconds)["residual"] == pytest.approx(1)


def test_a_million_rows_on_a_cluster_are_arithmetic():
    model = {"fit_seconds": 5, "seconds_per_row": 0.01, "constant": 1}
    sent = {"bytes_of_method": 5e8, "bytes_per_row": 100, "bits_per_second": 1e9}
    found = extrapolate(1_000_000, 3, 3, **model, **sent)
    # 4 s for a copy: to the scheduler, to the first worker, and two rounds of two to all nine.
    assert found["send method"] == pytest.approx(4 * (2 + 2 * 2))
    assert found["send rows"] == pytest.approx(2 * 0.8)
    assert found["search"] == pytest.approx(1 + 10_000 / 9)
    assert found["total"] == pytest.approx(5 + 24 + 1.6 + 1 + 10_000 / 9)


def test_a_process_alone_sends_nothing():
    sent = {"bytes_of_method": 5e8, "bytes_per_row": 100, "bits_per_second": 1e9}
    found = extrapolate(1000, 1, 1, fit_seconds=5, seconds_per_row=0.01, **sent)
    assert found["total"] == pytest.approx(15)


@given(machines=st.integers(1, 1000), more=st.integers(1, 50))
def test_more_cores_search_faster_and_never_send_less(machines, more):
    model = {"fit_seconds": 0, "seconds_per_row": 1, "bytes_of_method": 8, "bits_per_second": 8}
    few = extrapolate(100, machines, 1, **model)
    many = extrapolate(100, machines, 1 + more, **model)
    assert many["search"] < few["search"]
    assert many["send method"] >= few["send method"]
