"""Whatever is passed in is answered or refused in plain words: no NaN, no errors from deeper down.

``make test`` tries 100 cases of each test, ``make fuzz`` 1,000.
"""

import os
import traceback
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError
from sklearn.neural_network import MLPClassifier
from torch import nn

import sklearn_quam

from .networks import LABELS, TARGET, Apply, X, dense, fitted, train

CASES = int(os.environ.get("FUZZ_CASES", "100"))
PACKAGE, SKLEARN = (str(Path(p.__file__).parent) for p in (sklearn_quam, sklearn))
# The same cases each time in "make test", others each time in "make fuzz".
fuzz = settings(
    max_examples=CASES,
    derandomize=CASES <= 100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


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


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(2**62), 2**62),
    st.sampled_from([0.0, 1e20, -9.97e36, 3e38, 1e300, np.nan, np.inf, -0.0, 1e-320]),
)
DTYPES = ["f4", "f8", "f2", "i8", "u1", "bool", "c8", "M8[s]", "O", "U3", ">f8", "g"]


@st.composite
def arrays(draw):
    """Return an array of any shape, type and content; many have four columns."""
    rows = draw(st.integers(0, 4))
    shape = draw(
        st.sampled_from([(rows, 4), (rows, 4), (rows, 4), (rows,), (rows, 3), (), (rows, 4, 2)])
    )
    size = int(np.prod(shape))
    values = draw(st.lists(NUMBERS, min_size=size, max_size=size))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        array = np.array(values, dtype=float).reshape(shape)
        return array.astype(draw(st.sampled_from(DTYPES)), casting="unsafe")


def as_tensor(array):
    try:
        return torch.tensor(array)
    except (TypeError, ValueError):
        return torch.zeros(array.shape)


ODD = st.sampled_from(
    [
        None,
        3,
        "text",
        [],
        [[]],
        [[1, 2], [3]],
        [["a", "b", "c", "d"]],
        [[None, 1, 2, 3]],
        {"a": [1, 2]},
        object(),
        b"bytes",
        {1, 2},
        [{"a": 1}],
        [object()] * 4,
        torch.empty(2, 4, device="meta"),
        torch.zeros(2, 4).to_sparse(),
        torch.zeros(2, 4, dtype=torch.complex64),
        lambda: None,
    ]
)
WRAPS = st.sampled_from(
    [
        lambda a: a,
        lambda a: a,
        lambda a: a.tolist(),
        as_tensor,
        lambda a: pd.DataFrame(a) if a.ndim == 2 else a,
        lambda a: pd.DataFrame(a, columns=list("abcd")) if a.shape[1:] == (4,) else a,
        lambda a: a[::-1] if a.ndim else a,
        lambda a: np.asfortranarray(a),
    ]
)
ANYTHING = st.one_of(ODD, st.builds(lambda wrap, a: wrap(a), WRAPS, arrays()))


def calmly(action):
    """Run something; let it refuse in our words only, and return what it says otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return action()
        except (ValueError, TypeError, NotFittedError) as error:
            place = traceback.extract_tb(error.__traceback__)[-1].filename
            assert place.startswith((PACKAGE, SKLEARN)), f"{place}: {error!r}"  # noqa: PT017
            assert str(error)  # noqa: PT017
            return None


def assert_no_nan(result):
    """Look at all numbers in whatever was returned."""
    if isinstance(result, dict):
        result = [value for key, value in result.items() if key != "state_dict"]
    if isinstance(result, (list, tuple)):
        for part in result:
            assert_no_nan(part)
    elif isinstance(result, (np.ndarray, float)) and np.asarray(result).dtype.kind == "f":
        assert not np.isnan(result).any()


@fuzz
@given(
    name=st.sampled_from(sorted(estimators())),
    ask=st.sampled_from(["predict", "predict_proba", "predict_uncertainty", "score_samples"]),
    rows=ANYTHING,
    setting=st.sampled_from(["given", "expected"]),
)
def test_predictions_of_anything(name, ask, rows, setting):
    est = a_fitted(name).set_params(setting=setting)
    if hasattr(est, ask):
        assert_no_nan(calmly(lambda: getattr(est, ask)(rows)))


@fuzz
@given(
    name=st.sampled_from(["natural", "linear", "penalty"]),
    ask=st.sampled_from(["rival_costs", "adversarial_models", "search_traces"]),
    rows=ANYTHING,
)
def test_searches_of_anything(name, ask, rows):
    est = a_fitted(name)
    assert_no_nan(calmly(lambda: getattr(est, ask)(rows)))


@fuzz
@given(
    name=st.sampled_from(sorted(estimators())),
    passed=ANYTHING,
    y=ANYTHING,
    what=st.sampled_from(["X", "y", "both", "sample_weight"]),
)
def test_fits_of_anything(name, passed, y, what):
    est, good_rows, good_y = estimators()[name]
    arguments = {
        "X": (passed, good_y),
        "y": (good_rows, passed),
        "both": (passed, y),
        "sample_weight": (good_rows, good_y, passed),
    }[what]
    calmly(lambda: est.fit(*arguments))


@pytest.mark.parametrize("name", sorted(estimators()))
def test_nothing_is_answered_before_fit(name):
    est = estimators()[name][0]
    with pytest.raises(NotFittedError, match="not fitted yet"):
        est.predict_uncertainty(X)


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
        search = sklearn_quam.PenaltySearch(n_steps=60, learning_rate=0.3)
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
