"""What scikit-learn wraps around a network: searches, transformed targets, calibration."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import nn

from sklearn_quam import QUAMClassifier, QUAMRegressor, ReferenceClassifier, ReferenceRegressor
from sklearn_quam.ood import EnergyDetector

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 4))
Y = np.arange(80) % 3
TARGET = 1000 + 300 * (X[:, 0] - X[:, 1] ** 2) + 20 * RNG.normal(size=80)


def classifier(**params):
    return MLPClassifier((6,), solver="lbfgs", max_iter=50, random_state=0, **params)


def regressor():
    return MLPRegressor(
        hidden_layer_sizes=(6,), solver="lbfgs", alpha=0.1, max_iter=200, random_state=0
    )


def given_transformed():
    return TransformedTargetRegressor(regressor(), transformer=StandardScaler()).fit(X, TARGET)


# -- transformed targets ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda: TransformedTargetRegressor(regressor(), transformer=StandardScaler()),
        lambda: make_pipeline(
            StandardScaler(), TransformedTargetRegressor(regressor(), transformer=StandardScaler())
        ),
        lambda: TransformedTargetRegressor(transformer=StandardScaler()),
        lambda: TransformedTargetRegressor(
            Ridge(), func=lambda y: -y / 7, inverse_func=lambda y: -7 * y
        ),
        lambda: TransformedTargetRegressor(
            TransformedTargetRegressor(regressor(), transformer=StandardScaler()),
            transformer=MinMaxScaler(),
        ),
    ],
)
def test_means_are_in_the_units_of_the_target(wrapped):
    net = wrapped().fit(X, TARGET)
    est = ReferenceRegressor(net, measure="variance").fit(X, TARGET)
    np.testing.assert_allclose(est.predict(X), net.predict(X), rtol=1e-6)
    noise = est.predict_uncertainty(X).aleatoric
    np.testing.assert_allclose(noise, np.mean((net.predict(X) - TARGET) ** 2), rtol=1e-3)


def test_variances_and_intervals_are_in_the_units_of_the_target():
    """The same as for the network itself on the transformed target, times the square."""
    given = given_transformed()
    inner, scaler = given.regressor_, given.transformer_
    transformed = scaler.transform(TARGET[:, None])[:, 0]
    arguments = {"parameters": "last_layer", "measure": "variance", "random_state": 0}
    outer = QUAMRegressor(given, **arguments).fit(X, TARGET).predict_uncertainty(X[:6])
    plain = QUAMRegressor(inner, **arguments).fit(X, transformed).predict_uncertainty(X[:6])
    factor = scaler.scale_[0] ** 2
    np.testing.assert_allclose(outer.aleatoric, factor * plain.aleatoric, rtol=1e-4)
    np.testing.assert_allclose(outer.epistemic, factor * plain.epistemic, rtol=1e-4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head, self.body = nn.Linear(8, 1, bias=False), nn.Linear(4, 8)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))[:, 0]


def test_other_transformations_are_refused():
    positive = np.abs(TARGET) + 1
    net = TransformedTargetRegressor(regressor(), func=np.log, inverse_func=np.exp)
    with pytest.raises(ValueError, match="more than a factor and a shift"):
        ReferenceRegressor(net.fit(X, positive)).fit(X, positive)


# -- searches, calibration, classes ----------------------------------------------------------


@pytest.mark.parametrize("search", [GridSearchCV, RandomizedSearchCV])
def test_search_for_parameters_is_opened(search):
    grid = {"alpha": [1e-3, 1.0]}
    arguments = {"n_iter": 2, "random_state": 0} if search is RandomizedSearchCV else {}
    given = search(classifier(), grid, cv=2, **arguments).fit(X, Y)
    est = QUAMClassifier(given, parameters="last_layer", random_state=0).fit(X, Y)
    np.testing.assert_allclose(est.predict_proba(X), given.predict_proba(X), rtol=1e-6)
    assert est.estimator_ is given
    alone = QUAMClassifier(given.best_estimator_, parameters="last_layer", random_state=0)
    np.testing.assert_allclose(
        est.predict_uncertainty(X[:4]).epistemic,
        alone.fit(X, Y).predict_uncertainty(X[:4]).epistemic,
        rtol=1e-6,
    )
    trained = ReferenceClassifier(search(classifier(), grid, cv=2, **arguments)).fit(X, Y)
    np.testing.assert_allclose(trained.predict_proba(X), given.predict_proba(X), rtol=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_calibrated_classifier_is_refused_in_words():
    given = CalibratedClassifierCV(classifier(), cv=2).fit(X, Y)
    with pytest.raises(TypeError, match=r"changes probabilities after .* Pass the network itself"):
        QUAMClassifier(given).fit(X, Y)


@pytest.mark.parametrize("kind", [MLPClassifier, Net])
def test_class_instead_of_an_object(kind):
    with pytest.raises(TypeError, match=f"{kind.__name__} is a class: pass an object"):
        QUAMClassifier(kind).fit(X, Y)


# -- sparse tables ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [sparse.csr_array, sparse.csc_matrix])
def test_sparse_rows_of_a_scikit_learn_network(make):
    table = np.where(np.abs(X) > 0.7, X, 0)
    net = classifier().fit(table, Y)
    for method in (QUAMClassifier(net, random_state=0), EnergyDetector(net)):
        dense = method.fit(table, Y).score_samples(table[:5])
        found = method.fit(make(table), Y).score_samples(make(table[:5]))
        np.testing.assert_allclose(found, dense, rtol=1e-6)
