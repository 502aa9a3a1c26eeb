"""Scorers and the comparison, against numbers computed by hand and scikit-learn's own tools."""

import copy
import functools
import pickle
import warnings

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
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    PredefinedSplit,
    cross_val_score,
    cross_validate,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from sklearn_quam import (
    DeepEnsembleRegressor,
    LaplaceClassifier,
    LaplaceRegressor,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    ReferenceRegressor,
    Uncertainty,
    _seen,
)
from sklearn_quam.metrics import (
    accuracy_rejection_auc,
    aupr,
    bootstrap_interval,
    expected_calibration_error,
    fpr_at_tpr,
    gaussian_log_score,
    risk_coverage_auc,
)
from sklearn_quam.model_selection import (
    SeenDataWarning,
    compare_uncertainty,
    log_score_scorer,
    make_ood_scorer,
    misclassification_scorer,
    rejection_scorer,
)

from .networks import TARGET, TWO_TARGETS, WORDS, X64, X64_NEW, dense, fitted

rng = np.random.default_rng(1)
NOISY = ((X64[:, 0] + 0.8 * rng.normal(size=60)) > 0).astype(int) + (X64[:, 1] > 0)
NAMED = WORDS[NOISY]
X_OOD = X64_NEW + 6
TRAIN, TEST = slice(0, 40), slice(40, 60)
HELD_OUT = PredefinedSplit([-1] * 40 + [0] * 20)
FRAME = pd.DataFrame(X64, columns=list("abcd"))
FRAME_OOD = pd.DataFrame(X_OOD, columns=list("abcd"))
SCORERS = {
    "ood": make_ood_scorer(X_OOD),
    "misclassification": misclassification_scorer,
    "rejection": rejection_scorer,
    "log_score": log_score_scorer,
}


@pytest.fixture(autouse=True)
def nothing_seen():
    """Forget the rows of networks: tests share some."""
    _seen._rows_of_networks.clear()


class CountingMLP(MLPClassifier):
    """Counts how often any of its copies is trained."""

    n_fits = 0

    def fit(self, X, y):
        type(self).n_fits += 1
        return super().fit(X, y)


def network(rows=TRAIN, y=NOISY, kind=MLPClassifier, X=X64):
    net = kind(hidden_layer_sizes=(8,), solver="lbfgs", max_iter=30, alpha=0.1, random_state=0)
    return fitted(net, X[rows], y[rows])


def unfitted(kind=MLPClassifier):
    return kind(hidden_layer_sizes=(8,), solver="lbfgs", max_iter=30, alpha=0.1, random_state=0)


def quam(net, **options):
    return QUAMClassifier(net, **{"n_steps": 4, "random_state": 0, **options})


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


# Scores by hand.


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("roc_auc", 5 / 6),  # one of six pairs is the wrong way round
        ("average_precision", (1 + 2 / 3) / 2),
        # Points (recall, precision): (0, 1), (1/2, 1), (1/2, 1/2), (1, 2/3).
        ("aupr", 0.5 + 0.5 * (1 / 2 + 2 / 3) / 2),
        ("fpr95", -1 / 3),
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
    assert make_ood_scorer(X_OOD, metric="fpr95")(est, X) == -fpr_at_tpr(is_ood, score)
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
    "quam": lambda net, **options: QUAMRegressor(net, n_steps=4, random_state=0, **options),
    "laplace": lambda net, **options: LaplaceRegressor(net, random_state=0, **options),
    "ensemble": lambda net, **options: DeepEnsembleRegressor(
        net, estimators=[net, network(slice(0, 30), TARGET, MLPRegressor)], **options
    ),
}


@pytest.mark.parametrize("setting", ["given", "expected"])
@pytest.mark.parametrize("measure", ["entropy", "variance"])
@pytest.mark.parametrize("kind", REGRESSORS)
def test_regressors_are_scored_with_their_total_variance(kind, measure, setting):
    net = network(y=TARGET, kind=MLPRegressor)
    est = REGRESSORS[kind](net, measure=measure, setting=setting).fit(X64[TRAIN], TARGET[TRAIN])
    X, y = X64[TEST], TARGET[TEST]
    by_variance = copy.copy(est)
    by_variance.measure = "variance"
    variance = by_variance.predict_uncertainty(X).total
    score = log_score_scorer(est, X, y)
    assert score == pytest.approx(gaussian_log_score(y, est.predict(X), variance), rel=1e-6)
    assert "_summarise" not in vars(est)
    loss = (est.predict(X) - y) ** 2
    expected = -risk_coverage_auc(loss, est.predict_uncertainty(X).total)
    assert rejection_scorer(est, X, y) == pytest.approx(expected)


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


def test_regressors_with_workers_are_scored_alike():
    est = REGRESSORS["quam"](network(y=TARGET, kind=MLPRegressor)).fit(X64[TRAIN], TARGET[TRAIN])
    expected = log_score_scorer(est, X64[TEST], TARGET[TEST])
    est.set_params(n_jobs=2)
    assert log_score_scorer(est, X64[TEST], TARGET[TEST]) == pytest.approx(expected)


# Pipelines, searches and frames.


def scaled(data):
    return StandardScaler().fit(data[TRAIN])


def ways_of_scaling():
    """Return estimators that are the same but for where the scaler sits."""
    scaler = scaled(X64)
    inner = network(X=scaler.transform(X64))
    data = X64[TRAIN], NOISY[TRAIN]
    outside = make_pipeline(FrozenEstimator(scaler), quam(inner)).fit(*data)
    search = GridSearchCV(outside, {"quamclassifier__n_steps": [4]}, scoring="accuracy", cv=2)
    half = make_pipeline(FunctionTransformer(lambda X: X / 2), FunctionTransformer(lambda X: X * 2))
    same_names = make_pipeline(FrozenEstimator(scaler), make_pipeline("passthrough", quam(inner)))
    in_search = GridSearchCV(quam(inner), {"n_steps": [4]}, scoring="accuracy", cv=2)
    return {
        "alone": quam(inner).fit(scaler.transform(X64[TRAIN]), NOISY[TRAIN]),
        "outside": outside,
        "inside": quam(Pipeline([("scale", scaler), ("net", inner)])).fit(*data),
        "nested": make_pipeline(half, outside).fit(*data),
        "passthrough": same_names.fit(*data),
        "frozen": FrozenEstimator(outside),
        "search": search.fit(*data),
        "search of a search": GridSearchCV(search, {"cv": [2]}, scoring="accuracy", cv=2).fit(
            *data
        ),
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


def test_images_are_scored():
    images = rng.normal(size=(30, 2, 3, 3)).astype(np.float32)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(18, 3))
    est = quam(module).fit(images, NOISY[:30])
    assert 0 <= make_ood_scorer(images[:5] * 4)(est, images[5:20]) <= 1
    assert (
        compare_uncertainty([est], images, NOISY[:30], images, NOISY[:30], n_resamples=2)
        .error.eq("")
        .all()
    )


# scikit-learn's tools.


def test_grid_search_over_a_given_network_trains_nothing():
    net = network(kind=CountingMLP)
    n_fits = CountingMLP.n_fits
    weights = [w.copy() for w in net.coefs_]
    grid = {"learning_rate": [1e-3, 1e-2], "parameters": ["last_layer", "all"]}
    search = GridSearchCV(quam(net), grid, scoring=SCORERS["ood"], cv=HELD_OUT)
    search.fit(X64, NOISY)
    assert CountingMLP.n_fits == n_fits
    assert search.best_estimator_.estimator is net
    assert all(np.array_equal(a, b) for a, b in zip(weights, net.coefs_, strict=True))
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    for params, score in zip(search.cv_results_["params"], scores, strict=True):
        est = quam(net, **params).fit(X64[TRAIN], NOISY[TRAIN])
        assert SCORERS["ood"](est, X64[TEST]) == pytest.approx(score)
    assert SCORERS["ood"](search, X64[TEST]) == SCORERS["ood"](search.best_estimator_, X64[TEST])


def test_an_unfitted_network_is_trained_for_every_fold():
    n_fits = CountingMLP.n_fits
    scores = cross_val_score(quam(unfitted(CountingMLP)), X64, NOISY, scoring=SCORERS["ood"], cv=3)
    assert CountingMLP.n_fits == n_fits + 3
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("routing", [False, True])
def test_several_scores_at_once(routing):
    with config_context(enable_metadata_routing=routing):
        scores = cross_validate(
            quam(network()), X64, NOISY, scoring={**SCORERS, "accuracy": "accuracy"}, cv=HELD_OUT
        )
    est = quam(network()).fit(X64[TRAIN], NOISY[TRAIN])
    for name, scorer in SCORERS.items():
        assert scores[f"test_{name}"] == pytest.approx(scorer(est, X64[TEST], NOISY[TEST]))


def test_successive_halving():
    pipe = make_pipeline(StandardScaler(), quam(unfitted()))
    search = HalvingGridSearchCV(
        pipe,
        {"quamclassifier__learning_rate": [1e-3, 5e-3, 1e-2]},
        scoring=SCORERS["ood"],
        cv=2,
        factor=3,
        min_resources=20,
        random_state=0,
    ).fit(X64, NOISY)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert SCORERS["ood"](search, X64) == SCORERS["ood"](search.best_estimator_, X64)


def test_scorers_travel_to_workers():
    scoring = {
        **SCORERS,
        "aupr": make_ood_scorer(FRAME_OOD.to_numpy(), metric="aupr"),
        "own": make_ood_scorer(X_OOD, metric=average_precision_score),
        "epistemic": functools.partial(misclassification_scorer, component="epistemic"),
    }
    options = {"scoring": scoring, "refit": "ood", "cv": HELD_OUT}
    grid = {"learning_rate": [1e-3, 1e-2]}
    here, there = (
        GridSearchCV(quam(network()), grid, n_jobs=n_jobs, **options).fit(X64, NOISY)
        for n_jobs in (1, 2)
    )
    for name in scoring:
        column = f"mean_test_{name}"
        np.testing.assert_allclose(there.cv_results_[column], here.cv_results_[column])
        assert np.isfinite(here.cv_results_[column]).all()


def test_scorers_are_copied_and_printed():
    est = quam(network()).fit(X64[TRAIN], NOISY[TRAIN])
    for scorer in SCORERS.values():
        twin = pickle.loads(pickle.dumps(scorer))
        expected = scorer(est, X64[TEST], NOISY[TEST])
        assert twin(est, X64[TEST], NOISY[TEST]) == expected
    search = GridSearchCV(est, {"n_steps": [4]}, scoring=SCORERS["ood"], cv=HELD_OUT)
    assert clone(search).fit(X64, NOISY).best_score_ == SCORERS["ood"](est, X64[TEST])
    assert repr(SCORERS["ood"]) == "_OODScorer(component='epistemic', metric='roc_auc')"


# Undefined scores and bad input.


@pytest.mark.parametrize(("prediction", "message"), [(0, "No predictions"), (1, "All predictions")])
def test_only_mistakes_or_none_is_undefined(prediction, message):
    rows = answers([1, 2, 3], prediction=[prediction] * 3)
    est = Known().fit(rows, [0, 1, 1])
    with pytest.warns(UndefinedMetricWarning, match=message):
        assert np.isnan(misclassification_scorer(est, rows, [0, 0, 0]))


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


# Networks that have seen what they are scored on.


def seen_warnings(est, cv, scoring=SCORERS["ood"], **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores = cross_validate(est, X64, NOISY, cv=cv, scoring=scoring, **options)
    assert np.isfinite([v for k, v in scores.items() if k.startswith("test")]).all()
    return [w for w in caught if w.category is SeenDataWarning]


GIVEN = {
    "scikit-learn": lambda: network(slice(None)),
    "module": lambda: torch.nn.Sequential(torch.nn.Linear(4, 3)).double(),
    "frozen": lambda: FrozenEstimator(network(slice(None))),
    "pipeline": lambda: make_pipeline(StandardScaler(), unfitted()).fit(X64, NOISY),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_given_network_in_cross_validation_warns_once(kind):
    est = quam(GIVEN[kind]())
    found = seen_warnings(est, 3, {k: SCORERS[k] for k in ("ood", "rejection", "log_score")})
    assert len(found) == 1
    assert "PredefinedSplit" in str(found[0].message)
    assert not seen_warnings(est, 3)
    assert len(seen_warnings(quam(network(slice(0, 50))), 3)) == 1  # another network


def test_an_ensemble_of_given_networks_warns():
    from sklearn_quam import DeepEnsembleClassifier

    nets = [network(slice(None)), network(slice(0, 50))]
    assert len(seen_warnings(DeepEnsembleClassifier(estimators=nets), KFold(2))) == 1


def test_held_out_rows_and_trained_networks_do_not_warn():
    est = quam(network())
    assert not seen_warnings(est, HELD_OUT, SCORERS, return_train_score=True)
    assert not seen_warnings(est, HELD_OUT, SCORERS)
    assert not seen_warnings(quam(unfitted()), 3)
    assert not seen_warnings(make_pipeline(StandardScaler(), quam(unfitted())), 3)
    twice = np.vstack([X64[TRAIN], X64[:2]])  # rows may be equal to training data by chance
    est.fit(X64[TRAIN], NOISY[TRAIN])
    assert rejection_scorer(est, twice, NOISY[np.r_[0:40, 0:2]]) > 0


def test_refitting_after_a_search_does_not_warn():
    search = GridSearchCV(quam(network()), {"n_steps": [4]}, scoring=SCORERS["ood"], cv=HELD_OUT)
    search.fit(X64, NOISY)  # the best one is fitted to all rows, held-out ones too
    assert rejection_scorer(search, X64_NEW, NOISY[:25]) > 0


def test_a_copy_of_the_network_is_the_same_network():
    first, second = (quam(copy.deepcopy(network(slice(None)))) for _ in range(2))
    first.fit(X64[:30], NOISY[:30])
    second.fit(X64[30:], NOISY[30:])
    rejection_scorer(first, X64[30:], NOISY[30:])
    with pytest.warns(SeenDataWarning):
        rejection_scorer(second, X64[:30], NOISY[:30])


def test_only_a_few_networks_are_remembered():
    for seed in range(_seen._MAX_NETWORKS + 2):
        torch.manual_seed(seed)
        est = ReferenceClassifier(dense().double()).fit(X64[TRAIN], NOISY[TRAIN])
        rejection_scorer(est, X64[TEST], NOISY[TEST])
    assert len(_seen._rows_of_networks) == _seen._MAX_NETWORKS


# Comparison.

DATA = (X64[TRAIN], NOISY[TRAIN], X64[TEST], NOISY[TEST])
REAL = (X64[TRAIN], TARGET[TRAIN], X64[TEST], TARGET[TEST])
FAST = {"n_resamples": 10, "random_state": 0}
ENTROPY = "entropy of the network"


def row(frame, method, task):
    (found,) = frame[(frame.method == method) & (frame.task == task)].to_dict("records")
    return found


def assert_interval(found, column, metric, *arrays, **options):
    expected = bootstrap_interval(metric, *arrays, n_resamples=10, random_state=seed(), **options)
    values = [found[f"{column}{end}"] for end in ("", "_low", "_high")]
    assert values == pytest.approx(list(expected))


def seed():
    return np.random.RandomState(0).randint(np.iinfo(np.int32).max)


def test_table_of_classifiers_equals_numbers_by_hand():
    net = network()
    sets = {"far": X_OOD, "wide": 3 * X64_NEW}
    methods = {"QUAM": quam(net), "Laplace": LaplaceClassifier(net, random_state=0)}
    frame = compare_uncertainty(methods, *DATA, sets, **FAST)
    assert frame.shape == (3 * 4, 3 + 7 * 3 + 3)
    assert frame.error.eq("").all()
    assert list(frame.method.unique()) == ["QUAM", "Laplace", ENTROPY]
    assert list(frame.task[:4]) == ["ood:far", "ood:wide", "misclassification", "rejection"]
    assert (frame.seconds_per_point > 0).all()
    assert (frame.fit_seconds > 0).all()
    references = {**methods, ENTROPY: ReferenceClassifier(net)}
    for name, est in references.items():
        part = "total" if name == ENTROPY else "epistemic"
        est.fit(X64[TRAIN], NOISY[TRAIN])
        u = getattr(est.predict_uncertainty(X64[TEST]), part)
        far = getattr(est.predict_uncertainty(X_OOD), part)
        detection = (np.repeat([0, 1], [20, 25]), np.concatenate([u, far]))
        correct, proba = est.predict(X64[TEST]) == NOISY[TEST], est.predict_proba(X64[TEST])
        found = row(frame, name, "ood:far")
        assert found["component"] == part
        assert np.isnan([found["ece"], found["accuracy_rejection_auc"], found["log_score"]]).all()
        for task, arrays in (("ood:far", detection), ("misclassification", (~correct, u))):
            found = row(frame, name, task)
            assert_interval(found, "auroc", roc_auc_score, *arrays, stratify=arrays[0])
            assert_interval(found, "aupr", aupr, *arrays, stratify=arrays[0])
            assert_interval(found, "fpr95", fpr_at_tpr, *arrays, stratify=arrays[0])
        found = row(frame, name, "rejection")
        assert_interval(found, "accuracy_rejection_auc", accuracy_rejection_auc, correct, u)
        labels = {"labels": [0, 1, 2]}
        assert_interval(found, "ece", expected_calibration_error, NOISY[TEST], proba, **labels)
        expected = -log_loss(NOISY[TEST], proba, **labels)
        assert found["log_score"] == pytest.approx(expected)
        assert np.isnan([found["auroc"], found["risk_coverage_auc"]]).all()


@pytest.mark.parametrize("measure", ["entropy", "variance"])
def test_table_of_regressors_equals_numbers_by_hand(measure):
    net = network(y=TARGET, kind=MLPRegressor)
    est = QUAMRegressor(net, n_steps=4, measure=measure, random_state=0)
    frame = compare_uncertainty([est], *REAL, X_OOD, component="total", **FAST)
    assert frame.error.eq("").all()
    assert list(frame.task) == ["ood", "rejection"] * 2
    for name, method in (
        ("QUAMRegressor", est),
        (ENTROPY, ReferenceRegressor(net, measure=measure)),
    ):
        method = clone(method).fit(*REAL[:2])
        u, far = (method.predict_uncertainty(X).total for X in (X64[TEST], X_OOD))
        detection = (np.repeat([0, 1], [20, 25]), np.concatenate([u, far]))
        found = row(frame, name, "ood")
        assert_interval(found, "auroc", roc_auc_score, *detection, stratify=detection[0])
        found = row(frame, name, "rejection")
        loss = (method.predict(X64[TEST]) - TARGET[TEST]) ** 2
        assert_interval(found, "risk_coverage_auc", risk_coverage_auc, loss, u)
        expected = log_score_scorer(method, X64[TEST], TARGET[TEST])
        assert found["log_score"] == pytest.approx(expected)
        assert found["log_score_low"] <= expected <= found["log_score_high"]
        assert np.isnan([found["ece"], found["accuracy_rejection_auc"]]).all()


def test_each_method_is_asked_once_about_each_data_set(monkeypatch):
    asked = []
    original = QUAMClassifier._results

    def results(self, X):
        asked.append(len(X))
        return original(self, X)

    monkeypatch.setattr(QUAMClassifier, "_results", results)
    est = quam(network(), setting="expected").fit(*DATA[:2])
    compare_uncertainty([est], *DATA, {"a": X_OOD, "b": X_OOD[:7]}, **FAST)
    assert asked == [20, 25, 7]


def test_fitted_methods_are_taken_as_they_are_and_others_are_not_changed(monkeypatch):
    net = network(kind=CountingMLP)
    n_fits = CountingMLP.n_fits
    ready, raw = quam(net).fit(*DATA[:2]), quam(net, learning_rate=1e-2)
    frame = compare_uncertainty({"ready": ready, "raw": raw}, *DATA, **FAST)
    assert CountingMLP.n_fits == n_fits
    assert frame[frame.method == "ready"].fit_seconds.isna().all()
    assert frame[frame.method == "raw"].fit_seconds.notna().all()
    assert not hasattr(raw, "classes_")
    assert list(frame.task.unique()) == ["misclassification", "rejection"]
    unfit = quam(unfitted(CountingMLP))
    frame = compare_uncertainty([unfit], *DATA, **FAST)
    assert CountingMLP.n_fits == n_fits + 1
    assert row(frame, ENTROPY, "rejection")["error"] == ""


def test_failing_methods_leave_the_others_alone():
    class Broken(QUAMClassifier):
        def _sample_models(self, inputs, given, posterior):
            raise RuntimeError("out of luck")

    net = network()
    methods = {
        "broken": Broken(net),
        "unknown parameter": quam(net, n_steps=-1),
        "no method": net,
        "no estimator": "QUAM",
        "regressor": QUAMRegressor(network(y=TARGET, kind=MLPRegressor)),
        "fine": quam(net),
    }
    frame = compare_uncertainty(methods, *DATA, {"far": X_OOD, "thin": X_OOD[:, :2]}, **FAST)
    assert len(frame) == (6 + 2) * 4
    errors = frame.groupby("method", sort=False).error.first()
    assert errors["broken"] == "RuntimeError: out of luck"
    assert "'n_steps' parameter" in errors["unknown parameter"]
    assert "MLPClassifier has no predict_uncertainty" in errors["no method"]
    assert "str has no predict_uncertainty" in errors["no estimator"]
    assert "cannot be compared" in errors["regressor"]
    fine = frame[frame.method == "fine"].set_index("task")
    assert "2 features" in fine.error["ood:thin"]
    assert np.isnan(fine.auroc["ood:thin"])
    assert (fine.error.drop("ood:thin") == "").all()
    assert np.isfinite(fine.auroc["ood:far"])
    assert row(frame, ENTROPY, "ood:far")["error"] == ""


def test_the_entropy_is_there_even_if_every_method_fails():
    frame = compare_uncertainty([quam(network(), n_steps=-1)], *DATA, X_OOD, **FAST)
    assert np.isfinite(row(frame, ENTROPY, "ood")["auroc"])
    frame = compare_uncertainty([quam(unfitted(), n_steps=-1)], *DATA, X_OOD, **FAST)
    assert "no network" in row(frame, ENTROPY, "ood")["error"]


def test_several_networks_have_an_entropy_each():
    nets = [network(), network(slice(0, 30))]
    methods = {"a": quam(nets[0]), "b": quam(nets[1]), "c": quam(copy.deepcopy(nets[0]))}
    frame = compare_uncertainty(methods, *DATA, X_OOD, **FAST)
    assert list(frame.method.unique()) == ["a", "b", "c", ENTROPY, f"{ENTROPY} of b"]
    est = ReferenceClassifier(nets[1]).fit(*DATA[:2])
    expected = make_ood_scorer(X_OOD, component="total")(est, X64[TEST])
    assert row(frame, f"{ENTROPY} of b", "ood")["auroc"] == expected


def test_undefined_tasks_say_why():
    net = network()
    y_test = net.predict(X64[TEST])
    frame = compare_uncertainty([quam(net)], *DATA[:3], y_test, X_OOD, **FAST)
    found = row(frame, "QUAMClassifier", "misclassification")
    assert found["error"] == "ValueError: No predictions are mistakes."
    assert np.isnan(found["auroc"])
    assert row(frame, "QUAMClassifier", "rejection")["accuracy_rejection_auc"] == 1


def test_pipelines_frames_and_text_labels_are_compared():
    data = (FRAME[TRAIN], pd.Series(NAMED[TRAIN]), FRAME[TEST], pd.Series(NAMED[TEST]))
    net = make_pipeline(StandardScaler(), unfitted()).fit(*data[:2])
    outside = make_pipeline(StandardScaler(), quam(unfitted()))
    search = GridSearchCV(quam(net), {"n_steps": [2]}, scoring="accuracy", cv=2)
    methods = [quam(net), outside, quam(net, n_steps=2), search]
    frame = compare_uncertainty(methods, *data, {"far": FRAME_OOD}, **FAST)
    assert frame.error.eq("").all(), frame.error.tolist()
    names = ["QUAMClassifier", "QUAMClassifier 2", "QUAMClassifier 3", "GridSearchCV", ENTROPY]
    assert list(frame.method.unique()) == names  # both networks are the same but for who holds them
    # The same network, seed and rows.
    columns = ["auroc", "aupr", "fpr95"]
    first, second = (row(frame, name, "ood:far") for name in names[:2])
    assert [first[c] for c in columns] == pytest.approx([second[c] for c in columns])


def test_a_pipeline_brings_its_transformers_to_the_entropy():
    outside = make_pipeline(StandardScaler(), quam(unfitted())).fit(*DATA[:2])
    frame = compare_uncertainty([outside], *DATA, X_OOD, **FAST)
    rows = outside[:-1].transform(X64[TEST])
    u = ReferenceClassifier(outside[-1].estimator_).fit(rows, NOISY[TEST]).predict_uncertainty
    scores = np.concatenate([u(rows).total, u(outside[:-1].transform(X_OOD)).total])
    found = row(frame, ENTROPY, "ood")
    assert found["auroc"] == roc_auc_score(np.repeat([0, 1], [20, 25]), scores)


def test_comparisons_are_repeatable_and_paired():
    est = quam(network())
    first, second = (
        compare_uncertainty({"a": est, "b": est}, *DATA, X_OOD, **FAST) for _ in range(2)
    )
    timing = ["seconds_per_point", "fit_seconds"]
    pd.testing.assert_frame_equal(first.drop(columns=timing), second.drop(columns=timing))
    a, b = (first[first.method == name].filter(regex="auroc").to_numpy() for name in "ab")
    np.testing.assert_array_equal(a, b)


def test_wider_intervals_for_more_confidence():
    est, widths = ReferenceClassifier(network()), []
    for confidence in (0.5, 0.99):
        frame = compare_uncertainty([est], *DATA, confidence=confidence, component="total", **FAST)
        found = row(frame, "ReferenceClassifier", "rejection")
        widths.append(found["ece_high"] - found["ece_low"])
    assert 0 < widths[0] < widths[1]


def test_progress_is_shown_only_when_asked_for(capsys):
    compare_uncertainty([ReferenceClassifier(network())], *DATA, **FAST)
    assert capsys.readouterr().err == ""
    compare_uncertainty([ReferenceClassifier(network())], *DATA, **FAST, verbose=1)
    assert "method" in capsys.readouterr().err


def test_bad_arguments_of_a_comparison_are_named():
    est = [quam(network())]
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_uncertainty({}, *DATA)
    with pytest.raises(ValueError, match="'estimators' parameter"):
        compare_uncertainty(est[0], *DATA)
    for bad in ({"component": "both"}, {"n_resamples": 0}, {"confidence": 1.0}):
        with pytest.raises(ValueError, match=f"'{next(iter(bad))}' parameter"):
            compare_uncertainty(est, *DATA, **bad)
