"""What may be wrong without an error is said: once, where it was called, with a way out."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from sklearn_quam import (
    DeepEnsembleClassifier,
    LaplaceRegressor,
    QUAMClassifier,
    ReferenceClassifier,
    ReferenceRegressor,
    exceptions,
)
from sklearn_quam.exceptions import (
    CollapsedWeightsWarning,
    LinkWarning,
    MissingClassesWarning,
    PoorFitWarning,
    UncertaintyWarning,
)

from .networks import LABELS, TARGET, X_NEW, X, dense, train

pytestmark = pytest.mark.filterwarnings("error::sklearn_quam.exceptions.UncertaintyWarning")


@pytest.fixture(scope="module")
def classifier():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(dense(), X, LABELS)


@pytest.fixture(scope="module")
def regressor():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(dense(1), X, TARGET)


def warned(category, action):
    """Return the text of the one warning of a kind, which points at this file."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        action()
    seen = [warning for warning in seen if issubclass(warning.category, category)]
    assert len(seen) == 1, [str(warning.message) for warning in seen]
    assert seen[0].filename == __file__
    return str(seen[0].message)


def test_all_warnings_are_of_one_family():
    names = [name for name in exceptions.__all__ if name.endswith("Warning")]
    kinds = [getattr(exceptions, name) for name in names]
    assert all(issubclass(kind, UncertaintyWarning) for kind in kinds)
    assert issubclass(UncertaintyWarning, UserWarning)


@pytest.mark.parametrize("kind", [ReferenceClassifier, DeepEnsembleClassifier])
@pytest.mark.parametrize(
    ("rows", "y"),
    [
        pytest.param(5 + 3 * X, LABELS, id="scaled differently"),
        pytest.param(X, (LABELS + 1) % 3, id="labels shifted"),
    ],
)
def test_a_classifier_worse_than_class_frequencies(classifier, kind, rows, y):
    arguments = {"estimators": [classifier] * 2} if kind is DeepEnsembleClassifier else {}
    est = kind(None if arguments else classifier, **arguments)
    text = warned(PoorFitWarning, lambda: est.fit(rows, y))
    frequency = np.bincount(y) / len(y)
    entropy = -(frequency * np.log(frequency)).sum()
    assert f"{est.reference_loss_:.4g} instead of {entropy:.4g}" in text
    assert "Is X scaled and shaped as it was" in text


@pytest.mark.parametrize("noise_variance", [None, 0.01])
def test_a_regressor_worse_than_the_mean(regressor, noise_variance):
    est = ReferenceRegressor(regressor, noise_variance=noise_variance)
    assert "worse than the mean of y" in warned(
        PoorFitWarning, lambda: est.fit(X, TARGET[::-1].copy())
    )
    est.fit(X, TARGET)


def test_noise_that_is_said_to_be_small_is_no_poor_fit(regressor):
    ReferenceRegressor(regressor, noise_variance=1e-6).fit(X, TARGET)


def test_sample_weights_count_in_the_comparison(classifier):
    wrong = LABELS.copy()
    wrong[:30] = (LABELS[:30] + 1) % 3
    weight = np.where(np.arange(60) < 30, 1e-3, 1.0)
    ReferenceClassifier(classifier).fit(X, wrong, sample_weight=weight)
    est = ReferenceClassifier(classifier)
    text = warned(PoorFitWarning, lambda: est.fit(X, wrong, sample_weight=weight[::-1]))
    assert "y encoded and weighted as then" in text


def test_probabilities_taken_for_logits():
    est = ReferenceClassifier(dense(3, nn.Softmax(dim=1)))
    text = warned(LinkWarning, lambda: est.fit(X, LABELS))
    assert "pass link='probabilities'" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error", LinkWarning)
        warnings.simplefilter("ignore", PoorFitWarning)
        est.set_params(link="probabilities").fit(X, LABELS)


def test_small_logits_are_no_probabilities():
    with torch.no_grad():
        module = dense()
        module[-1].weight *= 1e-3
        module[-1].bias.fill_(1 / 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoorFitWarning)
        ReferenceClassifier(module).fit(X, LABELS)


def test_missing_classes_are_named(classifier):
    some = LABELS != 2
    est = QUAMClassifier(classifier, random_state=0)
    text = warned(MissingClassesWarning, lambda: est.fit(X[some], LABELS[some]))
    assert "knows 3 classes" in text
    assert "these 1: 2." in text


@pytest.mark.parametrize("search", ["natural", "linear"])
def test_a_weight_that_sits_on_the_given_network(classifier, search):
    est = QUAMClassifier(classifier, search=search, temperature=1e-9, random_state=0)
    est.fit(X, LABELS)
    text = warned(CollapsedWeightsWarning, lambda: est.predict_uncertainty(X_NEW))
    assert "number of searches (3). Raise temperature (it is 1e-09 nats" in text
    est.predict_uncertainty(X_NEW[:9])  # so few rows may all be certain
    est.set_params(temperature=1.0).fit(X, LABELS).predict_uncertainty(X_NEW)


ORDINARY = {
    "iris": (load_iris, lambda: MLPClassifier(max_iter=300, random_state=0), QUAMClassifier),
    "cancer": (load_breast_cancer, lambda: LogisticRegression(), DeepEnsembleClassifier),
    "diabetes, network": (
        load_diabetes,
        lambda: MLPRegressor(hidden_layer_sizes=(8,), solver="lbfgs", max_iter=50, random_state=0),
        LaplaceRegressor,
    ),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_use_is_quiet(name):
    load, make, kind = ORDINARY[name]
    rows, y = load(return_X_y=True)
    net = make_pipeline(StandardScaler(), make()).fit(rows, y)
    arguments = {"estimators": [net, net]} if kind is DeepEnsembleClassifier else {}
    est = kind(net, setting="expected", random_state=0, **arguments).fit(rows, y)
    est.predict_uncertainty(rows[::25])
    est.predict(rows[::25])
