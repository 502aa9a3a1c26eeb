"""Fitted estimators in files without code."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from sklearn_quam import (
    DeepEnsembleClassifier,
    LaplaceRegressor,
    LoRA,
    NaturalSearch,
    PenaltySearch,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    load,
    ood,
)
from sklearn_quam._loading import METHODS as LOADED
from sklearn_quam._network.stored import described
from sklearn_quam.exceptions import UnreadableFileError

from ..network.test_inputs import PARTS, VALUES, TwoInputs
from ..network.test_inputs import Y as LABELS
from ..networks import fitted
from ..test_contract import (
    METHODS,
    few_methods,
    fitted_once,
    is_classifier,
    make_data,
    make_estimator,
)
from .run import X_NEW, X, Y

WORDS = np.array(["ape", "bat", "cat"])[Y]
DETECTORS = [
    getattr(ood, name)
    for name in ood.__all__
    if name.endswith("Detector") and name != "CombinedDetector"
]


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def other_weights(network):
    """Return a network of the same structure that knows nothing."""
    torch.manual_seed(99)
    duplicate = pickle.loads(pickle.dumps(network))
    for part in duplicate.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    return duplicate


def through_a_file(est, folder, given):
    est.save(folder / "est")
    return load(folder / "est", estimator=given)


# What helps to fit, or warns, and does not answer.
IN_MEMORY = {"estimators_", "_families", "_passed_rows", "_scales_inputs"}


@pytest.mark.parametrize(
    "method", [m for m in METHODS if m.name != "QUAMRegressor"], ids=lambda m: m.name
)
def test_every_method_comes_back(method, tmp_path):
    est = fitted_once(method)
    rows = make_data(method)[0][:4]
    if getattr(est, "estimators", None) is not None:
        given = [other_weights(net) for net in est.estimators]
    else:
        given = est.estimator_
        given = other_weights(given) if isinstance(given, nn.Module) else given
    again = through_a_file(est, tmp_path, given)
    assert type(again) is type(est)
    assert_same(again.predict_uncertainty(rows), est.predict_uncertainty(rows))
    np.testing.assert_array_equal(again.predict(rows), est.predict(rows))
    assert vars(again).keys() == vars(est).keys() - IN_MEMORY
    if is_classifier(method):
        np.testing.assert_array_equal(again.classes_, est.classes_)
    for name, value in est.get_params().items():
        if not name.startswith("estimator") and isinstance(value, int | float | str | None):
            assert again.get_params()[name] == value


def test_all_that_can_be_saved_can_be_loaded():
    assert {type(make_estimator(method)) for method in METHODS} | set(DETECTORS) == set(
        LOADED.values()
    )


def dense():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


ARGUMENTS = {
    "low rank": {"parameters": LoRA(rank=2, layers=["0", "2"])},
    "names": {"parameters": ["0.weight", "2.bias"]},
    "whole": {"parameters": "all"},
    "corrected": {"search": NaturalSearch(n_corrections=1), "parameters": "all"},
    "untargeted": {"search": PenaltySearch(n_steps=5, targets="untargeted")},
    "device": {"device": torch.device("cpu"), "temperature": np.float32(2)},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_come_back(name, tmp_path):
    est = QUAMClassifier(dense(), random_state=0, **ARGUMENTS[name])
    est.fit(X, WORDS, sample_weight=1 + Y)
    again = through_a_file(est, tmp_path, dense())
    assert_same(again.predict_uncertainty(X_NEW), est.predict_uncertainty(X_NEW))


def test_intervals_come_back(tmp_path):
    net = LinearRegression().fit(X, X[:, 0])
    est = LaplaceRegressor(net, noise_variance=[0.5]).fit(
        X, X[:, 0], X_val=X_NEW, y_val=X_NEW[:, 0]
    )
    again = through_a_file(est, tmp_path, net)
    assert_same([again.predict_interval(X_NEW)], [est.predict_interval(X_NEW)])


def test_the_weights_come_from_the_file_and_the_passed_network_stays(tmp_path):
    est = QUAMClassifier(dense(), random_state=0).fit(X, WORDS)
    passed = other_weights(dense())
    before = {name: value.clone() for name, value in passed.state_dict().items()}
    again = through_a_file(est, tmp_path, passed)
    np.testing.assert_array_equal(again.predict_proba(X_NEW), est.predict_proba(X_NEW))
    assert again.classes_.tolist() == ["ape", "bat", "cat"]
    assert all(torch.equal(before[name], value) for name, value in passed.state_dict().items())
    twice = through_a_file(again, tmp_path, dense())
    assert_same(twice.predict_uncertainty(X_NEW), est.predict_uncertainty(X_NEW))


def test_a_network_of_another_structure_is_refused(tmp_path):
    ReferenceClassifier(dense()).fit(X, Y).save(tmp_path / "est")
    other = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(UnreadableFileError, match=r"not like the one that was saved.*0.bias: \(5,"):
        load(tmp_path / "est", estimator=other)
    tanh = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    with pytest.raises(UnreadableFileError, match="same structure"):
        load(tmp_path / "est", estimator=tanh)


def test_transformers_are_those_of_the_passed_pipeline(tmp_path):
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    est = QUAMClassifier(pipe).fit(X, Y)
    again = through_a_file(est, tmp_path, pipe)
    assert_same(again.predict_uncertainty(X_NEW), est.predict_uncertainty(X_NEW))
    with pytest.raises(UnreadableFileError, match="pass the fitted pipeline"):
        load(tmp_path / "est", estimator=pipe[-1])
    other = make_pipeline(StandardScaler(), LogisticRegression()).fit(2 * X, Y)
    with pytest.raises(UnreadableFileError, match="not those that it was saved with"):
        load(tmp_path / "est", estimator=other)


def columns(X):
    """Return a pipeline of fitted transformers inside of others."""
    scaled = make_pipeline(SimpleImputer(), StandardScaler())
    split = make_column_transformer((scaled, [0, 1]), (KNNImputer(), [2]), (OneHotEncoder(), [3]))
    return make_pipeline(split, LogisticRegression()).fit(X, Y)


def test_transformers_inside_of_others_are_compared(tmp_path):
    digits = np.column_stack([X[:, :3], np.arange(len(X)) % 2])
    pipe = columns(digits)
    est = QUAMClassifier(pipe).fit(digits, Y)
    same = [pipe, columns(digits), pickle.loads(pickle.dumps(pipe))]
    for network in same:
        again = through_a_file(est, tmp_path, network)
        assert_same(again.predict_uncertainty(digits), est.predict_uncertainty(digits))
    for column in range(4):
        other = digits.copy()
        other[:, column] += 2
        with pytest.raises(UnreadableFileError, match="not those that it was saved with"):
            load(tmp_path / "est", estimator=columns(other))


LOADS_TEXTS = """
import pickle, sys
from sklearn_quam import load
pipe = pickle.load(open(sys.argv[1], "rb"))
pipe.predict(["ape"])
load(sys.argv[2], estimator=pipe)
"""


def test_transformers_of_texts_are_the_same_in_another_process(tmp_path):
    pipe = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(WORDS, Y)
    QUAMClassifier(pipe).fit(WORDS.tolist(), Y).save(tmp_path / "est")
    (tmp_path / "pipe").write_bytes(pickle.dumps(pipe))
    run = [sys.executable, "-c", LOADS_TEXTS, tmp_path / "pipe", tmp_path / "est"]
    subprocess.run(run, check=True)
    other = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(
        np.where(WORDS == "cat", "cow", WORDS), Y
    )
    with pytest.raises(UnreadableFileError, match="not those that it was saved with"):
        load(tmp_path / "est", estimator=other)


def test_members_of_an_ensemble_have_their_own_transformers(tmp_path):
    nets = [
        make_pipeline(StandardScaler(), LogisticRegression()).fit(factor * X + factor, Y)
        for factor in (1, 2, 3)
    ]
    est = DeepEnsembleClassifier(estimators=nets).fit(X, Y)
    again = through_a_file(est, tmp_path, nets)
    assert_same(again.predict_uncertainty(X_NEW), est.predict_uncertainty(X_NEW))


def test_targets_that_were_scaled_come_back(tmp_path):
    y = 100 + 50 * X[:, 0]
    mlp = MLPRegressor(hidden_layer_sizes=(5,), max_iter=50, random_state=0)
    net = TransformedTargetRegressor(mlp, transformer=StandardScaler()).fit(X, y)
    est = LaplaceRegressor(net, random_state=0).fit(X, y)
    again = through_a_file(est, tmp_path, net)
    assert_same(again.predict_uncertainty(X_NEW), est.predict_uncertainty(X_NEW))
    np.testing.assert_array_equal(again.predict(X_NEW), est.predict(X_NEW))


def test_what_is_passed_has_to_be_fitted_and_to_have_the_same_labels(tmp_path):
    file = tmp_path / "est"
    est = QUAMClassifier(LogisticRegression().fit(X, Y)).fit(X, Y)
    est.save(file)
    for wrong, words in (
        (LogisticRegression(), "is not fitted"),
        ([], "takes one network, not a list"),
        (LogisticRegression().fit(X, WORDS), r"the labels \[0, 1, 2\], but .* \['ape'"),
        (LinearRegression().fit(X, Y), "needs the network of a classifier. LinearRegression is a"),
    ):
        with pytest.raises(UnreadableFileError, match=words):
            load(file, estimator=wrong)
    nets = [LogisticRegression(C=c).fit(X, Y) for c in (1, 2)]
    DeepEnsembleClassifier(estimators=nets).fit(X, Y).save(file)
    with pytest.raises(UnreadableFileError, match="Pass a fitted one"):
        load(file, estimator=[])


class Subclass(QUAMClassifier):
    """A method of a user."""


def test_what_cannot_be_saved_says_so(tmp_path):
    est = QUAMClassifier(dense(), parameters=lambda name, _: "2" in name).fit(X, Y)
    with pytest.raises(TypeError, match="Pass names instead"):
        est.save(tmp_path / "est")
    est = Subclass(dense()).fit(X, Y)
    with pytest.raises(TypeError, match="Subclass is no method of sklearn_quam"):
        est.save(tmp_path / "est")
    assert not list(tmp_path.iterdir())


SKLEARN = {
    "logistic": (QUAMClassifier, LogisticRegression(), WORDS),
    "mlp": (DeepEnsembleClassifier, MLPClassifier((5,), max_iter=20), WORDS),
    "linear": (QUAMRegressor, LinearRegression(), X[:, 0]),
    "pipeline": (
        LaplaceRegressor,
        make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(5,))),
        X[:, 0],
    ),
}


@pytest.mark.parametrize("name", SKLEARN)
def test_skops_stores_estimators_around_networks_of_scikit_learn(name):
    skops = pytest.importorskip("skops.io")
    kind, net, y = SKLEARN[name]
    est = kind(fitted(net, X, y) if name != "mlp" else net, random_state=0)
    if name == "mlp":
        est.set_params(n_estimators=2)
    est.fit(X, y)
    text = skops.dumps(est)
    unknown = skops.get_untrusted_types(data=text)
    # An optimiser is part of scikit-learn's own networks.
    assert all(name.startswith(("sklearn_quam.", "sklearn.")) for name in unknown), unknown
    again = skops.loads(text, trusted=unknown)
    assert_same(again.predict_uncertainty(X_NEW), est.predict_uncertainty(X_NEW))


@few_methods
def test_several_inputs_come_back(method, tmp_path):
    rows = PARTS
    classifier = is_classifier(method)
    network = TwoInputs(3 if classifier else 2)
    arguments = method.arguments
    arguments = arguments(network) if callable(arguments) else arguments
    est = method.kind(network, random_state=0, **arguments).fit(
        rows, LABELS if classifier else VALUES
    )
    if getattr(est, "estimators", None) is not None:
        passed = [other_weights(net) for net in est.estimators]
    else:
        passed = other_weights(network)
    again = through_a_file(est, tmp_path, passed)
    assert_same(again.predict_uncertainty(rows), est.predict_uncertainty(rows))
    np.testing.assert_array_equal(again.predict(rows), est.predict(rows))


class Scaled(TransformerMixin, BaseEstimator):
    """Keeps what it learns in a private number."""

    def fit(self, X, y=None):
        self._scale = float(np.abs(X).max())
        self.fitted_ = True
        return self

    def transform(self, X):
        return X / self._scale


def test_private_numbers_of_transformers_count():
    found = {described(make_pipeline(Scaled().fit(np.array([[size]])))) for size in (1.0, 2.0)}
    assert len(found) == 2
