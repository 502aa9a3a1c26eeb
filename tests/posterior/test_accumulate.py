"""Posterior averages of measures, against their definitions."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import ndtr, ndtri
from torch.distributions import Normal

from sklearn_quam._network.predictions import Categorical, Gaussian
from sklearn_quam._posterior.accumulate import make_posterior
from sklearn_quam._posterior.measures import LOSSES, gaussian_mixture_entropy, mixture_quantiles

NUMERIC = settings(deadline=None, max_examples=15)
# (measure, whether of classes)
KINDS = [("entropy", True), ("brier", True), ("zero_one", True)]
KINDS += [("entropy", False), ("variance", False)]
each_kind = pytest.mark.parametrize(
    ("measure", "of_classes"), KINDS, ids=lambda v: v if isinstance(v, str) else "c" * v or "v"
)
each_setting = pytest.mark.parametrize("setting", ["given", "expected", "pairwise"])


def tensor(values):
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def classes(proba):
    return Categorical(tensor(proba).log())


def close(actual, expected, rtol=1e-10, atol=1e-12):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=rtol, atol=atol)


@st.composite
def cases(draw, of_classes):
    """Return a given prediction (n_rows), samples (n_models, n_rows), and log weights."""
    n_models, n_rows, n_outputs = (draw(st.integers(1, most)) for most in (6, 3, 3))
    shape = (n_models + 1, n_rows, n_outputs + of_classes)
    log_weights = tensor(draw(arrays(float, (n_models, n_rows), elements=st.floats(-8, 8))))
    if of_classes:
        logits = tensor(draw(arrays(float, shape, elements=st.floats(-20, 20))))
        every = Categorical(logits.log_softmax(-1))
    else:
        mean = tensor(draw(arrays(float, shape, elements=st.floats(-5, 5))))
        log_variance = tensor(draw(arrays(float, shape, elements=st.floats(-4, 4))))
        every = Gaussian(mean, log_variance.exp())
    return every[0], every[1:], log_weights


def posterior_of(measure, setting, original, samples, log_weights=None, cuts=(), **options):
    """Return the posterior after adding the samples, in batches that end at the cuts."""
    posterior = make_posterior(original, setting, measure, **options)
    for start, stop in pairwise([0, *sorted(set(cuts)), len(samples)]):
        weights = None if log_weights is None else log_weights[start:stop]
        posterior.update(samples[start:stop], weights)
    return posterior


def results(posterior):
    """Return everything a posterior says, with how many digits of it are known."""
    average = posterior.prediction()
    answers = zip(("aleatoric", "epistemic", "total"), posterior.uncertainty(), strict=True)
    found = {name: (value, 1e-9) for name, value in answers}
    found["size"] = posterior.effective_sample_size(), 1e-9
    # Standard errors come out of a difference of sums: half of the digits are lost.
    found["error"] = posterior.standard_error(), 1e-5
    return found | {f"prediction {i}": (part, 1e-9) for i, part in enumerate(average.parts)}


def assert_same(posterior, other, leave_out=(), atol=0.0):
    expected = results(other)
    for name, (value, digits) in results(posterior).items():
        if name not in leave_out:
            close(value, expected[name][0], rtol=1e-6, atol=max(atol, digits))


# -- what holds for all of them --------------------------------------------------------------


@each_kind
@each_setting
@NUMERIC
@given(data=st.data())
def test_parts_add_up_and_rows_are_independent(measure, of_classes, setting, data):
    original, samples, log_weights = data.draw(cases(of_classes))
    posterior = posterior_of(measure, setting, original, samples, log_weights)
    u = posterior.uncertainty()
    close(u.total, u.aleatoric + u.epistemic, rtol=1e-15)
    assert (u.epistemic >= 0).all()
    assert all(part.dtype == np.float64 and np.isfinite(part).all() for part in u)
    together = results(posterior)
    alone = posterior_of(measure, setting, original[[0]], samples[:, [0]], log_weights[:, [0]])
    for name, (value, digits) in results(alone).items():
        close(value, together[name][0][:1], atol=max(digits, 1e-10), rtol=1e-6)


@each_kind
@each_setting
@NUMERIC
@given(data=st.data(), constant=st.floats(-600, 600))
def test_order_batches_and_scale_of_weights_do_not_matter(
    measure, of_classes, setting, data, constant
):
    original, samples, log_weights = data.draw(cases(of_classes))
    whole = posterior_of(measure, setting, original, samples, log_weights)
    order = torch.tensor(data.draw(st.permutations(range(len(log_weights)))))
    cuts = data.draw(st.sets(st.sampled_from(range(len(log_weights))))) - {0}
    shuffled = samples[order], log_weights[order] + constant
    assert_same(posterior_of(measure, setting, original, *shuffled, cuts), whole)


@each_kind
@each_setting
@NUMERIC
@given(data=st.data())
def test_models_that_agree_leave_no_epistemic_uncertainty(measure, of_classes, setting, data):
    original, _, log_weights = data.draw(cases(of_classes))
    samples = original.expand(len(log_weights))
    posterior = posterior_of(measure, setting, original, samples, log_weights)
    aleatoric, epistemic, _ = posterior.uncertainty()
    close(epistemic, np.zeros(len(epistemic)), atol=1e-6)
    if setting != "pairwise":
        close(posterior.standard_error(), np.zeros(len(epistemic)), atol=1e-6)
    close(
        aleatoric, posterior_of(measure, setting, original, original[None]).uncertainty().aleatoric
    )


@each_kind
@each_setting
@NUMERIC
@given(data=st.data())
def test_integer_weights_equal_repeated_models(measure, of_classes, setting, data):
    original, samples, log_weights = data.draw(cases(of_classes))
    n_models, n_rows = log_weights.shape
    times = data.draw(st.lists(st.integers(1, 4), min_size=n_models, max_size=n_models))
    weights = tensor(times).log()[:, None].expand(-1, n_rows)
    which = torch.arange(n_models).repeat_interleave(torch.tensor(times))
    weighted = posterior_of(measure, setting, original, samples, weights)
    repeated = posterior_of(measure, setting, original, samples[which])
    # A single component is known in closed form, its copies are integrated.
    assert_same(weighted, repeated, leave_out=("error", "size"), atol=1e-6)
    close(repeated.effective_sample_size(), np.full(n_rows, sum(times)))


@each_kind
@each_setting
@pytest.mark.parametrize("cuts", [(), (1,), (2,)])
def test_models_of_weight_zero_are_left_out_whatever_they_predict(
    measure, of_classes, setting, cuts
):
    log_weights = tensor([[0.0], [-np.inf], [1.0]])
    if of_classes:
        original = classes([[0.5, 0.5]])
        samples = classes([[[0.2, 0.8]], [[np.nan, np.nan]], [[0.6, 0.4]]])
    else:
        original = Gaussian(torch.zeros(1, 1), torch.ones(1, 1))
        samples = Gaussian(*tensor([[1.0, np.nan, 3.0], [2.0, np.nan, 1.0]])[..., None, None])
    kept = [0, 2]
    rest = posterior_of(measure, setting, original, samples[kept], log_weights[kept])
    assert_same(posterior_of(measure, setting, original, samples, log_weights, cuts), rest)


@each_kind
@each_setting
def test_a_row_without_weight_is_nan_and_leaves_the_others_alone(measure, of_classes, setting):
    log_weights = tensor([[0.0, -np.inf], [1.0, -np.inf]])
    values = tensor([[[0.2, 0.8]] * 2, [[0.6, 0.4]] * 2])
    original, samples = Categorical(values[0].log()), Categorical(values.log())
    if not of_classes:
        original, samples = Gaussian(values[0], values[0]), Gaussian(values, 2 * values)
    both = posterior_of(measure, setting, original, samples, log_weights)
    alone = posterior_of(measure, setting, original[[0]], samples[:, [0]], log_weights[:, [0]])
    assert np.isnan(both.uncertainty().epistemic[1])
    close(both.uncertainty().total[0], alone.uncertainty().total[0])
    close(both.standard_error()[0], alone.standard_error()[0])


@each_kind
@each_setting
def test_only_what_a_setting_needs_is_summed_up(measure, of_classes, setting):
    values = torch.tensor(np.random.default_rng(0).normal(size=(5, 4, 2)))
    models = Categorical(values.log_softmax(-1)) if of_classes else Gaussian(values, values.exp())
    posterior = posterior_of(measure, setting, models[0], models, standard_error=False)
    given_only = {"divergence", "divergence in nats"}
    assert (set(posterior._means._sums) & given_only == set()) == (setting != "given")
    assert not posterior._means._error_sums
    if not of_classes:
        wanted = setting == "expected" and measure == "entropy"
        assert (posterior._components is not None) == wanted


# -- what the measures are, from their definitions -------------------------------------------


@pytest.mark.parametrize("measure", LOSSES)
@NUMERIC
@given(case=cases(True))
def test_measures_of_classes_are_means_over_models(measure, case):
    original, samples, log_weights = case
    weights, loss = log_weights.softmax(0), LOSSES[measure]
    average = (weights[..., None] * samples.expected()).sum(0)
    own, q = loss.own(samples), samples.expected()
    pairs = sum(
        weights[i] * weights[j] * loss.excess(samples[i], samples[j], q[j])
        for i in range(len(q))
        for j in range(len(q))
    )
    to_average = loss.excess(samples, Categorical(average.log().expand_as(q)), average.expand_as(q))
    expected = {
        "given": (loss.own(original), (weights * loss.excess(original, samples, q)).sum(0)),
        "expected": ((weights * own).sum(0), (weights * to_average).sum(0)),
        "pairwise": ((weights * own).sum(0), pairs),
    }
    for setting, (aleatoric, epistemic) in expected.items():
        posterior = posterior_of(measure, setting, *case)
        u = posterior.uncertainty()
        close(u.aleatoric, aleatoric, rtol=1e-9)
        close(u.epistemic, epistemic, rtol=1e-6, atol=1e-10)
        wanted = original.expected() if setting == "given" else average
        close(posterior.prediction().expected(), wanted)
    spread = (weights**2 * (to_average - expected["expected"][1]) ** 2).sum(0).sqrt()
    error = posterior_of(measure, "expected", *case).standard_error()
    close(error, spread, rtol=1e-5, atol=1e-6)


def test_brier_scores_and_mistakes_by_hand():
    p, q, r = [0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]
    log_weights = tensor([[0.25], [0.75]]).log()
    mean = np.array([0.175, 0.3, 0.525])
    own = 0.25 * (1 - 0.46) + 0.75 * (1 - 0.44)
    for measure, setting, aleatoric, epistemic in (
        # 1 - .25 - .09 - .04; squared distances of p and q, p and r.
        ("brier", "given", 0.62, 0.25 * 0.26 + 0.75 * 0.26),
        ("brier", "expected", own, 1 - (mean**2).sum() - own),
        # q decides for the second class, r for the third: p says that this is right with .3 and .2.
        ("zero_one", "given", 0.5, 0.25 * 0.2 + 0.75 * 0.3),
        # The mean decides for the third.
        ("zero_one", "expected", 0.4, 0.475 - 0.4),
    ):
        case = classes([p]), classes([[q], [r]]), log_weights
        u = posterior_of(measure, setting, *case).uncertainty()
        close(u.aleatoric, [aleatoric])
        close(u.epistemic, [epistemic])


@pytest.mark.parametrize("setting", ["given", "expected"])
def test_models_that_decide_for_the_same_class_still_differ(setting):
    case = classes([[0.5, 0.3, 0.2]]), classes([[[0.9, 0.1, 0.0]], [[0.4, 0.3, 0.3]]])
    posterior = posterior_of("zero_one", setting, *case)
    assert posterior.uncertainty().epistemic == 0
    assert not posterior.all_agree()
    assert posterior_of("zero_one", setting, case[0], case[0][None]).all_agree()


@NUMERIC
@given(cases(False))
def test_entropies_of_values_are_those_of_gaussians_and_of_their_mixture(case):
    original, samples, log_weights = case
    (m, s2), (mean, variance) = original.parts, samples.parts
    weights = log_weights.softmax(0)
    cross = 0.5 * (torch.log(2 * math.pi * variance) + (s2 + (m - mean) ** 2) / variance)
    u = posterior_of("entropy", "given", *case).uncertainty()
    close(u.total, (weights * cross.sum(-1)).sum(0))
    close(u.aleatoric, Normal(m, s2.sqrt()).entropy().sum(-1))
    u = posterior_of("entropy", "expected", *case).uncertainty()
    own = Normal(mean, variance.sqrt()).entropy().sum(-1)
    close(u.aleatoric, (weights * own).sum(0))
    total = sum(
        gaussian_mixture_entropy(mean[..., k], variance[..., k], log_weights)
        for k in range(mean.shape[-1])
    )
    close(u.total, total.numpy(), atol=1e-5)


@NUMERIC
@given(cases(False))
def test_variance_measures_split_the_total_variance(case):
    original, samples, log_weights = case
    (m, s2), (mean, variance) = original.parts, samples.parts
    weights = log_weights.softmax(0)[..., None]
    u = posterior_of("variance", "given", *case).uncertainty()
    close(u.aleatoric, s2.sum(-1))
    close(u.epistemic, (weights * (mean - m) ** 2).sum((0, -1)))
    average = (weights * mean).sum(0)
    between = (weights * (mean - average) ** 2).sum(0)
    for measure in ("variance", "entropy"):
        posterior = posterior_of(measure, "expected", *case)
        close(posterior.prediction().mean, average, atol=1e-11)
        close(posterior.variance(), (weights * variance).sum(0) + between, atol=1e-9)
    u = posterior_of("variance", "expected", *case).uncertainty()
    close(u.aleatoric, (weights * variance).sum((0, -1)))
    close(u.epistemic, between.sum(-1), atol=1e-9)


@pytest.mark.parametrize("measure", ["entropy", "variance"])
def test_pairwise_divergence_of_values_is_a_double_sum(measure):
    rng = np.random.default_rng(1)
    mean, variance = rng.normal(size=(6, 4, 2)), rng.uniform(0.5, 2, size=(6, 4, 2))
    samples = Gaussian(tensor(mean), tensor(variance))

    def divergence(i, j):
        if measure == "variance":
            return (mean[i] - mean[j]) ** 2
        ratio = variance[i] / variance[j]
        return 0.5 * (ratio - 1 - np.log(ratio) + (mean[i] - mean[j]) ** 2 / variance[j])

    expected = np.mean([divergence(i, j) for i in range(6) for j in range(6)], axis=0).sum(-1)
    posterior = posterior_of(measure, "pairwise", samples[0], samples)
    close(posterior.uncertainty().epistemic, expected, rtol=1e-10)
    assert np.isnan(posterior.standard_error()).all()


# -- numbers at their limits -----------------------------------------------------------------


def test_variance_between_models_survives_a_large_offset():
    offset = tensor(np.random.default_rng(0).normal(size=(20, 3, 1)))
    samples = Gaussian(1e8 + offset, torch.ones(20, 3, 1))
    original = Gaussian(samples.mean[0], torch.ones(3, 1))
    expected = samples.mean.sub(1e8).var(dim=0, correction=0)[:, 0]
    close(posterior_of("variance", "expected", original, samples).uncertainty().epistemic, expected)


def test_certain_models_that_contradict_each_other():
    one_hot = Categorical(tensor([[[0.0, -np.inf]], [[-np.inf, 0.0]]]))
    posterior = posterior_of("entropy", "expected", classes([[0.5, 0.5]]), one_hot)
    aleatoric, epistemic, total = posterior.uncertainty()
    assert aleatoric == 0
    close([epistemic, total], np.full((2, 1), math.log(2)))
    close(posterior.standard_error(), [0.0], atol=1e-8)


def test_probabilities_may_vanish_from_the_average():
    samples = Categorical(tensor([[[0.0, -np.inf]], [[0.0, -200.0]]]))
    log_weights = tensor([[0.0], [-600.0]])
    posterior = posterior_of("entropy", "expected", samples[0], samples, log_weights)
    close(posterior.standard_error(), [0.0])
    close(posterior.uncertainty().total, [0.0])


def test_single_precision_predictions_are_normalised_in_double_precision():
    logits = torch.randn(5, 4, 10, generator=torch.Generator().manual_seed(0))
    samples = Categorical(logits.log_softmax(-1))
    for setting in ("given", "expected"):
        prediction = posterior_of("entropy", setting, samples[0], samples).prediction()
        assert prediction.log_proba.dtype == torch.float64
        close(prediction.expected().sum(-1), np.ones(4), rtol=0, atol=1e-14)
    close(prediction.expected(), logits.softmax(-1).mean(0), rtol=1e-5)


@pytest.mark.parametrize("measure", ["entropy", "variance"])
@pytest.mark.parametrize("n_models", [5, 500])
def test_quantiles_of_sampled_models(measure, n_models):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(n_models, 3, 2, generator=generator, dtype=torch.float64)
    variance = 0.1 + torch.rand(n_models, 3, 2, generator=generator, dtype=torch.float64)
    log_weights = torch.randn(n_models, 3, generator=generator, dtype=torch.float64)
    samples, cuts = Gaussian(mean, variance), (n_models // 3, n_models // 2)
    case = samples[0], samples, log_weights, cuts
    mixture = posterior_of(measure, "given", *case, predictive=True).predictive()
    assert mixture.shape == (3, 2, min(n_models, 64), 3)
    weight = torch.softmax(log_weights, dim=0)[..., None].numpy()
    for share in (0.05, 0.5, 0.95):
        found = mixture_quantiles(mixture, ndtri([share, share]))
        below = (weight * ndtr((found - mean.numpy()) / variance.sqrt().numpy())).sum(axis=0)
        # Of many models, neighbours are merged.
        close(below, share, rtol=0, atol=1e-9 if n_models == 5 else 2e-3)
