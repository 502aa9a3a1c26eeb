"""Errors that newcomers meet say what to do; data that are odd but possible are answered."""

from datetime import datetime
from fractions import Fraction

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from joblib import parallel_config
from sklearn.neural_network import MLPClassifier, MLPRegressor
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_quam import QUAMClassifier, QUAMRegressor, ReferenceClassifier, Uncertainty
from sklearn_quam.display import UncertaintyMapDisplay

from .networks import LABELS, TARGET, WORDS, X_NEW, X, dense, fitted, train
from .test_contract import METHODS, make_data, make_estimator

matplotlib.use("Agg")


def test_numbers_for_a_network_trained_with_texts():
    net = fitted(MLPClassifier((4,), max_iter=5), X, WORDS[LABELS])
    with pytest.raises(ValueError, match=r"trained with 'cat', 'dog', 'owl'.*not their numbers"):
        QUAMClassifier(net).fit(X, LABELS)


@pytest.mark.parametrize("kind", [QUAMClassifier, QUAMRegressor])
def test_targets_with_none(kind):
    y = TARGET.astype(object) if kind is QUAMRegressor else WORDS[LABELS].astype(object)
    y[[3, 7]] = None
    with pytest.raises(ValueError, match=r"y contains None, first in row 3 \(2 in all\). Leave"):
        kind(dense(1 if kind is QUAMRegressor else 3)).fit(X, y)


@pytest.mark.parametrize("y", [WORDS[LABELS], list(WORDS[LABELS]), pd.Series(WORDS[LABELS])])
def test_texts_for_a_regressor(y):
    for net in (dense(1), fitted(MLPRegressor(hidden_layer_sizes=(4,)), X, TARGET)):
        with pytest.raises(ValueError, match=r"texts such as '\w{3}'.*use the classifier"):
            QUAMRegressor(net).fit(X, y)


@pytest.mark.parametrize("row", [lambda F: F.iloc[0], lambda F: F.to_numpy()[0]])
def test_a_single_row(row):
    frame = pd.DataFrame(X, columns=list("abcd"))
    est = ReferenceClassifier(fitted(MLPClassifier((4,), max_iter=5), frame, LABELS))
    est.fit(frame, LABELS)
    for ask in (est.predict, est.predict_proba, est.predict_uncertainty, est.score_samples):
        with pytest.raises(ValueError, match=r"one dimension \(4 values\).*X.iloc\[\[i\]\]"):
            ask(row(frame))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there():
    with pytest.raises(ValueError, match=r"device='cuda' cannot be used.*device=None"):
        QUAMClassifier(dense(), device="cuda").fit(X, LABELS)


@pytest.mark.parametrize("kind", [MLPClassifier, NeuralNetClassifier, nn.Linear])
def test_a_class_instead_of_an_object(kind):
    with pytest.raises(TypeError, match=rf"is a class: pass an object, {kind.__name__}\(...\)"):
        QUAMClassifier(kind).fit(X, LABELS)


def test_tensors_of_other_kinds():
    est = ReferenceClassifier(dense()).fit(X, LABELS)
    with pytest.raises(ValueError, match=r"'meta' device has a shape but no numbers. Pass one"):
        est.predict_uncertainty(torch.empty(3, 4, device="meta"))
    expected = est.predict_uncertainty(X_NEW).total
    rows = torch.tensor(X_NEW)
    negative = torch.complex(torch.zeros_like(rows), -rows).conj().imag
    assert negative.is_neg()
    for same in (negative, rows.to_sparse(), X_NEW.astype(np.longdouble)):
        np.testing.assert_array_equal(est.predict_uncertainty(same).total, expected)


def test_forked_processes_are_refused():
    est = QUAMClassifier(dense(), n_jobs=2).fit(X, LABELS)
    with (
        parallel_config(backend="multiprocessing"),
        pytest.raises(ValueError, match=r"'multiprocessing' forks.*backend='loky'"),
    ):
        est.predict_uncertainty(X_NEW)


def test_maps_of_images():
    est = ReferenceClassifier(nn.Sequential(nn.Flatten(), dense()))
    images = X.reshape(-1, 1, 2, 2)
    with pytest.raises(ValueError, match=r"shape \(1, 2, 2\). For images, use UncertainSamples"):
        UncertaintyMapDisplay.from_estimator(est.fit(images, LABELS), images)


def test_the_documentation_says_that_an_uncertainty_is_a_tuple():
    assert "``len(u)`` is 3" in Uncertainty.__doc__
    assert "u.epistemic[:2]" in Uncertainty.__doc__


# -- odd but possible --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.UncertaintyWarning")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("case", ["fewer rows than classes", "duplicated", "constant", "zero"])
def test_odd_training_data(method, case):
    rows, y = make_data(method)
    if case == "fewer rows than classes":
        rows, y = rows[:2], y[[int(np.argmin(y)), int(np.argmax(y))]]
    elif case == "duplicated":
        rows, y = np.repeat(rows[:2], 10, axis=0), np.repeat(y[[y.argmin(), y.argmax()]], 10)
    else:
        rows = np.full_like(rows, 1.0 if case == "constant" else 0.0)
    est = make_estimator(method).fit(rows, y)
    u = est.predict_uncertainty(make_data(method, 5, seed=1)[0])
    assert np.isfinite(u).all()
    assert (u.epistemic >= 0).all()


# -- what the caller has switched on -----------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_autocast_outside_changes_nothing(method):
    rows, y = make_data(method)
    new = make_data(method, 5, seed=1)[0]
    expected = make_estimator(method).fit(rows, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        est = make_estimator(method).fit(rows, y)
        found, prediction = est.predict_uncertainty(new), est.predict(new)
        assert torch.is_autocast_enabled("cpu")
        score = est.score_samples(new)
    assert est.reference_loss_ == expected.reference_loss_
    for part, wanted in zip(found, expected.predict_uncertainty(new), strict=True):
        np.testing.assert_array_equal(part, wanted)
    np.testing.assert_array_equal(prediction, expected.predict(new))
    np.testing.assert_array_equal(score, -found.epistemic)


def test_autocast_outside_changes_no_prices_and_models():
    est = QUAMClassifier(train(dense(), X, LABELS), random_state=0).fit(X, LABELS)
    wanted = est.rival_costs(X_NEW[:2]), est.adversarial_models(X_NEW[:1])[0][0]["divergence"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = est.rival_costs(X_NEW[:2]), est.adversarial_models(X_NEW[:1])[0][0]["divergence"]
    np.testing.assert_array_equal(found[0], wanted[0])
    assert found[1] == wanted[1]


@pytest.mark.parametrize(
    "rows",
    [
        [[datetime(2020, 1, 1)] * 4],
        pd.DataFrame([["a", "b", "c", "d"]]),
        np.array([["a", 1, 2, 3]], dtype=object),
    ],
    ids=["times in a list", "frame of texts", "objects"],
)
def test_rows_that_are_no_numbers(rows):
    est = ReferenceClassifier(dense()).fit(X, LABELS)
    words = r"X must hold numbers.*encoder before the network"
    with pytest.raises((TypeError, ValueError), match=words):
        est.predict(rows)


def test_numbers_as_objects_are_numbers():
    est = ReferenceClassifier(dense()).fit(X, LABELS)
    objects = [[Fraction(1, 2), 1, 2.0, Fraction(3)]]
    np.testing.assert_array_equal(
        est.predict_proba(objects), est.predict_proba([[0.5, 1.0, 2.0, 3.0]])
    )


def test_weights_may_be_a_tensor_of_any_kind():
    weight = torch.arange(1.0, 61.0, dtype=torch.bfloat16, requires_grad=True)
    est = ReferenceClassifier(dense()).fit(X, LABELS, weight)
    assert np.isfinite(est.reference_loss_)
    with pytest.raises(ValueError, match="'meta' device"):
        est.fit(X, LABELS, torch.empty(60, device="meta"))
