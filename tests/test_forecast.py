"""The forecast: probabilities of the network or the average, scaled by what held-out rows tell."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.datasets import load_digits, make_moons
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetBinaryClassifier
from torch import nn

from sklearn_quam import LaplaceClassifier, QUAMClassifier, ReferenceClassifier
from sklearn_quam._search.models import AdversarialModels
from sklearn_quam.base._conformal import fit_logit_scale, scaled

from .networks import LABELS, X_NEW, X, dense, fitted, train

NOISY = np.random.default_rng(0).permutation(LABELS)
HELD_OUT = {"X_val": X, "y_val": np.where(np.arange(len(X)) % 2, LABELS, NOISY)}
SPREAD = 0.25


@cache
def quam():
    est = QUAMClassifier(train(dense(), X, LABELS), random_state=0)
    return est.fit(X, LABELS, **HELD_OUT)


# -- the scale of logits -------------------------------------------------------------------


def cost(log_scale, proba, columns):
    likely = log_softmax(np.exp(log_scale) * np.log(proba), axis=1)
    return -likely[np.arange(len(columns)), columns].sum() + (log_scale / SPREAD) ** 2 / 2


@pytest.mark.parametrize("sure", [0.3, 8.0])
@pytest.mark.parametrize("n_rows", [1, 1000])
def test_the_scale_is_the_most_likely_one_under_its_prior(sure, n_rows):
    rng = np.random.default_rng(n_rows)
    truth = rng.dirichlet(np.ones(4), size=n_rows)
    columns = np.array([rng.choice(4, p=row) for row in truth])
    proba = scaled(truth, sure)
    found = fit_logit_scale(proba, columns)
    grid = np.linspace(-4, 4, 8001)
    best = grid[np.argmin([cost(value, proba, columns) for value in grid])]
    np.testing.assert_allclose(np.log(found), best, atol=2e-3)
    if n_rows == 1000:
        np.testing.assert_allclose(found, 1 / sure, rtol=0.2)


@pytest.mark.parametrize("n_rows", [1, 1000])
@pytest.mark.parametrize("margin", [0.1, 1e4])
def test_rows_without_a_mistake_leave_the_scale_finite(n_rows, margin):
    proba = np.exp(log_softmax(np.tile([[margin, 0.0]], (n_rows, 1)), axis=1))
    found = fit_logit_scale(proba, np.zeros(n_rows, int))
    assert 1 - 1e-3 < found < 50


def test_labels_that_were_held_impossible_are_counted():
    proba = np.tile([[1.0, 0.0]], (50, 1))
    found = fit_logit_scale(proba, (np.arange(50) < 5).astype(int))
    assert found < 0.05


# -- what predicts -------------------------------------------------------------------------


def test_without_held_out_rows_the_given_network_predicts():
    net = train(dense(), X, LABELS)
    est = QUAMClassifier(net, setting="expected", random_state=0).fit(X, LABELS)
    assert est.logit_scale_ == 1
    given = ReferenceClassifier(net).fit(X, LABELS).predict_proba(X_NEW)
    np.testing.assert_array_equal(est.predict_proba(X_NEW), given)
    together, _ = est.predict_proba(X_NEW, return_uncertainty=True)
    np.testing.assert_allclose(together, given, rtol=1e-12)


def test_the_setting_given_is_the_network_whatever_is_held_out():
    est = quam()
    alone = ReferenceClassifier(est.estimator).fit(X, LABELS)
    assert est.logit_scale_ < 0.9
    np.testing.assert_array_equal(est.predict_proba(X_NEW), alone.predict_proba(X_NEW))


@pytest.mark.parametrize("kind", [ReferenceClassifier, LaplaceClassifier, QUAMClassifier])
def test_logits_are_scaled_in_the_setting_expected(kind):
    net = train(dense(), X, LABELS)
    own = kind(net, setting="expected", random_state=0).fit(X, LABELS)
    est = kind(net, setting="expected", random_state=0).fit(X, LABELS, **HELD_OUT)
    proba = own.predict_proba(X)
    columns = HELD_OUT["y_val"]
    np.testing.assert_allclose(est.logit_scale_, fit_logit_scale(proba, columns), rtol=1e-6)
    assert est.logit_scale_ != 1
    expected = scaled(own.predict_proba(X_NEW), est.logit_scale_)
    np.testing.assert_allclose(est.predict_proba(X_NEW), expected, rtol=1e-9)
    together, u = est.predict_proba(X_NEW, return_uncertainty=True)
    np.testing.assert_allclose(together, expected, rtol=1e-6)
    # Labels and uncertainties are what they were.
    np.testing.assert_array_equal(est.predict(X_NEW), own.predict(X_NEW))
    np.testing.assert_array_equal(
        est.predict(X_NEW, return_uncertainty=True)[0], est.predict(X_NEW)
    )
    np.testing.assert_allclose(u, own.predict_uncertainty(X_NEW), rtol=1e-9)
    assert est.fit(X, LABELS).logit_scale_ == 1


def test_a_threshold_goes_with_the_scale():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = NeuralNetBinaryClassifier(
            nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
            threshold=0.2,
            lr=0.5,
            max_epochs=100,
            verbose=0,
        )
        net.fit(X, (LABELS > 0).astype(np.float32))
    y = (LABELS > 0).astype(int)
    est = QUAMClassifier(net, setting="expected", random_state=0)
    est.fit(X, y, X_val=X, y_val=(HELD_OUT["y_val"] > 0).astype(int))
    labels = net.predict(X).ravel()
    np.testing.assert_array_equal(est.predict(X), labels)
    assert (labels != (est.predict_proba(X)[:, 1] > 0.2)).any()


def test_no_search_is_needed_to_predict(monkeypatch):
    def refuse(*_):
        raise AssertionError

    est = QUAMClassifier(quam().estimator, setting="expected", random_state=0).fit(X, LABELS)
    est._calibrate(*HELD_OUT.values())
    monkeypatch.setattr(AdversarialModels, "sample", refuse)
    assert est.predict_proba(X_NEW).shape == (len(X_NEW), 3)
    assert est.predict_set(X_NEW, 0.8).shape == (len(X_NEW), 3)
    est.predict(X_NEW)


# -- how good it is ------------------------------------------------------------------------

NETWORK = make_pipeline(StandardScaler(), MLPClassifier((32,), max_iter=200, random_state=0))
TABLES = {
    "digits": lambda: load_digits(return_X_y=True),
    "moons": lambda: make_moons(900, noise=0.35, random_state=0),
}


@pytest.mark.parametrize("name", TABLES)
def test_with_held_out_rows_the_forecast_tells_the_risk_of_a_mistake(name):
    rows, y = TABLES[name]()
    risks, mistakes, worse = [], [], []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(y))[:900]
        fit, val, new = np.array_split(order, 3)
        net = fitted(NETWORK, rows[fit], y[fit])
        est = QUAMClassifier(net, setting="expected", random_state=0)
        est.fit(rows[fit], y[fit], X_val=rows[val], y_val=y[val])
        proba = est.predict_proba(rows[new])
        risks.append(1 - proba.max(axis=1))
        mistakes.append(est.predict(rows[new]) != y[new])
        worse.append(log_loss(y[new], proba) - log_loss(y[new], net.predict_proba(rows[new])))
    risk, rate = np.concatenate(risks).mean(), np.concatenate(mistakes).mean()
    assert rate / 1.5 < risk < rate * 1.5
    assert np.mean(worse) < 0.005
