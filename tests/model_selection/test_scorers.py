"""Scorers, against numbers computed by hand and scikit-learn's own tools."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError, UndefinedMetricWarning
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_quam import (
    DeepEnsembleRegressor,
    LaplaceClassifier,
    LaplaceRegressor,
    PenaltySearch,
    QUAMRegressor,
    ReferenceClassifier,
    ReferenceRegressor,
    Uncertainty,
)
from sklearn_quam.metrics import (
    accuracy_rejection_auc,
    aupr,
    fpr_at_tpr,
    gaussian_log_score,
    risk_coverage_auc,
)
from sklearn_quam.model_selection import (
    log_score_scorer,
    make_ood_scorer,
    misclassification_scorer,
    rejection_scorer,
)

from ..networks import TARGET, TWO_TARGETS, X64, dense, fitted
from .common import (
    FRAME,
    FRAME_OOD,
    HELD_OUT,
    NAMED,
    NOISY,
    SCORERS,
    TEST,
    TRAIN,
    X_OOD,
    CountingMLP,
    network,
    quam,
    unfitted,
)


class Known(ClassifierMixin, BaseEstimator):
    """A classifier whose answers are the columns of X: prediction and three uncertainties."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X, return_uncertainty=False):
        prediction = np.asarray(X)[:, 0].astype(int)
        return (prediction, self.predict_uncertainty(X)) if return_uncertainty else prediction

    def predict_uncertainty(self, X):
        return Uncertainty(*np.asarray(X, dtype=float)[:, 1:4].T)


def answers(uncertainty, prediction=None):
    """Return rows for `Known` with the same epistemic and total uncertainty."""
    columns = [np.zeros(len(uncertainty)) if prediction is None else prediction]
    return np.column_stack([*columns, np.zeros(len(uncertainty)), uncertainty, uncertainty])


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("roc_auc", 5 / 6),  # one of six pairs is the wrong way round
        ("average_precision", (1 + 2 / 3) / 2),
        # Points (recall, precision): (0, 1), (1/2, 1), (1/2, 1/2), (1, 2/3).
        ("aupr", 0.5 + 0.5 * (1 / 2 + 2 / 3) / 2),
        ("neg_fpr95", -1 / 3),
        (lambda is_ood, u: is_ood.sum() + u[0], 2 + 1),
    ],
)
def test_ood_score_by_hand(metric, expected):
    known, strange = answers([1, 2, 4]), answers([3, 5])
    est = Known().fit(known, [0, 0, 1])
    score = make_ood_scorer(strange, metric=metric)(est, known)
    assert type(score) is float
    assert score == pytest.approx(expected)


def test_ood_score_takes_the_component():
    known = np.array([[0, 1, 4, 5], [0, 2, 3, 5]])
    strange = np.array([[0, 3, 2, 5]])
    est = Known().fit(known, [0, 1])
    scores = [
        make_ood_scorer(strange, component=part)(est, known)
        for part in ("aleatoric", "epistemic", "total")
    ]
    assert scores == [1, 0, 0.5]
    assert make_ood_scorer(strange)(est, known, [0, 1]) == 0


def test_misclassification_and_rejection_by_hand():
    rows = answers([1, 4, 2, 3], prediction=[0, 1, 1, 0])
    est = Known().fit(rows, [0, 1, 0, 1])
    y = [0, 0, 1, 1]  # the second and the last are mistakes
    assert misclassification_scorer(est, rows, y) == 1
    # Kept in order of uncertainty: correct, correct, wrong, wrong.
    assert rejection_scorer(est, rows, y) == pytest.approx((1 + 1 + 2 / 3 + 1 / 2) / 4)
    # All aleatoric uncertainties are equal.
    assert misclassification_scorer(est, rows, y, component="aleatoric") == 0.5
    assert rejection_scorer(est, rows, y, component="aleatoric") == pytest.approx(0.5)


def test_scores_of_a_network_equal_those_of_its_arrays():
    est = quam(network()).fit(X64[TRAIN], NOISY[TRAIN])
    X, y = X64[TEST], NOISY[TEST]
    u, ood = est.predict_uncertainty(X), est.predict_uncertainty(X_OOD)
    mistake = est.predict(X) != y
    assert 0 < mistake.sum() < 20
    is_ood = np.repeat([0, 1], [20, 25])
    score = np.concatenate([u.epistemic, ood.epistemic])
    assert SCORERS["ood"](est, X) == roc_auc_score(is_ood, score)
    for name, metric in (("average_precision", average_precision_score), ("aupr", aupr)):
        assert make_ood_scorer(X_OOD, metric=name)(est, X, y) == metric(is_ood, score)
    assert make_ood_scorer(X_OOD, metric="neg_fpr95")(est, X) == -fpr_at_tpr(is_ood, score)
    assert misclassification_scorer(est, X, y) == roc_auc_score(mistake, u.total)
    assert rejection_scorer(est, X, y) == accuracy_rejection_auc(~mistake, u.total)
    loss = log_loss(y, est.predict_proba(X), labels=est.classes_)
    assert log_score_scorer(est, X, y) == pytest.approx(-loss)


def test_the_log_score_respects_the_setting():
    data = X64[TRAIN], NOISY[TRAIN]
    given = LaplaceClassifier(network(), random_state=0).fit(*data)
    expected = clone(given).set_params(setting="expected").fit(*data)
    proba = expected.predict_proba(X64[TEST])
    loss = log_loss(NOISY[TEST], proba, labels=[0, 1, 2])
    assert log_score_scorer(expected, X64[TEST], NOISY[TEST]) == pytest.approx(-loss)
    assert log_score_scorer(given, X64[TEST], NOISY[TEST]) != pytest.approx(-loss)


@pytest.mark.parametrize("container", [list, np.array, pd.Series, torch.tensor])
def test_labels_may_come_in_any_container(container):
    est = quam(network()).fit(X64[TRAIN], NOISY[TRAIN])
    for scorer in (misclassification_scorer, rejection_scorer, log_score_scorer):
        expected = scorer(est, X64[TEST], NOISY[TEST])
        assert scorer(est, X64[TEST], container(NOISY[TEST].tolist())) == expected


def test_text_labels_score_like_numbers():
    numbers = quam(network()).fit(X64[TRAIN], NOISY[TRAIN])
    words = quam(network(y=NAMED)).fit(X64[TRAIN], NAMED[TRAIN])
    for scorer in SCORERS.values():
        expected = scorer(numbers, X64[TEST], NOISY[TEST])
        assert scorer(words, X64[TEST], NAMED[TEST]) == pytest.approx(expected)
        assert scorer(words, X64[TEST], pd.Series(NAMED[TEST])) == pytest.approx(expected)


# Regressors.

REGRESSORS = {
    "quam": lambda net, **options: QUAMRegressor(
        net, search=PenaltySearch(n_steps=4), random_state=0, **options
    ),
    "laplace": lambda net, **options: LaplaceRegressor(net, random_state=0, **options),
    "ensemble": lambda net, **options: DeepEnsembleRegressor(
        net, estimators=[net, network(slice(0, 30), TARGET, MLPRegressor)], **options
    ),
}


@pytest.mark.parametrize(
    ("kind", "measure", "setting"),
    [
        ("quam", "entropy", "given"),
        ("laplace", "entropy", "expected"),
        ("ensemble", "variance", "expected"),
    ],
)
def test_regressors_are_scored_with_their_total_variance(kind, measure, setting):
    net = network(y=TARGET, kind=MLPRegressor)
    est = REGRESSORS[kind](net, measure=measure, setting=setting).fit(X64[TRAIN], TARGET[TRAIN])
    X, y = X64[TEST], TARGET[TEST]
    by_variance = copy.copy(est)
    by_variance.measure = "variance"
    variance = by_variance.predict_uncertainty(X).total
    before = {name: id(value) for name, value in vars(est).items()}
    score = log_score_scorer(est, X, y)
    assert {name: id(value) for name, value in vars(est).items()} == before
    assert score == pytest.approx(gaussian_log_score(y, est.predict(X), variance), rel=1e-6)
    loss = (est.predict(X) - y) ** 2
    expected = -risk_coverage_auc(loss, est.predict_uncertainty(X).total)
    assert rejection_scorer(est, X, y) == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.SeenRowsWarning")
def test_log_score_of_a_line_by_hand():
    X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0.0, 1.5, 1.5, 3.0])
    est = ReferenceRegressor(LinearRegression().fit(X, y)).fit(X, y)
    # Residuals -0.15, 0.45, -0.45, 0.15, whose mean square is 0.1125.
    expected = -0.5 * (np.log(2 * np.pi * 0.1125) + 1)
    assert log_score_scorer(est, X, y) == pytest.approx(expected)
    assert rejection_scorer(est, X, y) == pytest.approx(-0.1125)


def test_several_outputs_have_a_variance_each():
    net = LinearRegression().fit(X64[TRAIN], TWO_TARGETS[TRAIN] * [1, 100] + X64[TRAIN, :1] ** 2)
    y = TWO_TARGETS * [1, 100] + X64[:, :1] ** 2
    est = ReferenceRegressor(net).fit(X64[TRAIN], y[TRAIN])
    variance = np.tile(est.noise_variance_, (20, 1))
    expected = gaussian_log_score(y[TEST], est.predict(X64[TEST]), variance)
    assert log_score_scorer(est, X64[TEST], y[TEST]) == pytest.approx(expected)
    loss = ((est.predict(X64[TEST]) - y[TEST]) ** 2).mean(axis=1)
    assert rejection_scorer(est, X64[TEST], y[TEST]) == pytest.approx(-loss.mean())
    with pytest.raises(ValueError, match=r"y has 1 value\(s\) a row, but 2 are predicted"):
        rejection_scorer(est, X64[TEST], y[TEST, 0])


# Pipelines, searches and frames.


def scaled(data):
    return StandardScaler().fit(data[TRAIN])


def ways_of_scaling():
    """Return estimators that are the same but for where the scaler sits."""
    scaler = scaled(X64)
    inner = network(X=scaler.transform(X64))
    data = X64[TRAIN], NOISY[TRAIN]
    outside = make_pipeline(FrozenEstimator(scaler), quam(inner)).fit(*data)
    search = GridSearchCV(
        outside, {"quamclassifier__search__n_steps": [4]}, scoring="accuracy", cv=2
    )
    in_search = GridSearchCV(quam(inner), {"search__n_steps": [4]}, scoring="accuracy", cv=2)
    return {
        "alone": quam(inner).fit(scaler.transform(X64[TRAIN]), NOISY[TRAIN]),
        "outside": outside,
        "inside": quam(Pipeline([("scale", scaler), ("net", inner)])).fit(*data),
        "frozen": FrozenEstimator(outside),
        "search": search.fit(*data),
        "search in a pipeline": make_pipeline(FrozenEstimator(scaler), in_search).fit(*data),
    }


def test_pipelines_and_searches_score_like_the_estimator_inside():
    ways = ways_of_scaling()
    alone = ways.pop("alone")
    X, strange = scaled(X64).transform(X64[TEST]), scaled(X64).transform(X_OOD)
    for name, est in ways.items():
        score = SCORERS["ood"](est, X64[TEST])
        assert score == pytest.approx(make_ood_scorer(strange)(alone, X)), name
        for scorer in (misclassification_scorer, rejection_scorer, log_score_scorer):
            expected = scorer(alone, X, NOISY[TEST])
            assert scorer(est, X64[TEST], NOISY[TEST]) == pytest.approx(expected), name


def test_frames_score_like_arrays():
    arrays = quam(network()).fit(X64[TRAIN], NOISY[TRAIN])
    net = fitted(unfitted(), FRAME[TRAIN], NOISY[TRAIN])
    frames = quam(net).fit(FRAME[TRAIN], NOISY[TRAIN])
    assert make_ood_scorer(FRAME_OOD)(frames, FRAME[TEST]) == SCORERS["ood"](arrays, X64[TEST])
    behind = make_pipeline(StandardScaler(), quam(unfitted())).set_output(transform="pandas")
    behind.fit(FRAME[TRAIN], NOISY[TRAIN])
    rows, strange = (behind[:-1].transform(frame) for frame in (FRAME[TEST], FRAME_OOD))
    score = make_ood_scorer(FRAME_OOD)(behind, FRAME[TEST])
    assert score == make_ood_scorer(strange)(behind[-1], rows)
    swapped = make_ood_scorer(FRAME_OOD[list("dcba")])
    with pytest.raises(ValueError, match="feature names"):
        swapped(frames, FRAME[TEST])


# scikit-learn's tools.


def test_grid_search_over_a_given_network_trains_nothing():
    net = network(kind=CountingMLP)
    n_fits = CountingMLP.n_fits
    weights = [w.copy() for w in net.coefs_]
    grid = {"search__learning_rate": [1e-3, 1e-2], "parameters": ["last_layer", "all"]}
    search = GridSearchCV(quam(net), grid, scoring=SCORERS["ood"], cv=HELD_OUT)
    search.fit(X64, NOISY)
    assert CountingMLP.n_fits == n_fits
    assert search.best_estimator_.estimator is net
    assert all(np.array_equal(a, b) for a, b in zip(weights, net.coefs_, strict=True))
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    for params, score in zip(search.cv_results_["params"], scores, strict=True):
        est = quam(net).set_params(**params).fit(X64[TRAIN], NOISY[TRAIN])
        assert SCORERS["ood"](est, X64[TEST]) == pytest.approx(score)
    assert SCORERS["ood"](search, X64[TEST]) == SCORERS["ood"](search.best_estimator_, X64[TEST])


def test_an_unfitted_network_is_trained_for_every_fold():
    n_fits = CountingMLP.n_fits
    scores = cross_val_score(quam(unfitted(CountingMLP)), X64, NOISY, scoring=SCORERS["ood"], cv=3)
    assert CountingMLP.n_fits == n_fits + 3
    assert np.isfinite(scores).all()


def test_several_scores_at_once():
    with config_context(enable_metadata_routing=True):
        scores = cross_validate(
            quam(network()), X64, NOISY, scoring={**SCORERS, "accuracy": "accuracy"}, cv=HELD_OUT
        )
    est = quam(network()).fit(X64[TRAIN], NOISY[TRAIN])
    for name, scorer in SCORERS.items():
        assert scores[f"test_{name}"] == pytest.approx(scorer(est, X64[TEST], NOISY[TEST]))


def test_scorers_are_copied_and_printed():
    est = quam(network()).fit(X64[TRAIN], NOISY[TRAIN])
    for scorer in SCORERS.values():
        twin = pickle.loads(pickle.dumps(scorer))
        expected = scorer(est, X64[TEST], NOISY[TEST])
        assert twin(est, X64[TEST], NOISY[TEST]) == expected
    search = GridSearchCV(est, {"search__n_steps": [4]}, scoring=SCORERS["ood"], cv=HELD_OUT)
    assert clone(search).fit(X64, NOISY).best_score_ == SCORERS["ood"](est, X64[TEST])
    assert repr(SCORERS["ood"]) == "_OODScorer(component='epistemic', metric='roc_auc')"


# Undefined scores and bad input.


@pytest.mark.parametrize(("prediction", "message"), [(0, "No predictions"), (1, "All predictions")])
def test_only_mistakes_or_none_is_undefined(prediction, message):
    rows = answers([1, 2, 3], prediction=[prediction] * 3)
    est = Known().fit(rows, [0, 1, 1])
    with pytest.warns(UndefinedMetricWarning, match=message):
        assert np.isnan(misclassification_scorer(est, rows, [0, 0, 0]))


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.SeenRowsWarning")
def test_log_score_of_an_impossible_label():
    module = dense()
    with torch.no_grad():
        module[-1].bias[0] -= 10_000
    est = ReferenceClassifier(module).fit(X64, NOISY)
    assert log_score_scorer(est, X64[:2], [0, 1]) == -np.inf
    with pytest.raises(ValueError, match=r"does not know: \{.*7"):
        log_score_scorer(est, X64[:2], [0, 7])


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="'component' parameter"):
        make_ood_scorer(X_OOD, component="both")
    with pytest.raises(ValueError, match="'metric' parameter"):
        make_ood_scorer(X_OOD, metric="accuracy")
    with pytest.raises(ValueError, match="no rows"):
        make_ood_scorer(X_OOD[:0])
    with pytest.raises(ValueError, match="'component' parameter"):
        rejection_scorer(Known(), X64, NOISY, component="count")


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.SeenRowsWarning")
def test_bad_estimators_are_named():
    with pytest.raises(TypeError, match="MLPClassifier has no predict_uncertainty"):
        SCORERS["ood"](network(), X64)
    search = GridSearchCV(quam(network()), {})
    with pytest.raises(TypeError, match="Fit the search"):
        SCORERS["ood"](search, X64)
    line = ReferenceRegressor(LinearRegression().fit(X64, TARGET)).fit(X64, TARGET)
    with pytest.raises(TypeError, match="ReferenceRegressor is not"):
        misclassification_scorer(line, X64, TARGET)
    for scorer in SCORERS.values():
        with pytest.raises(NotFittedError):
            scorer(quam(network()), X64, NOISY)
    est = quam(network()).fit(X64, NOISY)
    for scorer in (misclassification_scorer, rejection_scorer):
        with pytest.raises(TypeError, match="y holds labels such as"):
            scorer(est, X64, NAMED)
    for scorer in (misclassification_scorer, rejection_scorer, log_score_scorer):
        with pytest.raises(ValueError, match="inconsistent"):
            scorer(est, X64, NOISY[:-1])
