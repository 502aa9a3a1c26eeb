"""The public contract, one suite for every method: a new method joins by adding a line."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import NamedTuple

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

import sklearn_quam
from sklearn_quam import (
    Diagnostics,
    LinearSearch,
    NaturalSearch,
    PenaltySearch,
    Uncertainty,
)
from sklearn_quam._network.adapters import is_pretrained
from sklearn_quam.base._conformal import noise_and_calibration_rows
from sklearn_quam.exceptions import SeenRowsWarning


def perturbed(network):
    """Return networks that differ from a given one a little."""
    members = [copy.deepcopy(network) for _ in range(2)]
    for number, member in enumerate(members):
        last = member[-1] if isinstance(member, Pipeline) else member
        if isinstance(last, nn.Module):
            generator = torch.Generator().manual_seed(number)
            with torch.no_grad():
                for p in last.parameters():
                    p += 0.1 * torch.randn(p.shape, generator=generator)
    return members


def members(network):
    """Return arguments of an ensemble: given networks are not trained again, others are."""
    return {"estimators": perturbed(network)} if is_pretrained(network) else {"n_estimators": 2}


# method -> arguments that keep the tests fast, or a function of the network that returns them; a
# suffix after a comma distinguishes variants of a method
ARGUMENTS = {
    "Reference": {},
    "QUAM": {},
    "QUAM, natural": {"search": NaturalSearch(n_steps=4, n_rows=16)},
    "QUAM, linear": {"search": LinearSearch()},
    "QUAM, penalty": {"search": PenaltySearch(n_steps=5)},
    "MCDropout": {"n_samples": 8, "p": 0.2},
    "DeepEnsemble": members,
    "Laplace": {"n_samples": 16},
    "MixtureLaplace": lambda network: {**members(network), "n_samples": 16},
    "SWAG": {"n_samples": 8, "n_epochs": 3},
    "CyclicalSGHMC": {"n_cycles": 2, "n_steps": 10, "samples_per_cycle": 2, "n_chains": 2},
    "HMC": {"n_samples": 6, "n_warmup": 4, "n_leapfrog": 3},
}


class Method(NamedTuple):
    """A method for one of the tasks, with the arguments that it is tested with."""

    name: str
    kind: type
    arguments: dict | Callable


METHODS = [
    Method(name.replace(base, base + task), getattr(sklearn_quam, base + task), arguments)
    for name, arguments in ARGUMENTS.items()
    for base in [name.partition(",")[0]]
    for task in ("Classifier", "Regressor")
]
# One method for each kind of plausible models: what all methods inherit needs no more.
NAMES_OF_FEW = ["QUAMClassifier", "QUAMRegressor, penalty", "DeepEnsembleClassifier"]
NAMES_OF_FEW += ["LaplaceRegressor"]
FEW = [method for method in METHODS if method.name in NAMES_OF_FEW]

DEVICES = [name for name in ("cuda", "mps") if getattr(torch, name).is_available()]
N_FEATURES, N_CLASSES = 4, 3
LIVE = ("setting", "measure", "memory_limit", "n_jobs", "verbose")


def is_classifier(method):
    return method.kind._task == "classifier"


def make_data(method, n_samples=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_samples, N_FEATURES)).astype(np.float32)
    score = X[:, 0] + 0.3 * rng.normal(size=n_samples)
    if is_classifier(method):
        return X, np.digitize(score, [-0.5, 0.5])
    return X, score.astype(np.float32)


def make_module(method, seed=0):
    torch.manual_seed(seed)
    width = N_CLASSES if is_classifier(method) else 1
    return nn.Sequential(nn.Linear(N_FEATURES, 8), nn.Tanh(), nn.Linear(8, width))


def make_sklearn_net(method):
    kind = MLPClassifier if is_classifier(method) else MLPRegressor
    return kind(hidden_layer_sizes=(8,), solver="lbfgs", max_iter=30, random_state=0)


def make_skorch_net(method):
    options = {"max_epochs": 2, "verbose": 0, "train_split": None}
    if is_classifier(method):
        return NeuralNetClassifier(make_module(method), criterion=nn.CrossEntropyLoss, **options)
    return NeuralNetRegressor(make_module(method), **options)


def make_estimator(method, estimator=None, **params):
    network = make_module(method) if estimator is None else estimator
    arguments = method.arguments
    arguments = arguments(network) if callable(arguments) else arguments
    return method.kind(network, **{**arguments, "random_state": 0, **params})


@pytest.fixture(params=METHODS, ids=lambda method: method.name)
def method(request):
    return request.param


def for_methods(methods):
    """Run a test for some of the methods; without this it runs for all."""
    return pytest.mark.parametrize("method", list(methods), ids=lambda method: method.name)


few_methods = for_methods(FEW)
two_methods = for_methods(FEW[:2])
each_classifier = for_methods(filter(is_classifier, METHODS))
each_regressor = for_methods(method for method in METHODS if not is_classifier(method))
a_regressor = for_methods(FEW[1:2])
few_classifiers = for_methods(filter(is_classifier, FEW))

FITTED = {}


def fitted_once(method):
    """Return an estimator fitted to `make_data`, with arguments and attributes of its own."""
    if method.name not in FITTED:
        FITTED[method.name] = make_estimator(method).fit(*make_data(method))
    # What was fitted is never written to; arguments are, and belong to the copy.
    return copy.copy(FITTED[method.name])


@pytest.fixture
def fitted(method):
    return fitted_once(method)


@pytest.fixture
def X_new(method):
    return make_data(method, n_samples=7, seed=1)[0]


def assert_same_uncertainty(first, second, **tolerance):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, **{"rtol": 1e-5, "atol": 1e-6, **tolerance})


# -- answers of every method -----------------------------------------------------------------


@pytest.mark.parametrize("setting", ["given", "expected"])
def test_answers(method, setting, fitted, X_new):
    est = fitted.set_params(setting=setting)
    u, diagnostics = est.predict_uncertainty(X_new, return_diagnostics=True)
    assert isinstance(u, Uncertainty)
    assert all(part.shape == (len(X_new),) and part.dtype == np.float64 for part in u)
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-12)
    assert (u.epistemic >= 0).all()
    assert np.isfinite(u.total).all()
    # The models of a search are no independent draws, and have no standard error.
    assert isinstance(diagnostics, Diagnostics)
    assert (diagnostics.standard_error is None) == type(est).__name__.startswith("QUAM")
    if diagnostics.standard_error is not None:
        assert (diagnostics.standard_error >= 0).all()
    assert (diagnostics.effective_sample_size >= 1 - 1e-9).all()
    assert len(diagnostics.to_frame()) == len(X_new)
    # The other methods return the same.
    np.testing.assert_array_equal(est.score_samples(X_new), -u.epistemic)
    prediction, found = est.predict(X_new, return_uncertainty=True)
    np.testing.assert_allclose(prediction.astype(float), est.predict(X_new), rtol=1e-5)
    assert_same_uncertainty(found, u)
    if is_classifier(method):
        proba, found = est.predict_proba(X_new, return_uncertainty=True)
        np.testing.assert_allclose(proba, est.predict_proba(X_new), rtol=1e-5)
        assert_same_uncertainty(found, u)


@each_classifier
@pytest.mark.parametrize(("measure", "largest"), [("brier", 2), ("zero_one", 1)])
def test_other_measures_of_classifiers(measure, largest, fitted, X_new):
    in_nats = fitted.predict_uncertainty(X_new)
    u = fitted.set_params(measure=measure).predict_uncertainty(X_new)
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-12)
    assert (u.epistemic >= 0).all()
    assert ((u.aleatoric > 0) & (u.aleatoric < 1)).all()
    assert (u.total <= largest).all()
    # By Pinsker's inequality, in the setting "given" for each model and so for their mean.
    if measure == "brier":
        assert (u.epistemic <= 2 * in_nats.epistemic + 1e-12).all()


def test_given_setting_predicts_like_the_given_network(method, fitted, X_new):
    with torch.no_grad():
        output = make_module(method)(torch.tensor(X_new))
    if is_classifier(method):
        expected = output.softmax(dim=1).numpy()
        np.testing.assert_allclose(fitted.predict_proba(X_new), expected, rtol=1e-5)
        np.testing.assert_array_equal(fitted.predict(X_new), expected.argmax(axis=1))
    else:
        np.testing.assert_allclose(fitted.predict(X_new), output[:, 0].numpy(), rtol=1e-5)


@settings(deadline=None, max_examples=20)
@given(rows=st.lists(st.integers(0, 11), min_size=1, max_size=12), data=st.data())
def test_a_row_does_not_depend_on_the_others(rows, data):
    method = data.draw(st.sampled_from(METHODS))
    setting = data.draw(st.sampled_from(["given", "expected"]))
    X, _ = make_data(method)
    est = fitted_once(method).set_params(setting=setting)
    together = est.predict_uncertainty(X[:12])
    picked = est.predict_uncertainty(X[rows])
    assert_same_uncertainty(picked, [part[rows] for part in together])


def test_same_random_state_same_answer_and_the_given_module_is_untouched(method, fitted, X_new):
    module = make_module(method).train()
    module[1].eval()
    module[2].weight.grad = torch.ones_like(module[2].weight)
    before = copy.deepcopy(module)
    est = make_estimator(method, module).fit(*make_data(method))
    expected = fitted.predict_uncertainty(X_new)
    for answers in (est, est, fitted):
        assert_same_uncertainty(answers.predict_uncertainty(X_new), expected, rtol=0, atol=0)
    assert torch.equal(module[2].weight.grad, torch.ones_like(module[2].weight))
    assert module[0].weight.grad is None
    assert [m.training for m in module.modules()] == [m.training for m in before.modules()]
    for new, old in zip(module.parameters(), before.parameters(), strict=True):
        assert torch.equal(new, old)
        assert (new.requires_grad, new.device) == (old.requires_grad, old.device)


# -- kinds of data ---------------------------------------------------------------------------


@few_methods
def test_first_and_last_step_of_a_pipeline(method, X_new):
    X, y = make_data(method)
    scaler = StandardScaler().fit(X)
    pipe = make_pipeline(StandardScaler(), make_estimator(method)).fit(X, y)
    alone = make_estimator(method).fit(scaler.transform(X), y)
    u = alone.predict_uncertainty(scaler.transform(X_new))
    around = make_estimator(method, Pipeline([("scale", scaler), ("net", make_module(method))]))
    assert_same_uncertainty(around.fit(X, y).predict_uncertainty(X_new), u)
    np.testing.assert_allclose(pipe.score_samples(X_new), -u.epistemic, rtol=1e-5)
    _, through_pipe = pipe.predict(X_new, return_uncertainty=True)
    assert_same_uncertainty(through_pipe, u)


@few_classifiers
def test_string_labels(method, fitted, X_new):
    X, y = make_data(method)
    names = np.array(["ant", "bee", "cat"])
    est = make_estimator(method).fit(X, names[y])
    np.testing.assert_array_equal(est.classes_, names)
    np.testing.assert_array_equal(est.predict(X_new), names[fitted.predict(X_new)])
    assert_same_uncertainty(est.predict_uncertainty(X_new), fitted.predict_uncertainty(X_new))


@two_methods
def test_data_frames_bring_feature_names_and_an_index(method, fitted, X_new):
    X, y = make_data(method)
    columns = [f"x{i}" for i in range(N_FEATURES)]
    est = make_estimator(method).fit(pd.DataFrame(X, columns=columns), y)
    np.testing.assert_array_equal(est.feature_names_in_, columns)
    frame = pd.DataFrame(X_new, columns=columns)
    u = est.predict_uncertainty(frame)
    assert_same_uncertainty(u, fitted.predict_uncertainty(X_new))
    index = [f"row{i}" for i in range(len(X_new))]
    assert list(u.to_frame(index=index).index) == index
    with pytest.raises(ValueError, match="feature names"):
        est.predict_uncertainty(frame[columns[::-1]])


@two_methods
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_tensors(method, dtype, X_new):
    X, y = make_data(method)
    X, X_new = (torch.tensor(rows).to(torch.bfloat16) for rows in (X, X_new))
    est = make_estimator(method).fit(X.to(dtype), torch.tensor(y))
    expected = make_estimator(method).fit(X.float().numpy(), y)
    assert_same_uncertainty(
        est.predict_uncertainty(X_new.to(dtype, copy=True).requires_grad_()),
        expected.predict_uncertainty(X_new.float().numpy()),
    )


@few_methods
def test_arrays_of_images(method, fitted):
    X, y = make_data(method)
    images = X.reshape(-1, 1, 2, 2)
    network = nn.Sequential(nn.Flatten(), make_module(method))
    est = make_estimator(method, network).fit(images, y)
    assert_same_uncertainty(est.predict_uncertainty(images[:7]), fitted.predict_uncertainty(X[:7]))


@few_methods
@pytest.mark.parametrize("device", DEVICES)
def test_runs_on_every_device(method, device, fitted, X_new):
    est = make_estimator(method, device=device).fit(*make_data(method))
    assert_same_uncertainty(
        est.predict_uncertainty(X_new), fitted.predict_uncertainty(X_new), rtol=1e-3, atol=1e-4
    )


# -- given networks, clones, searches --------------------------------------------------------


@two_methods
@pytest.mark.parametrize("make_net", [make_skorch_net, make_sklearn_net])
def test_a_given_network_survives_clone_and_grid_search(method, make_net, X_new, monkeypatch):
    X, y = make_data(method)
    target = y.reshape(-1, 1) if make_net is make_skorch_net and not is_classifier(method) else y
    net = make_net(method).fit(X, target)
    monkeypatch.setattr(type(net), "fit", None)  # it is never trained again
    est = make_estimator(method, net)
    duplicate = clone(est)
    assert duplicate is not est
    assert duplicate.estimator is net
    with pytest.raises(NotFittedError):
        duplicate.predict_uncertainty(X_new)
    expected = est.fit(X, y).predict_uncertainty(X_new)
    assert_same_uncertainty(duplicate.fit(X, y).predict_uncertainty(X_new), expected)
    for given_net in (net, FrozenEstimator(net)):
        est = make_estimator(method, given_net)
        assert not [name for name in est.get_params() if name.startswith("estimator__")]
        with pytest.raises(ValueError, match="already fitted"):
            est.set_params(estimator__alpha=1.0)
    search = GridSearchCV(est, {"setting": ["given", "expected"]}, cv=2)
    with pytest.warns(SeenRowsWarning) as warned:
        search.fit(X, y)
    assert sum(w.category is SeenRowsWarning for w in warned) == 1
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@two_methods
def test_grid_search_tunes_an_unfitted_network(method):
    X, y = make_data(method)
    est = make_estimator(method, make_sklearn_net(method))
    assert clone(est).estimator is not est.estimator
    search = GridSearchCV(est, {"estimator__alpha": [1e-4, 1.0]}, cv=2).fit(X, y)
    assert search.best_params_["estimator__alpha"] in (1e-4, 1.0)
    assert not hasattr(est.estimator, "coefs_")


def through_joblib(est):
    stream = io.BytesIO()
    joblib.dump(est, stream)
    stream.seek(0)
    return joblib.load(stream)


def test_fitted_estimators_can_be_stored(method, fitted, X_new):
    expected = fitted.predict_uncertainty(X_new)
    restored = [pickle.loads(pickle.dumps(fitted))]
    if method in FEW:
        restored += [through_joblib(fitted), copy.deepcopy(fitted)]
    for est in restored:
        assert_same_uncertainty(est.predict_uncertainty(X_new), expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"random_state.* changed after fit"):
        restored[0].set_params(random_state=5).predict_uncertainty(X_new)


# -- arguments of fit ------------------------------------------------------------------------


@few_methods
def test_sample_weight_reaches_the_wrapped_estimator(method):
    X, y = make_data(method)
    weight = np.linspace(0.1, 3, len(y))
    net = make_sklearn_net(method).fit(X, y, sample_weight=weight)
    est = make_estimator(method, make_sklearn_net(method)).fit(X, y, sample_weight=weight)
    with config_context(enable_metadata_routing=True):
        asked = make_estimator(method, make_sklearn_net(method).set_fit_request(sample_weight=True))
        asked.fit(X, y, sample_weight=weight)
    for found in (est, asked):
        np.testing.assert_array_equal(found.estimator_.coefs_[0], net.coefs_[0])
    scaled = StandardScaler().fit_transform(X)
    net = make_sklearn_net(method).fit(scaled, y, sample_weight=weight)
    pipe = make_pipeline(StandardScaler(), make_sklearn_net(method))
    est = make_estimator(method, pipe).fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(est.estimator_[-1].coefs_[0], net.coefs_[0])
    with pytest.raises(ValueError, match="takes no sample_weight"):
        make_estimator(method, make_skorch_net(method)).fit(X, y, sample_weight=weight)


@two_methods
def test_sample_weight_counts_in_the_reference_loss(method):
    X, y = make_data(method)
    weight = np.r_[np.ones(10), np.zeros(len(y) - 10)]
    params = {} if is_classifier(method) else {"noise_variance": 0.5}
    weighted = make_estimator(method, **params).fit(X, y, sample_weight=weight)
    part = make_estimator(method, **params).fit(X[:10], y[:10])
    assert weighted.reference_loss_ == pytest.approx(part.reference_loss_, rel=1e-5)


@two_methods
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_input_is_refused(method, fitted, bad, X_new):
    X, y = make_data(method)
    refused = [
        (X_new[:, :2], "features"),
        (X_new.astype(np.float64) * 1e300, "too large for the network"),
        (np.array([["a"] * N_FEATURES]), r"could not convert|dtype='numeric'"),
        (np.where(np.eye(7, N_FEATURES), bad, X_new), r"NaN|infinity"),
    ]
    for rows, message in refused:
        with pytest.raises(ValueError, match=message):
            fitted.predict_uncertainty(rows)
    with pytest.raises(TypeError, match="not trained again"):
        make_estimator(method).fit(X, y, epochs=3)
    for name, value in [("setting", "other"), ("link", "sigmoid"), ("verbose", "loud")]:
        with pytest.raises(ValueError, match=name):
            make_estimator(method, **{name: value}).fit(X, y)
    # A fit that fails leaves nothing that answers.
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        fitted.fit(np.where(np.eye(*X.shape), bad, X), y)
    with pytest.raises(NotFittedError):
        fitted.predict_uncertainty(X_new)


# -- regressors, held-out samples ------------------------------------------------------------


@each_regressor
def test_multi_output_regression(method):
    X, y = make_data(method, n_samples=20)
    targets = np.c_[y, -2 * y]
    torch.manual_seed(0)
    est = make_estimator(method, nn.Linear(N_FEATURES, 2)).fit(X, targets)
    assert est.predict(X).shape == targets.shape
    assert est.noise_variance_.shape == (2,)
    u = est.predict_uncertainty(X)
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-12)
    assert est.predict_interval(X).shape == (*targets.shape, 2)
    assert est.predict(X, return_std=True)[1].shape == targets.shape


@each_regressor
def test_intervals_and_variances(method, fitted, X_new):
    half, most = fitted.predict_interval(X_new, 0.5), fitted.predict_interval(X_new, coverage=0.9)
    none = fitted.predict_interval(X_new, 1e-9)
    assert half.shape == most.shape == (len(X_new), 2)
    # Nested, and around the median.
    assert (most[:, 0] < half[:, 0]).all()
    assert (half[:, 1] < most[:, 1]).all()
    assert ((half[:, 0] < none[:, 0]) & (none[:, 1] < half[:, 1])).all()
    np.testing.assert_allclose(none[:, 0], none[:, 1], rtol=1e-5, atol=1e-6)
    # Setting and measure do not change the average prediction.
    for setting in ("given", "expected"):
        fitted.set_params(setting=setting, measure="variance")
        np.testing.assert_allclose(fitted.predict_interval(X_new, 0.9), most, rtol=1e-5)
        u = fitted.predict_uncertainty(X_new)
        assert (u.aleatoric > 0).all()
        np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-12)
    mean, std = fitted.predict(X_new, return_std=True)
    assert mean.shape == std.shape == (len(X_new),)
    assert (std > 0).all()
    if method.name.startswith("Reference"):
        np.testing.assert_allclose(np.diff(most)[:, 0], 2 * 1.6448536 * std, rtol=1e-6)


@a_regressor
def test_calibrated_intervals(method, X_new):
    X, y = make_data(method)
    est = make_estimator(method).fit(X[:20], y[:20], X_val=X[20:], y_val=y[20:])
    assert est.conformal_scores_.shape == (10, 1)
    of_noise, of_intervals = noise_and_calibration_rows(20)
    residuals = (y[20:] - est.predict(X[20:]))[of_noise]
    np.testing.assert_allclose(est.noise_variance_, np.mean(residuals**2), rtol=1e-5)
    interval = est.predict_interval(X[20:], 0.75)
    inside = (interval[:, 0] <= y[20:]) & (y[20:] <= interval[:, 1])
    # The 9th of 10: 9 / 11 are more than three quarters.
    assert inside[of_intervals].sum() in (8, 9)
    one_by_one = np.concatenate([est.predict_interval(row[None], 0.75) for row in X[20:23]])
    np.testing.assert_allclose(one_by_one, interval[:3], rtol=1e-4, atol=1e-5)
    stored = pickle.loads(pickle.dumps(est)).predict_interval(X_new, 0.75)
    np.testing.assert_array_equal(stored, est.predict_interval(X_new, 0.75))


@few_classifiers
def test_sets(method, X_new):
    X, y = make_data(method)
    for held_out in ({}, {"X_val": X[20:], "y_val": y[20:]}):
        est = make_estimator(method).fit(X[:20], y[:20], **held_out)
        half, most = est.predict_set(X_new, 0.5), est.predict_set(X_new, coverage=0.9)
        assert half.shape == most.shape == (len(X_new), N_CLASSES)
        assert half.dtype == bool
        assert half.any(axis=1).all()
        assert (half <= most).all()
        stored = pickle.loads(pickle.dumps(est))
        np.testing.assert_array_equal(stored.predict_set(X_new, 0.9), most)
    # 16 of the 20 rows that it was calibrated on: 16 / 21 are more than three quarters.
    assert est.predict_set(X[20:], 0.75)[np.arange(20), y[20:]].sum() >= 16


# -- arguments that are changed after fit ----------------------------------------------------

# Another valid value of each argument that determines a fit; others are changed by their kind.
OTHER_VALUES = {
    "search": PenaltySearch(n_steps=6),
    "structure": "diag",
    "predictive": "probit",
    "link": {"classifier": "log_probabilities", "regressor": "mean_variance"},
    "output": 1,
    "device": torch.device("cpu"),
    "estimators": [],
    "noise_variance": 0.25,
    "parameters": "bias",
    "temperature": 0.5,
    "prior_precision": 2.5,
    "p": 0.35,
    "search__penalty_growth": 2.0,
    "search__n_corrections": 3,
    "search__prior_precision": 0.5,
    "search__targets": "all",
    "search__sampling": "best",
    "search__slack": 0.5,
    "n_training_rows": 1000,
}


def other_value(name, value, method):
    """Return another valid value of an argument."""
    if name == "estimator":
        return make_module(method, seed=1)
    if name in OTHER_VALUES:
        other = OTHER_VALUES[name]
        return other[method.kind._task] if isinstance(other, dict) else other
    if value is None or isinstance(value, str):
        return 3.0
    return value / 2 if isinstance(value, float) and value else value + 1


def test_an_argument_that_was_fitted_cannot_be_changed_silently(method, fitted, X_new):
    before = fitted.predict_uncertainty(X_new)
    names = [name for name in fitted.get_params() if name not in LIVE]
    assert {"estimator", "link", "device", "random_state"} <= set(names)
    for name in names:
        value = fitted.get_params()[name]
        fitted.set_params(**{name: other_value(name, value, method)})
        with pytest.raises(ValueError, match=rf"{name}.* changed after fit"):
            fitted.predict(X_new)
        fitted.set_params(**{name: value})
    # Equal arguments are no change.
    fitted.set_params(**clone(fitted).get_params(deep=False))
    assert_same_uncertainty(fitted.predict_uncertainty(X_new), before, rtol=0, atol=0)


@two_methods
def test_a_net_that_fit_trains_may_be_asked_and_stored(method, X_new):
    X, y = make_data(method)
    for network in (
        make_skorch_net(method),
        make_pipeline(SimpleImputer(missing_values=np.nan), make_sklearn_net(method)),
        make_sklearn_net(method),
    ):
        est = make_estimator(method, network).fit(X, y)
        before = est.predict_uncertainty(X_new)
        restored = pickle.loads(pickle.dumps(est))
        assert_same_uncertainty(restored.predict_uncertainty(X_new), before, rtol=0, atol=0)
    est.set_params(estimator__alpha=0.5)
    with pytest.raises(ValueError, match=r"estimator__alpha.* changed after fit"):
        est.predict_uncertainty(X_new)


@few_methods
def test_live_arguments_may_be_changed_at_any_time(method, fitted, X_new):
    measure = "zero_one" if is_classifier(method) else "variance"
    others = {"setting": "expected", "measure": measure, "memory_limit": "1MB", "n_jobs": 1}
    before = fitted.get_params(deep=False)
    others = {name: other for name, other in others.items() if name in before}
    expected = fitted.predict_uncertainty(X_new)
    anew = make_estimator(method, **others).fit(*make_data(method)).predict_uncertainty(X_new)
    fitted.set_params(**others)
    assert_same_uncertainty(fitted.predict_uncertainty(X_new), anew)
    fitted.set_params(**{name: before[name] for name in others})
    assert_same_uncertainty(fitted.predict_uncertainty(X_new), expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match="setting"):
        fitted.set_params(setting="other").predict_uncertainty(X_new)
