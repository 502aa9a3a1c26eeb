"""Predictions as values: against torch.distributions, and against their tensors one by one."""

import math
import pickle

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


def test_classes_without_probability_count_for_nothing():
    certain = Categorical(torch.tensor([0.0, -math.inf], dtype=torch.float64))
    even = Categorical(torch.full((2,), -math.log(2), dtype=torch.float64))
    assert certain.entropy() == 0
    assert_close(certain.kl(even), torch.tensor(math.log(2), dtype=torch.float64))
    assert certain.kl(certain) == 0
    assert even.kl(certain) == math.inf


# -- arrays ------------------------------------------------------------------------------------


# -- rows --------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize(
    ("index", "where"), [([3, 0], [True, True]), ([1, 2, 0], [False, True, False]), ([], [])]
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


@each_kind
def test_predictions_are_stored(kind):
    prediction = predicted(kind, 2, 3)
    assert_same(pickle.loads(pickle.dumps(prediction)), prediction)
