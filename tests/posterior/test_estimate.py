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
NUMERIC = settings(deadline=None, max_examples=30)


def stream(log_weights, values, cuts=()):
    """Return the means after feeding the samples in batches that end at the cuts."""
    means = WeightedMean(log_weights.shape[1], CPU)
    parts = zip(np.split(log_weights, sorted(cuts)), np.split(values, sorted(cuts)), strict=True)
    for weights, value in parts:
        if len(weights):
            means.add_weights(torch.tensor(weights))
            means.add("f", torch.tensor(value), error=value.ndim == 2)
    return means


def answers(means):
    return [means.mean("f"), means.standard_error("f"), means.effective_sample_size()]


def normalised(log_weights):
    weights = np.exp(log_weights - log_weights.max(axis=0))
    return weights / weights.sum(axis=0)


@st.composite
def samples(draw, trailing=()):
    """Draw log weights, values and the ends of the batches."""
    n_models, n_rows = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    log_weights = draw(arrays(float, (n_models, n_rows), elements=st.floats(-800, 800)))
    values = draw(arrays(float, (n_models, n_rows, *trailing), elements=st.floats(-1e3, 1e3)))
    cuts = draw(st.lists(st.integers(0, n_models), max_size=4))
    return log_weights, values, cuts


@NUMERIC
@given(samples())
def test_streamed_sums_are_those_over_normalised_weights(case):
    log_weights, values, cuts = case
    weights = normalised(log_weights)
    mean = (weights * values).sum(axis=0)
    error = np.sqrt((weights**2 * (values - mean) ** 2).sum(axis=0))
    for batches in ((), cuts, range(len(values))):
        found = answers(stream(log_weights, values, batches))
        np.testing.assert_allclose(found[0], mean, rtol=1e-12, atol=1e-10)
        # The running sums see the spread only to the square root of the rounding error.
        np.testing.assert_allclose(found[1], error, rtol=1e-6, atol=1e-4)
        np.testing.assert_allclose(found[2], 1 / (weights**2).sum(axis=0), rtol=1e-12)


@NUMERIC
@given(samples(trailing=(2,)))
def test_vector_statistics_share_the_weights_of_their_row(case):
    log_weights, values, cuts = case
    expected = (normalised(log_weights)[..., None] * values).sum(axis=0)
    mean = stream(log_weights, values, cuts).mean("f").numpy()
    np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("level", [-800.0, 0.0, 800.0])
def test_equal_weights_have_the_error_of_a_mean(level):
    values = np.random.default_rng(0).normal(size=(50, 4))
    _, error, size = answers(stream(np.full((50, 4), level), values, (7, 31)))
    np.testing.assert_allclose(error, values.std(axis=0) / np.sqrt(50), rtol=1e-12)
    np.testing.assert_allclose(size, 50, rtol=1e-12)


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2, 3, 4)])
@pytest.mark.parametrize("left_out_value", [7.0, np.nan, np.inf])
def test_samples_of_weight_zero_are_left_out(cuts, left_out_value):
    log_weights = np.array([-np.inf, -np.inf, 3.0, -np.inf, 1.0])[:, None]
    values = np.array([left_out_value, left_out_value, 2.0, left_out_value, -1.0])[:, None]
    kept = np.isfinite(log_weights[:, 0])
    rest = stream(log_weights[kept], values[kept])
    for found, expected in zip(
        answers(stream(log_weights, values, cuts)), answers(rest), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2)])
def test_rows_without_weight_are_nan_and_leave_the_others_alone(cuts):
    log_weights = np.array([[0.0, -np.inf], [1.0, -np.inf], [-2.0, -np.inf]])
    values = np.array([[1.0, 1.0], [2.0, 2.0], [5.0, 5.0]])
    alone = answers(stream(log_weights[:, :1], values[:, :1], cuts))
    for both, one in zip(answers(stream(log_weights, values, cuts)), alone, strict=True):
        assert torch.isnan(both[1])
        assert both[0] == one[0]


def test_an_outweighed_infinite_value_counts_for_nothing_in_any_batching():
    log_weights, values = np.array([[0.0], [800.0]]), np.array([[np.inf], [2.0]])
    assert stream(log_weights, values).mean("f").item() == 2.0
    assert stream(log_weights, values, (1,)).mean("f").item() == 2.0


def test_single_precision_input_is_added_up_in_double_precision():
    values = np.array([[1.0, 1.0], [2.0**-40, 1 + 2.0**-12]], dtype=np.float32)
    means = stream(np.zeros((2, 2), dtype=np.float32), values, (1,))
    assert means.mean("f").tolist() == [(1 + 2.0**-40) / 2, 1 + 2.0**-13]
    np.testing.assert_allclose(means.standard_error("f")[1], 2.0**-13 / np.sqrt(2), rtol=1e-6)
    for device, dtype in (("cuda", torch.float64), ("mps", torch.float32)):
        assert accumulation_dtype(torch.device(device)) is dtype
