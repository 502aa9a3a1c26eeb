"""QUAM as a user meets it: what it promises about rows, models, errors, and the truth."""

import copy
import pickle
from dataclasses import fields
from functools import cache

import joblib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from torch import nn

from sklearn_quam import LoRA, PenaltySearch, QUAMClassifier, QUAMRegressor
from sklearn_quam._network import free
from sklearn_quam._network.cut.split import SplitModule

from .networks import (
    IMAGES,
    LABELS,
    TARGET,
    TWO_TARGETS,
    WORDS,
    X_NEW,
    Dense,
    MeanAndVariance,
    Residual,
    X,
    dense,
    fitted,
    module_state,
    tied,
)
from .searches import quam

SHORT = {"n_steps": 12, "penalty_every": 4, "learning_rate": 0.02, "random_state": 0}
PROPERTY = settings(deadline=None, max_examples=10)
each_setting = pytest.mark.parametrize("setting", ["given", "expected"])


def seeded(build, *args, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(*args)


def assert_same_rows(found, expected, rows=slice(None), rtol=1e-8):
    """Compare uncertainty and diagnostics, the latter of some rows."""
    for got, wanted in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(got, wanted[rows], rtol=rtol, atol=1e-12)
    assert type(found[1]) is type(expected[1])
    for name in [field.name for field in fields(found[1])]:
        got, wanted = getattr(found[1], name), getattr(expected[1], name)
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, wanted[rows], rtol=rtol, atol=1e-9, err_msg=name)
        else:
            np.testing.assert_array_equal(got, wanted[rows], err_msg=name)


# -- rows, chunks, seeds -------------------------------------------------------------------

KINDS = {
    "classes": (QUAMClassifier, dense, 3, LABELS),
    "values": (QUAMRegressor, dense, 1, TARGET),
    "two values": (QUAMRegressor, dense, 2, TWO_TARGETS),
    "mean and variance": (QUAMRegressor, MeanAndVariance, 1, TARGET),
}
kinds = st.sampled_from(list(KINDS))
options = st.fixed_dictionaries(
    {
        "setting": st.sampled_from(["given", "expected"]),
        "sampling": st.sampled_from(["trajectory", "best", "gaussian", "auto"]),
        "parameters": st.sampled_from(["all", "last_layer", "bias", "lora"]),
        "tol": st.sampled_from([0.0, 0.05]),
        "batch_size": st.sampled_from([10, 256]),
        "n_steps": st.integers(1, 14),
        "max_change": st.sampled_from([None, 0.2]),
        "random_state": st.integers(0, 10),
    }
)


def build(kind, **chosen):
    """Return a fitted estimator in double precision."""
    wrapper, module, n_out, y = KINDS[kind]
    arguments = {**SHORT, "slack": 0.2, **chosen}
    return quam(wrapper, seeded(module, n_out).double(), **arguments).fit(X, y)


@pytest.mark.slow
@PROPERTY
@given(kinds, options, st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_a_row_does_not_depend_on_the_other_rows(kind, chosen, rows):
    est = build(kind, **chosen)
    together = est.predict_uncertainty(X_NEW[:10], return_diagnostics=True)
    some = est.predict_uncertainty(X_NEW[rows], return_diagnostics=True)
    assert_same_rows(some, together, rows)


@pytest.mark.slow
@PROPERTY
@given(kinds, options, st.sampled_from([1.0, 2.5, 100.0]))
def test_results_do_not_depend_on_the_memory_limit(kind, chosen, searches):
    est = build(kind, **chosen)
    default = est.predict_uncertainty(X_NEW[:3], return_diagnostics=True)
    est.set_params(memory_limit=searches * est._fitted.models.needs.of(1, 1))
    found = est.predict_uncertainty(X_NEW[:3], return_diagnostics=True)
    # A profile has more Gaussians than a mixture keeps apart: targets that come one after the other
    # are merged in another order.
    merged = chosen["sampling"] == "profile" and chosen["setting"] == "expected"
    rtol = 1e-5 if merged else 1e-8
    assert_same_rows(found, default, rtol=rtol)


@pytest.mark.slow
@PROPERTY
@given(kinds, options)
def test_a_random_state_determines_everything(kind, chosen):
    first, second = build(kind, **chosen), build(kind, **chosen)
    expected = first.predict_uncertainty(X_NEW[:4], return_diagnostics=True)
    for est in (first, second):
        again = est.predict_uncertainty(X_NEW[:4], return_diagnostics=True)
        assert_same_rows(again, expected, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_another_random_state_gives_another_answer(kind):
    options = {"batch_size": 10}
    first = build(kind, **options, random_state=0).predict_uncertainty(X_NEW[:4])
    second = build(kind, **options, random_state=1).predict_uncertainty(X_NEW[:4])
    assert (first.epistemic != second.epistemic).all()
    np.testing.assert_allclose(second.epistemic, first.epistemic, rtol=2)


@PROPERTY
@given(kinds, options)
def test_parts_add_up_and_epistemic_is_not_negative(kind, chosen):
    u = build(kind, **chosen).predict_uncertainty(X_NEW[:5])
    assert (u.epistemic >= 0).all()
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("parameters", ["last_layer", "all", "bias", "lora"])
@pytest.mark.parametrize(
    ("module", "data"),
    [
        (lambda: dense(), X),
        (Residual, X),
        (
            lambda: nn.Sequential(
                nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
            ),
            IMAGES,
        ),
    ],
    ids=["dense", "skip connection", "convolutional"],
)
def test_a_cut_network_gives_the_same_as_the_whole(module, data, parameters, monkeypatch):
    net = seeded(module).double()
    est = quam(QUAMClassifier, net, parameters=parameters, **SHORT)
    cut = est.fit(data, LABELS).predict_uncertainty(data[:6] * 2, return_diagnostics=True)
    # Only the last layer leaves something before it that is the same for all models.
    assert est.cut_ == ("inside" if parameters == "last_layer" else "at_input")
    monkeypatch.setattr(
        free, "split_module", lambda module, *_, **__: SplitModule(None, module, "failed")
    )
    whole = clone(est).fit(data, LABELS)
    assert whole.cut_ == "failed"
    assert_same_rows(whole.predict_uncertainty(data[:6] * 2, return_diagnostics=True), cut)


@pytest.mark.slow
def test_single_precision_rows_are_as_independent_as_rounding_allows():
    est = quam(QUAMClassifier, seeded(dense), **{**SHORT, "n_steps": 40}).fit(X, LABELS)
    together = est.predict_uncertainty(X_NEW).epistemic[:10]
    alone = [est.predict_uncertainty(X_NEW[i : i + 1]).epistemic[0] for i in range(10)]
    np.testing.assert_allclose(alone, together, rtol=1e-4)


# -- the models themselves -----------------------------------------------------------------


def normalised():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


MODELS = {
    "all": (dense, {}),
    "last layer": (dense, {"parameters": "last_layer"}),
    "low rank": (dense, {"parameters": LoRA(rank=2, alpha=3.0)}),
    "tied": (tied, {}),
    "tied, by the other name": (tied, {"parameters": ["2.weight"]}),
    "tied, low rank": (tied, {"parameters": "lora"}),
    "norm": (normalised, {"parameters": "norm"}),
    "two targets": (dense, {"targets": 2}),
    "one by one": (dense, {"memory_limit": "50KB"}),
    "no feasible model": (dense, {"slack": 0.0, "penalty": 0.0}),
    "untargeted": (dense, {"targets": "untargeted"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("module", "arguments"), MODELS.values(), ids=list(MODELS))
def test_adversarial_models_are_what_they_are_said_to_be(module, arguments, dtype):
    net = seeded(module).to(dtype)
    before = module_state(net)
    est = quam(QUAMClassifier, net, **{**SHORT, "slack": 0.1, "n_steps": 25, **arguments})
    est.fit(X, WORDS[LABELS])
    rtol = 1e-9 if dtype == torch.float64 else 2e-4
    inputs, target = torch.as_tensor(X).to(dtype), torch.as_tensor(LABELS)
    rows = torch.as_tensor(X_NEW[:3]).to(dtype)
    net.eval()
    given_loss = nn.functional.cross_entropy(net(inputs), target)
    models = est.adversarial_models(X_NEW[:3])
    n_targets = {2: 2, "untargeted": 1}.get(arguments.get("targets"), 3)
    for row, found in zip(rows, models, strict=True):
        given_proba = torch.softmax(net(row[None]), dim=1)[0]
        assert len(found) == n_targets
        divergences = [m["divergence"] for m in found]
        assert divergences == sorted(divergences, reverse=True)
        for model in found:
            rival = copy.deepcopy(net)
            rival.load_state_dict(model["state_dict"], strict=True)
            with torch.no_grad():
                proba = torch.softmax(rival(row[None]), dim=1)[0]
                loss = nn.functional.cross_entropy(rival(inputs), target)
                divergence = float((given_proba * (given_proba / proba).log()).sum())
            np.testing.assert_allclose(model["prediction"], proba, rtol=rtol)
            np.testing.assert_allclose(model["divergence"], divergence, rtol=rtol, atol=1e-6)
            increase = float(loss - given_loss.detach())
            np.testing.assert_allclose(model["loss_increase"], increase, rtol=rtol, atol=1e-6)
            assert model["loss_increase"] <= est.slack_ / len(X)
            assert model["feasible"] == (model["divergence"] > 0)
        names = {m["target"] for m in found}
        assert names == {None} if n_targets == 1 else names <= set(WORDS)
        assert len(names) == n_targets
    if "two targets" in str(arguments):
        assert est.predict(X_NEW[:1])[0] in {m["target"] for m in models[0]}
    net.train()
    assert module_state(net) == before


def test_tied_weights_stay_tied_in_the_found_models():
    est = quam(QUAMClassifier, seeded(tied), **SHORT, slack=0.5).fit(X, LABELS)
    found = [m for m in est.adversarial_models(X_NEW[:1])[0] if m["feasible"]]
    assert found
    for model in found:
        assert torch.equal(model["state_dict"]["0.weight"], model["state_dict"]["2.weight"])
        assert not torch.equal(
            model["state_dict"]["0.weight"], est._fitted.reference.module[0].weight
        )


@pytest.mark.parametrize(
    ("module", "y"),
    [
        (lambda: dense(1), TARGET),
        (lambda: dense(2), TWO_TARGETS),
        (MeanAndVariance, TARGET),
    ],
    ids=["one", "two outputs", "mean and variance"],
)
def test_adversarial_models_of_a_regressor(module, y):
    net = seeded(module).double()
    est = quam(QUAMRegressor, net, **{**SHORT, "slack": 0.1, "n_steps": 25}).fit(X, y)
    inputs, target = torch.as_tensor(X).double(), torch.as_tensor(y).double().reshape(len(y), -1)

    def normal(module, rows):
        with torch.no_grad():
            output = module(rows)
        if isinstance(output, tuple):
            return torch.distributions.Normal(output[0], output[1].sqrt())
        scale = torch.as_tensor(est.noise_variance_).sqrt()
        return torch.distributions.Normal(output, scale.expand_as(output))

    given_loss = -normal(net, inputs).log_prob(target).sum(dim=1).mean()
    row = torch.as_tensor(X_NEW[:1]).double()
    n_outputs = target.shape[1]
    found = est.adversarial_models(X_NEW[:1])[0]
    assert sorted(m["target"] for m in found) == ["down"] * n_outputs + ["up"] * n_outputs
    for model in found:
        rival = copy.deepcopy(net)
        rival.load_state_dict(model["state_dict"])
        at_row = normal(rival, row)
        np.testing.assert_allclose(model["prediction"], at_row.mean[0], rtol=1e-9)
        kl = torch.distributions.kl_divergence(normal(net, row), at_row).sum()
        np.testing.assert_allclose(model["divergence"], kl, rtol=1e-6, atol=1e-12)
        increase = -normal(rival, inputs).log_prob(target).sum(dim=1).mean() - given_loss
        np.testing.assert_allclose(model["loss_increase"], increase, rtol=1e-6, atol=1e-12)
        assert model["loss_increase"] <= 0.1


def test_losses_of_much_data_are_measured_on_a_part_of_them():
    rng = np.random.default_rng(0)
    many, net = rng.normal(size=(1500, 4)), seeded(dense).double()
    labels = (many[:, 0] > 0).astype(int) + (many[:, 1] > 0)
    est = quam(QUAMClassifier, net, n_rows=1500, **SHORT, slack=1.0).fit(many, labels)
    part = est._fitted.models.engine.evaluation
    assert len(part) == len(set(part.tolist())) == 1024
    inputs, target = torch.as_tensor(many)[part], torch.as_tensor(labels)[part]
    for model in est.adversarial_models(X_NEW[:1])[0]:
        rival = copy.deepcopy(net)
        rival.load_state_dict(model["state_dict"])
        with torch.no_grad():
            increase = nn.functional.cross_entropy(rival(inputs), target)
            increase -= nn.functional.cross_entropy(net(inputs), target)
        np.testing.assert_allclose(model["loss_increase"], increase, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [X[:3], X_NEW[:3]], ids=["seen", "new"])
def test_directions_of_a_fitted_regressor(rows):
    net = fitted(MLPRegressor(hidden_layer_sizes=(8,), solver="lbfgs", random_state=0), y=TARGET)
    # The noise of such a network is small, and so must be the steps.
    est = quam(QUAMRegressor, net, learning_rate=5e-3, penalty=6.0, random_state=0).fit(X, TARGET)
    for mean, models in zip(est.predict(rows), est.adversarial_models(rows), strict=True):
        shift = {m["target"]: float(m["prediction"][0]) - mean for m in models}
        assert shift["up"] > 0 > shift["down"]


# -- ground truth --------------------------------------------------------------------------

# With these a search comes to rest where target and training loss balance, and a model's weight
# is that of the posterior: the temperature is one over the number of rows.
CONVERGED = {
    "n_steps": 300,
    "learning_rate": 0.05,
    "learning_rate_decay": 1.1,
    "penalty": 1.0,
    "penalty_growth": 1.3,
    "penalty_every": 10,
    "batch_size": 100,
    "tol": 0.0,
    "temperature": 0.01,
}


def correlated(rng, n_rows, n_features, correlation):
    covariance = correlation + (1 - correlation) * np.eye(n_features)
    return rng.normal(size=(n_rows, n_features)) @ np.linalg.cholesky(covariance).T


def test_points(rng, n_features):
    return rng.normal(size=(40, n_features)) * rng.choice([0.5, 1, 2, 3], size=(40, 1))


test_points.__test__ = False


@cache
def bayesian_linear(seed, correlation, n_features=3, precision=0.0):
    """Return data, and the posterior mean of KL(p_w || p_w') around the fitted weights."""
    rng = np.random.default_rng(seed)
    X, X_test = correlated(rng, 100, n_features, correlation), test_points(rng, n_features)
    y = X @ rng.normal(size=n_features) + 0.5 + 0.5 * rng.normal(size=100)
    net = Ridge(precision).fit(X, y) if precision else LinearRegression().fit(X, y)
    # The weights of the posterior are N(w, noise * A^-1); KL is a square over twice the noise.
    design, design_test = (np.column_stack([np.ones(len(Z)), Z]) for Z in (X, X_test))
    A = design.T @ design + precision * np.diag([0.0] + [1.0] * n_features)
    leverage = np.einsum("ij,jk,ik->i", design_test, np.linalg.inv(A), design_test)
    return net, X, y, X_test, leverage / 2


@cache
def bayesian_logistic(seed, correlation, n_features=2, C=np.inf, n_draws=20_000):
    """Return data, and the posterior mean of KL(p_w || p_w') by importance sampling."""
    rng = np.random.default_rng(seed)
    X, X_test = correlated(rng, 100, n_features, correlation), test_points(rng, n_features)
    y = (rng.random(100) < 1 / (1 + np.exp(-X @ rng.normal(size=n_features)))).astype(int)
    net = fitted(LogisticRegression(C=C, tol=1e-8, max_iter=1000), X, y)
    w = np.concatenate([net.intercept_, net.coef_[0]])
    design, design_test = (np.column_stack([np.ones(len(Z)), Z]) for Z in (X, X_test))
    prior = np.array([0.0] + [1 / C] * n_features)
    p = 1 / (1 + np.exp(-design @ w))
    hessian = design.T @ (design * (p * (1 - p))[:, None]) + np.diag(prior)
    # Proposals: Student's t around the mode, a little wider than the curvature says.
    z = rng.standard_t(5, size=(n_draws, n_features + 1))
    draws = w + 1.2 * z @ np.linalg.cholesky(np.linalg.inv(hessian)).T
    scores = draws @ design.T
    log_posterior = (scores * y - np.logaddexp(0, scores)).sum(axis=1) - draws**2 @ prior / 2
    log_weights = log_posterior + 3 * np.log1p(z**2 / 5).sum(axis=1)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    assert 1 / (weights**2).sum() > 0.4 * n_draws  # the proposals fit
    p, scores = 1 / (1 + np.exp(-design_test @ w)), draws @ design_test.T
    divergence = p * (np.log(p) + np.logaddexp(0, -scores))
    divergence += (1 - p) * (np.log1p(-p) + np.logaddexp(0, scores))
    return net, X, y, X_test, weights @ divergence


def rank_correlation(kind, problem, **options):
    net, X, y, X_test, truth = problem
    est = quam(kind, net, n_rows=len(X), random_state=0, **options).fit(X, y)
    return spearmanr(est.predict_uncertainty(X_test).epistemic, truth).statistic


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("correlation", "precision", "arguments"),
    [
        pytest.param(0.5, 0.0, {}, id="defaults"),
        pytest.param(0.9, 0.0, {}, id="defaults, correlated features"),
        pytest.param(0.5, 1.0, {}, id="defaults, Gaussian prior"),
        pytest.param(0.9, 0.0, CONVERGED, id="converged"),
    ],
)
def test_linear_regression_ranks_as_the_posterior(seed, correlation, precision, arguments):
    problem = bayesian_linear(seed, correlation, precision=precision)
    assert rank_correlation(QUAMRegressor, problem, **arguments) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("correlation", "arguments"),
    [
        pytest.param(0.0, {}, id="defaults"),
        pytest.param(0.5, CONVERGED, id="converged"),
        pytest.param(0.9, CONVERGED, id="converged, correlated features"),
    ],
)
def test_logistic_regression_ranks_as_the_posterior(seed, correlation, arguments):
    problem = bayesian_logistic(seed, correlation)
    assert rank_correlation(QUAMClassifier, problem, **arguments) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_features", "C"),
    [(2, np.inf), (4, np.inf), (2, 1.0)],
    ids=["two features", "four features", "Gaussian prior"],
)
def test_logistic_regression_ranks_as_the_posterior_on_average(n_features, C):
    # With default arguments and correlated features not every single data set reaches 0.9.
    found = [
        rank_correlation(QUAMClassifier, bayesian_logistic(seed, 0.5, n_features, C))
        for seed in range(6)
    ]
    assert np.mean(found) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["given", "expected"])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_profile_of_linear_regression_is_the_posterior(correlation, setting):
    net, X, y, X_test, half_leverage = bayesian_linear(0, correlation)
    options = {**CONVERGED, "setting": setting, "measure": "variance", "random_state": 0}
    est = quam(QUAMRegressor, net, n_rows=len(X), **options)
    u = est.fit(X, y).predict_uncertainty(X_test)
    variance = 2 * half_leverage * est.noise_variance_
    np.testing.assert_allclose(u.epistemic, variance, rtol=0.03)


@pytest.mark.parametrize("n_rows", [300, 1000, 4000])
def test_profile_of_mini_batches_is_the_posterior(n_rows):
    # No step sees all rows, and the noise of mini-batches is much larger than the temperature.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 4))
    y = X @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=n_rows)
    X_test = 2 * rng.normal(size=(8, 4))
    net = LinearRegression().fit(X, y)
    est = quam(QUAMRegressor, net, setting="expected", measure="variance", random_state=0).fit(X, y)
    A, a = np.c_[X, np.ones(n_rows)], np.c_[X_test, np.ones(8)]
    variance = est.noise_variance_ * (a * np.linalg.solve(A.T @ A, a.T).T).sum(axis=1)
    np.testing.assert_allclose(est.predict_uncertainty(X_test).epistemic, variance, rtol=0.2)


@pytest.mark.slow
def test_linear_regression_comes_close_to_the_closed_form():
    # A search that balances c * loss against the shift ends N * leverage / c standard deviations
    # away: for one penalty weight the divergence of the last model is known.
    net, X, y, X_test, half_leverage = bayesian_linear(0, 0.5)
    penalty = 100.0
    est = quam(
        QUAMRegressor,
        net,
        n_rows=len(X),
        n_steps=400,
        penalty=penalty,
        penalty_growth=1.0,
        penalty_every=400,
        learning_rate=0.02,
        learning_rate_decay=1.0,
        batch_size=100,
        tol=0.0,
        slack=1e9,
        random_state=0,
    ).fit(X, y)
    for half, models in zip(half_leverage[:2], est.adversarial_models(X_test[:2]), strict=True):
        shift, increase = 100 * 2 * half / penalty, 100 * half / penalty**2
        assert sorted(m["target"] for m in models) == ["down", "up"]
        for model in models:
            np.testing.assert_allclose(model["divergence"], shift**2 / 2, rtol=1e-6)
            np.testing.assert_allclose(model["loss_increase"], increase, rtol=1e-6)


def two_blobs(seed=0, n_rows=80):
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % 2
    return rng.normal(size=(n_rows, 2)) * 0.5 + np.where(y, 3.0, -3.0)[:, None], y


@cache
def blob_network(solver):
    blobs, y = two_blobs()
    net = MLPClassifier(
        (16, 16),
        solver=solver,
        alpha=0.1 if solver == "lbfgs" else 1e-4,
        max_iter=500,
        random_state=0,
    )
    return fitted(net, blobs, y)


each_blob_network = pytest.mark.parametrize("solver", ["adam", "lbfgs"])


@pytest.mark.slow
@each_setting
@each_blob_network
def test_points_in_the_gap_between_two_blobs_are_uncertain(solver, setting):
    blobs, y = two_blobs()
    est = quam(QUAMClassifier, blob_network(solver), setting=setting, random_state=0).fit(blobs, y)
    rng = np.random.default_rng(1)
    along = rng.uniform(-3, 3, size=20)
    gap = np.column_stack([along, -along]) + 0.2 * rng.normal(size=(20, 2))
    in_gap = est.predict_uncertainty(gap).epistemic
    inside = est.predict_uncertainty(two_blobs(2, 20)[0]).epistemic
    assert in_gap.min() > 2 * inside.max()
    assert np.median(in_gap) > 10 * np.median(inside)


@pytest.mark.slow
@each_setting
@each_blob_network
def test_classifier_knows_training_points_from_points_far_outside(solver, setting):
    blobs, y = two_blobs()
    est = quam(QUAMClassifier, blob_network(solver), setting=setting, random_state=0).fit(blobs, y)
    outside = np.array([[9.0, -9.0], [-9.0, 9.0], [12.0, -10.0], [-8.0, 11.0]])
    duplicates = est.predict_uncertainty(blobs[:16]).epistemic
    assert est.predict_uncertainty(outside).epistemic.min() > 5 * duplicates.max()
    np.testing.assert_array_less(est.score_samples(outside), est.score_samples(blobs[:4]))


@cache
def sine():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-3, -1, 40), rng.uniform(1, 3, 40)])[:, None]
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=80)
    net = MLPRegressor(
        hidden_layer_sizes=(20, 20),
        activation="tanh",
        solver="lbfgs",
        alpha=0.01,
        max_iter=300,
        random_state=0,
    )
    return fitted(net, x, y), x, y


@pytest.mark.slow
@each_setting
@pytest.mark.parametrize("measure", ["entropy", "variance"])
def test_regressor_knows_a_sine_where_it_has_seen_it(setting, measure):
    net, x, y = sine()
    est = quam(QUAMRegressor, net, setting=setting, measure=measure, random_state=0).fit(x, y)
    duplicates = est.predict_uncertainty(x[::4]).epistemic
    outside = est.predict_uncertainty(np.array([[-7.0], [-6.0], [6.0], [7.0]])).epistemic
    gap = est.predict_uncertainty(np.linspace(-0.4, 0.4, 7)[:, None]).epistemic
    assert outside.min() > 5 * duplicates.max()
    assert gap.min() > 5 * duplicates.max()


# -- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parameters": "2.wieght"}, r"2\.weight"),
        ({"parameters": ["0.weight", "3.*"]}, "nearest"),
        ({"parameters": 5}, "2 layers with parameters"),
        ({"parameters": 0}, "parameters"),
        ({"parameters": "norm"}, "selects none"),
        ({"parameters": lambda name, parameter: False}, "selects none"),
        ({"parameters": LoRA(rank=0)}, "rank"),
        ({"parameters": LoRA(layers="head")}, "nearest"),
        ({"targets": 0}, "targets"),
        ({"targets": "most"}, "targets"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"penalty_growth": 0.5}, "penalty_growth"),
        ({"learning_rate_decay": 0.5}, "learning_rate_decay"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"penalty": -1}, "penalty"),
        ({"penalty_every": 0}, "penalty_every"),
        ({"n_steps": 0}, "n_steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"slack": -0.1}, "slack"),
        ({"max_change": 0}, "max_change"),
        ({"tol": -1}, "tol"),
        ({"sampling": "gauss"}, "sampling"),
        ({"adam_epsilon": 0}, "adam_epsilon"),
        ({"learning_rate": "slow"}, "learning_rate"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"setting": "both"}, "setting"),
        ({"memory_limit": "much"}, "memory_limit"),
        ({"memory_limit": "1 XB"}, "memory_limit"),
        ({"memory_limit": "1.2.3GB"}, "memory_limit"),
        ({"memory_limit": "0GB"}, "memory_limit"),
        ({"memory_limit": -5}, "memory_limit"),
        ({"memory_limit": np.inf}, "memory_limit"),
    ],
    ids=lambda value: str(value).split(" at 0x")[0],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        quam(QUAMClassifier, dense(), **arguments).fit(X, LABELS)


@pytest.mark.parametrize("search", ["newton", None, LogisticRegression()])
def test_what_is_no_search_is_refused(search):
    with pytest.raises(ValueError, match="search"):
        QUAMClassifier(dense(), search=search).fit(X, LABELS)


@pytest.mark.parametrize("targets", [1, 0, "most"])
def test_a_regressor_has_directions_not_numbers_of_targets(targets):
    with pytest.raises(ValueError, match="targets"):
        quam(QUAMRegressor, dense(1), targets=targets).fit(X, TARGET)


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.LinkWarning")
@pytest.mark.parametrize("parameters", ["all", "last_layer", "bias", "lora", ["weight"]])
def test_a_network_without_parameters_is_refused(parameters):
    with pytest.raises(ValueError, match=r"no parameters|has none|LoRA needs"):
        quam(QUAMClassifier, nn.Softmax(dim=1), parameters=parameters).fit(X, np.arange(60) % 4)


# -- scikit-learn --------------------------------------------------------------------------


def stored(est, tmp_path):
    joblib.dump(est, tmp_path / "est.joblib")
    return joblib.load(tmp_path / "est.joblib")


@pytest.mark.slow
@pytest.mark.parametrize(
    "duplicate",
    [
        lambda est, _: pickle.loads(pickle.dumps(est)),
        stored,
        lambda est, _: copy.deepcopy(est),
        lambda est, _: pickle.loads(pickle.dumps(copy.deepcopy(est))),
    ],
    ids=["pickle", "joblib", "deepcopy", "both"],
)
@pytest.mark.parametrize("parameters", ["last_layer", "lora"])
@pytest.mark.parametrize(
    ("kind", "y"), [(QUAMClassifier, WORDS[LABELS]), (QUAMRegressor, TARGET)], ids=["C", "R"]
)
def test_copies_of_a_fitted_estimator_answer_alike(kind, y, parameters, duplicate, tmp_path):
    module = seeded(Dense, 3 if kind is QUAMClassifier else 1)
    est = quam(kind, module, parameters=parameters, **{**SHORT, "random_state": None}).fit(X, y)
    copied = duplicate(est, tmp_path)
    expected = est.predict_uncertainty(X_NEW[:4], return_diagnostics=True)
    found = copied.predict_uncertainty(X_NEW[:4], return_diagnostics=True)
    assert_same_rows(found, expected, rtol=0)
    models, expected_models = (e.adversarial_models(X_NEW[:1])[0] for e in (copied, est))
    for model, wanted in zip(models, expected_models, strict=True):
        assert model["target"] == wanted["target"]
        assert model["divergence"] == wanted["divergence"]


def test_a_pickle_holds_no_prepared_searches():
    est = quam(QUAMClassifier, seeded(Dense), **{**SHORT, "n_steps": 12}).fit(X, LABELS)
    long = quam(QUAMClassifier, seeded(Dense), **{**SHORT, "n_steps": 5000}).fit(X, LABELS)
    assert len(pickle.dumps(long)) < len(pickle.dumps(est)) + 100


def test_a_clone_keeps_the_network_and_forgets_the_fit():
    module = seeded(dense)
    est = quam(QUAMClassifier, module, **SHORT, parameters="last_layer").fit(X, LABELS)
    duplicate = clone(est)
    assert duplicate.estimator is module
    assert not hasattr(duplicate, "classes_")
    assert repr(duplicate.search) == repr(est.search)
    assert duplicate.search is not est.search
    own, others = ({**e.get_params(), "search": None} for e in (est, duplicate))
    assert own == others
    expected = est.predict_uncertainty(X_NEW[:3])
    found = duplicate.fit(X, LABELS).predict_uncertainty(X_NEW[:3])
    np.testing.assert_array_equal(found.epistemic, expected.epistemic)


def test_grid_search_over_the_search_itself():
    module = seeded(dense)
    before = module_state(module)
    outside = 6 * X_NEW

    def detects_outside(estimator, X, y):
        scores = np.concatenate([estimator.score_samples(X), estimator.score_samples(outside)])
        return roc_auc_score(np.arange(len(scores)) < len(X), scores)

    grid = {"search__learning_rate": [1e-4, 0.02], "parameters": ["last_layer", "all"]}
    search = GridSearchCV(
        quam(QUAMClassifier, module, **SHORT),
        grid,
        scoring=detects_outside,
        cv=2,
        error_score="raise",
    ).fit(X, LABELS)
    assert len(search.cv_results_["params"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(set(search.cv_results_["mean_test_score"])) > 1
    assert search.best_score_ == search.cv_results_["mean_test_score"].max()
    best = search.best_estimator_
    assert {name: best.get_params()[name] for name in grid} == search.best_params_
    assert module_state(module) == before
    np.testing.assert_array_equal(
        search.predict(X_NEW), quam(QUAMClassifier, module, **SHORT).fit(X, LABELS).predict(X_NEW)
    )


@pytest.mark.parametrize(
    ("parameters", "size", "names"),
    [
        ("all", 67, ["0.weight", "0.bias", "2.weight", "2.bias"]),
        ("last_layer", 27, ["2.weight", "2.bias"]),
        (1, 27, ["2.weight", "2.bias"]),
        ("bias", 11, ["0.bias", "2.bias"]),
        (["0.*"], 40, ["0.weight", "0.bias"]),
        (lambda name, parameter: parameter.ndim == 2, 56, ["0.weight", "2.weight"]),
        (LoRA(rank=1), 23, ["0.weight", "2.weight"]),
    ],
    ids=["all", "last_layer", "1", "bias", "glob", "function", "low rank"],
)
def test_what_is_searched_is_told(parameters, size, names):
    est = quam(QUAMClassifier, dense(), parameters=parameters, **SHORT).fit(X, LABELS)
    assert est.n_parameters_searched_ == size
    assert est.parameter_names_ == names


def test_a_class_in_place_of_a_search_says_what_to_pass():
    with pytest.raises(TypeError, match=r"search is a class: pass an object, PenaltySearch"):
        QUAMClassifier(dense(), search=PenaltySearch).fit(X, LABELS)
