"""Whatever is passed in is answered, or refused in plain words: no NaN, no errors from deeper."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neural_network import MLPClassifier
from torch import nn

import sklearn_quam
from sklearn_quam.exceptions import FailedRowsWarning

from ..networks import LABELS, TARGET, Apply, X, dense, fitted, train
from .cases import ANYTHING, assert_no_nan, calmly, fuzz


def seeded(build, y):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(build(), X, y)


def estimators():
    """Return unfitted estimators of several kinds, with their targets."""
    classes, values = seeded(dense, LABELS), seeded(lambda: dense(1), TARGET)
    frame = pd.DataFrame(X, columns=list("abcd"))
    mlp = fitted(MLPClassifier((4,), max_iter=20, random_state=0), frame, LABELS)
    make = sklearn_quam
    return {
        "reference": (make.ReferenceClassifier(classes), X, LABELS),
        "reference, frame": (make.ReferenceClassifier(mlp), frame, LABELS),
        "reference, values": (make.ReferenceRegressor(values), X, TARGET),
        "natural": (make.QUAMClassifier(classes, search="natural"), X, LABELS),
        "linear": (make.QUAMClassifier(classes, search="linear"), X, LABELS),
        "penalty": (
            make.QUAMRegressor(values, search=make.PenaltySearch(n_steps=3)),
            X,
            TARGET,
        ),
        "laplace": (make.LaplaceClassifier(classes, n_samples=4), X, LABELS),
        "dropout": (make.MCDropoutRegressor(values, p=0.1, n_samples=4), X, TARGET),
        "ensemble": (make.DeepEnsembleClassifier(estimators=[classes] * 2), X, LABELS),
    }


FITTED = {}


def a_fitted(name):
    if name not in FITTED:
        est, rows, y = estimators()[name]
        FITTED[name] = est.set_params(random_state=0).fit(rows, y)
    return FITTED[name]


ASKED = ["predict", "predict_proba", "predict_uncertainty", "score_samples", "predict_interval"]
ASKED += ["predict_set", "predict_proba_bounds", "rival_costs", "adversarial_models"]
ASKED += ["search_traces"]


@fuzz
@given(
    name=st.sampled_from(sorted(estimators())),
    ask=st.sampled_from(ASKED),
    rows=ANYTHING,
    setting=st.sampled_from(["given", "expected"]),
)
def test_predictions_of_anything(name, ask, rows, setting):
    est = a_fitted(name).set_params(setting=setting)
    if hasattr(est, ask):
        assert_no_nan(calmly(lambda: getattr(est, ask)(rows)))


@fuzz
@given(
    name=st.sampled_from(sorted(estimators())),
    passed=ANYTHING,
    y=ANYTHING,
    what=st.sampled_from(["X", "y", "both", "sample_weight", "X_val", "y_val"]),
)
def test_fits_of_anything(name, passed, y, what):
    est, good_rows, good_y = estimators()[name]
    if what in ("X_val", "y_val"):
        held_out = {"X_val": good_rows, "y_val": good_y, what: passed}
        calmly(lambda: est.fit(good_rows, good_y, **held_out))
        return
    arguments = {
        "X": (passed, good_y),
        "y": (good_rows, passed),
        "both": (passed, y),
        "sample_weight": (good_rows, good_y, passed),
    }[what]
    calmly(lambda: est.fit(*arguments))


ARGUMENTS = {
    "n_jobs": [0, -1, 1, "a", 1.5, None, X],
    "memory_limit": ["x", -1, 0, "1GB", np.nan, X],
    "setting": ["given", "other", None, X],
    "measure": ["entropy", "variance", "other", None, X],
    "verbose": [0, None, "x", X],
}
CHECKPOINTS = [None, "", -0.1, 3, b"run", X, ["run"], object()]


@fuzz
@given(
    name=st.sampled_from(["natural", "linear", "penalty", "laplace", "ensemble"]),
    argument=st.sampled_from(sorted(ARGUMENTS)),
    data=st.data(),
    checkpoint=st.sampled_from(CHECKPOINTS),
    errors=st.sampled_from(["warn", "warn", "raise", None, X]),
)
def test_arguments_of_anything(name, argument, data, checkpoint, errors):
    est = copy.copy(a_fitted(name))
    if argument not in est.get_params(deep=False):
        return
    est.set_params(**{argument: data.draw(st.sampled_from(ARGUMENTS[argument]))})
    options = {"checkpoint": checkpoint, "errors": errors}
    assert_no_nan(calmly(lambda: est.predict_uncertainty(X[:2], **options)))


@fuzz
@given(
    name=st.sampled_from(["natural", "linear", "penalty"]),
    row=st.one_of(st.sampled_from([X[0], X[:1], pd.Series(X[0])]), ANYTHING),
    target=st.sampled_from([None, 0, 1, 7, "up", "down", "left", np.nan, X, [0], object()]),
)
def test_rivals_of_anything(name, row, target):
    calmly(lambda: a_fitted(name).explain_rival(row, target))


# -- networks that misbehave for some weights --------------------------------------------------


def breaks(kind):
    """Return a function of hidden values that misbehaves where one of them is large."""

    def forward(x):
        bad = (x.abs() > 0.999).any(dim=-1, keepdim=True)
        if kind == "constant":
            return torch.where(bad, torch.zeros_like(x), x)
        return torch.where(bad, torch.full_like(x, float(kind)), x)

    return Apply(forward)


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.UncertaintyWarning")
@pytest.mark.parametrize("search", ["natural", "penalty"])
@pytest.mark.parametrize("kind", ["nan", "inf", "constant"])
def test_networks_that_misbehave_for_some_weights(kind, search):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = nn.Linear(4, 6)
        with torch.no_grad():
            first.weight *= 0.3
        module = nn.Sequential(first, nn.Tanh(), breaks(kind), nn.Linear(6, 3))
    if search == "penalty":
        search = sklearn_quam.PenaltySearch(n_steps=60, learning_rate=0.03)
    est = sklearn_quam.QUAMClassifier(module, search=search, random_state=0).fit(X, LABELS)
    rows = X[:6].copy()
    clean = est.predict_uncertainty(rows)
    rows[2] = 50.0
    u, diagnostics = est.predict_uncertainty(rows, return_diagnostics=True)
    others = np.arange(6) != 2
    assert np.isfinite(u).all()
    for part, wanted in zip(u, clean, strict=True):
        np.testing.assert_allclose(part[others], wanted[others], rtol=1e-4, atol=1e-7)
    if kind != "constant":
        assert u.beyond_range[2]
        assert diagnostics.n_diverged[2] > 0


def refuses(limit):
    """Return a layer that raises an error for values that the given weights never lead to."""

    def forward(x):
        if bool((x.abs() > limit).any()):
            raise RuntimeError("values out of bounds")
        return x

    return Apply(forward)


@pytest.mark.parametrize("search", ["natural", pytest.param("penalty", marks=pytest.mark.slow)])
def test_networks_that_raise_for_some_weights(search):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), refuses(np.inf), nn.LayerNorm(6)
    )
    module.append(nn.Tanh()).append(nn.Linear(6, 3))
    train(module, X, LABELS)
    with torch.no_grad():
        largest = float(module[:3](torch.as_tensor(X)).abs().max())
    module[3] = refuses(1.3 * largest)
    if search == "penalty":
        search = sklearn_quam.PenaltySearch(n_steps=60, learning_rate=0.03)
    est = sklearn_quam.QUAMClassifier(module, parameters="all", search=search, random_state=0).fit(
        X, LABELS
    )
    with pytest.warns(FailedRowsWarning, match="values out of bounds"):
        u, diagnostics = est.predict_uncertainty(X[:8], return_diagnostics=True)
    failed = np.array([error is not None for error in diagnostics.error])
    assert failed.any()
    assert not failed.all()
    np.testing.assert_array_equal(u.beyond_range, failed)
    assert (diagnostics.n_diverged[failed] > 0).all()
    clean = est.predict_uncertainty(X[:8][~failed])
    for part, wanted in zip(u, clean, strict=True):
        np.testing.assert_allclose(part[~failed], wanted, rtol=1e-4, atol=1e-7)
    with pytest.raises(ValueError, match=r"other plausible models.*out of bounds"):
        est.predict_uncertainty(X[:8][failed])
