"""Errors that newcomers meet say what to do; data that are odd but possible are answered."""

from datetime import datetime

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from joblib import parallel_config
from scipy.sparse import csr_matrix
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

import sklearn_quam
from sklearn_quam import (
    DeepEnsembleClassifier,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    ReferenceRegressor,
)
from sklearn_quam.display import (
    RegressionUncertaintyDisplay,
)
from sklearn_quam.model_selection import RejectOptionClassifier
from sklearn_quam.ood import NearestNeighborDetector

from .networks import LABELS, TARGET, WORDS, X_NEW, X, dense, fitted, train
from .test_contract import few_methods, make_data, make_estimator

matplotlib.use("Agg")


def test_numbers_for_a_network_trained_with_texts():
    net = fitted(MLPClassifier((4,), max_iter=5), X, WORDS[LABELS])
    with pytest.raises(ValueError, match=r"trained with 'cat', 'dog', 'owl'.*not their numbers"):
        QUAMClassifier(net).fit(X, LABELS)


@pytest.mark.parametrize("kind", [QUAMClassifier, QUAMRegressor])
def test_targets_with_none(kind):
    y = TARGET.astype(object) if kind is QUAMRegressor else WORDS[LABELS].astype(object)
    y[[3, 7]] = None
    with pytest.raises(ValueError, match=r"y contains None, first in row 3 \(2 in total\). Leave"):
        kind(dense(1 if kind is QUAMRegressor else 3)).fit(X, y)


@pytest.mark.parametrize("y", [list(WORDS[LABELS]), pd.Series(WORDS[LABELS])])
def test_texts_for_a_regressor(y):
    for net in (dense(1), fitted(MLPRegressor(hidden_layer_sizes=(4,)), X, TARGET)):
        with pytest.raises(ValueError, match=r"texts such as '\w{3}'.*use the classifier"):
            QUAMRegressor(net).fit(X, y)


FRAME = pd.DataFrame(X, columns=list("abcd"))
MIXED = FRAME.assign(side=["left", "right"] * 30)


def encoded():
    encoder = make_column_transformer((OneHotEncoder(), ["side"]), remainder="passthrough")
    return make_pipeline(encoder, MLPClassifier((4,), max_iter=5, random_state=0))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("net", [MLPClassifier((4,), max_iter=5), "pipeline"], ids=str)
@pytest.mark.parametrize("row", [lambda F: F.iloc[0], lambda F: F.to_numpy()[0]])
def test_a_single_row(row, net):
    frame = FRAME
    net = make_pipeline(StandardScaler(), MLPClassifier((4,))) if net == "pipeline" else net
    est = ReferenceClassifier(fitted(net, frame, LABELS))
    est.fit(frame, LABELS)
    for ask in (est.predict, est.predict_proba, est.predict_uncertainty, est.score_samples):
        with pytest.raises(ValueError, match=r"one dimension \(4 values\).*X.iloc\[\[i\]\]"):
            ask(row(frame))
    with pytest.raises(ValueError, match=r"one dimension.*single feature is x.reshape\(-1, 1\)"):
        est.fit(row(frame), LABELS)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("kind", ["array", "list", "tensor", "Series", "sparse"])
def test_a_single_row_is_explained(kind):
    net = fitted(MLPClassifier((4,), max_iter=20, random_state=0), FRAME, LABELS)
    est = QUAMClassifier(net, search="linear").fit(FRAME, LABELS)
    row = {
        "array": X[3],
        "list": X[3].tolist(),
        "tensor": torch.tensor(X[3]),
        "Series": FRAME.iloc[3],
        "sparse": csr_matrix(X[3:4]),
    }[kind]
    wanted = est.explain_rival(FRAME.iloc[[3]])
    pd.testing.assert_frame_equal(est.explain_rival(row), wanted)
    with pytest.raises(ValueError, match=r"x must be a single row; got 2 rows. Pass X\[i : i"):
        est.explain_rival(X[:2])


def test_an_answer_that_nobody_knows():
    net = fitted(MLPClassifier((4,), max_iter=5, random_state=0), X, WORDS[LABELS])
    est = QUAMClassifier(net, search="linear").fit(X, WORDS[LABELS])
    with pytest.raises(ValueError, match=r"target=1 is no answer.*one of 'cat', 'dog', 'owl'"):
        est.explain_rival(X[:1], target=1)
    values = QUAMRegressor(train(dense(1), X, TARGET), search="linear").fit(X, TARGET)
    with pytest.raises(ValueError, match=r"target='left' is no answer.*one of 'up', 'down'"):
        values.explain_rival(X[:1], target="left")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_missing_values_behind_a_pipeline():
    est = ReferenceClassifier(fitted(encoded(), MIXED, LABELS)).fit(MIXED, LABELS)
    rows = MIXED.head(3).copy()
    rows.loc[1, "b"] = np.nan
    words = "^What the pipeline's transformers make of X contains NaN. Leave such rows out, or put"
    with pytest.raises(ValueError, match=words):
        est.predict(rows)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_pandas_says_about_categories():
    """Errors that numpy and pandas raise in their own words."""
    net = make_pipeline(StandardScaler(), MLPClassifier((4,), max_iter=5))
    est = ReferenceClassifier(fitted(net, FRAME, LABELS)).fit(FRAME, LABELS)
    category = pd.Series(["u", "v"] * 30, dtype="category")
    with pytest.raises(ValueError, match=r"^The pipeline's transformers take numbers, but could"):
        est.predict(FRAME.assign(a=category))
    with pytest.raises(ValueError, match=r"^sample_weight must hold numbers, but could not conv"):
        est.fit(FRAME, LABELS, category)
    with pytest.raises(ValueError, match=r"^X must hold numbers, but could not convert"):
        ReferenceClassifier(dense()).fit(FRAME.assign(a=category), LABELS)
    words = make_pipeline(FunctionTransformer(lambda X: X.astype(str)), net[-1])
    with pytest.raises(ValueError, match=r"make of X is no table of numbers.*encoder"):
        ReferenceClassifier(words).fit(FRAME.assign(a=category), LABELS)


def test_no_workers():
    for est in (QUAMClassifier(dense(), n_jobs=0), DeepEnsembleClassifier(n_jobs=0)):
        with pytest.raises(ValueError, match=r"'n_jobs' parameter.*in the range \[1, inf\)"):
            est.fit(X, LABELS)
    est = QUAMClassifier(train(dense(), X, LABELS), search="linear").fit(X, LABELS)
    with pytest.raises(ValueError, match="'n_jobs' parameter"):
        est.set_params(n_jobs=0).predict_uncertainty(X[:2])
    with pytest.raises(ValueError, match="'n_jobs' parameter"):
        NearestNeighborDetector(dense(), n_jobs=0).fit(X, LABELS)


@pytest.mark.parametrize("folder", [3, b"run", ""])
def test_a_checkpoint_that_is_no_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    est = ReferenceClassifier(dense()).fit(X, LABELS)
    with pytest.raises((TypeError, ValueError), match=r"checkpoint=.* (is no|names no) folder"):
        est.predict_uncertainty(X[:2], checkpoint=folder)
    assert not list(tmp_path.iterdir())


def test_memory_that_must_not_be_written_to():
    """pandas hands out arrays like that, which torch warns about, once in a process."""
    target = TARGET.astype(float)
    target.flags.writeable = False
    mlp = MLPRegressor(hidden_layer_sizes=(4,), max_iter=200, random_state=0)
    net = fitted(TransformedTargetRegressor(mlp, transformer=StandardScaler()), X, target)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        ReferenceRegressor(net).fit(X, target, X_val=X, y_val=target)
    finally:
        torch.set_warn_always(always)


# -- a whole data set in the wrong place -------------------------------------------------------

MANY = np.random.default_rng(0).normal(size=(900, 4))
WHOLE = {
    "array": MANY[:200],
    "frame": pd.DataFrame(MANY, columns=list("abcd")),
    "text": "many words " * 900,
}
# Arguments that may be a text.
TAKEN = [("checkpoint", "text")]


def misplaced(classes=None, values=None):
    """Return calls of one argument each that is not meant to be data."""
    metric = sklearn_quam.metrics
    tools = sklearn_quam.model_selection
    argument = {
        name: lambda value, name=name: QUAMClassifier(dense(), **{name: value}).fit(X, LABELS)
        for name in ["search", "temperature", "parameters", "link", "output"]
        + ["memory_limit", "n_jobs", "setting", "measure"]
    }
    return argument | {
        "estimator": lambda value: QUAMClassifier(value).fit(X, LABELS),
        "estimators": lambda value: DeepEnsembleClassifier(estimators=value).fit(X, LABELS),
        "n_steps": lambda value: QUAMClassifier(
            dense(), search=sklearn_quam.PenaltySearch(n_steps=value)
        ).fit(X, LABELS),
        "targets": lambda value: QUAMClassifier(
            dense(), search=sklearn_quam.NaturalSearch(targets=value)
        ).fit(X, LABELS),
        "coverage": lambda value: values.predict_interval(X, value),
        "slack": lambda value: classes.predict_proba_bounds(X[:2], slack=value),
        "target": lambda value: classes.explain_rival(X[:1], target=value),
        "errors": lambda value: classes.predict_uncertainty(X[:1], errors=value),
        "tpr": lambda value: metric.fpr_at_tpr([0, 1], [0.1, 0.2], tpr=value),
        "labels of a metric": lambda value: metric.aupr(value, np.arange(len(value))),
        "weight": lambda value: QUAMClassifier(dense()).fit(X, LABELS, value),
        "component": lambda value: tools.misclassification_scorer(
            classes, X, LABELS, component=value
        ),
        "compared": lambda value: tools.compare_uncertainty(classes, X, LABELS, X, value),
        "reject": lambda value: RejectOptionClassifier(classes, coverage=value).fit(X, LABELS),
        "cv": lambda value: RejectOptionClassifier(classes, cv=value).fit(X, LABELS),
        "feature": lambda value: RegressionUncertaintyDisplay.from_estimator(
            values, X, feature=value
        ),
        "layer": lambda value: NearestNeighborDetector(dense(), layer=value).fit(X, LABELS),
        "new labels": lambda value: tools.log_score_scorer(classes, X, value),
        "checkpoint": lambda value: classes.predict_uncertainty(X[:1], checkpoint=value),
    }


@pytest.fixture(scope="module")
def calls():
    values = QUAMRegressor(train(dense(1), X, TARGET), search="linear").fit(X, TARGET)
    classes = QUAMClassifier(train(dense(), X, LABELS), search="linear").fit(X, LABELS)
    return misplaced(classes, values)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(misplaced()))
@pytest.mark.parametrize("kind", WHOLE)
def test_no_message_prints_a_whole_data_set(name, kind, calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if (name, kind) in TAKEN:
        pytest.skip("that is what it takes")
    with pytest.raises((TypeError, ValueError)) as raised:
        calls[name](WHOLE[kind])
    assert len(str(raised.value)) < 700, str(raised.value)


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


# -- odd but possible --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.UncertaintyWarning")
@few_methods
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


@few_methods
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
