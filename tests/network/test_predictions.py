"""Predictions as values: against torch.distributions, and against their tensors one by one."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions

from sklearn_quam._network.predictions import Categorical, Gaussian

KINDS = ("categorical", "gaussian")
each_kind = pytest.mark.parametrize("kind", KINDS)
shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def predicted(kind, *shape, seed=0, scale=1.0):
    if kind == "categorical":
        return Categorical((scale * normal(*shape, seed=seed)).log_softmax(dim=-1))
    return Gaussian(
        normal(*shape, seed=2 * seed), (scale * normal(*shape, seed=2 * seed + 1)).exp()
    )


def in_torch(prediction):
    """Return the same as torch knows it."""
    if isinstance(prediction, Categorical):
        return distributions.Categorical(logits=prediction.log_proba)
    normal = distributions.Normal(prediction.mean, prediction.variance.sqrt())
    return distributions.Independent(normal, 1)


def assert_close(actual, expected, rtol=1e-10, atol=1e-11):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def assert_same(actual, expected):
    """Compare predictions exactly."""
    assert type(actual) is type(expected)
    for first, second in zip(actual.parts, expected.parts, strict=True):
        assert first.dtype == second.dtype
        assert first.shape == second.shape
        assert torch.equal(first, second)


def by_parts(prediction, function):
    return type(prediction)(*(function(part) for part in prediction.parts))


# -- information -------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS),
    shapes,
    st.integers(1, 5),
    st.integers(0, 2**16),
    st.sampled_from([0.1, 1.0, 5.0]),
)
def test_entropies_and_divergences_are_those_of_torch(kind, leading, n_outputs, seed, scale):
    first, second = (
        predicted(kind, *leading, n_outputs, seed=seed + i, scale=scale) for i in (0, 1)
    )
    assert first.entropy().shape == first.kl(second).shape == leading
    assert_close(first.entropy(), in_torch(first).entropy())
    expected = distributions.kl_divergence(in_torch(first), in_torch(second))
    assert_close(first.kl(second), expected.clamp(min=0))
    assert (first.kl(second) >= 0).all()
    assert (first.kl(first) == 0).all()
    assert_close(first.expected(), in_torch(first).probs if kind == "categorical" else first.mean)


@each_kind
def test_a_prediction_is_compared_with_many(kind):
    """Those without further axes are compared with each of the others."""
    one, many = predicted(kind, 4, 3), predicted(kind, 5, 4, 3, seed=1)
    assert_close(one.kl(many), torch.stack([one.kl(other) for other in many]))
    assert_close(many.kl(one), torch.stack([other.kl(one) for other in many]))


def test_classes_without_probability_count_for_nothing():
    certain = Categorical(torch.tensor([0.0, -math.inf], dtype=torch.float64))
    even = Categorical(torch.full((2,), -math.log(2), dtype=torch.float64))
    assert certain.entropy() == 0
    assert_close(certain.kl(even), torch.tensor(math.log(2), dtype=torch.float64))
    assert certain.kl(certain) == 0
    assert even.kl(certain) == math.inf


def test_probabilities_that_underflow_have_finite_divergences():
    tiny = Categorical(torch.tensor([0.0, -300.0, -30000.0]))
    other = Categorical(torch.tensor([0.0, -200.0, -100.0]))
    for value in (tiny.entropy(), tiny.kl(other), other.kl(tiny)):
        assert torch.isfinite(value)
        assert value >= 0


@each_kind
def test_gradients_are_those_of_torch(kind):
    first, second = predicted(kind, 3, 4), predicted(kind, 3, 4, seed=1)
    for prediction in (first, second):
        for part in prediction.parts:
            part.requires_grad_()
    leaves = [*first.parts, *second.parts]
    ours = first.kl(second).sum() + first.entropy().sum()
    torchs = (
        distributions.kl_divergence(in_torch(first), in_torch(second)).sum()
        + in_torch(first).entropy().sum()
    )
    found, expected = (torch.autograd.grad(total, leaves) for total in (ours, torchs))
    if kind == "categorical":
        # torch normalises: only directions that keep the sum of probabilities have a meaning.
        proba = [torch.exp(part.detach()) for part in leaves]
        found, expected = (
            [g - p * g.sum(dim=-1, keepdim=True) for g, p in zip(gradients, proba, strict=True)]
            for gradients in (found, expected)
        )
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)


# -- arrays ------------------------------------------------------------------------------------


def test_arrays_of_probabilities_sum_to_one_in_double_precision():
    prediction = predicted("categorical", 50, 7, scale=4.0).to(torch.float32)
    proba = prediction.to_array()
    assert isinstance(proba, np.ndarray)
    assert proba.dtype == np.float64
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_allclose(proba, prediction.expected(), rtol=1e-5)


# -- rows --------------------------------------------------------------------------------------

INDICES = [
    -1,
    slice(None, None, 2),
    [3, 0, 0],
    torch.tensor([True, False, True, False]),
    (slice(None), 1),
    (torch.tensor([0, 2]), torch.tensor([1, 2])),
]


@each_kind
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_index_picks_from_every_part(kind, index):
    prediction = predicted(kind, 4, 3, 2)
    assert_same(prediction[index], by_parts(prediction, lambda part: part[index]))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(KINDS), shapes, st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_what_is_put_together_can_be_taken_apart(kind, leading, lengths):
    predictions = [predicted(kind, n, *leading, 3, seed=seed) for seed, n in enumerate(lengths)]
    together = predictions[0].cat(predictions)
    assert len(together) == sum(lengths)
    start = 0
    for prediction in predictions:
        assert_same(together[start : start + len(prediction)], prediction)
        start += len(prediction)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(KINDS), shapes, st.integers(1, 4))
def test_stacked_predictions_have_an_axis_in_front(kind, leading, number):
    predictions = [predicted(kind, *leading, 3, seed=seed) for seed in range(number)]
    stacked = predictions[0].stack(predictions)
    assert len(stacked) == number
    for index, prediction in enumerate(predictions):
        assert_same(stacked[index], prediction)


@each_kind
@pytest.mark.parametrize(
    ("index", "where"),
    [([3, 0], [True, True]), ([1, 2, 0], [False, True, False]), ([], [])],
)
def test_some_rows_are_replaced_in_a_copy(kind, index, where):
    old = predicted(kind, 4, 3)
    kept, new = old.clone(), predicted(kind, len(index), 3, seed=1)
    numbers, chosen = torch.tensor(index, dtype=torch.long), torch.tensor(where, dtype=torch.bool)
    replaced = old.replaced(numbers, chosen, new)
    replaced_rows = dict(zip(index, range(len(index)), strict=True))
    for row in range(4):
        position = replaced_rows.get(row)
        if position is not None and where[position]:
            assert_same(replaced[row], new[position])
        else:
            assert_same(replaced[row], kept[row])
    assert_same(old, kept)


@each_kind
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_only_rows_with_finite_parts_are_finite(kind, value):
    n_parts = len(predicted(kind, 2, 3).parts)
    for number in range(n_parts):
        prediction = predicted(kind, 4, 5, 3)
        assert prediction.is_finite().all()
        prediction.parts[number][1, 2, 0] = value
        expected = torch.ones(4, 5, dtype=torch.bool)
        expected[1, 2] = False
        assert torch.equal(prediction.is_finite(), expected)


# -- other changes -----------------------------------------------------------------------------


def test_different_kinds_are_not_combined():
    with pytest.raises(ValueError, match="argument"):
        predicted("gaussian", 2, 3).map(torch.add, predicted("categorical", 2, 3))


@each_kind
def test_expanded_predictions_have_memory_of_their_own(kind):
    prediction = predicted(kind, 2, 3)
    expanded = prediction.expand(4)
    assert len(expanded) == 4
    for part in expanded.parts:
        part[0] = 7.0
    for index in (1, 2, 3):
        assert_same(expanded[index], prediction)


@each_kind
def test_predictions_are_stored(kind):
    prediction = predicted(kind, 2, 3)
    assert_same(pickle.loads(pickle.dumps(prediction)), prediction)
