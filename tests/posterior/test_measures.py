"""Losses, and entropies and quantiles of mixtures, against independent computations."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad
from scipy.special import logsumexp, ndtri
from scipy.stats import norm

from sklearn_quam import ReferenceClassifier
from sklearn_quam._network.predictions import Categorical, Gaussian
from sklearn_quam._posterior.accumulate import GaussianPosterior
from sklearn_quam._posterior.measures import (
    LOSSES,
    _panel_edges,
    gaussian_mixture_entropy,
    merge_components,
    mixture_quantiles,
    mixture_scores,
)
from sklearn_quam._posterior.results import _of_one_size

from ..networks import LABELS, X_NEW, X, dense

NUMERIC = settings(deadline=None, max_examples=25)
QUADRATURE_TOLERANCE = 1e-5
SCORES = st.floats(-30, 30)


def tensor(values):
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def close(actual, expected, rtol=1e-10, atol=1e-12):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=rtol, atol=atol)


# -- losses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", LOSSES)
@NUMERIC
@given(arrays(float, (4, 3), elements=st.floats(0.01, 1)))
def test_losses_by_their_definition(measure, values):
    """Own and excess loss are expectations of what probabilities lose for each class."""
    p, q = np.split(values / values.sum(axis=1, keepdims=True), 2)
    loss = LOSSES[measure]
    of_p, of_q = (loss.of_classes(torch.tensor(proba)).numpy() for proba in (p, q))
    own = loss.own(Categorical(tensor(p).log())).numpy()
    excess = loss.excess(*(Categorical(tensor(v).log()) for v in (p, q)), tensor(q)).numpy()
    close(own, (p * of_p).sum(axis=1), rtol=1e-9)
    close(excess, (p * of_q).sum(axis=1) - own, rtol=1e-6)
    assert (excess >= 0).all()
    # What came true and was certain costs nothing.
    close(np.diag(loss.of_classes(torch.eye(3, dtype=torch.float64)).numpy()), np.zeros(3))


def test_measures_of_the_network_alone():
    est = ReferenceClassifier(dense()).fit(X, LABELS)
    proba = est.predict_proba(X_NEW)
    for measure, expected in (
        ("zero_one", 1 - proba.max(axis=1)),
        ("brier", 1 - (proba**2).sum(axis=1)),
    ):
        found = est.set_params(measure=measure).predict_uncertainty(X_NEW).total
        close(found, expected, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="measure"):
        est.set_params(measure="variance").predict_uncertainty(X_NEW)


@pytest.mark.parametrize("ratio", [1e-30, 1e-12, 1e-3, 1 - 1e-9, 1 + 1e-6, 1e8, 1e30])
def test_divergence_of_variances_keeps_its_digits(ratio):
    p, q = Gaussian(tensor([0.0]), tensor([ratio])), Gaussian(tensor([0.0]), tensor([1.0]))
    excess = ratio - 1
    series = excess**2 / 4 - excess**3 / 6 + excess**4 / 8
    expected = series if abs(excess) < 1e-3 else (excess - math.log(ratio)) / 2
    close(p.kl(q), expected, rtol=1e-6, atol=0)


# -- entropies of mixtures -------------------------------------------------------------------


def entropy_by_quad(mean, variance, log_weights):
    """Integrate -p log p adaptively between break points around every component."""
    mean, scale = np.asarray(mean, float), np.sqrt(np.asarray(variance, float))
    log_weights = np.asarray(log_weights, float) - logsumexp(log_weights)
    constant = log_weights - np.log(scale) - 0.5 * math.log(2 * math.pi)

    def integrand(x):
        log_density = logsumexp(constant - 0.5 * ((x - mean) / scale) ** 2)
        return -math.exp(log_density) * log_density

    breaks = np.array([-12, -8, -5, -3, -1, 0, 1, 3, 5, 8, 12])
    edges = np.unique(mean[:, None] + scale[:, None] * breaks)
    return sum(
        quad(integrand, low, high, epsabs=1e-10, epsrel=1e-8)[0] for low, high in pairwise(edges)
    )


def mixture_entropy(mean, variance, log_weights, **options):
    columns = (tensor(part)[:, None] for part in (mean, variance, log_weights))
    return gaussian_mixture_entropy(*columns, **options).item()


@pytest.mark.parametrize(
    ("mean", "variance", "log_weights"),
    [
        ([2.0], [3.0], [0.0]),
        ([0.0, 1.0], [1.0, 1.0], [0.0, 0.0]),
        ([0.0, 0.3], [1e-6, 1.0], [0.0, 0.0]),
        ([5.0, 0.0], [1e-8, 1.0], [-5.0, 0.0]),
        ([-1e4, 1e4], [1.0, 1.0], [0.0, 1.0]),
        ([-1e3, 0.0, 1e3], [1e-4, 1e2, 1.0], [0.0, -2.0, 1.0]),
        ([0.0, 8.5], [1.0, 1.0], [0.0, 0.0]),
        ([0.0, 1.0, 2.0, 3.0], [0.01, 0.1, 1.0, 10.0], [-3.0, 0.0, 1.0, -20.0]),
        ([0.0, 5.0], [1.0, 1.0], [-700.0, 100.0]),
    ],
)
def test_mixture_entropy_agrees_with_adaptive_quadrature(mean, variance, log_weights):
    expected = entropy_by_quad(mean, variance, log_weights)
    entropy = mixture_entropy(mean, variance, log_weights)
    close(entropy, expected, rtol=0, atol=QUADRATURE_TOLERANCE)
    with_empty = mixture_entropy([*mean, 9.0], [*variance, 1.0], [*log_weights, -np.inf])
    close(with_empty, expected, rtol=0, atol=QUADRATURE_TOLERANCE)


def test_mixture_of_far_apart_components_adds_the_entropy_of_the_choice():
    weights = np.array([0.2, 0.3, 0.5])
    entropy = mixture_entropy([-1e5, 0.0, 1e5], [1e-2, 1.0, 1e2], np.log(weights))
    own = 0.5 * np.log(2 * math.pi * math.e * np.array([1e-2, 1.0, 1e2]))
    close(entropy, weights @ (own - np.log(weights)), rtol=0, atol=QUADRATURE_TOLERANCE)


@pytest.mark.parametrize("max_elements", [1, 3000, 2**24])
def test_chunks_of_mixtures_do_not_change_their_entropies(max_elements):
    rng = np.random.default_rng(0)
    mean, log_variance, log_weights = rng.normal(size=(3, 5, 7))
    parts = tensor(mean), tensor(log_variance).exp(), tensor(log_weights)
    entropies = gaussian_mixture_entropy(*parts, max_elements=max_elements)
    alone = [mixture_entropy(*(part[:, j] for part in parts)) for j in range(7)]
    close(entropies, alone, rtol=1e-13)


def test_close_components_share_their_panels():
    """64 components of one scale take not many more panels than one of them."""
    mu = torch.linspace(-1, 1, 64, dtype=torch.float64)[None]
    edges = _panel_edges(mu, torch.ones_like(mu))
    assert (edges.diff(dim=-1) > 0).sum() < 20


# -- merged components -----------------------------------------------------------------------


def moments(mean, variance, log_weights):
    weights = log_weights.exp()
    centre = (weights * mean).sum(0) / weights.sum(0)
    spread = (weights * (variance + (mean - centre) ** 2)).sum(0) / weights.sum(0)
    return torch.stack([weights.sum(0), centre, spread])


@pytest.mark.parametrize("n_components", [8, 9, 37, 100])
def test_merging_preserves_weight_mean_and_variance(n_components):
    rng = np.random.default_rng(n_components)
    mean, log_variance, log_weights = rng.normal(size=(3, n_components, 4))
    log_weights[rng.random(log_weights.shape) < 0.2] = -np.inf
    parts = tensor(3 * mean), tensor(log_variance).exp(), tensor(log_weights)
    merged = merge_components(*parts, limit=8)
    assert len(merged[0]) == 8
    assert (merged[1] > 0).all()
    close(moments(*merged), moments(*parts))
    if n_components == 8:
        assert all(map(torch.equal, merged, parts))


def entropy_on_a_grid(mean, variance, log_weights):
    """Sum -p log p over an even grid; exact for smooth densities well inside [-12, 12]."""
    x = np.linspace(-12, 12, 4001)
    scale, log_weights = np.sqrt(variance), log_weights - logsumexp(log_weights)
    parts = log_weights - 0.5 * np.log(2 * math.pi * variance)
    log_density = logsumexp(parts - 0.5 * ((x[:, None] - mean) / scale) ** 2, axis=1)
    return -(np.exp(log_density) * log_density).sum() * (x[1] - x[0])


def thousand_components(kind):
    rng = np.random.default_rng(0)
    mean, log_variance = rng.normal(size=(2, 1000))
    odd = np.arange(1000) % 2 == 1
    if kind == "uneven weights":
        return mean, np.full(1000, 0.04), 3 * rng.normal(size=1000)
    if kind == "two clusters":
        return np.where(odd, 5.0, -5.0) + 0.1 * mean, np.full(1000, 0.01), np.zeros(1000)
    return 0.01 * mean, np.where(odd, 0.01, 1.0), 0.3 * log_variance


@pytest.mark.parametrize("kind", ["uneven weights", "two clusters", "narrow and wide"])
def test_merging_keeps_the_entropy_of_a_thousand_components(kind):
    parts = thousand_components(kind)
    posterior = GaussianPosterior(Gaussian(torch.zeros(1, 1), torch.ones(1, 1)), "expected")
    for batch in np.array_split(np.arange(1000), 20):
        mean, variance, log_weights = (tensor(part[batch])[:, None] for part in parts)
        posterior.update(Gaussian(mean[..., None], variance[..., None]), log_weights)
    expected = entropy_on_a_grid(*parts)
    close(posterior.uncertainty().total, [expected], rtol=0, atol=1e-2)


# -- quantiles of mixtures -------------------------------------------------------------------


@st.composite
def mixtures(draw, most=5):
    shape = (2, 1, draw(st.integers(1, most)))
    weight = draw(arrays(float, shape, elements=st.floats(0.01, 1)))
    mean = draw(arrays(float, shape, elements=st.floats(-1e3, 1e3)))
    scale = draw(arrays(float, shape, elements=st.floats(1e-3, 1e3)))
    return np.stack([weight / weight.sum(axis=-1, keepdims=True), mean, scale], axis=-1)


@NUMERIC
@given(mixtures(most=1), SCORES)
def test_quantile_of_one_gaussian_in_closed_form(mixture, score):
    mean, scale = mixture[..., 0, 1], mixture[..., 0, 2]
    close(mixture_quantiles(mixture, np.array([score])), mean + score * scale, rtol=1e-12)


@NUMERIC
@given(mixtures(), st.floats(0.001, 0.999))
def test_the_share_below_a_quantile_is_what_was_asked_for(mixture, share):
    found = mixture_quantiles(mixture, ndtri([share]))
    weight, mean, scale = np.moveaxis(mixture, -1, 0)
    below = (weight * norm.cdf(found[..., None], mean, scale)).sum(axis=-1)
    close(below, np.full_like(below, share), rtol=1e-6)


@NUMERIC
@given(mixtures(), SCORES)
def test_scores_are_the_inverse_of_quantiles(mixture, score):
    found = mixture_quantiles(mixture, np.array([score]))
    # Where the distribution function is flat, values are known better than their scores.
    step = np.abs(found) * 1e-9 + 1e-12
    assert (mixture_scores(mixture, found - step) <= score + 1e-9).all()
    assert (mixture_scores(mixture, found + step) >= score - 1e-9).all()
    assert np.isfinite(mixture_scores(mixture, found)).all()


@NUMERIC
@given(mixtures(), SCORES, st.floats(-1e3, 1e3), st.floats(0.1, 10))
def test_quantiles_have_units(mixture, score, shift, factor):
    found, moved = (
        mixture_quantiles(m, np.array([score]))
        for m in (mixture, mixture * [1, factor, factor] + [0, shift, 0])
    )
    close(moved, found * factor + shift, rtol=1e-9, atol=1e-6)


def test_tails_that_no_share_can_tell():
    mixture = np.array([[[[0.5, 0.0, 1.0], [0.5, 0.0, 2.0]]]])
    for score in (50.0, 1e3, 1e8):
        found = mixture_quantiles(mixture, np.array([score]))
        # The wider half has all of the tail.
        close(found, [[2 * score]], rtol=1e-3)
        close(mixture_scores(mixture, found), [[score]], rtol=1e-9)
    for score in (np.inf, -np.inf):
        assert mixture_quantiles(mixture, np.array([score]))[0, 0] == score


def test_two_far_components_have_quantiles_in_each():
    # A moment match would put the 5 % quantile at -64 and the median's mass where there is none.
    mixture = np.array([[[[0.5, -50.0, 1.0], [0.5, 50.0, 1.0]]]])
    found = [mixture_quantiles(mixture, ndtri([q]))[0, 0] for q in (0.05, 0.95)]
    close(found, [-50 + ndtri(0.1), 50 + ndtri(0.9)], rtol=1e-9)


def test_components_without_weight_change_nothing():
    rng = np.random.default_rng(0)
    mixture = np.stack([np.full((3, 2, 4), 0.25), *rng.uniform(1, 2, (2, 3, 2, 4))], axis=-1)
    other = np.concatenate([mixture] * 2, axis=2) * [0.5, 1, 1]
    grown, _ = _of_one_size(mixture, other)
    assert grown.shape == other.shape
    score = np.array([-1.0, 2.0])
    found = mixture_quantiles(mixture, score)
    np.testing.assert_array_equal(mixture_quantiles(grown, score), found)
    close(mixture_quantiles(other, score), found, rtol=1e-7)
