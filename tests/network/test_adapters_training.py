"""Pipelines, frozen estimators, and estimators that are still to be trained."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from skorch import NeuralNetBinaryClassifier, NeuralNetRegressor

from sklearn_quam import ReferenceClassifier, ReferenceRegressor
from sklearn_quam._network.adapters import is_pretrained

from ..networks import (
    BINARY,
    CLASSIFIERS,
    COLUMN,
    LABELS,
    QUIET,
    REGRESSORS,
    TARGET,
    TWO_TARGETS,
    WORDS,
    X64,
    X64_NEW,
    X_NEW,
    Dense,
    X,
    assert_same,
    each_model,
    fitted,
    predictions,
)

few_models = pytest.mark.parametrize(
    ("make", "wrapper", "y"),
    [
        (CLASSIFIERS["skorch"], ReferenceClassifier, LABELS),
        (REGRESSORS["mlp"], ReferenceRegressor, TARGET),
    ],
    ids=["skorch classifier", "scikit-learn regressor"],
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# -- pipelines and frozen estimators -------------------------------------------------------


@each_model
def test_nested_pipeline(make, wrapper, y):
    net = make()
    inner = make_pipeline(FunctionTransformer(np.tanh), StandardScaler(), net)
    pipe = fitted(make_pipeline(StandardScaler(), "passthrough", inner), X, y)
    assert_same(wrapper(pipe).fit(X, y), pipe)


@pytest.mark.parametrize(("kind", "sparse_threshold"), [("mlp", 0.0), ("logistic", 1.0)])
def test_columns_of_text_with_missing_values(kind, sparse_threshold):
    frame = pd.DataFrame(X.copy(), columns=["a", "b", "c", "d"])
    frame["colour"] = np.where(X[:, 2] > 0, "red", "blue")
    frame.loc[::7, "a"] = np.nan
    frame.loc[::9, "colour"] = None
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["a", "b"]),
            ("words", OneHotEncoder(handle_unknown="ignore"), ["colour"]),
        ],
        sparse_threshold=sparse_threshold,
    )
    y = WORDS[LABELS]
    pipe = fitted(make_pipeline(columns, CLASSIFIERS[kind]()), frame, y)
    est = ReferenceClassifier(pipe).fit(frame, y)
    assert_same(est, pipe, frame, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(est.feature_names_in_, frame.columns)


@few_models
def test_frozen_estimator_is_given(make, wrapper, y):
    net = make()
    frozen = FrozenEstimator(fitted(net, X, y))
    assert is_pretrained(frozen)
    est = wrapper(frozen).fit(X, y)
    assert est.estimator_ is frozen
    assert_same(est, net)


@few_models
def test_scaler_before_a_frozen_network_is_fitted(make, wrapper, y):
    scaler = StandardScaler().fit(X)
    net = fitted(make(), scaler.transform(X), y)
    pipe = make_pipeline(StandardScaler(), FrozenEstimator(net))
    assert not is_pretrained(pipe)
    est = wrapper(pipe, random_state=0).fit(X + 3, y)
    np.testing.assert_allclose(
        predictions(est, X_NEW + 3), predictions(net, scaler.transform(X_NEW)), 1e-3, 1e-4
    )
    assert not hasattr(pipe[0], "mean_")
    assert est.estimator_[-1].estimator is net


def test_frozen_estimator_that_is_not_fitted_is_reported():
    with pytest.raises(NotFittedError, match="not fitted"):
        ReferenceClassifier(FrozenEstimator(MLPClassifier())).fit(X, LABELS)


# -- training ------------------------------------------------------------------------------


@pytest.mark.parametrize("in_pipeline", [False, True], ids=["alone", "in a pipeline"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@few_models
def test_unfitted_estimator_is_cloned_and_trained(make, wrapper, y, in_pipeline):
    net = make()
    unfitted = make_pipeline(StandardScaler(), net) if in_pipeline else net
    assert not is_pretrained(unfitted)
    est = wrapper(unfitted).fit(X, y)
    assert not is_pretrained(unfitted)
    assert not is_pretrained(net)
    assert est.estimator is unfitted
    assert is_pretrained(est.estimator_)
    assert_same(est, est.estimator_)
    torch.manual_seed(0)
    assert_same(est, fitted(clone(unfitted), X, y))


@pytest.mark.parametrize("in_pipeline", [False, True], ids=["alone", "in a pipeline"])
def test_random_state_makes_skorch_training_reproducible(in_pipeline):
    def train(seed):
        net = CLASSIFIERS["skorch"]()
        net = make_pipeline(StandardScaler(), net) if in_pipeline else net
        torch.rand(3)
        return ReferenceClassifier(net, random_state=seed).fit(X, LABELS).predict_proba(X_NEW)

    first = train(0)
    np.testing.assert_array_equal(train(0), first)
    assert np.abs(train(1) - first).max() > 1e-3


@pytest.mark.parametrize("kind", [list, pd.DataFrame, torch.tensor, np.float64])
def test_skorch_net_is_trained_on_any_kind_of_table(kind):
    est = ReferenceClassifier(CLASSIFIERS["skorch"](), random_state=0)
    expected = clone(est).fit(X, LABELS).predict_proba(X_NEW)
    data = X.astype(kind) if kind in (np.float32, np.float64) else kind(X)
    np.testing.assert_allclose(est.fit(data, LABELS).predict_proba(np.array(X_NEW)), expected, 1e-5)


@pytest.mark.parametrize(
    ("net", "y"),
    [
        (lambda: NeuralNetBinaryClassifier(Dense, module__n_out=1, **QUIET), 2 * BINARY - 1),
        (lambda: NeuralNetBinaryClassifier(Dense, module__n_out=1, **QUIET), WORDS[BINARY]),
        (lambda: CLASSIFIERS["skorch"](), WORDS[LABELS]),
        (lambda: CLASSIFIERS["skorch"](), 10.0 * LABELS),
    ],
)
def test_skorch_net_is_trained_on_labels_of_any_kind(net, y):
    est = ReferenceClassifier(net(), random_state=0).fit(X, y)
    classes, encoded = np.unique(y, return_inverse=True)
    np.testing.assert_array_equal(est.classes_, classes)
    proba = est.estimator_.predict_proba(X)
    np.testing.assert_allclose(est.predict_proba(X), proba, 1e-5, 1e-6)
    expected = -np.log(proba[np.arange(len(X)), encoded]).mean()
    assert est.reference_loss_ == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("y", [TARGET, COLUMN, TWO_TARGETS], ids=["one", "a column", "two"])
def test_skorch_regressor_is_trained_on_one_or_more_targets(y):
    n_out = y.reshape(len(y), -1).shape[1]
    est = ReferenceRegressor(REGRESSORS["skorch"]().set_params(module__n_out=n_out))
    assert_same(est.fit(X, y.astype(np.float64)), est.estimator_)
    torch.manual_seed(0)
    own = NeuralNetRegressor(Dense, module__n_out=n_out, **QUIET)
    assert_same(est, fitted(own, X, y.reshape(len(y), -1)))


@pytest.mark.parametrize("nested", [False, True])
def test_sample_weight_reaches_a_network_in_a_pipeline(nested):
    weight = np.where(LABELS == 0, 5.0, 1.0)
    net = make_pipeline(LogisticRegression()) if nested else LogisticRegression()
    est = ReferenceClassifier(make_pipeline(StandardScaler(), net))
    est.fit(X64, LABELS, sample_weight=weight)
    own = LogisticRegression().fit(StandardScaler().fit_transform(X64), LABELS, weight)
    rows = StandardScaler().fit(X64).transform(X64_NEW)
    np.testing.assert_allclose(est.predict_proba(X64_NEW), own.predict_proba(rows), 1e-5)


UNITS = np.array([1e-4, 1.0, 1e3, 1e6])


@pytest.mark.parametrize("kind", [ReferenceClassifier, ReferenceRegressor])
def test_the_default_network_takes_columns_of_any_unit(kind):
    rows, y = X64[:, :4], LABELS if kind is ReferenceClassifier else TARGET
    est = kind(random_state=0).fit(UNITS * (rows + 10), y)
    assert est.score(UNITS * (rows + 10), y) > 0.95


@pytest.mark.parametrize("routing", [False, True])
def test_weights_go_to_all_of_the_default_network(routing):
    weight = np.r_[np.ones(30), np.zeros(30)]
    rows = np.r_[X64[:30], X64[30:] + 1e6]
    with config_context(enable_metadata_routing=routing):
        est = ReferenceRegressor(random_state=0).fit(rows, TARGET, sample_weight=weight)
    np.testing.assert_allclose(est.estimator_["scaler"].mean_, X64[:30].mean(axis=0))
