"""Laplace's approximation against closed forms, quadrature and brute force."""

import copy
import pickle
import resource
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from sklearn_quam import LaplaceClassifier, LaplaceRegressor, LoRA
from sklearn_quam.baselines.laplace import _normal_numbers

from ..curvature.slow_curvature import close, seeded
from ..networks import BINARY, LABELS, TARGET, TWO_TARGETS, X64, X64_NEW, MeanAndVariance, dense

PRECISION, NOISE = 0.7, 0.3
TARGET64 = TARGET.astype(np.float64)
NOISY = BINARY ^ (np.arange(len(BINARY)) % 5 == 0)
# Whole numbers with mean one: as many rows are left.
COUNTS = np.tile([0, 2, 1, 1, 0, 2], 10)
STRUCTURES = ("full", "kron", "diag")
each_structure = pytest.mark.parametrize("structure", STRUCTURES)
exact_structures = pytest.mark.parametrize("structure", ["full", "kron"])


def linear(weight, bias=None):
    """Return a linear layer with given weights, a row for each output."""
    weight = torch.as_tensor(np.atleast_2d(weight))
    layer = nn.Linear(weight.shape[1], len(weight), bias=bias is not None).double()
    with torch.no_grad():
        layer.weight[:] = weight
        if bias is not None:
            layer.bias[:] = torch.as_tensor(bias)
    return layer


def posterior(design, target, precision=PRECISION, noise=NOISE):
    """Return mean and covariance of the weights of a Bayesian linear regression."""
    covariance = np.linalg.inv(design.T @ design / noise + precision * np.eye(design.shape[1]))
    return covariance @ design.T @ target / noise, covariance


def evidence(design, target, precision=PRECISION, noise=NOISE):
    covariance = design @ design.T / precision + noise * np.eye(len(design))
    return multivariate_normal(np.zeros(len(design)), covariance).logpdf(target)


def regressor(estimator, structure="kron", **options):
    fixed = {"prior_precision": PRECISION, "noise_variance": NOISE, "random_state": 0}
    return LaplaceRegressor(estimator, structure=structure, **{**fixed, **options})


def classifier(estimator, structure="kron", **options):
    return LaplaceClassifier(
        estimator,
        structure=structure,
        **{"prior_precision": PRECISION, "random_state": 0, **options},
    )


def uncertainties(est, X=X64_NEW):
    """Return the measures of both settings."""
    return [
        part
        for setting in ("given", "expected")
        for part in est.set_params(setting=setting).predict_uncertainty(X)
    ]


# -- Bayesian linear regression ------------------------------------------------------------


@pytest.mark.slow
@exact_structures
@pytest.mark.parametrize("kind", ["ridge", "module", "bias"])
def test_linear_regression_has_its_exact_posterior_and_evidence(kind, structure):
    design, new = X64, X64_NEW
    if kind == "bias":
        design, new = (np.column_stack([part, np.ones(len(part))]) for part in (design, new))
    mean, covariance = posterior(design, TARGET64)
    if kind == "ridge":
        ridge = Ridge(PRECISION * NOISE, fit_intercept=False).fit(X64, TARGET64)
        close(ridge.coef_, mean)
        est = regressor(ridge, structure, parameters=["*weight"])
    else:
        est = regressor(linear(mean[:4], mean[4:] if kind == "bias" else None), structure)
    est.fit(X64, TARGET64)
    scores, of_scores = est.score_distribution(new[:, :4])
    variance = np.einsum("ni,ij,nj->n", new, covariance, new)
    close(scores[:, 0], new @ mean, 1e-8)
    close(of_scores[:, 0, 0], variance, 1e-8)
    close(est.log_marginal_likelihood_, evidence(design, TARGET64), 1e-8)
    for setting in ("given", "expected"):
        close(est.set_params(setting=setting).predict(new[:, :4]), new @ mean, 1e-8)
    # The variances of both settings are exact: the draws have mean zero and variance one.
    given, expected = np.split(np.array(uncertainties(est.set_params(measure="variance"))), 2)
    close(given, expected, 1e-8)
    close(given, [np.full(25, NOISE), variance, NOISE + variance], 1e-8)
    given, expected = np.split(np.array(uncertainties(est.set_params(measure="entropy"))), 2)
    noise_entropy = 0.5 * np.log(2 * np.pi * np.e * NOISE)
    close(
        given,
        noise_entropy * np.array([[1], [0], [1]]) + np.outer([0, 1, 1], variance / (2 * NOISE)),
        1e-8,
    )
    close(expected[0], np.full(25, noise_entropy), 1e-8)
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
    close(
        est.predict_uncertainty(X64_NEW).epistemic,
        np.sum(variances / (2 * noise[:, None]), 0),
        1e-8,
    )
    for setting in ("given", "expected"):
        est.set_params(measure="variance", setting=setting)
        close(est.predict_uncertainty(X64_NEW).epistemic, np.sum(variances, axis=0), 1e-8)


@each_structure
@pytest.mark.parametrize("parameters", ["last_layer", "all"])
@pytest.mark.parametrize(
    ("make", "n_out", "y"),
    [(regressor, 1, TARGET), (classifier, 3, LABELS)],
    ids=["regression", "classes"],
)
def test_sample_weights_are_repeated_rows(make, n_out, y, parameters, structure):
    module = seeded(dense, n_out)
    options = {"parameters": parameters, "n_samples": 16, "prior_precision": "marginal_likelihood"}
    weighted = make(module, structure, **options).fit(X64, y, sample_weight=COUNTS)
    repeated = make(module, structure, **options).fit(X64.repeat(COUNTS, axis=0), y.repeat(COUNTS))
    for name in ("prior_precision_", "log_marginal_likelihood_"):
        close(getattr(weighted, name), getattr(repeated, name), 1e-6)
    close(*[est.score_distribution(X64_NEW)[1] for est in (weighted, repeated)], 1e-5)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_networks_that_predict_log_variances_vary_in_them_too(structure):
    est = regressor(
        seeded(dense, 2),
        structure,
        link="mean_log_variance",
        noise_variance=None,
        measure="variance",
        n_samples=2048,
    ).fit(X64, TARGET)
    scores, covariance = est.score_distribution(X64_NEW)
    variance = covariance.diagonal(axis1=1, axis2=2)
    given, expected = np.split(np.array(uncertainties(est)), 2)
    close(given[:2], [np.exp(scores[:, 1]), variance[:, 0]], 1e-6)
    close(expected[1], variance[:, 0], 1e-6)
    # A log-normal variance.
    np.testing.assert_allclose(expected[0], np.exp(scores[:, 1] + variance[:, 1] / 2), rtol=1e-2)


def test_networks_that_predict_variances_are_taken_by_their_logarithms():
    module = seeded(MeanAndVariance)
    est = regressor(module, "full", link="mean_variance", noise_variance=None).fit(X64, TARGET)
    mean, variance = module(torch.tensor(X64_NEW))
    close(est.score_distribution(X64_NEW)[0], torch.cat([mean, variance.log()], dim=1).detach())


# -- logistic regression -------------------------------------------------------------------

# What the network returns, number of outputs, targets.
LOGISTIC = [("binary_logit", 1, NOISY), ("logits", 2, NOISY), ("logits", 3, LABELS)]
each_logistic = pytest.mark.parametrize(("link", "n_out", "y"), LOGISTIC)


def negative_log_likelihood(link, X, y):
    X, y = torch.tensor(X), torch.tensor(y)

    def loss(weight):
        scores = X @ weight.T
        if link == "binary_logit":
            scores = torch.cat([torch.zeros_like(scores), scores], dim=1)
        return nn.functional.cross_entropy(scores, y, reduction="sum")

    return loss


@each_logistic
def test_the_full_curvature_of_linear_logits_is_the_hessian_of_the_loss(link, n_out, y):
    layer = seeded(lambda: nn.Linear(4, n_out, bias=False))
    est = classifier(layer, "full", link=link).fit(X64, y)
    loss = negative_log_likelihood(link, X64, y)
    hessian = torch.autograd.functional.hessian(loss, layer.weight.detach())
    hessian = hessian.reshape(4 * n_out, 4 * n_out)
    close(
        est._fitted.models.curvature.eigenvalues, torch.linalg.eigvalsh(hessian).clamp(min=0), 1e-8
    )
    inverse = torch.linalg.inv(hessian + PRECISION * torch.eye(4 * n_out).double())
    inverse = inverse.reshape(n_out, 4, n_out, 4)
    new = torch.tensor(X64_NEW)
    close(
        est.score_distribution(X64_NEW)[1], torch.einsum("ni,kilj,nj->nkl", new, inverse, new), 1e-8
    )


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
    est = classifier(
        seeded(dense, n_out), structure, link=link, setting="expected", n_samples=2048
    ).fit(X64, y)
    slow = expected_proba(*est.score_distribution(X64_NEW), link)
    np.testing.assert_allclose(est.predict_proba(X64_NEW), slow, atol=2e-3)


def test_one_logit_and_two_give_the_same_probabilities():
    """The difference of two logits with half the weight each has twice the prior precision."""
    weight = np.array([0.5, -0.3, 0.8, 0.1])
    one = classifier(linear(weight), "full", link="binary_logit", n_samples=4096)
    two = classifier(
        linear([-weight / 2, weight / 2]),
        "full",
        prior_precision=2 * PRECISION,
        n_samples=4096,
    )
    one, two = (est.set_params(setting="expected").fit(X64, NOISY) for est in (one, two))
    np.testing.assert_allclose(one.predict_proba(X64_NEW), two.predict_proba(X64_NEW), atol=2e-3)
    own = LogisticRegression(fit_intercept=False, C=1 / PRECISION, tol=1e-10).fit(X64, NOISY)
    est = classifier(own, "full", setting="expected").fit(X64, NOISY)
    assert (
        np.abs(est.predict_proba(X64_NEW) - 0.5) < np.abs(own.predict_proba(X64_NEW) - 0.5)
    ).all()


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


@pytest.mark.slow
@exact_structures
def test_the_most_likely_precision_maximises_the_evidence(structure):
    module = linear(posterior(X64, TARGET64)[0])
    est = regressor(module, structure, prior_precision="marginal_likelihood").fit(X64, TARGET64)
    # MacKay's fixed point: the effective number of parameters over their squared length.
    values = np.linalg.eigvalsh(X64.T @ X64 / NOISE)
    effective = (values / (values + est.prior_precision_)).sum()
    length = float(module.weight.detach().square().sum())
    close(est.prior_precision_, effective / length, 1e-4)
    # Where the network is the mode for that precision, the evidence is the exact one.
    for _ in range(20):
        module = linear(posterior(X64, TARGET64, precision=est.prior_precision_)[0])
        est = regressor(module, structure, prior_precision="marginal_likelihood").fit(X64, TARGET64)
    grid = np.logspace(-2, 2, 401)
    best = grid[np.argmax([evidence(X64, TARGET64, precision=p) for p in grid])]
    np.testing.assert_allclose(est.prior_precision_, best, rtol=0.02)
    close(
        est.log_marginal_likelihood_, evidence(X64, TARGET64, precision=est.prior_precision_), 1e-7
    )


@each_structure
@pytest.mark.parametrize("parameters", ["last_layer", "all"])
def test_no_other_precision_has_a_larger_evidence(parameters, structure):
    module = seeded(dense)
    options = {"parameters": parameters, "n_samples": 2}
    est = classifier(module, structure, prior_precision="marginal_likelihood", **options).fit(
        X64, LABELS
    )
    assert 1e-4 <= est.prior_precision_ <= 1e6
    others = [
        classifier(module, structure, prior_precision=est.prior_precision_ * factor, **options)
        .fit(X64, LABELS)
        .log_marginal_likelihood_
        for factor in (0.01, 0.5, 0.99, 1.0, 1.01, 2.0, 100.0)
    ]
    assert max(others) <= est.log_marginal_likelihood_ + 1e-8
    close(others[3], est.log_marginal_likelihood_, 1e-12)


@each_structure
@pytest.mark.parametrize("parameters", ["last_layer", "all"])
@pytest.mark.parametrize(("make", "n_out", "y"), [(regressor, 1, TARGET), (classifier, 3, LABELS)])
def test_an_infinite_precision_leaves_the_network_as_it_is(make, n_out, y, parameters, structure):
    module = seeded(dense, n_out)
    est = make(module, structure, prior_precision=np.inf, parameters=parameters, n_samples=4)
    est.fit(X64, y)
    assert est.log_marginal_likelihood_ == -np.inf
    assert not est.score_distribution(X64_NEW)[1].any()
    own = module(torch.tensor(X64_NEW)).detach()
    for setting in ("given", "expected"):
        est.set_params(setting=setting)
        np.testing.assert_allclose(est.predict_uncertainty(X64_NEW).epistemic, 0, atol=1e-12)
        if make is classifier:
            close(est.predict_proba(X64_NEW), torch.softmax(own, dim=1), 1e-12)
        else:
            close(est.predict(X64_NEW), own[:, 0], 1e-12)


@pytest.mark.parametrize("value", [0, -1.0, np.nan, "evidence", None])
def test_senseless_precisions_are_refused(value):
    with pytest.raises(ValueError, match="prior_precision"):
        classifier(dense(), prior_precision=value).fit(X64, LABELS)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.floats(1e-3, 1e3), st.sampled_from(STRUCTURES), st.sampled_from(["last_layer", "all"]))
def test_more_prior_precision_means_less_uncertainty(precision, structure, parameters):
    ests = [
        regressor(seeded(dense, 1), structure, prior_precision=p, parameters=parameters).fit(
            X64, TARGET
        )
        for p in (precision, 1.5 * precision)
    ]
    wide, narrow = (est.predict_uncertainty(X64_NEW).epistemic for est in ests)
    assert (narrow < wide).all()
    assert (wide < np.inf).all()


# -- memory --------------------------------------------------------------------------------


def peak_memory():
    """Return the most memory that was in use so far, in bytes."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.MissingClassesWarning")
@pytest.mark.slow
@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_large_last_layers_never_make_the_matrix_of_all_parameters(structure):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 1280)).astype(np.float32)
    before = peak_memory()
    est = classifier(seeded(nn.Linear, 1280, 1000).float(), structure, n_samples=8)
    est.fit(X, np.arange(50) % 20 * 40)
    assert est.n_parameters_searched_ == 1281 * 1000
    epistemic = est.predict_uncertainty(X[:5]).epistemic
    assert np.isfinite(epistemic).all()
    assert (epistemic > 0).all()
    # The matrix would take 13 terabytes.
    assert peak_memory() - before < 1.5e9
    with pytest.raises(ValueError, match=r"needs .* GB for 1281000 parameters.*'kron' or 'diag'"):
        est.set_params(structure="full").fit(X, np.arange(50) % 20 * 40)


def test_a_full_matrix_beyond_the_memory_limit_is_refused():
    for parameters, size in (("last_layer", 27), ("all", 67)):
        est = classifier(dense(), "full", parameters=parameters, memory_limit=32 * size**2 - 1)
        with pytest.raises(ValueError, match=f"for {size} parameters"):
            est.fit(X64, LABELS)
        est.set_params(memory_limit=32 * size**2).fit(X64, LABELS)


@pytest.mark.slow
@each_structure
@pytest.mark.parametrize("parameters", ["last_layer", "all"])
def test_little_memory_gives_the_same_answer(parameters, structure):
    module = seeded(dense)
    options = {"parameters": parameters, "n_samples": 5}
    ample = classifier(module, structure, **options).fit(X64, LABELS)
    # What the full matrix needs, and a byte.
    limit = 32 * 67**2 if structure == "full" else 1
    scarce = classifier(module, structure, memory_limit=limit, **options).fit(X64, LABELS)
    scarce.memory_limit = 1
    limits = scarce._question(torch.tensor(X64_NEW)).limits
    assert len(scarce._fitted.chunks(torch.tensor(X64_NEW), limits)) == len(X64_NEW)
    for first, second in zip(uncertainties(ample), uncertainties(scarce), strict=True):
        close(first, second, 1e-7)
    for first, second in zip(
        *[e.score_distribution(X64_NEW) for e in (ample, scarce)], strict=True
    ):
        close(first, second, 1e-7)


def test_low_rank_updates_have_no_kronecker_factors():
    with pytest.raises(ValueError, match="no Kronecker factors"):
        classifier(dense(), parameters=LoRA(2)).fit(X64, LABELS)
    for structure in ("full", "diag"):
        est = classifier(dense(), structure, parameters=LoRA(2), n_samples=8).fit(X64, LABELS)
        assert (est.predict_uncertainty(X64_NEW).epistemic > 0).all()


# -- draws ---------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 300), st.integers(1, 12), st.integers(0, 2**31))
def test_draws_have_mean_zero_and_variance_one(n_samples, n_scores, seed):
    normal = _normal_numbers(n_samples, n_scores, seed)
    assert normal.shape == (n_samples, n_scores)
    close(normal.mean(dim=0), torch.zeros(n_scores))
    close(normal.square().mean(dim=0), torch.ones(n_scores))
    assert torch.equal(normal, _normal_numbers(n_samples, n_scores, seed))


@pytest.mark.parametrize("parameters", ["last_layer", "all"])
def test_both_settings_and_a_pickled_copy_use_the_same_draws(parameters):
    est = classifier(seeded(dense), parameters=parameters, n_samples=16).fit(X64, LABELS)
    stored = pickle.loads(pickle.dumps(est))
    for other in (stored, copy.deepcopy(est)):
        for first, second in zip(uncertainties(est), uncertainties(other), strict=True):
            np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(*[e.score_distribution(X64_NEW)[1] for e in (est, other)])
    # Fitted for the other setting, it is the same.
    anew = classifier(seeded(dense), parameters=parameters, n_samples=16, setting="expected")
    for first, second in zip(uncertainties(est), uncertainties(anew.fit(X64, LABELS)), strict=True):
        np.testing.assert_array_equal(first, second)
