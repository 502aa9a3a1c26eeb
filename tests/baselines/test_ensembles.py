"""Ensembles: which networks are members, how they are trained, and their average."""

import copy
import inspect
import pickle

import joblib
import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from scipy.stats import entropy, norm
from sklearn import config_context
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils import check_random_state
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn
from torch.nn.utils import parametrizations

from sklearn_quam import (
    DeepEnsembleClassifier,
    DeepEnsembleRegressor,
    LaplaceClassifier,
    LaplaceRegressor,
    MixtureLaplaceClassifier,
    MixtureLaplaceRegressor,
    ReferenceClassifier,
)
from sklearn_quam._network.training import _draw_weights
from sklearn_quam.base._conformal import noise_and_calibration_rows

from ..networks import (
    BINARY,
    CLASSIFIERS,
    LABELS,
    QUIET,
    TARGET,
    TWO_TARGETS,
    WORDS,
    X64,
    X64_NEW,
    X_NEW,
    Dense,
    GaussianNet,
    MeanAndVariance,
    X,
    assert_same,
    dense,
    each_model,
    evaluate,
    fitted,
    predictions,
)

WEIGHT = np.linspace(0.1, 4.0, len(X))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def mlp(seed=0):
    return MLPClassifier((6,), solver="lbfgs", alpha=1.0, max_iter=25, random_state=seed)


def mlp_regressor(seed=0):
    return MLPRegressor(hidden_layer_sizes=(6,), solver="lbfgs", max_iter=25, random_state=seed)


def skorch_net(module=Dense, **options):
    return NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, **{**QUIET, **options})


def largest_difference(nets, X=X_NEW):
    """Return by how much the two most similar of some networks differ."""
    outputs = [predictions(net, X) for net in nets]
    return min(np.abs(a - b).max() for i, a in enumerate(outputs) for b in outputs[:i])


def average(nets, X=X_NEW):
    return np.mean([net.predict_proba(X) for net in nets], axis=0)


# -- averages ------------------------------------------------------------------------------


@each_model
def test_ensemble_of_one_is_the_plain_network(make, wrapper, y):
    net = fitted(make(), X, y)
    kind = DeepEnsembleClassifier if wrapper is ReferenceClassifier else DeepEnsembleRegressor
    est, plain = kind(net, n_estimators=1).fit(X, y), wrapper(net).fit(X, y)
    assert est.estimators_ == [net]
    for setting in ("given", "expected"):
        assert_same(est.set_params(setting=setting), net)
        uncertainties = est.predict_uncertainty(X_NEW), plain.predict_uncertainty(X_NEW)
        np.testing.assert_allclose(*uncertainties, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def nets():
    """Networks that see the rows through transformers of their own."""
    scalers = StandardScaler(), MinMaxScaler(), "passthrough"
    return [
        fitted(make_pipeline(scaler, mlp(seed)), X64, WORDS[LABELS])
        for seed, scaler in enumerate(scalers)
    ]


@pytest.mark.parametrize("reference", [None, "other"])
def test_measures_of_given_networks(nets, reference, monkeypatch):
    y = WORDS[LABELS]
    other = LogisticRegression().fit(X64, y)
    first = nets[0] if reference is None else other
    est = DeepEnsembleClassifier(None if reference is None else other, estimators=nets)
    est = clone(est).fit(X64, y)
    assert all(own is net for own, net in zip(est.estimators_, nets, strict=True))
    assert est.estimator_ is first
    proba = np.stack([net.predict_proba(X64_NEW) for net in nets])
    given = first.predict_proba(X64_NEW)
    np.testing.assert_allclose(est.predict_proba(X64_NEW), given, rtol=1e-6)
    u = est.predict_uncertainty(X64_NEW)
    np.testing.assert_allclose(u.aleatoric, entropy(given, axis=1), rtol=1e-5, atol=1e-9)
    expected = entropy(given[None], proba, axis=2).mean(axis=0)
    np.testing.assert_allclose(u.epistemic, expected, rtol=1e-5, atol=1e-9)
    for where in ("_network.limits", "baselines.reference"):
        monkeypatch.setattr(f"sklearn_quam.{where}.rows_at_once", lambda _: 2)
    np.testing.assert_allclose(est.predict_uncertainty(X64_NEW), u, rtol=1e-9, atol=1e-12)

    est.set_params(setting="expected")
    mean = proba.mean(axis=0)
    np.testing.assert_allclose(est.predict_proba(X64_NEW), mean, rtol=1e-6)
    np.testing.assert_array_equal(est.predict(X64_NEW), WORDS[mean.argmax(axis=1)])
    u, diagnostics = est.predict_uncertainty(X64_NEW, return_diagnostics=True)
    np.testing.assert_allclose(u.total, entropy(mean, axis=1), rtol=1e-5)
    np.testing.assert_allclose(u.aleatoric, entropy(proba, axis=2).mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(diagnostics.effective_sample_size, 3)


def test_modules_as_members():
    modules = [dense(), dense(), nn.Sequential(nn.Linear(4, 3))]
    est = DeepEnsembleClassifier(estimators=tuple(modules), setting="expected").fit(X, LABELS)
    proba = np.mean([torch.softmax(evaluate(m, X_NEW), 1).numpy() for m in modules], axis=0)
    np.testing.assert_allclose(est.predict_proba(X_NEW), proba, rtol=1e-5)


# -- regression ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def regressors():
    return [
        fitted(mlp_regressor(), X64, TARGET),
        LinearRegression().fit(X64, TARGET),
        fitted(make_pipeline(StandardScaler(), mlp_regressor(1)), X64, TARGET),
    ]


def gaussians(regressors, rows=X64, target=TARGET, weight=None):
    """Return means, and variances of the residuals on some rows, each (n_members, n_rows)."""
    means = np.stack([net.predict(X64_NEW) for net in regressors])
    noise = [np.average((net.predict(rows) - target) ** 2, weights=weight) for net in regressors]
    return means, np.repeat(np.array(noise)[:, None], len(X64_NEW), axis=1)


@pytest.mark.parametrize("data", ["training", "weighted", "validation", "fixed"])
def test_each_member_has_a_noise_of_its_own(regressors, data):
    rows, target, weight, fixed, more = X64, TARGET, None, None, {}
    if data == "weighted":
        weight = more["sample_weight"] = WEIGHT
    elif data == "validation":
        rows, target = X64_NEW, np.sin(X64_NEW[:, 0])
        more = {"X_val": rows, "y_val": target}
        half = noise_and_calibration_rows(len(rows))[0]
        rows, target = rows[half], target[half]
    means, noise = gaussians(regressors, rows, target, weight)
    assert np.ptp(noise) > 1e-3
    if data == "fixed":
        fixed = noise[:] = 0.3
    est = DeepEnsembleRegressor(estimators=regressors, measure="variance", noise_variance=fixed)
    est.fit(X64, TARGET, **more)
    np.testing.assert_allclose(est.noise_variance_, noise[0, 0], rtol=1e-5)
    u = est.set_params(setting="expected").predict_uncertainty(X64_NEW)
    np.testing.assert_allclose(u.aleatoric, noise.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(u.epistemic, means.var(axis=0), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(est.predict(X64_NEW), means.mean(axis=0), rtol=1e-5)


def test_entropies_of_gaussians(regressors):
    est = DeepEnsembleRegressor(estimators=regressors).fit(X64, TARGET)
    means, noise = gaussians(regressors)
    ratio, shift = noise[0] / noise, (means[0] - means) ** 2 / noise
    divergence = 0.5 * (ratio - 1 - np.log(ratio) + shift)
    u = est.predict_uncertainty(X64_NEW)
    np.testing.assert_allclose(u.epistemic, divergence.mean(axis=0), rtol=1e-5)

    u = est.set_params(setting="expected").predict_uncertainty(X64_NEW)
    entropies = norm.entropy(means, np.sqrt(noise))
    np.testing.assert_allclose(u.aleatoric, entropies.mean(axis=0), rtol=1e-5)
    grid = np.linspace(means.min() - 9, means.max() + 9, 40001)
    for row in range(0, len(X64_NEW), 6):
        parts = norm.pdf(grid, means[:, [row]], np.sqrt(noise[:, [row]]))
        density = np.maximum(parts.mean(axis=0), 1e-300)
        total = trapezoid(-density * np.log(density), grid)
        np.testing.assert_allclose(u.total[row], total, rtol=1e-4)


def test_several_outputs():
    nets = [fitted(mlp_regressor(seed), X64, TWO_TARGETS) for seed in range(3)]
    est = DeepEnsembleRegressor(estimators=nets, measure="variance", noise_variance=[0.1, 0.2])
    u = est.set_params(setting="expected").fit(X64, TWO_TARGETS).predict_uncertainty(X64_NEW)
    means = np.stack([net.predict(X64_NEW) for net in nets])
    np.testing.assert_allclose(u.epistemic, means.var(axis=0).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(u.aleatoric, 0.3, rtol=1e-6)
    np.testing.assert_allclose(est.predict(X64_NEW), means.mean(axis=0), 1e-5, 1e-6)


def test_members_that_predict_variances():
    net = GaussianNet(MeanAndVariance, criterion=nn.GaussianNLLLoss, **QUIET)
    options = {"link": "mean_variance", "measure": "variance", "setting": "expected"}
    est = DeepEnsembleRegressor(net, n_estimators=3, random_state=0, **options).fit(X, TARGET)
    outputs = [evaluate(member.module_, X_NEW) for member in est.estimators_]
    means, variances = (torch.stack(part)[..., 0].double() for part in zip(*outputs, strict=True))
    u = est.predict_uncertainty(X_NEW)
    np.testing.assert_allclose(u.aleatoric, variances.mean(dim=0), rtol=1e-5)
    np.testing.assert_allclose(u.epistemic, means.var(dim=0, correction=0), rtol=1e-4, atol=1e-9)
    with pytest.raises(ValueError, match="noise_variance"):
        est.set_params(noise_variance=1.0).fit(X, TARGET)


# -- training ------------------------------------------------------------------------------

MODELS = {
    "mlp": lambda: mlp(None),
    "mlp with a seed": lambda: mlp(0),
    "skorch class": lambda: skorch_net(),
    "nested pipeline": lambda: make_pipeline(make_pipeline(StandardScaler(), skorch_net(dense()))),
}


@pytest.mark.parametrize("kind", MODELS)
def test_members_differ_and_can_be_trained_again(kind):
    est = DeepEnsembleClassifier(MODELS[kind](), n_estimators=3, random_state=0).fit(X, LABELS)
    assert largest_difference(est.estimators_) > 1e-3
    torch.rand(3)
    again = clone(est).set_params(n_estimators=4).fit(X, LABELS)
    other = clone(est).set_params(random_state=1).fit(X, LABELS)
    for number, (a, b) in enumerate(zip(est.estimators_, again.estimators_, strict=False)):
        np.testing.assert_array_equal(predictions(a), predictions(b))
        if number:
            assert np.abs(predictions(a) - predictions(other.estimators_[number])).max() > 1e-3
    averaged = est.set_params(setting="expected").predict_proba(X_NEW)
    np.testing.assert_allclose(averaged, average(est.estimators_), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_fitted_network_is_the_first_member_and_stays_as_it_is(kind, frozen):
    net = fitted(MODELS[kind]())
    before = predictions(net), copy.deepcopy(net)
    given = FrozenEstimator(net) if frozen else net
    est = DeepEnsembleClassifier(given, n_estimators=3, random_state=0).fit(X, LABELS)
    assert est.estimators_[0] is given
    np.testing.assert_array_equal(predictions(net), before[0])
    assert repr(net) == repr(before[1])
    assert_same(est, net)
    nets = [net, *est.estimators_[1:]]
    assert {type(member) for member in nets} == {type(net)}
    assert largest_difference(nets) > 1e-3


def test_weights_of_a_module_are_drawn_anew():
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    with torch.no_grad():
        module[0].weight.fill_(50.0)
        module[1].running_mean.fill_(7.0)
    net = skorch_net(module, max_epochs=1, lr=0.0)
    est = DeepEnsembleClassifier(net, n_estimators=3, random_state=0).fit(X, LABELS)
    first, *others = (member.module_ for member in est.estimators_)
    assert torch.equal(first[0].weight, module[0].weight)
    for other in others:
        assert other[0].weight.abs().max() <= 0.5
        assert other[1].running_mean.abs().max() < 7.0
    assert (others[0][0].weight - others[1][0].weight).abs().max() > 0.05
    assert (module[0].weight == 50).all()


@pytest.mark.parametrize("normalise", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_computed_weights_are_drawn_anew(normalise):
    layer = normalise(nn.Linear(4, 8))
    before = layer.weight.detach().clone()
    _draw_weights(layer)
    assert (layer.weight - before).abs().max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_number_of_jobs_changes_nothing(backend):
    est = DeepEnsembleClassifier(skorch_net(), n_estimators=3, random_state=0)
    one = clone(est).set_params(n_jobs=1).fit(X, LABELS)
    with joblib.parallel_config(backend):
        two = clone(est).set_params(n_jobs=2).fit(X, LABELS)
    for a, b in zip(one.estimators_, two.estimators_, strict=True):
        np.testing.assert_allclose(predictions(a), predictions(b), rtol=1e-5, atol=1e-6)


def test_arguments_of_fit_reach_all_members():
    net = CLASSIFIERS["skorch"]()
    est = DeepEnsembleClassifier(net, n_estimators=3, random_state=0).fit(X, LABELS, epochs=1)
    assert [len(member.history) for member in est.estimators_] == [1, 1, 1]


@pytest.mark.parametrize("routing", [False, True])
@pytest.mark.parametrize("is_pretrained", [False, True])
@pytest.mark.parametrize("in_pipeline", [False, True])
def test_sample_weight_reaches_all_members(in_pipeline, is_pretrained, routing):
    with config_context(enable_metadata_routing=routing):
        net, scaler = mlp(), StandardScaler()
        if routing and not is_pretrained:
            net.set_fit_request(sample_weight=True)
            scaler.set_fit_request(sample_weight=False)
        net = make_pipeline(scaler, net) if in_pipeline else net
        net = fitted(net, X64, LABELS) if is_pretrained else net
        est = DeepEnsembleClassifier(net, n_estimators=3, random_state=0)
        est.fit(X64, LABELS, sample_weight=list(WEIGHT))
    name = "mlpclassifier__sample_weight" if in_pipeline else "sample_weight"
    for number, member in enumerate(est.estimators_):
        weight = {} if is_pretrained and not number else {name: WEIGHT}
        with config_context(enable_metadata_routing=False):
            own = clone(member).fit(X64, LABELS, **weight)
        np.testing.assert_allclose(predictions(member), predictions(own), rtol=1e-6)
    loss = -np.log(predictions(est, X64)[np.arange(len(X)), LABELS])
    assert est.reference_loss_ == pytest.approx(np.average(loss, weights=WEIGHT), rel=1e-5)


@pytest.mark.parametrize(
    ("net", "y"),
    [
        (lambda: skorch_net(classes=["owl", "dog", "cat"]), WORDS[LABELS]),
        (lambda: NeuralNetBinaryClassifier(Dense, module__n_out=1, **QUIET), WORDS[BINARY]),
    ],
)
def test_labels_of_any_kind(net, y):
    est = DeepEnsembleClassifier(net(), n_estimators=2, setting="expected", random_state=0)
    est.fit(X, y)
    assert set(est.classes_) == set(y)
    labels = np.array([est.classes_[column] for column in average(est.estimators_).argmax(axis=1)])
    np.testing.assert_array_equal(est.predict(X_NEW), labels)
    np.testing.assert_allclose(est.predict_proba(X_NEW), average(est.estimators_), 1e-5, 1e-6)


# -- arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimators", "message"),
    [
        ([], "takes fitted networks, but nothing"),
        ([LogisticRegression().fit(X, LABELS), mlp()], "takes fitted networks, but .*MLPClassi"),
        ([dense(), dense(2)], "does not match the classes"),
        ([LogisticRegression().fit(X, LABELS + 1)], "does not match the classes"),
        ("mlp", "'estimators' parameter"),
    ],
)
def test_networks_that_are_no_members(estimators, message):
    with pytest.raises(ValueError, match=message):
        DeepEnsembleClassifier(estimators=estimators).fit(X, LABELS)


def test_networks_must_predict_the_same():
    y = WORDS[LABELS]
    other = fitted(skorch_net(classes=["owl", "dog", "cat"]), X, LABELS)
    with pytest.raises(ValueError, match="do not predict the same: classes_"):
        DeepEnsembleClassifier(estimators=[fitted(mlp(), X, y), other]).fit(X, y)
    with pytest.raises(ValueError, match=r"predicts 2 value\(s\) a row, but y has 1"):
        DeepEnsembleRegressor(estimators=[dense(1), dense(2)]).fit(X, TARGET)


@pytest.mark.parametrize(
    "wrap", [FrozenEstimator, lambda m: make_pipeline(StandardScaler().fit(X), m)]
)
def test_module_alone_does_not_say_how_it_is_trained(wrap):
    for module in (dense(), wrap(dense())):
        with pytest.raises(TypeError, match=r"how it is trained.*estimators=\[...\]"):
            DeepEnsembleClassifier(module).fit(X, LABELS)
        DeepEnsembleClassifier(module, n_estimators=1).fit(X, LABELS)


# -- mixtures of Laplace approximations ----------------------------------------------------

LAPLACE = {"parameters": "all", "structure": "diag", "prior_precision": 3.0, "n_samples": 32}
LAPLACE |= {"memory_limit": "1GB", "device": "cpu", "output": None}
MIXTURES = [
    (MixtureLaplaceClassifier, LaplaceClassifier, mlp, LABELS),
    (MixtureLaplaceRegressor, LaplaceRegressor, mlp_regressor, TARGET),
]


@pytest.mark.parametrize(("mixture", "single", "make", "y"), MIXTURES)
def test_mixture_is_the_average_of_its_parts(mixture, single, make, y):
    """Also in variance: the mean of the variances plus the variance of the means."""
    more = {"link": "logits", "measure": "brier"}
    if single is LaplaceRegressor:
        more = {"noise_variance": 0.5, "measure": "variance", "link": "mean"}
    nets = [fitted(make(seed), X64, y) for seed in range(2)]
    arguments = {**LAPLACE, **more, "setting": "expected"}
    shared = set(inspect.signature(mixture).parameters) & set(inspect.signature(single).parameters)
    assert shared - {"estimator", "random_state", "verbose"} == set(arguments)
    est = mixture(estimators=nets, random_state=0, **arguments).fit(X64, y)
    seed = check_random_state(0).randint(np.iinfo(np.int32).max)
    # Each member draws a seed from its own.
    parts = [
        single(net, random_state=seed + i, **arguments).fit(X64, y) for i, net in enumerate(nets)
    ]
    means = np.array([predictions(part, X64_NEW) for part in parts])
    np.testing.assert_allclose(predictions(est, X64_NEW), means.mean(axis=0), rtol=1e-5)
    u, of_parts = (
        est.predict_uncertainty(X64_NEW),
        [part.predict_uncertainty(X64_NEW) for part in parts],
    )
    np.testing.assert_allclose(u.aleatoric, np.mean([p.aleatoric for p in of_parts], 0), rtol=1e-5)
    if single is LaplaceRegressor:
        within = np.mean([p.epistemic for p in of_parts], axis=0)
        np.testing.assert_allclose(u.epistemic, within + means.var(axis=0)[:, 0], rtol=1e-5)
    # A mixture of one is that one, stored or not.
    one = mixture(estimators=nets[:1], random_state=0, **arguments).fit(X64, y)
    for again in (one, pickle.loads(pickle.dumps(one))):
        np.testing.assert_array_equal(again.predict(X64_NEW), parts[0].predict(X64_NEW))
        np.testing.assert_array_equal(again.predict_uncertainty(X64_NEW), of_parts[0])


def test_members_keep_no_data_and_are_cut_before_their_last_layer():
    nets = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(3)]
    est = MixtureLaplaceClassifier(estimators=nets, random_state=0)
    sizes = [
        len(pickle.dumps(clone(est).fit(np.tile(X, (n, 1)), np.tile(LABELS, n))._fitted))
        for n in (1, 50)
    ]
    # A single copy of the rows that came on top would have 50 times their bytes.
    assert sizes[1] - sizes[0] < X.nbytes
    est.fit(X, LABELS)
    places = [method.models.view.network.split.place for method in est._fitted.models.methods]
    assert places == ["inside"] * 3
