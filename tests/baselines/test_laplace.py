"""Laplace's approximation against closed forms, quadrature and brute force."""

import copy
import pickle
import resource

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit
from scipy.stats import multivariate_normal
from sklearn.linear_model import Ridge
from torch import nn

from sklearn_quam import LaplaceClassifier, LaplaceRegressor, LoRA
from sklearn_quam.baselines.laplace import _normal_numbers

from ..curvature.slow_curvature import close, seeded
from ..networks import (
    BINARY,
    LABELS,
    TARGET,
    TWO_TARGETS,
    X64,
    X64_NEW,
    MeanAndVariance,
    dense,
)

PRECISION, NOISE = 0.7, 0.3
TARGET64 = TARGET.astype(np.float64)
NOISY = BINARY ^ (np.arange(len(BINARY)) % 5 == 0)
# Whole numbers with mean one: as many rows are left.
COUNTS = np.tile([0, 2, 1, 1, 0, 2], 10)
STRUCTURES = ("full", "kron", "diag")
each_structure = pytest.mark.parametrize("structure", STRUCTURES)
exact_structures = pytest.mark.parametrize("structure", ["full", "kron"])
each_extent = pytest.mark.parametrize("parameters", ["last_layer", "all"])


def linear(weight, bias=None):
    """Return a linear layer with given weights, a row for each output."""
    weight = torch.as_tensor(np.atleast_2d(weight))
    layer = nn.Linear(weight.shape[1], len(weight), bias=bias is not None).double()
    with torch.no_grad():
        layer.weight[:] = weight
        if bias is not None:
            layer.bias[:] = torch.as_tensor(bias)
    return layer


def posterior(design, target, noise=NOISE):
    """Return mean and covariance of the weights of a Bayesian linear regression."""
    covariance = np.linalg.inv(design.T @ design / noise + PRECISION * np.eye(design.shape[1]))
    return covariance @ design.T @ target / noise, covariance


def evidence(design, target, precision=PRECISION, noise=NOISE):
    covariance = design @ design.T / precision + noise * np.eye(len(design))
    return multivariate_normal(np.zeros(len(design)), covariance).logpdf(target)


def regressor(estimator, structure="kron", **options):
    fixed = {"prior_precision": PRECISION, "noise_variance": NOISE, "random_state": 0}
    return LaplaceRegressor(estimator, structure=structure, **{**fixed, **options})


def classifier(estimator, structure="kron", **options):
    fixed = {"prior_precision": PRECISION, "random_state": 0}
    return LaplaceClassifier(estimator, structure=structure, **{**fixed, **options})


def uncertainties(est, X=X64_NEW):
    """Return the measures of both settings."""
    return [
        part
        for setting in ("given", "expected")
        for part in est.set_params(setting=setting).predict_uncertainty(X)
    ]


# -- Bayesian linear regression ------------------------------------------------------------


@exact_structures
@pytest.mark.parametrize("kind", ["ridge", "bias"])
def test_linear_regression_has_its_exact_posterior_and_evidence(kind, structure):
    design, new = X64, X64_NEW
    if kind == "bias":
        design, new = (np.column_stack([part, np.ones(len(part))]) for part in (design, new))
    mean, covariance = posterior(design, TARGET64)
    if kind == "ridge":
        ridge = Ridge(PRECISION * NOISE, fit_intercept=False).fit(X64, TARGET64)
        est = regressor(ridge, structure, parameters=["*weight"])
    else:
        est = regressor(linear(mean[:4], mean[4:]), structure)
    est.fit(X64, TARGET64)
    scores, of_scores = est.score_distribution(new[:, :4])
    variance = np.einsum("ni,ij,nj->n", new, covariance, new)
    close(scores[:, 0], new @ mean, 1e-8)
    close(of_scores[:, 0, 0], variance, 1e-8)
    close(est.log_marginal_likelihood_, evidence(design, TARGET64), 1e-8)
    # The variances of both settings are exact: the draws have mean zero and variance one.
    given, expected = np.split(np.array(uncertainties(est.set_params(measure="variance"))), 2)
    close(given, expected, 1e-8)
    close(given, [np.full(25, NOISE), variance, NOISE + variance], 1e-8)
    given, expected = np.split(np.array(uncertainties(est.set_params(measure="entropy"))), 2)
    noise_entropy = np.full(25, 0.5 * np.log(2 * np.pi * np.e * NOISE))
    close(given[:2], [noise_entropy, variance / (2 * NOISE)], 1e-8)
    close(expected[0], noise_entropy, 1e-8)
    # The average of Gaussians is a Gaussian again only for infinitely many draws.
    np.testing.assert_allclose(expected[1], 0.5 * np.log1p(variance / NOISE), atol=2e-3)


@exact_structures
def test_several_outputs_are_as_many_linear_regressions(structure):
    noise = np.array([0.1, 0.5])
    parts = [posterior(X64, y, noise=n) for y, n in zip(TWO_TARGETS.T, noise, strict=True)]
    est = regressor(linear([mean for mean, _ in parts]), structure, noise_variance=noise)
    est.fit(X64, TWO_TARGETS.astype(np.float64))
    _, covariance = est.score_distribution(X64_NEW)
    variances = [np.einsum("ni,ij,nj->n", X64_NEW, of_weights, X64_NEW) for _, of_weights in parts]
    close(covariance, np.einsum("kn,kl->nkl", variances, np.eye(2)), 1e-8)
    each = [evidence(X64, y, noise=n) for y, n in zip(TWO_TARGETS.T, noise, strict=True)]
    close(est.log_marginal_likelihood_, sum(each), 1e-8)
    divergence = np.sum(variances / (2 * noise[:, None]), 0)
    close(est.predict_uncertainty(X64_NEW).epistemic, divergence, 1e-8)
    est.set_params(measure="variance", setting="expected")
    close(est.predict_uncertainty(X64_NEW).epistemic, np.sum(variances, axis=0), 1e-8)
    # Any chunk of rows has the same draws.
    alone = [est.predict_uncertainty(X64_NEW[i : i + 1]).epistemic[0] for i in range(25)]
    close(np.sum(variances, axis=0), alone, 1e-7)


@each_structure
@each_extent
@pytest.mark.parametrize(("make", "n_out", "y"), [(regressor, 1, TARGET), (classifier, 3, LABELS)])
def test_sample_weights_are_repeated_rows(make, n_out, y, parameters, structure):
    options = {"parameters": parameters, "n_samples": 16, "prior_precision": "marginal_likelihood"}
    est = make(seeded(dense, n_out), structure, **options)
    weighted = copy.copy(est).fit(X64, y, sample_weight=COUNTS)
    repeated = copy.copy(est).fit(X64.repeat(COUNTS, axis=0), y.repeat(COUNTS))
    for name in ("prior_precision_", "log_marginal_likelihood_"):
        close(getattr(weighted, name), getattr(repeated, name), 1e-6)
    close(*[est.score_distribution(X64_NEW)[1] for est in (weighted, repeated)], 1e-5)


@pytest.mark.parametrize("structure", ["kron"])
def test_networks_that_predict_variances_vary_in_them_too(structure):
    options = {"noise_variance": None, "measure": "variance", "n_samples": 2048}
    est = regressor(seeded(dense, 2), structure, link="mean_log_variance", **options)
    scores, covariance = est.fit(X64, TARGET).score_distribution(X64_NEW)
    variance = covariance.diagonal(axis1=1, axis2=2)
    given, expected = np.split(np.array(uncertainties(est)), 2)
    close(given[:2], [np.exp(scores[:, 1]), variance[:, 0]], 1e-6)
    close(expected[1], variance[:, 0], 1e-6)
    # A log-normal variance.
    np.testing.assert_allclose(expected[0], np.exp(scores[:, 1] + variance[:, 1] / 2), rtol=1e-2)
    module = seeded(MeanAndVariance)
    est = regressor(module, "full", link="mean_variance", noise_variance=None).fit(X64, TARGET)
    mean, variance = module(torch.tensor(X64_NEW))
    close(est.score_distribution(X64_NEW)[0], torch.cat([mean, variance.log()], dim=1).detach())


# -- logistic regression -------------------------------------------------------------------

# What the network returns, number of outputs, targets.
LOGISTIC = [("binary_logit", 1, NOISY), ("logits", 2, NOISY), ("logits", 3, LABELS)]
each_logistic = pytest.mark.parametrize(("link", "n_out", "y"), LOGISTIC)


def expected_proba(mean, covariance, link, n_nodes=24):
    """Return probabilities averaged over Gaussian scores by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    n_scores = mean.shape[1]
    grid = np.stack(np.meshgrid(*[nodes] * n_scores), axis=-1).reshape(-1, n_scores)
    of_grid = np.prod(np.stack(np.meshgrid(*[weights] * n_scores), axis=-1), axis=-1).ravel()
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(values.clip(0))[:, None]
    scores = mean + np.einsum("nkr,mr->mnk", root, grid)
    if link == "binary_logit":
        scores = np.concatenate([np.zeros_like(scores), scores], axis=2)
    proba = torch.softmax(torch.tensor(scores), dim=2).numpy()
    return np.tensordot(of_grid / of_grid.sum(), proba, axes=1)


@each_structure
@each_logistic
def test_average_probabilities_are_those_of_quadrature(link, n_out, y, structure):
    est = classifier(seeded(dense, n_out), structure, link=link, n_samples=2048)
    est.set_params(setting="expected").fit(X64, y)
    slow = expected_proba(*est.score_distribution(X64_NEW), link)
    np.testing.assert_allclose(est.predict_proba(X64_NEW), slow, atol=2e-3)


def test_a_single_weight_has_nearly_the_posterior_of_brute_force():
    x, sign = X64[:, :1], (2 * NOISY - 1)[:, None]

    def log_joint(w):
        prior = 0.5 * np.log(PRECISION / (2 * np.pi)) - PRECISION / 2 * w**2
        return log_expit(sign * x * w).sum(axis=0) + prior

    best = minimize_scalar(lambda w: -log_joint(w).item(), bounds=(-10, 10), method="bounded").x
    est = classifier(linear(best), "full", link="binary_logit", setting="expected", n_samples=2048)
    est.fit(x, NOISY)
    grid = np.linspace(best - 6, best + 6, 4001)
    density = np.exp(log_joint(grid))
    exact = np.log(density.sum() * (grid[1] - grid[0]))
    np.testing.assert_allclose(est.log_marginal_likelihood_, exact, atol=0.01)
    new = np.linspace(-6, 6, 9)[:, None]
    slow = expit(new * grid) @ density / density.sum()
    np.testing.assert_allclose(est.predict_proba(new)[:, 1], slow, atol=0.015)


# -- prior precision -----------------------------------------------------------------------


@exact_structures
def test_the_most_likely_precision_is_that_of_mackay(structure):
    module = linear(posterior(X64, TARGET64)[0])
    est = regressor(module, structure, prior_precision="marginal_likelihood").fit(X64, TARGET64)
    # His fixed point: the effective number of parameters over their squared length.
    values = np.linalg.eigvalsh(X64.T @ X64 / NOISE)
    effective = (values / (values + est.prior_precision_)).sum()
    close(est.prior_precision_, effective / float(module.weight.detach().square().sum()), 1e-4)


@each_structure
@each_extent
def test_no_other_precision_has_a_larger_evidence(parameters, structure):
    module = seeded(dense)
    options = {"parameters": parameters, "n_samples": 2}
    est = classifier(module, structure, prior_precision="marginal_likelihood", **options)
    est.fit(X64, LABELS)
    assert 1e-4 <= est.prior_precision_ <= 1e6
    others = [
        classifier(module, structure, prior_precision=est.prior_precision_ * factor, **options)
        .fit(X64, LABELS)
        .log_marginal_likelihood_
        for factor in (0.5, 1.0, 1.01)
    ]
    assert max(others) <= est.log_marginal_likelihood_ + 1e-8
    close(others[1], est.log_marginal_likelihood_, 1e-12)


@each_structure
@each_extent
@pytest.mark.parametrize(("make", "n_out", "y"), [(regressor, 1, TARGET), (classifier, 3, LABELS)])
def test_an_infinite_precision_leaves_the_network_as_it_is(make, n_out, y, parameters, structure):
    module = seeded(dense, n_out)
    est = make(module, structure, prior_precision=np.inf, parameters=parameters, n_samples=4)
    est.fit(X64, y)
    assert est.log_marginal_likelihood_ == -np.inf
    assert not est.score_distribution(X64_NEW)[1].any()
    own = module(torch.tensor(X64_NEW)).detach()
    own = own[:, 0] if make is regressor else torch.softmax(own, dim=1)
    for setting in ("given", "expected"):
        est.set_params(setting=setting)
        np.testing.assert_allclose(est.predict_uncertainty(X64_NEW).epistemic, 0, atol=1e-12)
        close((est.predict if make is regressor else est.predict_proba)(X64_NEW), own, 1e-12)


@pytest.mark.parametrize("value", [0, np.nan, "evidence", None])
def test_senseless_precisions_are_refused(value):
    with pytest.raises(ValueError, match="prior_precision"):
        classifier(dense(), prior_precision=value).fit(X64, LABELS)


# -- memory --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.MissingClassesWarning")
@pytest.mark.slow
@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_large_last_layers_never_make_the_matrix_of_all_parameters(structure):
    X = np.random.default_rng(0).normal(size=(50, 1280)).astype(np.float32)
    y = np.arange(50) % 20 * 40
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    est = classifier(seeded(nn.Linear, 1280, 1000).float(), structure, n_samples=8).fit(X, y)
    assert est.n_parameters_searched_ == 1281 * 1000
    epistemic = est.predict_uncertainty(X[:5]).epistemic
    assert np.isfinite(epistemic).all()
    assert (epistemic > 0).all()
    # The matrix would take 13 terabytes; numbers are kilobytes, on a Mac bytes.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 1.5e6 + 2 * before
    with pytest.raises(ValueError, match=r"needs .* GB for 1281000 parameters.*'kron' or 'diag'"):
        est.set_params(structure="full").fit(X, y)


@each_structure
@each_extent
def test_little_memory_gives_the_same_answer(parameters, structure):
    options = {"parameters": parameters, "n_samples": 5}
    ample = classifier(seeded(dense), structure, **options).fit(X64, LABELS)
    limit, size = 1, ample.n_parameters_searched_
    if structure == "full":
        limit = 32 * size**2
        with pytest.raises(ValueError, match=f"for {size} parameters"):
            classifier(dense(), structure, memory_limit=limit - 1, **options).fit(X64, LABELS)
    scarce = classifier(seeded(dense), structure, memory_limit=limit, **options).fit(X64, LABELS)
    scarce.memory_limit = 1
    limits = scarce._question(torch.tensor(X64_NEW)).limits
    assert len(scarce._fitted.chunks(torch.tensor(X64_NEW), limits)) == len(X64_NEW)
    for first, second in zip(uncertainties(ample), uncertainties(scarce), strict=True):
        close(first, second, 1e-7)
    for first, second in zip(
        *[e.score_distribution(X64_NEW) for e in (ample, scarce)], strict=True
    ):
        close(first, second, 1e-7)


# -- draws ---------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 300), st.integers(1, 12), st.integers(0, 2**31))
def test_draws_have_mean_zero_and_variance_one(n_samples, n_scores, seed):
    normal = _normal_numbers(n_samples, n_scores, seed)
    assert normal.shape == (n_samples, n_scores)
    close(normal.mean(dim=0), torch.zeros(n_scores))
    close(normal.square().mean(dim=0), torch.ones(n_scores))
    assert torch.equal(normal, _normal_numbers(n_samples, n_scores, seed))


@each_extent
def test_both_settings_and_a_pickled_copy_use_the_same_draws(parameters):
    est = classifier(seeded(dense), parameters=parameters, n_samples=16).fit(X64, LABELS)
    # Fitted for the other setting, it is the same.
    anew = classifier(seeded(dense), parameters=parameters, n_samples=16, setting="expected")
    for other in (pickle.loads(pickle.dumps(est)), copy.deepcopy(est), anew.fit(X64, LABELS)):
        for first, second in zip(uncertainties(est), uncertainties(other), strict=True):
            np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match=r"n_samples .* changed after fit"):
        est.set_params(n_samples=10_000).predict_uncertainty(X64_NEW)


def test_low_rank_updates_have_no_kronecker_factors():
    with pytest.raises(ValueError, match="no Kronecker factors"):
        classifier(dense(), parameters=LoRA(2)).fit(X64, LABELS)
    for structure in ("full", "diag"):
        est = classifier(dense(), structure, parameters=LoRA(2), n_samples=8).fit(X64, LABELS)
        assert (est.predict_uncertainty(X64_NEW).epistemic > 0).all()


class Squeezing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = dense(1)

    def forward(self, x):
        return self.layers(x).squeeze()


@pytest.mark.parametrize("n_rows", [1, 257])
def test_networks_that_squeeze_their_output(n_rows):
    rows, module = np.tile(X64, (5, 1))[:n_rows], seeded(Squeezing)
    est, plain = (
        regressor(net, parameters="all").fit(rows, rows[:, 0]) for net in (module, module.layers)
    )
    close(est.score_distribution(X64_NEW)[1], plain.score_distribution(X64_NEW)[1])
