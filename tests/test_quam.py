"""QUAM as a user meets it: what it promises about rows, models, errors, and the truth."""

import copy
import pickle
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
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
each_setting = pytest.mark.parametrize("setting", ["given", "expected"])


def seeded(build, *args, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(*args)


def assert_same_rows(found, expected, rows=slice(None), rtol=1e-8):
    """Compare uncertainty and diagnostics, the latter of some rows."""
    for got, wanted in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(got, wanted[rows], rtol=rtol, atol=1e-12)
    found, expected = found[1]._columns(), expected[1]._columns()
    assert found.keys() == expected.keys()
    for name, got in found.items():
        wanted = expected[name]
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
options = st.fixed_dictionaries(
    {
        "setting": st.sampled_from(["given", "expected"]),
        "sampling": st.sampled_from(["trajectory", "best", "auto"]),
        "parameters": st.sampled_from(["all", "last_layer", "bias", "lora"]),
        "batch_size": st.sampled_from([10, 256]),
        "n_steps": st.integers(1, 14),
        "random_state": st.integers(0, 10),
    }
)


def build(kind, **chosen):
    """Return a fitted estimator in double precision."""
    wrapper, module, n_out, y = KINDS[kind]
    arguments = {**SHORT, "slack": 0.2, **chosen}
    return quam(wrapper, seeded(module, n_out).double(), **arguments).fit(X, y)


@settings(deadline=None, max_examples=8)
@given(
    kind=st.sampled_from(list(KINDS)),
    chosen=options,
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    searches=st.sampled_from([1.0, 2.5, 100.0]),
)
def test_answers_depend_on_nothing_but_the_row_and_the_fit(kind, chosen, rows, searches):
    est = build(kind, **chosen)
    together = est.predict_uncertainty(X_NEW[:6], return_diagnostics=True)
    u = together[0]
    assert (u.epistemic >= 0).all()
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-14, atol=1e-14)
    some = est.predict_uncertainty(X_NEW[rows], return_diagnostics=True)
    assert_same_rows(some, together, rows)
    again = build(kind, **chosen).predict_uncertainty(X_NEW[:6], return_diagnostics=True)
    assert_same_rows(again, together, rtol=0)
    est.set_params(memory_limit=searches * est._fitted.models.needs.of(1, 1))
    limited = est.predict_uncertainty(X_NEW[:6], return_diagnostics=True)
    assert_same_rows(limited, together, rtol=1e-5)


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_another_random_state_gives_another_answer(kind):
    options = {"batch_size": 10}
    first = build(kind, **options, random_state=0).predict_uncertainty(X_NEW[:4])
    second = build(kind, **options, random_state=1).predict_uncertainty(X_NEW[:4])
    assert (first.epistemic != second.epistemic).all()
    np.testing.assert_allclose(second.epistemic, first.epistemic, rtol=2)


@pytest.mark.parametrize("parameters", ["last_layer", "all", "lora"])
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


# -- the models themselves -----------------------------------------------------------------


def normalised():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


MODELS = {
    "all": (dense, {}),
    "last layer": (dense, {"parameters": "last_layer"}),
    "low rank": (dense, {"parameters": LoRA(rank=2, alpha=3.0)}),
    "tied": (tied, {}),
    "tied, low rank": (tied, {"parameters": "lora"}),
    "norm": (normalised, {"parameters": "norm"}),
    "two targets": (dense, {"targets": 2}),
    "no feasible model": (dense, {"slack": 0.0, "penalty": 0.0}),
}


@pytest.mark.parametrize(("module", "arguments"), MODELS.values(), ids=list(MODELS))
def test_adversarial_models_are_what_they_are_said_to_be(module, arguments):
    net = seeded(module).double()
    before = module_state(net)
    est = quam(QUAMClassifier, net, **{**SHORT, "slack": 0.1, "n_steps": 25, **arguments})
    est.fit(X, WORDS[LABELS])
    rtol = 1e-9
    inputs, target = torch.as_tensor(X).double(), torch.as_tensor(LABELS)
    rows = torch.as_tensor(X_NEW[:2]).double()
    net.eval()
    given_loss = nn.functional.cross_entropy(net(inputs), target)
    models = est.adversarial_models(X_NEW[:2])
    n_targets = arguments.get("targets", 3)
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
        assert names <= set(WORDS)
        assert len(names) == n_targets
    if "two targets" in str(arguments):
        assert est.predict(X_NEW[:1])[0] in {m["target"] for m in models[0]}
    net.train()
    assert module_state(net) == before


@pytest.mark.parametrize(
    ("module", "y"),
    [
        (lambda: dense(2), TWO_TARGETS),
        (MeanAndVariance, TARGET),
    ],
    ids=["two outputs", "mean and variance"],
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
def bayesian_linear(seed, correlation, n_features=3):
    """Return data, and the posterior mean of KL(p_w || p_w') around the fitted weights."""
    rng = np.random.default_rng(seed)
    X, X_test = correlated(rng, 100, n_features, correlation), test_points(rng, n_features)
    y = X @ rng.normal(size=n_features) + 0.5 + 0.5 * rng.normal(size=100)
    # The weights of the posterior are N(w, noise * A^-1); KL is a square over twice the noise.
    design, design_test = (np.column_stack([np.ones(len(Z)), Z]) for Z in (X, X_test))
    A = design.T @ design
    leverage = np.einsum("ij,jk,ik->i", design_test, np.linalg.inv(A), design_test)
    return LinearRegression().fit(X, y), X, y, X_test, leverage / 2


def bayesian_logistic(seed, correlation, n_features=2, n_draws=20_000):
    """Return data, and the posterior mean of KL(p_w || p_w') by importance sampling."""
    rng = np.random.default_rng(seed)
    X, X_test = correlated(rng, 100, n_features, correlation), test_points(rng, n_features)
    y = (rng.random(100) < 1 / (1 + np.exp(-X @ rng.normal(size=n_features)))).astype(int)
    net = fitted(LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000), X, y)
    w = np.concatenate([net.intercept_, net.coef_[0]])
    design, design_test = (np.column_stack([np.ones(len(Z)), Z]) for Z in (X, X_test))
    p = 1 / (1 + np.exp(-design @ w))
    hessian = design.T @ (design * (p * (1 - p))[:, None])
    # Proposals: Student's t around the mode, a little wider than the curvature says.
    z = rng.standard_t(5, size=(n_draws, n_features + 1))
    draws = w + 1.2 * z @ np.linalg.cholesky(np.linalg.inv(hessian)).T
    scores = draws @ design.T
    log_posterior = (scores * y - np.logaddexp(0, scores)).sum(axis=1)
    log_weights = log_posterior + 3 * np.log1p(z**2 / 5).sum(axis=1)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    assert 1 / (weights**2).sum() > 0.4 * n_draws  # the proposals fit
    p, scores = 1 / (1 + np.exp(-design_test @ w)), draws @ design_test.T
    divergence = p * (np.log(p) + np.logaddexp(0, -scores))
    divergence += (1 - p) * (np.log1p(-p) + np.logaddexp(0, scores))
    return net, X, y, X_test, weights @ divergence


@pytest.mark.slow
@pytest.mark.parametrize(("correlation", "arguments"), [(0.0, {}), (0.9, CONVERGED)])
def test_logistic_regression_ranks_as_the_posterior(correlation, arguments):
    net, X, y, X_test, truth = bayesian_logistic(0, correlation)
    est = quam(QUAMClassifier, net, n_rows=len(X), random_state=0, **arguments).fit(X, y)
    assert spearmanr(est.predict_uncertainty(X_test).epistemic, truth).statistic > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["given", "expected"])
def test_profile_of_linear_regression_is_the_posterior(setting):
    net, X, y, X_test, half_leverage = bayesian_linear(0, 0.5)
    options = {**CONVERGED, "setting": setting, "measure": "variance", "random_state": 0}
    est = quam(QUAMRegressor, net, n_rows=len(X), **options)
    u = est.fit(X, y).predict_uncertainty(X_test)
    variance = 2 * half_leverage * est.noise_variance_
    np.testing.assert_allclose(u.epistemic, variance, rtol=0.03)


@pytest.mark.parametrize("n_rows", [300, 2000])
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


# -- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parameters": "2.wieght"}, r"2\.weight"),
        ({"parameters": ["0.weight", "3.*"]}, "nearest"),
        ({"parameters": 5}, "2 layers with parameters"),
        ({"parameters": "norm"}, "selects none"),
        ({"parameters": LoRA(rank=0)}, "rank"),
        ({"parameters": LoRA(layers="head")}, "nearest"),
        ({"targets": 0}, "targets"),
        ({"targets": "most"}, "targets"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"penalty_growth": 0.5}, "penalty_growth"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"n_steps": 0}, "n_steps"),
        ({"slack": -0.1}, "slack"),
        ({"sampling": "gauss"}, "sampling"),
        ({"setting": "both"}, "setting"),
        ({"memory_limit": "much"}, "memory_limit"),
        ({"memory_limit": "1.2.3GB"}, "memory_limit"),
        ({"memory_limit": -5}, "memory_limit"),
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


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.LinkWarning")
@pytest.mark.parametrize("parameters", ["all", "last_layer", "lora"])
def test_a_network_without_parameters_is_refused(parameters):
    with pytest.raises(ValueError, match=r"no parameters|has none|LoRA needs"):
        quam(QUAMClassifier, nn.Softmax(dim=1), parameters=parameters).fit(X, np.arange(60) % 4)


# -- scikit-learn --------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", ["last_layer", "lora"])
@pytest.mark.parametrize(
    ("kind", "y"), [(QUAMClassifier, WORDS[LABELS]), (QUAMRegressor, TARGET)], ids=["C", "R"]
)
def test_copies_of_a_fitted_estimator_answer_alike(kind, y, parameters):
    module = seeded(Dense, 3 if kind is QUAMClassifier else 1)
    est = quam(kind, module, parameters=parameters, **{**SHORT, "random_state": None}).fit(X, y)
    copied = pickle.loads(pickle.dumps(copy.deepcopy(est)))
    expected = est.predict_uncertainty(X_NEW[:4], return_diagnostics=True)
    found = copied.predict_uncertainty(X_NEW[:4], return_diagnostics=True)
    assert_same_rows(found, expected, rtol=0)
    models, expected_models = (e.adversarial_models(X_NEW[:1])[0] for e in (copied, est))
    for model, wanted in zip(models, expected_models, strict=True):
        assert model["target"] == wanted["target"]
        assert model["divergence"] == wanted["divergence"]


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
    est = quam(QUAMClassifier, module, **SHORT)
    search = GridSearchCV(est, grid, scoring=detects_outside, cv=2, error_score="raise")
    search.fit(X, LABELS)
    scores = search.cv_results_["mean_test_score"]
    assert len(set(scores)) > 1
    assert search.best_score_ == scores.max()
    best = search.best_estimator_.get_params()
    assert {name: best[name] for name in grid} == search.best_params_
    assert module_state(module) == before


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
