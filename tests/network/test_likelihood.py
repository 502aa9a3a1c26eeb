"""Links and likelihoods, against torch's own functions."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from sklearn_quam._curvature.scores import Fisher
from sklearn_quam._network.likelihood import (
    CategoricalLikelihood,
    GaussianLikelihood,
    InvalidOutputError,
    infer_link,
)
from sklearn_quam._network.predictions import Categorical, Gaussian

# One network, and three of them along a leading axis.
LEADING = pytest.mark.parametrize("leading", [(), (3,)], ids=["one_model", "three_models"])


def normal(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def assert_close(actual, expected, **tolerance):
    torch.testing.assert_close(actual, expected, **({"rtol": 1e-12, "atol": 1e-12} | tolerance))


@LEADING
@pytest.mark.parametrize("link", ["logits", "log_probabilities", "probabilities"])
def test_class_columns_become_log_probabilities(link, leading):
    logits = normal(*leading, 6, 4, scale=5.0)
    output = {
        "logits": logits,
        "log_probabilities": logits.log_softmax(-1),
        "probabilities": logits.softmax(-1),
    }[link]
    prediction = CategoricalLikelihood(link).prediction(output)
    assert type(prediction) is Categorical
    assert_close(prediction.log_proba, logits.log_softmax(-1))


@LEADING
@pytest.mark.parametrize("link", ["binary_logit", "probability"])
def test_a_single_column_belongs_to_the_second_class(link, leading):
    logit = normal(*leading, 6, 1, scale=5.0)
    output = logit if link == "binary_logit" else logit.sigmoid()
    expected = torch.cat([1 - logit.sigmoid(), logit.sigmoid()], dim=-1)
    assert_close(CategoricalLikelihood(link).prediction(output).expected(), expected)


def test_extreme_logits_keep_exact_log_probabilities():
    logit = torch.tensor([[-300.0], [300.0], [0.0]])
    binary = CategoricalLikelihood("binary_logit").prediction(logit).log_proba
    half = -math.log(2)
    assert_close(binary, torch.tensor([[0.0, -300.0], [-300.0, 0.0], [half, half]]), rtol=1e-6)
    scores = torch.tensor([[0.0, -3e4, -300.0]])
    assert_close(CategoricalLikelihood("logits").prediction(scores).log_proba, scores)


@LEADING
def test_categorical_loss_is_cross_entropy(leading):
    logits = normal(*leading, 6, 4, scale=3.0)
    target = torch.tensor([0, 3, 1, 1, 2, 0])
    likelihood = CategoricalLikelihood("logits")
    loss = likelihood.negative_log_likelihood(likelihood.prediction(logits), target)
    repeated = target.expand(*leading, 6).flatten()
    expected = functional.cross_entropy(logits.reshape(-1, 4), repeated, reduction="none")
    assert_close(loss, expected.reshape(*leading, 6))


@pytest.mark.parametrize("leading", [(3,)])
@pytest.mark.parametrize("form", ["tuple", "columns"])
@pytest.mark.parametrize("link", ["mean_variance", "mean_log_variance"])
def test_mean_and_variance_are_read_from_both_forms(link, form, leading):
    mean, log_variance = normal(*leading, 6, 2), normal(*leading, 6, 2, seed=1, scale=3.0)
    second = log_variance.exp() if link == "mean_variance" else log_variance
    output = (mean, second) if form == "tuple" else torch.cat([mean, second], dim=-1)
    prediction = GaussianLikelihood(link).prediction(output)
    assert_close(prediction.mean, mean)
    assert_close(prediction.variance, log_variance.exp())


@LEADING
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_gaussian_loss_is_the_full_gaussian_nll(n_outputs, leading):
    mean = normal(*leading, 6, n_outputs)
    variance = normal(*leading, 6, n_outputs, seed=1).exp()
    target = normal(6, n_outputs, seed=2)
    likelihood = GaussianLikelihood("mean_variance")
    loss = likelihood.negative_log_likelihood(Gaussian(mean, variance), target)
    expected = functional.gaussian_nll_loss(
        mean, target.expand_as(mean), variance, full=True, reduction="none"
    )
    assert_close(loss, expected.sum(dim=-1))


SOFTMAX = normal(4, 3).softmax(-1)
EVERY_LIKELIHOOD = pytest.mark.parametrize(
    "likelihood",
    [
        CategoricalLikelihood("logits"),
        GaussianLikelihood("mean"),
        GaussianLikelihood("mean_variance"),
    ],
    ids=lambda likelihood: likelihood.link,
)


@pytest.mark.parametrize(
    ("likelihood", "output"),
    [
        (CategoricalLikelihood("logits"), normal(4, 3)),
        (CategoricalLikelihood("log_probabilities"), SOFTMAX.log()),
        (CategoricalLikelihood("probabilities"), SOFTMAX),
        (CategoricalLikelihood("probabilities"), torch.tensor([[0.0, 1.0]])),
        (CategoricalLikelihood("probability"), normal(4).sigmoid()),
        (CategoricalLikelihood("probability"), torch.tensor([[0.0], [1.0]])),
        (CategoricalLikelihood("binary_logit"), normal(4)),
        (GaussianLikelihood("mean"), normal(4, 3)),
        (GaussianLikelihood("mean"), (normal(4),)),
        (GaussianLikelihood("mean_variance"), (normal(4), normal(4).exp())),
        (GaussianLikelihood("mean_variance"), torch.ones(4, 2)),
        (GaussianLikelihood("mean_log_variance"), -torch.ones(4, 2)),
    ],
)
def test_fitting_output_passes_the_check(likelihood, output):
    likelihood.check(output)
    prediction = likelihood.prediction(output)
    assert prediction.n_outputs == likelihood.n_outputs(output)
    assert len(prediction) == len(output[0] if isinstance(output, tuple) else output)


@pytest.mark.parametrize(
    ("link", "output", "message"),
    [
        ("binary_logit", normal(4, 3), "3 columns.*means one.*link='logits'"),
        ("logits", normal(4, 1), "single column.*needs one column for each.*'binary_logit'"),
        ("log_probabilities", normal(4, 1), "single column, but link='log_probabilities'"),
        ("probabilities", normal(4, 3), "not probabilities.*link='logits'"),
        ("probabilities", SOFTMAX * 1.05, "not probabilities.*not summing to 1"),
        ("probabilities", SOFTMAX.log(), "not probabilities.*link='log_probabilities'"),
        ("probability", torch.tensor([[0.3], [1.2]]), "not between 0 and 1"),
        ("log_probabilities", normal(4, 3), "not log-probabilities.*link='logits'"),
        ("log_probabilities", SOFTMAX, "not log-probabilities.*link='probabilities'"),
    ],
)
def test_misfit_of_a_classifier_is_explained(link, output, message):
    with pytest.raises(InvalidOutputError, match=message):
        CategoricalLikelihood(link).check(output)


@pytest.mark.parametrize(
    ("link", "output", "message"),
    [
        ("mean", (normal(4), normal(4)), "2 outputs, but link='mean' means one.*'mean_variance'"),
        ("mean_variance", normal(4, 3), "3 columns, which cannot be halved.*link='mean'"),
        ("mean_log_variance", normal(4), "1 columns, which cannot be halved"),
        ("mean_variance", (normal(4, 1),), "one output, but its link means mean and variance"),
        ("mean_variance", (normal(4, 2), torch.ones(4, 1)), r"\(4, 2\).*\(4, 1\).*same shape"),
        ("mean_variance", (normal(2), torch.tensor([1.0, 0.0])), "not positive.*softplus"),
        ("mean_variance", -torch.ones(4, 2), "not positive.*link='mean_log_variance'"),
        ("mean_variance", (normal(1), torch.tensor([math.nan])), "NaN or infinite"),
    ],
)
def test_misfit_of_a_regressor_is_explained(link, output, message):
    with pytest.raises(InvalidOutputError, match=message):
        GaussianLikelihood(link).check(output)


@EVERY_LIKELIHOOD
@pytest.mark.parametrize(
    ("output", "message"),
    [
        (torch.full((4, 2), math.nan), "NaN or infinite.*training diverge"),
        (torch.full((4, 2), math.inf), "NaN or infinite.*is scaled"),
        (torch.full((4, 2, 2), 0.5), r"of shape \(4, 2, .*must be \(n_samples, n_outputs\)"),
        (torch.tensor(1.0), r"of shape \(\).*must be \(n_samples, n_outputs\)"),
        (torch.ones(4, 2, dtype=torch.int64), "torch.int64.*floating point"),
        (np.ones((4, 2)), "returns a ndarray; it must return a tensor"),
        ({"a": torch.ones(4, 2), "b": torch.ones(4, 2)}, r"several outputs: \['a', 'b'\]"),
        (None, "returns a NoneType; it must return a tensor"),
    ],
    ids=["nan", "inf", "three_axes", "no_axis", "integers", "ndarray", "dict", "none"],
)
def test_output_that_is_no_matrix_of_numbers_is_refused(likelihood, output, message):
    with pytest.raises(InvalidOutputError, match=message):
        likelihood.check(output)


@pytest.mark.parametrize(
    ("output", "task", "link"),
    [
        (SOFTMAX, "classifier", "probabilities"),
        (SOFTMAX.log(), "classifier", "log_probabilities"),
        ((SOFTMAX, "hidden state"), "classifier", "probabilities"),
        (normal(4), "regressor", "mean"),
        (normal(4, 2), "regressor", "mean"),
        ((normal(4), normal(4).exp()), "regressor", "mean_variance"),
    ],
)
def test_link_is_inferred_from_the_output(output, task, link):
    assert infer_link(output, task) == link


@pytest.mark.parametrize("output", [normal(4, 3), torch.ones(4, 2), SOFTMAX[:, :1]])
def test_ambiguous_classifier_output_asks_for_the_link(output):
    with pytest.raises(InvalidOutputError, match=r"Pass link=, one of .*'binary_logit'"):
        infer_link(output, "classifier")


@pytest.mark.parametrize(
    ("likelihood", "n_scores"),
    [
        (CategoricalLikelihood("logits"), 4),
        (CategoricalLikelihood("binary_logit"), 1),
        (GaussianLikelihood("mean", torch.tensor([0.5, 2.0])), 2),
        (GaussianLikelihood("mean_log_variance"), 4),
    ],
    ids=lambda value: getattr(value, "link", None),
)
def test_fisher_information_is_the_expected_second_derivative(likelihood, n_scores):
    """Expected over targets drawn from the prediction: all classes, or Gaussian quadrature."""
    scores, weight = normal(3, n_scores), torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    fisher = Fisher(likelihood, scores)
    found = fisher.matrices()
    for row in range(3):
        expected = torch.zeros(n_scores, n_scores, dtype=torch.float64)
        for target, share in draws(likelihood.prediction(scores[row : row + 1])):

            def loss(own, target=target):
                prediction = likelihood.prediction(own[None])
                return likelihood.negative_log_likelihood(prediction, target).sum()

            expected += share * torch.autograd.functional.hessian(loss, scores[row])
        assert_close(found[row], expected, rtol=1e-8, atol=1e-8)
    assert_close(fisher.diagonal(), found.diagonal(dim1=1, dim2=2))
    weighted = Fisher(likelihood, scores, weight)
    assert_close(weighted.total(), (weight[:, None, None] * found).sum(0))
    assert_close(fisher.root() @ fisher.root().mT, found)
    generator = torch.Generator().manual_seed(0)
    roots = [fisher.root(2, generator) for _ in range(1000)]
    mean = torch.stack([one @ one.mT for one in roots]).mean(dim=0)
    assert_close(mean, found, rtol=0, atol=0.05)


def draws(prediction):
    """Yield targets of one sample and their probabilities."""
    if isinstance(prediction, Categorical):
        for index, share in enumerate(prediction.expected()[0]):
            yield torch.tensor([index]), share
        return
    # One standard deviation up or down: exact for what is quadratic in the target.
    for signs in torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * prediction.n_outputs):
        yield prediction.mean + signs * prediction.variance.sqrt(), 0.5**prediction.n_outputs
