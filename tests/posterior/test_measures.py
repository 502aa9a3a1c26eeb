"""Entropies, divergences and their posterior averages, against independent computations."""

import math
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad
from scipy.special import logsumexp
from torch import distributions
from torch.distributions import Normal, kl_divergence

from sklearn_quam import ChainDiagnostics, Diagnostics, SearchDiagnostics, Uncertainty
from sklearn_quam._network.predictions import Categorical, Gaussian
from sklearn_quam._posterior.accumulate import (
    CategoricalPosterior,
    GaussianPosterior,
    make_posterior,
)
from sklearn_quam._posterior.measures import (
    _panel_edges,
    gaussian_mixture_entropy,
    merge_components,
)

NUMERIC = settings(deadline=None, max_examples=50)
SETTINGS = ("given", "expected")
QUADRATURE_TOLERANCE = 1e-5


def tensor(values):
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def classes(log_proba):
    return Categorical(tensor(log_proba))


def close(actual, expected, rtol=1e-10, atol=1e-12):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=rtol, atol=atol)


# The categorical and Gaussian building blocks.


@NUMERIC
@given(arrays(float, (2, 3, 4), elements=st.floats(-100, 100)))
def test_categorical_measures_agree_with_torch_and_plain_sums(logits):
    log_p, log_q = tensor(logits).log_softmax(-1)
    p, q = Categorical(log_p), Categorical(log_q)
    p_torch, q_torch = (distributions.Categorical(logits=part) for part in (log_p, log_q))
    close(p.entropy(), p_torch.entropy())
    close(p.kl(q), kl_divergence(p_torch, q_torch), atol=1e-10)
    terms = log_p.exp() * (log_p - log_q)
    close(p.kl(q), [sum(row) for row in terms.tolist()], atol=1e-10)


def test_categorical_entropy_of_a_tiny_probability():
    p = classes([[-700.0, 0.0], [-30.0, math.log1p(-math.exp(-30.0))]])
    certain = math.exp(-30.0) * (30.0 + 1.0)
    close(p.entropy(), [700 * math.exp(-700.0), certain], rtol=1e-9, atol=0)


def test_categorical_kl_to_a_tiny_probability():
    half = math.log(0.5)
    uniform, sure = classes([half, half]), classes([-700.0, 0.0])
    close(uniform.kl(sure), half + 350)
    close(sure.kl(uniform), -half)


def test_one_hot_predictions():
    one_hot, other = classes([0.0, -np.inf, -np.inf]), classes([-np.inf, 0.0, -np.inf])
    uniform = classes([-math.log(3)] * 3)
    assert one_hot.entropy().item() == 0
    assert one_hot.kl(one_hot).item() == 0
    close(one_hot.kl(uniform), math.log(3))
    assert uniform.kl(one_hot).item() == math.inf
    assert one_hot.kl(other).item() == math.inf


def test_categorical_kl_of_tiny_differences():
    p = tensor([0.2, 0.3, 0.5])
    step = 1e-5 * tensor([1.0, 1.0, -2.0])
    second_order = (step**2 / p).sum().item() / 2
    close(Categorical(p.log()).kl(Categorical((p + step).log())), second_order, rtol=1e-3, atol=0)
    assert Categorical(p.log()).kl(Categorical(p.log())).item() == 0


def test_divergence_of_predictions_equal_up_to_rounding_is_not_negative():
    generator = torch.Generator().manual_seed(0)
    logits, noise = torch.randn(2, 500, 5, generator=generator, dtype=torch.float64)
    p, q = logits.log_softmax(-1), (logits + 1e-14 * noise).log_softmax(-1)
    assert (Categorical(p).kl(Categorical(q)) >= 0).all()
    variance = logits.exp()
    assert (Gaussian(p, variance).kl(Gaussian(p, variance * (1 + 1e-15))) >= 0).all()


@NUMERIC
@given(
    arrays(float, (2, 3, 2), elements=st.floats(-50, 50)),
    arrays(float, (2, 3, 2), elements=st.floats(-8, 8)),
)
def test_gaussian_measures_agree_with_torch(means, log_variances):
    p, q = (
        Gaussian(tensor(mean), tensor(log_variance).exp())
        for mean, log_variance in zip(means, log_variances, strict=True)
    )
    p_torch, q_torch = (Normal(part.mean, part.variance.sqrt()) for part in (p, q))
    close(p.entropy(), p_torch.entropy().sum(-1))
    close(p.kl(q), kl_divergence(p_torch, q_torch).sum(-1), rtol=1e-8, atol=1e-9)


def test_standard_gaussian_entropy():
    unit = Gaussian(torch.zeros(1, 3), torch.ones(1, 3))
    close(unit.entropy(), 3 * 1.4189385332046727, rtol=1e-6)


@pytest.mark.parametrize("excess", [1e-3, 1e-6, 1e-9, -1e-9, -1e-6])
def test_gaussian_kl_of_nearly_equal_variances(excess):
    p, q = Gaussian(tensor([3.0]), tensor([1 + excess])), Gaussian(tensor([3.0]), tensor([1.0]))
    series = excess**2 / 4 - excess**3 / 6 + excess**4 / 8
    close(p.kl(q), series, rtol=1e-6, atol=0)


@pytest.mark.parametrize("ratio", [1e-30, 1e-17, 1e-12, 1e-8, 1e8, 1e30])
def test_gaussian_kl_of_variances_of_different_orders(ratio):
    p, q = Gaussian(tensor([0.0]), tensor([ratio])), Gaussian(tensor([0.0]), tensor([1.0]))
    close(p.kl(q), (ratio - 1 - math.log(ratio)) / 2)


# Mixture entropies.


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


def entropy_on_a_grid(mean, variance, log_weights):
    """Sum -p log p over an even grid; exact for smooth densities well inside [-12, 12]."""
    x = np.linspace(-12, 12, 4001)
    scale, log_weights = np.sqrt(variance), log_weights - logsumexp(log_weights)
    parts = log_weights - 0.5 * np.log(2 * math.pi * variance)
    log_density = logsumexp(parts - 0.5 * ((x[:, None] - mean) / scale) ** 2, axis=1)
    return -(np.exp(log_density) * log_density).sum() * (x[1] - x[0])


def mixture_entropy(mean, variance, log_weights, **options):
    columns = (tensor(part)[:, None] for part in (mean, variance, log_weights))
    return gaussian_mixture_entropy(*columns, **options).item()


@pytest.mark.parametrize(
    ("mean", "variance", "log_weights"),
    [
        ([2.0], [3.0], [0.0]),
        ([0.0, 1.0], [1.0, 1.0], [0.0, 0.0]),
        ([0.0, 0.3], [1e-6, 1.0], [0.0, 0.0]),
        ([0.0, 0.0], [1e-4, 1.0], [math.log(0.9), math.log(0.1)]),
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


def test_mixture_of_far_apart_components_adds_the_entropy_of_the_choice():
    weights = np.array([0.2, 0.3, 0.5])
    entropy = mixture_entropy([-1e5, 0.0, 1e5], [1e-2, 1.0, 1e2], np.log(weights))
    own = 0.5 * np.log(2 * math.pi * math.e * np.array([1e-2, 1.0, 1e2]))
    close(entropy, weights @ (own - np.log(weights)), rtol=0, atol=QUADRATURE_TOLERANCE)


def test_mixture_entropy_leaves_out_components_of_weight_zero():
    with_empty = mixture_entropy([0.0, 2.0, 9.0], [1.0, 0.5, 1.0], [0.0, 1.0, -np.inf])
    without = mixture_entropy([0.0, 2.0], [1.0, 0.5], [0.0, 1.0])
    close(with_empty, without, rtol=0, atol=QUADRATURE_TOLERANCE)


@pytest.mark.parametrize("max_elements", [1, 3000, 2**24])
def test_chunks_of_mixtures_do_not_change_their_entropies(max_elements):
    rng = np.random.default_rng(0)
    mean, log_variance, log_weights = rng.normal(size=(3, 5, 7))
    parts = tensor(mean), tensor(log_variance).exp(), tensor(log_weights)
    entropies = gaussian_mixture_entropy(*parts, max_elements=max_elements)
    alone = [mixture_entropy(*(part[:, j] for part in parts)) for j in range(7)]
    close(entropies, alone, rtol=1e-13)


def moments(mean, variance, log_weights):
    weights = log_weights.exp()
    centre = (weights * mean).sum(0) / weights.sum(0)
    spread = (weights * (variance + (mean - centre) ** 2)).sum(0) / weights.sum(0)
    return torch.stack([weights.sum(0), centre, spread])


@pytest.mark.parametrize("n_components", [5, 8, 9, 37, 100])
def test_merging_preserves_weight_mean_and_variance(n_components):
    rng = np.random.default_rng(n_components)
    mean, log_variance, log_weights = rng.normal(size=(3, n_components, 4))
    log_weights[rng.random(log_weights.shape) < 0.2] = -np.inf
    parts = tensor(3 * mean), tensor(log_variance).exp(), tensor(log_weights)
    merged = merge_components(*parts, limit=8)
    assert len(merged[0]) <= 8
    assert (merged[1] > 0).all()
    close(moments(*merged), moments(*parts))


def test_few_components_are_left_as_they_are():
    parts = tuple(torch.arange(8.0)[:, None] + offset for offset in (0, 1, 2))
    for kept, part in zip(merge_components(*parts, limit=8), parts, strict=True):
        assert torch.equal(kept, part)


def thousand_components(kind):
    rng = np.random.default_rng(0)
    mean, log_variance = rng.normal(size=(2, 1000))
    odd = np.arange(1000) % 2 == 1
    if kind == "smooth":
        return mean, np.exp(0.3 * log_variance), np.zeros(1000)
    if kind == "uneven weights":
        return mean, np.full(1000, 0.04), 3 * rng.normal(size=1000)
    if kind == "two clusters":
        return np.where(odd, 5.0, -5.0) + 0.1 * mean, np.full(1000, 0.01), np.zeros(1000)
    return 0.01 * mean, np.where(odd, 0.01, 1.0), np.zeros(1000)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["smooth", "uneven weights", "two clusters", "narrow and wide"])
@pytest.mark.parametrize("batch_size", [10, 1000])
def test_merging_keeps_the_entropy_of_a_thousand_components(kind, batch_size):
    parts = thousand_components(kind)
    posterior = GaussianPosterior(Gaussian(torch.zeros(1, 1), torch.ones(1, 1)))
    for start in range(0, 1000, batch_size):
        mean, variance, log_weights = (
            tensor(part[start : start + batch_size])[:, None] for part in parts
        )
        posterior.update(Gaussian(mean[..., None], variance[..., None]), log_weights)
    total = posterior.uncertainty("expected").total
    close(total, [entropy_on_a_grid(*parts)], rtol=0, atol=1e-2)


# Posterior averages. A case is (given, samples, log weights); samples have a leading model axis.


def sizes(draw, *largest):
    return tuple(draw(st.integers(1, size)) for size in largest)


@st.composite
def categorical_cases(draw):
    n_models, n_rows, n_classes = sizes(draw, 6, 3, 4)
    shape = (n_models + 1, n_rows, n_classes + 1)
    log_proba = tensor(draw(arrays(float, shape, elements=st.floats(-20, 20)))).log_softmax(-1)
    log_weights = draw(arrays(float, (n_models, n_rows), elements=st.floats(-15, 15)))
    return Categorical(log_proba[0]), Categorical(log_proba[1:]), tensor(log_weights)


@st.composite
def gaussian_cases(draw):
    n_models, n_rows, n_outputs = sizes(draw, 5, 2, 2)
    shape = (n_models + 1, n_rows, n_outputs)
    mean = tensor(draw(arrays(float, shape, elements=st.floats(-5, 5))))
    variance = tensor(draw(arrays(float, shape, elements=st.floats(-4, 4)))).exp()
    log_weights = draw(arrays(float, (n_models, n_rows), elements=st.floats(-8, 8)))
    parts = Gaussian(mean[0], variance[0]), Gaussian(mean[1:], variance[1:])
    return *parts, tensor(log_weights)


def one_row(case, row):
    given_model, samples, log_weights = case
    return (
        given_model[[row]],
        samples[(slice(None), [row])],
        log_weights[:, [row]],
    )


def posterior_of(kind, given_model, samples, log_weights=None, cuts=()):
    """Return the posterior after adding the samples, in batches that end at the cuts."""
    posterior = make_posterior(given_model, "entropy" if kind == "categorical" else kind)
    wanted = CategoricalPosterior if kind == "categorical" else GaussianPosterior
    assert type(posterior) is wanted
    for start, stop in pairwise([0, *sorted(set(cuts)), len(samples)]):
        batch = slice(start, stop)
        weights = None if log_weights is None else log_weights[batch]
        posterior.update(samples[batch], weights)
    return posterior


def results(posterior):
    """Return everything a posterior says but the error of the expected setting, by name."""
    answers = {
        f"{setting} {name}": value
        for setting in SETTINGS
        for name, value in posterior.uncertainty(setting)._columns().items()
    }
    answers["error"] = posterior.standard_error("given")
    answers["size"] = posterior.effective_sample_size()
    average = posterior.prediction("expected")
    if isinstance(average, Gaussian):
        return answers | {"mean": average.mean, "variance": average.variance}
    return answers | {"proba": average.expected()}


def assert_same(posterior, other, atol=1e-9, leave_out=()):
    expected = results(other)
    for name, value in results(posterior).items():
        if name not in leave_out:
            # Standard errors come out of a difference of sums: half of the digits are lost.
            loose = 1e-5 if name == "error" else atol
            np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=loose, err_msg=name)


KINDS = pytest.mark.parametrize("kind", ["categorical", "entropy", "variance"])


def cases(kind):
    return categorical_cases() if kind == "categorical" else gaussian_cases()


def normalised(log_weights):
    return log_weights.softmax(dim=0).numpy()


@pytest.mark.slow
@KINDS
@NUMERIC
@given(data=st.data())
def test_parts_add_up_and_the_epistemic_part_is_never_negative(kind, data):
    posterior = posterior_of(kind, *data.draw(cases(kind)))
    for setting in SETTINGS:
        uncertainty = posterior.uncertainty(setting)
        close(uncertainty.total, uncertainty.aleatoric + uncertainty.epistemic, rtol=1e-15)
        assert (uncertainty.epistemic >= 0).all()
        for part in uncertainty:
            assert part.dtype == np.float64
            assert part.shape == (len(posterior.effective_sample_size()),)
            assert np.isfinite(part).all()


@pytest.mark.slow
@KINDS
@NUMERIC
@given(data=st.data())
def test_models_that_agree_leave_no_epistemic_uncertainty(kind, data):
    given_model, _, log_weights = data.draw(cases(kind))
    same = given_model[None]
    samples = given_model.expand(len(log_weights))
    posterior = posterior_of(kind, given_model, samples, log_weights)
    for setting in SETTINGS:
        aleatoric, epistemic, total = posterior.uncertainty(setting)
        close(epistemic, np.zeros(len(epistemic)), atol=1e-6)
        close(posterior.standard_error(setting), np.zeros(len(epistemic)), atol=1e-6)
        alone = posterior_of(kind, given_model, same).uncertainty(setting)
        close(aleatoric, alone.aleatoric)
        close(total, alone.total, atol=1e-6)


@pytest.mark.slow
@KINDS
@NUMERIC
@given(data=st.data())
def test_a_single_model_is_its_own_average(kind, data):
    given_model, samples, _ = data.draw(cases(kind))
    first = samples[slice(1)]
    posterior = posterior_of(kind, given_model, first)
    aleatoric, epistemic, _ = posterior.uncertainty("expected")
    own = first.variance[0].sum(-1) if kind == "variance" else first[0].entropy()
    close(aleatoric, own)
    # Exactly none: rows must not be ranked by rounding. (A Gaussian's variance is summed up.)
    close(epistemic, np.zeros(len(epistemic)), atol=0 if kind == "categorical" else 1e-10)
    close(posterior.effective_sample_size(), np.ones(len(epistemic)))


@pytest.mark.slow
@KINDS
@NUMERIC
@given(data=st.data())
def test_order_of_the_models_does_not_matter(kind, data):
    given_model, samples, log_weights = data.draw(cases(kind))
    order = torch.tensor(data.draw(st.permutations(range(len(log_weights)))))
    shuffled = posterior_of(kind, given_model, samples[order], log_weights[order])
    assert_same(shuffled, posterior_of(kind, given_model, samples, log_weights))


@pytest.mark.slow
@KINDS
@NUMERIC
@given(data=st.data(), constant=st.floats(-600, 600))
def test_scale_of_the_weights_does_not_matter(kind, data, constant):
    given_model, samples, log_weights = data.draw(cases(kind))
    scaled = posterior_of(kind, given_model, samples, log_weights + constant)
    assert_same(scaled, posterior_of(kind, given_model, samples, log_weights))


@pytest.mark.slow
@KINDS
@NUMERIC
@given(data=st.data())
def test_several_updates_equal_one(kind, data):
    case = data.draw(cases(kind))
    cuts = data.draw(st.sets(st.sampled_from(range(len(case[2]))))) - {0}
    assert_same(posterior_of(kind, *case, cuts), posterior_of(kind, *case))


@pytest.mark.slow
@KINDS
@NUMERIC
@given(data=st.data())
def test_rows_are_independent(kind, data):
    case = data.draw(cases(kind))
    together = results(posterior_of(kind, *case))
    for row in range(case[2].shape[1]):
        for name, value in results(posterior_of(kind, *one_row(case, row))).items():
            expected = together[name][row : row + 1]
            close(value, expected, atol=1e-6 if name == "error" else 1e-10)


@pytest.mark.slow
@KINDS
@NUMERIC
@given(data=st.data())
def test_integer_weights_equal_repeated_models(kind, data):
    given_model, samples, log_weights = data.draw(cases(kind))
    n_models, n_rows = log_weights.shape
    times = data.draw(st.lists(st.integers(1, 4), min_size=n_models, max_size=n_models))
    weights = tensor(times).log()[:, None].expand(-1, n_rows)
    which = torch.arange(n_models).repeat_interleave(torch.tensor(times))
    weighted = posterior_of(kind, given_model, samples, weights)
    repeated = posterior_of(kind, given_model, samples[which])
    # A single component is known in closed form, its copies are integrated.
    assert_same(weighted, repeated, atol=1e-6, leave_out=("error", "size"))
    close(repeated.effective_sample_size(), np.full(n_rows, sum(times)))


@KINDS
@pytest.mark.parametrize("cuts", [(), (1,), (2,)])
def test_models_of_weight_zero_are_left_out_whatever_they_predict(kind, cuts):
    log_weights = tensor([[0.0], [-np.inf], [1.0]])
    if kind == "categorical":
        given_model = Categorical(tensor([[0.5, 0.5]]).log())
        samples = Categorical(tensor([[[0.2, 0.8]], [[np.nan, np.nan]], [[0.6, 0.4]]]).log())
    else:
        given_model = Gaussian(torch.zeros(1, 1), torch.ones(1, 1))
        samples = Gaussian(*tensor([[1.0, np.nan, 3.0], [2.0, np.nan, 1.0]])[..., None, None])
    kept = [0, 2]
    rest = posterior_of(kind, given_model, samples[kept], log_weights[kept])
    assert_same(posterior_of(kind, given_model, samples, log_weights, cuts), rest)


@KINDS
def test_a_row_without_weight_is_nan_and_leaves_the_others_alone(kind):
    log_weights = tensor([[0.0, -np.inf], [1.0, -np.inf]])
    values = tensor([[[0.2, 0.8]] * 2, [[0.6, 0.4]] * 2])
    given_model, samples = Categorical(values[0].log()), Categorical(values.log())
    if kind != "categorical":
        given_model, samples = Gaussian(values[0], values[0]), Gaussian(values, 2 * values)
    case = given_model, samples, log_weights
    both, alone = posterior_of(kind, *case), posterior_of(kind, *one_row(case, 0))
    for setting in SETTINGS:
        assert np.isnan(both.uncertainty(setting).epistemic[1])
        assert np.isnan(both.uncertainty(setting).total[1])
        close(both.uncertainty(setting).total[0], alone.uncertainty(setting).total[0])
        close(both.standard_error(setting)[0], alone.standard_error(setting)[0])


# What the measures are, from their definitions.


@NUMERIC
@given(categorical_cases())
def test_categorical_measures_by_definition(case):
    given_model, samples, log_weights = case
    posterior, weights = posterior_of("categorical", *case), normalised(log_weights)
    log_p, log_q = given_model.log_proba.numpy(), samples.log_proba.numpy()
    p, q = np.exp(log_p), np.exp(log_q)
    average = (weights[..., None] * q).sum(axis=0)
    close(posterior.prediction("given").expected(), p)
    close(posterior.prediction("expected").expected(), average)
    uncertainty = posterior.uncertainty("given")
    close(uncertainty.aleatoric, -(p * log_p).sum(-1))
    close(uncertainty.total, (weights * -(p * log_q).sum(-1)).sum(0))
    uncertainty = posterior.uncertainty("expected")
    close(uncertainty.aleatoric, (weights * -(q * log_q).sum(-1)).sum(0))
    close(uncertainty.total, -(average * np.log(average)).sum(-1))
    close(uncertainty.epistemic, (weights * (q * (log_q - np.log(average))).sum(-1)).sum(0))


@NUMERIC
@given(gaussian_cases())
def test_given_entropy_measures_are_gaussian_cross_entropies(case):
    given_model, samples, log_weights = case
    (m, s2), (mean, variance) = given_model.parts, samples.parts
    cross = 0.5 * (torch.log(2 * math.pi * variance) + (s2 + (m - mean) ** 2) / variance)
    uncertainty = posterior_of("entropy", *case).uncertainty("given")
    close(uncertainty.total, (log_weights.softmax(0) * cross.sum(-1)).sum(0))
    close(uncertainty.aleatoric, Normal(m, s2.sqrt()).entropy().sum(-1))


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(gaussian_cases())
def test_expected_entropy_measures_are_those_of_the_mixture(case):
    _, samples, log_weights = case
    mean, variance = samples.parts
    uncertainty = posterior_of("entropy", *case).uncertainty("expected")
    own = Normal(mean, variance.sqrt()).entropy().sum(-1)
    close(uncertainty.aleatoric, (log_weights.softmax(0) * own).sum(0))
    for row in range(mean.shape[1]):
        total = sum(
            entropy_by_quad(mean[:, row, output], variance[:, row, output], log_weights[:, row])
            for output in range(mean.shape[2])
        )
        close(uncertainty.total[row], total, rtol=0, atol=2 * QUADRATURE_TOLERANCE)


@NUMERIC
@given(gaussian_cases())
def test_variance_measures_split_the_total_variance(case):
    given_model, samples, log_weights = case
    (m, s2), (mean, variance) = given_model.parts, samples.parts
    posterior, weights = posterior_of("variance", *case), log_weights.softmax(0)[..., None]
    uncertainty = posterior.uncertainty("given")
    close(uncertainty.aleatoric, s2.sum(-1))
    close(uncertainty.epistemic, (weights * (mean - m) ** 2).sum((0, -1)))
    average = (weights * mean).sum(0)
    between = (weights * (mean - average) ** 2).sum(0)
    uncertainty = posterior.uncertainty("expected")
    close(uncertainty.aleatoric, (weights * variance).sum((0, -1)))
    close(uncertainty.epistemic, between.sum(-1), atol=1e-9)
    second_moment = (weights * (variance + mean**2)).sum(0)
    close(uncertainty.total, (second_moment - average**2).sum(-1), atol=1e-9)
    for measure in ("variance", "entropy"):
        prediction = posterior_of(measure, *case).prediction("expected")
        close(prediction.mean, average, atol=1e-11)
        close(prediction.variance, (weights * variance).sum(0) + between, atol=1e-9)


def test_variance_between_models_survives_a_large_offset():
    offset = tensor(np.random.default_rng(0).normal(size=(20, 3, 1)))
    samples = Gaussian(1e8 + offset, torch.ones(20, 3, 1))
    posterior = posterior_of("variance", Gaussian(samples.mean[0], torch.ones(3, 1)), samples)
    expected = samples.mean.sub(1e8).var(dim=0, correction=0)[:, 0]
    close(posterior.uncertainty("expected").epistemic, expected)


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["entropy", "variance"])
@NUMERIC
@given(case=gaussian_cases())
def test_outputs_add_up(measure, case):
    given_model, samples, log_weights = case
    together = posterior_of(measure, *case)
    apart = [
        posterior_of(measure, given_model[..., [k]], samples[..., [k]], log_weights)
        for k in range(samples.mean.shape[-1])
    ]
    for setting in SETTINGS:
        parts = zip(*(one.uncertainty(setting) for one in apart), strict=True)
        for value, of_outputs in zip(together.uncertainty(setting), parts, strict=True):
            # The epistemic part of an output is clamped at zero, the sum only as a whole.
            close(value, np.sum(of_outputs, axis=0), atol=1e-6)


@pytest.mark.slow
@KINDS
@NUMERIC
@given(data=st.data())
def test_standard_error_of_the_given_setting(kind, data):
    given_model, samples, log_weights = data.draw(cases(kind))
    if kind == "variance":
        divergence = ((samples.mean - given_model.mean) ** 2).sum(-1).numpy()
    else:
        divergence = given_model.kl(samples).numpy()
    weights = normalised(log_weights)
    mean = (weights * divergence).sum(axis=0)
    expected = np.sqrt((weights**2 * (divergence - mean) ** 2).sum(axis=0))
    posterior = posterior_of(kind, given_model, samples, log_weights, range(1, len(weights)))
    close(posterior.standard_error("given"), expected, rtol=1e-6, atol=1e-6 * (1 + mean.max()))
    close(posterior.effective_sample_size(), 1 / (weights**2).sum(axis=0))


@NUMERIC
@given(categorical_cases())
def test_standard_error_of_the_expected_setting_in_one_update(case):
    _, samples, log_weights = case
    weights, q = normalised(log_weights), samples.expected().numpy()
    average = (weights[..., None] * q).sum(axis=0)
    spread = (q * (samples.log_proba.numpy() - np.log(average))).sum(axis=-1)
    expected = np.sqrt((weights**2 * (spread - (weights * spread).sum(axis=0)) ** 2).sum(axis=0))
    error = posterior_of("categorical", *case).standard_error("expected")
    close(error, expected, rtol=1e-6, atol=1e-6)


def test_certain_models_that_contradict_each_other():
    one_hot = classes([[[0.0, -np.inf]], [[-np.inf, 0.0]]])
    posterior = posterior_of("categorical", classes(np.log([[0.5, 0.5]])), one_hot)
    aleatoric, epistemic, total = posterior.uncertainty("expected")
    assert aleatoric == 0
    close(epistemic, [math.log(2)])
    close(total, [math.log(2)])
    close(posterior.standard_error("expected"), [0.0], atol=1e-8)


def test_standard_error_survives_probabilities_that_vanish_from_the_average():
    samples = classes([[[0.0, -np.inf]], [[0.0, -200.0]]])
    posterior = posterior_of("categorical", samples[0], samples, tensor([[0.0], [-600.0]]))
    close(posterior.standard_error("expected"), [0.0])
    close(posterior.uncertainty("expected").total, [0.0])


def test_single_precision_predictions_are_normalised_in_double_precision():
    logits = torch.randn(5, 4, 10, generator=torch.Generator().manual_seed(0))
    samples = Categorical(logits.log_softmax(-1))
    posterior = posterior_of("categorical", samples[0], samples)
    for setting in SETTINGS:
        prediction = posterior.prediction(setting)
        assert prediction.log_proba.dtype == torch.float64
        close(prediction.expected().sum(-1), np.ones(4), rtol=0, atol=1e-14)
    close(posterior.prediction("expected").expected(), logits.softmax(-1).mean(0), rtol=1e-5)


def test_frames_have_a_column_for_each_part():
    uncertainty = Uncertainty(np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([4.0, 6.0]))
    frame = uncertainty.to_frame(index=["a", "b"])
    assert list(frame.columns) == ["aleatoric", "epistemic", "total"]
    assert frame.loc["b"].tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (Diagnostics, ["standard_error"]),
        (SearchDiagnostics, ["rival", "rival_cost", "feasible", "n_steps"]),
        (ChainDiagnostics, ["standard_error", "r_hat"]),
    ],
)
def test_frames_have_a_column_for_each_diagnostic(kind, more):
    names = ["effective_sample_size", "n_diverged", "error", *more]
    assert [field.name for field in fields(kind)] == names
    diagnostics = kind(*(np.array([k, k + 10]) for k in range(len(names))))
    frame = diagnostics.to_frame(index=["a", "b"])
    assert list(frame.columns) == names
    assert frame.loc["b"].tolist() == [k + 10 for k in range(len(names))]


@pytest.mark.parametrize("setting", ["given", "expected"])
@pytest.mark.parametrize("measure", ["entropy", "variance", "brier", "zero_one"])
def test_what_is_not_asked_for_is_neither_kept_nor_missed(measure, setting):
    rng = np.random.default_rng(0)
    mean, log_variance = torch.tensor(rng.normal(size=(2, 5, 4, 2)))
    of_values = [Gaussian(mean, log_variance.exp())] if measure in ("entropy", "variance") else []
    for models in [Categorical(mean.log_softmax(-1))] * (measure != "variance") + of_values:
        every = make_posterior(models[0], measure)
        some = make_posterior(models[0], measure, setting=setting, standard_error=False)
        for posterior in (every, some):
            posterior.update(models[:3])
            posterior.update(models[3:])
        close(some.uncertainty(setting), every.uncertainty(setting), rtol=0)
        close(some.variance(setting), every.variance(setting), rtol=0)
        close(some.all_agree(setting), every.all_agree(setting), rtol=0)
        np.testing.assert_array_equal(
            some.prediction(setting).to_array(), every.prediction(setting).to_array()
        )
        kept, all_kept = set(some._means._sums), set(every._means._sums)
        assert kept < all_kept
        assert not some._means._error_sums
        if isinstance(some, GaussianPosterior):
            wanted = setting == "expected" and measure == "entropy"
            assert (some._components is not None) == wanted


def test_close_components_share_their_panels():
    """64 components of one scale take not many more panels than one of them."""
    mu = torch.linspace(-1, 1, 64, dtype=torch.float64)[None]
    edges = _panel_edges(mu, torch.ones_like(mu))
    assert (edges.diff(dim=-1) > 0).sum() < 20


@pytest.mark.parametrize("measure", ["entropy", "brier", "zero_one"])
@pytest.mark.parametrize("cut", [None, 3])
def test_pairwise_divergence_of_classes_is_a_double_sum(measure, cut):
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(4), size=(7, 5))
    log_weights = rng.normal(size=(7, 5))
    weights = np.exp(log_weights) / np.exp(log_weights).sum(axis=0)
    samples = Categorical(tensor(np.log(proba)))
    posterior = make_posterior(samples[0], measure, setting="pairwise")
    for part in (slice(cut), slice(cut, None)) if cut else (slice(None),):
        posterior.update(samples[part], tensor(log_weights)[part])
    own, expected = {
        "entropy": (
            -(proba * np.log(proba)).sum(-1),
            lambda p, q: (p * np.log(p / q)).sum(-1),
        ),
        "brier": (1 - (proba**2).sum(-1), lambda p, q: ((p - q) ** 2).sum(-1)),
        "zero_one": (
            1 - proba.max(-1),
            lambda p, q: p.max(-1) - np.take_along_axis(p, q.argmax(-1)[:, None], 1)[:, 0],
        ),
    }[measure]
    pairs = [(i, j) for i in range(7) for j in range(7)]
    divergence = sum(weights[i] * weights[j] * expected(proba[i], proba[j]) for i, j in pairs)
    aleatoric, epistemic, total = posterior.uncertainty("pairwise")
    close(aleatoric, (weights * own).sum(0), rtol=1e-10)
    close(epistemic, divergence, rtol=1e-9)
    close(total, aleatoric + epistemic)
    assert np.isnan(posterior.standard_error("pairwise")).all()


@pytest.mark.parametrize("measure", ["entropy", "variance"])
def test_pairwise_divergence_of_values_is_a_double_sum(measure):
    rng = np.random.default_rng(1)
    mean, variance = rng.normal(size=(6, 4, 2)), rng.uniform(0.5, 2, size=(6, 4, 2))
    samples = Gaussian(tensor(mean), tensor(variance))
    posterior = make_posterior(samples[0], measure, setting="pairwise")
    posterior.update(samples)

    def divergence(i, j):
        if measure == "variance":
            return (mean[i] - mean[j]) ** 2
        ratio = variance[i] / variance[j]
        return 0.5 * (ratio - 1 - np.log(ratio) + (mean[i] - mean[j]) ** 2 / variance[j])

    expected = np.mean([divergence(i, j) for i in range(6) for j in range(6)], axis=0).sum(-1)
    close(posterior.uncertainty("pairwise").epistemic, expected, rtol=1e-10)
    # Of equal models, only rounding is left.
    same = make_posterior(samples[0], measure, setting="pairwise")
    same.update(samples[[0, 0, 0]])
    close(same.uncertainty("pairwise").epistemic, np.zeros(4), atol=1e-12)
