"""Quantiles of mixtures of Gaussians, against closed forms and independent computations."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from sklearn_quam._network.predictions import Gaussian
from sklearn_quam._posterior.accumulate import make_posterior
from sklearn_quam._posterior.measures import mixture_quantiles, mixture_scores
from sklearn_quam._posterior.results import _of_one_size

NUMERIC = settings(deadline=None, max_examples=50)
SCORES = st.floats(-30, 30)
SIZES = st.integers(1, 5)


@st.composite
def mixtures(draw, n_components=SIZES):
    shape = (2, 1, draw(n_components))
    weight = draw(arrays(float, shape, elements=st.floats(0.01, 1)))
    mean = draw(arrays(float, shape, elements=st.floats(-1e3, 1e3)))
    scale = draw(arrays(float, shape, elements=st.floats(1e-3, 1e3)))
    return np.stack([weight / weight.sum(axis=-1, keepdims=True), mean, scale], axis=-1)


def share_below(mixture, value):
    weight, mean, scale = np.moveaxis(mixture, -1, 0)
    return (weight * norm.cdf(value[..., None], mean, scale)).sum(axis=-1)


@NUMERIC
@given(mixtures(st.just(1)), SCORES)
def test_quantile_of_one_gaussian_in_closed_form(mixture, score):
    mean, scale = mixture[..., 0, 1], mixture[..., 0, 2]
    found = mixture_quantiles(mixture, np.array([score]))
    np.testing.assert_allclose(found, mean + score * scale, rtol=1e-12, atol=1e-12)


@NUMERIC
@given(mixtures(), st.floats(0.001, 0.999))
def test_the_share_below_a_quantile_is_what_was_asked_for(mixture, share):
    found = mixture_quantiles(mixture, ndtri([share]))
    np.testing.assert_allclose(share_below(mixture, found), share, rtol=1e-6)


@NUMERIC
@given(mixtures(), SCORES)
def test_scores_are_the_inverse_of_quantiles(mixture, score):
    found = mixture_quantiles(mixture, np.array([score]))
    scores = mixture_scores(mixture, found)
    # Where the distribution function is flat, values are known better than their scores.
    step = np.abs(found) * 1e-9 + 1e-12
    assert (mixture_scores(mixture, found - step) <= score + 1e-9).all()
    assert (mixture_scores(mixture, found + step) >= score - 1e-9).all()
    assert np.isfinite(scores).all()


@NUMERIC
@given(mixtures(), SCORES, SCORES)
def test_quantiles_rise(mixture, first, second):
    low, high = sorted([first, second])
    lower, upper = (mixture_quantiles(mixture, np.array([s])) for s in (low, high))
    assert (lower <= upper + 1e-9 * np.abs(upper)).all()


@NUMERIC
@given(mixtures(), SCORES, st.floats(-1e3, 1e3), st.floats(0.1, 10))
def test_quantiles_have_units(mixture, score, shift, factor):
    moved = mixture * [1, factor, factor] + [0, shift, 0]
    np.testing.assert_allclose(
        mixture_quantiles(moved, np.array([score])),
        mixture_quantiles(mixture, np.array([score])) * factor + shift,
        rtol=1e-9,
        atol=1e-6,
    )


def test_tails_that_no_share_can_tell():
    mixture = np.array([[[[0.5, 0.0, 1.0], [0.5, 0.0, 2.0]]]])
    for score in (50.0, 1e3, 1e8):
        found = mixture_quantiles(mixture, np.array([score]))[0, 0]
        # The wider half has all of the tail.
        np.testing.assert_allclose(found, 2 * score, rtol=1e-3)
        np.testing.assert_allclose(mixture_scores(mixture, np.array([[found]])), score, rtol=1e-9)
    assert mixture_quantiles(mixture, np.array([np.inf]))[0, 0] == np.inf
    assert mixture_quantiles(mixture, np.array([-np.inf]))[0, 0] == -np.inf


def test_two_far_components_have_quantiles_in_each():
    # A moment match would put the 5 % quantile at -64 and the median's mass where there is none.
    mixture = np.array([[[[0.5, -50.0, 1.0], [0.5, 50.0, 1.0]]]])
    found = [mixture_quantiles(mixture, ndtri([q]))[0, 0] for q in (0.05, 0.95)]
    np.testing.assert_allclose(found, [-50 + ndtri(0.1), 50 + ndtri(0.9)], rtol=1e-9)


def test_components_without_weight_change_nothing():
    rng = np.random.default_rng(0)
    mixture = np.stack([np.full((3, 2, 4), 0.25), *rng.uniform(1, 2, (2, 3, 2, 4))], axis=-1)
    other = np.concatenate([mixture] * 2, axis=2) * [0.5, 1, 1]
    grown, _ = _of_one_size(mixture, other)
    assert grown.shape == other.shape
    score = np.array([-1.0, 2.0])
    np.testing.assert_array_equal(
        mixture_quantiles(grown, score), mixture_quantiles(mixture, score)
    )
    np.testing.assert_allclose(mixture_quantiles(other, score), mixture_quantiles(mixture, score))


def test_outputs_have_scores_of_their_own():
    mixture = np.broadcast_to([1.0, 3.0, 2.0], (4, 2, 1, 3))
    found = mixture_quantiles(mixture, np.array([-1.0, 2.0]))
    np.testing.assert_allclose(found, np.tile([1.0, 7.0], (4, 1)), rtol=1e-12)


@pytest.mark.parametrize("measure", ["entropy", "variance"])
@pytest.mark.parametrize("n_models", [5, 500])
def test_quantiles_of_sampled_models(measure, n_models):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(n_models, 3, 2, generator=generator, dtype=torch.float64)
    variance = 0.1 + torch.rand(n_models, 3, 2, generator=generator, dtype=torch.float64)
    log_weights = torch.randn(n_models, 3, generator=generator, dtype=torch.float64)
    posterior = make_posterior(Gaussian(mean[0], variance[0]), measure, predictive=True)
    for part in torch.arange(n_models).chunk(3):
        posterior.update(Gaussian(mean[part], variance[part]), log_weights[part])
    mixture = posterior.predictive()
    assert mixture.shape == (3, 2, min(n_models, 64), 3)
    weight = torch.softmax(log_weights, dim=0)[..., None].numpy()
    for share in (0.05, 0.5, 0.95):
        found = mixture_quantiles(mixture, ndtri([share, share]))
        below = (weight * ndtr((found - mean.numpy()) / variance.sqrt().numpy())).sum(axis=0)
        # Of many models, neighbours are merged.
        np.testing.assert_allclose(below, share, atol=1e-9 if n_models == 5 else 2e-3)
