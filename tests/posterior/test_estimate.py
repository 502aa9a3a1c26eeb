"""Streaming weighted means, against sums over all samples at once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sklearn_quam._network.limits import accumulation_dtype
from sklearn_quam._posterior.estimate import WeightedMean

CPU = torch.device("cpu")
NUMERIC = settings(deadline=None, max_examples=60)
LOG_WEIGHTS = st.floats(-800, 800)


def stream(log_weights, values, cuts=()):
    """Return the means after feeding the samples in batches that end at the cuts."""
    means = WeightedMean(log_weights.shape[1], CPU)
    parts = zip(np.split(log_weights, sorted(cuts)), np.split(values, sorted(cuts)), strict=True)
    for weights, value in parts:
        if len(weights):
            means.add_weights(torch.tensor(weights))
            means.add("f", torch.tensor(value), error=value.ndim == 2)
    return means


def normalised(log_weights):
    weights = np.exp(log_weights - log_weights.max(axis=0))
    return weights / weights.sum(axis=0)


@st.composite
def samples(draw, trailing=(), weights=LOG_WEIGHTS):
    """Draw log weights, values and the ends of the batches."""
    n_models, n_rows = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    log_weights = draw(arrays(float, (n_models, n_rows), elements=weights))
    values = draw(arrays(float, (n_models, n_rows, *trailing), elements=st.floats(-1e3, 1e3)))
    cuts = draw(st.lists(st.integers(0, n_models), max_size=4))
    return log_weights, values, cuts


@NUMERIC
@given(samples())
def test_streamed_mean_is_the_sum_over_normalised_weights(case):
    log_weights, values, cuts = case
    expected = (normalised(log_weights) * values).sum(axis=0)
    for batches in ((), cuts, range(len(values))):
        mean = stream(log_weights, values, batches).mean("f").numpy()
        np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-10)


@NUMERIC
@given(samples(trailing=(2,)))
def test_vector_statistics_share_the_weights_of_their_row(case):
    log_weights, values, cuts = case
    expected = (normalised(log_weights)[..., None] * values).sum(axis=0)
    mean = stream(log_weights, values, cuts).mean("f").numpy()
    np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-10)


@NUMERIC
@given(samples())
def test_standard_error_is_the_weighted_spread(case):
    log_weights, values, cuts = case
    weights = normalised(log_weights)
    mean = (weights * values).sum(axis=0)
    expected = np.sqrt((weights**2 * (values - mean) ** 2).sum(axis=0))
    error = stream(log_weights, values, cuts).standard_error("f").numpy()
    # The running sums see the spread only to the square root of the rounding error.
    np.testing.assert_allclose(error, expected, rtol=1e-6, atol=1e-4)


def test_standard_error_of_equal_weights_is_that_of_a_mean():
    values = np.random.default_rng(0).normal(size=(50, 4))
    error = stream(np.zeros((50, 4)), values, (7, 31)).standard_error("f").numpy()
    np.testing.assert_allclose(error, values.std(axis=0) / np.sqrt(50), rtol=1e-12)


@NUMERIC
@given(samples())
def test_effective_sample_size_is_kish(case):
    log_weights, values, cuts = case
    expected = 1 / (normalised(log_weights) ** 2).sum(axis=0)
    size = stream(log_weights, values, cuts).effective_sample_size().numpy()
    np.testing.assert_allclose(size, expected, rtol=1e-12)


@pytest.mark.parametrize("level", [-800.0, 0.0, 800.0])
def test_effective_sample_size_of_equal_weights_is_their_number(level):
    means = stream(np.full((13, 2), level), np.zeros((13, 2)), (4, 5))
    np.testing.assert_allclose(means.effective_sample_size().numpy(), 13, rtol=1e-12)


@NUMERIC
@given(samples(weights=st.floats(-50, 50)), st.floats(-700, 700))
def test_a_constant_added_to_the_log_weights_changes_nothing(case, constant):
    log_weights, values, cuts = case
    plain, moved = stream(log_weights, values, cuts), stream(log_weights + constant, values, cuts)
    np.testing.assert_allclose(moved.mean("f"), plain.mean("f"), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        moved.effective_sample_size(), plain.effective_sample_size(), rtol=1e-9
    )


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2, 3, 4)])
@pytest.mark.parametrize("left_out_value", [7.0, np.nan, np.inf])
def test_samples_of_weight_zero_are_left_out(cuts, left_out_value):
    log_weights = np.array([-np.inf, -np.inf, 3.0, -np.inf, 1.0])[:, None]
    values = np.array([left_out_value, left_out_value, 2.0, left_out_value, -1.0])[:, None]
    kept = np.isfinite(log_weights[:, 0])
    everything, rest = stream(log_weights, values, cuts), stream(log_weights[kept], values[kept])
    np.testing.assert_allclose(everything.mean("f"), rest.mean("f"), rtol=1e-14)
    np.testing.assert_allclose(everything.standard_error("f"), rest.standard_error("f"), rtol=1e-12)
    np.testing.assert_allclose(
        everything.effective_sample_size(), rest.effective_sample_size(), rtol=1e-14
    )


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2)])
def test_rows_without_weight_are_nan_and_leave_the_others_alone(cuts):
    log_weights = np.array([[0.0, -np.inf], [1.0, -np.inf], [-2.0, -np.inf]])
    values = np.array([[1.0, 1.0], [2.0, 2.0], [5.0, 5.0]])
    means = stream(log_weights, values, cuts)
    alone = stream(log_weights[:, :1], values[:, :1], cuts)
    for both, one in (
        (means.mean("f"), alone.mean("f")),
        (means.standard_error("f"), alone.standard_error("f")),
        (means.effective_sample_size(), alone.effective_sample_size()),
    ):
        assert torch.isnan(both[1])
        assert both[0] == one[0]


def test_an_outweighed_infinite_value_counts_for_nothing_in_any_batching():
    log_weights, values = np.array([[0.0], [800.0]]), np.array([[np.inf], [2.0]])
    assert stream(log_weights, values).mean("f").item() == 2.0
    assert stream(log_weights, values, (1,)).mean("f").item() == 2.0


def test_single_precision_input_is_added_up_in_double_precision():
    values = np.array([[1.0, 1.0], [2.0**-40, 1 + 2.0**-12]], dtype=np.float32)
    means = stream(np.zeros((2, 2), dtype=np.float32), values, (1,))
    assert means.mean("f").dtype == torch.float64
    assert means.mean("f").tolist() == [(1 + 2.0**-40) / 2, 1 + 2.0**-13]
    np.testing.assert_allclose(means.standard_error("f")[1], 2.0**-13 / np.sqrt(2), rtol=1e-6)


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", torch.float64), ("cuda", torch.float64), ("mps", torch.float32)],
)
def test_accumulation_is_as_wide_as_the_device_allows(device, dtype):
    assert accumulation_dtype(torch.device(device)) is dtype
