"""The reject option: thresholds, guarantees, and scikit-learn's own tools around it."""

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from sklearn_quam import QUAMClassifier, ReferenceClassifier
from sklearn_quam.model_selection import RejectOptionClassifier
from sklearn_quam.model_selection._thresholds import (
    conformal_quantile,
    rows_for_risk,
    threshold_for_risk,
)

from ..network.test_inputs import PARTS, TwoInputs
from ..network.test_inputs import Y as LABELS

X, Y = make_classification(
    600, 6, n_informative=4, n_classes=3, flip_y=0.05, class_sep=1.2, random_state=0
)
TRAIN, HELD_OUT, NEW = slice(0, 200), slice(200, 400), slice(400, 600)
NET = MLPClassifier((16,), solver="lbfgs", alpha=1.0, max_iter=100, random_state=0)


@pytest.fixture(scope="module")
def given():
    return ReferenceClassifier(clone(NET).fit(X[TRAIN], Y[TRAIN])).fit(X[TRAIN], Y[TRAIN])


def test_the_coverage_is_kept_on_average():
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(2000):
        held_out, new = np.split(rng.exponential(size=20), [19])
        shares.append((new <= conformal_quantile(np.sort(held_out), 0.9)).mean())
    # 18 of 20 ranks of the new row are below: nine tenths, with a standard error of .007.
    assert abs(np.mean(shares) - 0.9) < 0.025


def test_too_few_rows_for_a_coverage_reject_nothing():
    assert conformal_quantile(np.arange(5.0), 0.9) == math.inf
    assert conformal_quantile(np.arange(9.0), 0.9) == 8.0
    assert conformal_quantile(np.arange(100.0), 1.0) == math.inf


def risk_below(threshold):
    """Mistakes are as likely as a row is doubtful; doubt is uniform: the risk is half of it."""
    return min(threshold, 1.0) / 2


def test_the_risk_is_kept_as_surely_as_promised():
    rng = np.random.default_rng(1)
    broken, thresholds = 0, []
    for _ in range(500):
        doubt = np.sort(rng.uniform(size=1500))
        right = rng.uniform(size=1500) > doubt
        found = threshold_for_risk(doubt, right, max_risk=0.2, error=0.1)
        broken += risk_below(found) > 0.2
        thresholds.append(found)
    assert broken / 500 <= 0.1
    # It is no empty promise: more than half of what would be allowed (0.4) is used.
    assert 0.2 < np.mean(thresholds) < 0.4


def test_a_risk_that_cannot_be_promised_rejects_all(given):
    reject = RejectOptionClassifier(given, max_risk=1e-4, cv="prefit")
    with pytest.warns(UserWarning, match="all rows will be rejected. No number of rows"):
        reject.fit(X[HELD_OUT], Y[HELD_OUT])
    assert (reject.predict(X[NEW]) == -1).all()
    assert math.isnan(reject.score(X[NEW], Y[NEW]))


def test_mistakes_are_rejected(given):
    reject = RejectOptionClassifier(given, coverage=0.7, cv="prefit").fit(X[HELD_OUT], Y[HELD_OUT])
    answer, accepted = reject.predict(X[NEW]), reject.accepts(X[NEW])
    np.testing.assert_array_equal(accepted, answer != -1)
    np.testing.assert_array_equal(answer[accepted], given.predict(X[NEW])[accepted])
    assert 0.6 < accepted.mean() < 0.8
    accuracy = (given.predict(X[NEW]) == Y[NEW]).mean()
    assert reject.score(X[NEW], Y[NEW]) == (answer == Y[NEW])[accepted].mean() > accuracy
    np.testing.assert_array_equal(reject.predict_proba(X[NEW]), given.predict_proba(X[NEW]))
    risk = 1 - given.predict_proba(X[HELD_OUT]).max(axis=1)
    assert reject.coverage_ == (risk <= reject.threshold_).mean()
    assert reject.estimator_ is given


def test_a_smaller_risk_means_fewer_answers(given):
    wide, narrow = (
        RejectOptionClassifier(given, max_risk=r, cv="prefit").fit(X[HELD_OUT], Y[HELD_OUT])
        for r in (0.3, 0.15)
    )
    assert narrow.threshold_ < wide.threshold_
    assert narrow.risk_ <= 0.15


def test_held_out_rows_are_not_fitted_to():
    seen = []

    class Watched(ReferenceClassifier):
        def fit(self, X, y):
            seen.append(len(X))
            return super().fit(X, y)

    reject = RejectOptionClassifier(Watched(NET), cv=0.3, random_state=0).fit(X[:300], Y[:300])
    assert seen == [210]
    assert 0.85 < reject.coverage_ <= 1


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.BeyondRangeWarning")
@pytest.mark.parametrize("doubt", ["epistemic", "total", IsolationForest(random_state=0)])
def test_what_is_doubtful_can_be_chosen(doubt):
    est = QUAMClassifier(NET, search="linear", random_state=0)
    reject = RejectOptionClassifier(est, coverage=0.8, doubt=doubt, random_state=0)
    reject.fit(X[:400], Y[:400])
    if isinstance(doubt, str):
        scores = getattr(reject.estimator_.predict_uncertainty(X[NEW]), doubt)
    else:
        scores = -reject.detector_.score_samples(X[NEW])
    np.testing.assert_array_equal(reject.accepts(X[NEW]), scores <= reject.threshold_)
    # Absurd rows are rejected, whatever is looked at.
    far = X[NEW][:1] + 1e4
    assert not reject.accepts(far)[0]


def test_labels_may_be_text():
    names = np.array(["low", "middle", "high"])[Y]
    reject = RejectOptionClassifier(ReferenceClassifier(NET), coverage=0.5, random_state=0)
    answer = reject.fit(X[:300], names[:300]).predict(X[NEW])
    assert answer.dtype.kind == "U"
    assert set(answer) == {*names, "reject"}
    names[names == "low"] = "reject"
    with pytest.raises(ValueError, match="A class is called 'reject'"):
        reject.fit(X[:300], names[:300])


def test_a_class_may_be_called_minus_one():
    reject = RejectOptionClassifier(ReferenceClassifier(NET), coverage=0.5, random_state=0)
    answer = reject.fit(X[:300], Y[:300] - 1).predict(X[NEW])
    assert reject.reject_label_ == -2
    assert set(answer) == {-2, -1, 0, 1}


def test_pipelines_searches_and_cross_validation():
    reject = RejectOptionClassifier(
        make_pipeline(StandardScaler(), ReferenceClassifier(NET)), random_state=0
    )
    assert cross_val_score(reject, X[:300], Y[:300], cv=2).min() > 0.6
    search = GridSearchCV(reject, {"coverage": [0.5, 1.0]}, cv=2).fit(X[:300], Y[:300])
    assert search.best_params_ == {"coverage": 0.5}
    around = make_pipeline(StandardScaler(), RejectOptionClassifier(ReferenceClassifier(NET)))
    assert set(around.fit(X[:300], Y[:300]).predict(X[NEW])) <= {-1, 0, 1, 2}


@pytest.mark.parametrize(
    ("cv", "words"),
    [
        ("half", "The 'cv' parameter.*'prefit'"),
        (0.001, "cv=0.001 cannot split these rows: The test_size = 1"),
    ],
)
def test_rows_that_cannot_be_held_out(cv, words):
    with pytest.raises(ValueError, match=words):
        RejectOptionClassifier(ReferenceClassifier(NET), cv=cv).fit(X[:300], Y[:300])


@pytest.mark.parametrize(
    ("lowest", "dtype", "kind"), [(0, np.uint8, "i"), (2**63, np.uint64, "O"), (-128, np.int8, "i")]
)
def test_labels_of_any_size(lowest, dtype, kind):
    labels = (Y.astype(object) + lowest).astype(dtype)
    est = ReferenceClassifier(NET).fit(X[:300], labels[:300])
    reject = RejectOptionClassifier(est, coverage=0.5, cv="prefit").fit(X[300:], labels[300:])
    answer = reject.predict(X[NEW])
    assert set(answer.tolist()) == {min(-1, lowest - 1), lowest, lowest + 1, lowest + 2}
    assert answer.dtype.kind == kind


def test_a_risk_that_cannot_be_promised_says_how_many_rows_it_takes():
    reject = RejectOptionClassifier(ReferenceClassifier(NET), max_risk=0.1, random_state=0)
    with pytest.warns(
        UserWarning, match=r"with these 25 held-out.*It takes about \d+ rows"
    ) as told:
        reject.fit(X[:100], Y[:100])
    assert told[-1].filename == __file__
    assert not reject.accepts(X[:5]).any()


def test_rows_that_it_takes_are_enough():
    # One in twenty is a mistake, whatever its doubt: five in a hundred, ...
    right = np.arange(40) % 20 != 7
    doubt = np.arange(40.0)
    assert threshold_for_risk(doubt, right, 0.1, 0.1) == -math.inf
    needed = rows_for_risk(doubt, right, 0.1, 0.1)
    assert 100 < needed < 1000
    enough = np.tile(right, math.ceil(needed / 40))
    assert threshold_for_risk(np.arange(len(enough)), enough, 0.1, 0.1) > -math.inf
    fewer = enough[: int(0.5 * needed)]
    assert threshold_for_risk(np.arange(len(fewer)), fewer, 0.1, 0.1) == -math.inf
    # Without mistakes, by the formula: 0.9 ** n <= 0.1 / 20.
    none_wrong = rows_for_risk(doubt, np.ones(40, dtype=bool), 0.1, 0.1)
    assert none_wrong == math.ceil(math.log(0.005) / math.log(0.9))
    assert rows_for_risk(doubt, np.arange(40) % 2 == 0, 0.1, 0.1) is None


def test_what_cannot_reject_is_refused():
    with pytest.raises(TypeError, match="MLPClassifier has no predict_uncertainty"):
        RejectOptionClassifier(NET, doubt="epistemic").fit(X, Y)
    with pytest.raises(TypeError, match="has no predict_uncertainty or predict_proba"):
        RejectOptionClassifier(LinearSVC()).fit(X, Y)


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [RejectOptionClassifier(ReferenceClassifier(NET), coverage=1.0)],
    expected_failed_checks=lambda _: {},
)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.SeenRowsWarning")
def test_inputs_by_name_are_held_out_like_rows_of_a_table():
    reject = RejectOptionClassifier(ReferenceClassifier(TwoInputs()), random_state=0)
    reject.fit(PARTS, LABELS)
    assert reject.predict(PARTS).shape == LABELS.shape
    in_order = tuple(PARTS.values())
    again = clone(reject).fit(in_order, LABELS)
    assert again.threshold_ == reject.threshold_


def test_any_classifier_is_judged_by_its_confidence():
    net = clone(NET).fit(X[TRAIN], Y[TRAIN])
    reject = RejectOptionClassifier(net, coverage=0.7, cv="prefit").fit(X[HELD_OUT], Y[HELD_OUT])
    risk = 1 - net.predict_proba(X).max(axis=1)
    assert reject.threshold_ == np.sort(risk[HELD_OUT])[math.ceil(201 * 0.7) - 1]
    np.testing.assert_array_equal(reject.accepts(X[NEW]), risk[NEW] <= reject.threshold_)
    assert reject.known_rows_ is None
    with pytest.raises(TypeError, match="has no predict_uncertainty"):
        RejectOptionClassifier(net, doubt="total").fit(X, Y)


def test_doubt_is_that_of_a_method_which_has_known_rows():
    net = clone(NET).fit(X[TRAIN], Y[TRAIN])
    half = X[NEW][:100], Y[NEW][:100]
    held_out = {"X_val": half[0], "y_val": half[1]}
    est = QUAMClassifier(net, search="linear").fit(X[TRAIN], Y[TRAIN], **held_out)
    reject = RejectOptionClassifier(est, cv="prefit").fit(X[HELD_OUT], Y[HELD_OUT])
    doubt = est.predict_doubt(X[HELD_OUT])
    assert reject.threshold_ == pytest.approx(np.sort(doubt)[math.ceil(201 * 0.9) - 1])
    assert reject.known_rows_ is None


def test_else_half_of_the_held_out_rows_measure_doubt_and_half_choose_the_threshold():
    net = clone(NET).fit(X[TRAIN], Y[TRAIN])
    est = QUAMClassifier(net, search="linear").fit(X[TRAIN], Y[TRAIN])
    reject = RejectOptionClassifier(est, cv="prefit").fit(X[HELD_OUT], Y[HELD_OUT])
    assert reject.known_rows_.shape == (100, 2)
    assert 0.8 < reject.threshold_ < 1
    assert reject.coverage_ == pytest.approx(0.91, abs=0.01)
    assert abs(reject.accepts(X[NEW]).mean() - 0.9) < 0.1
    assert not reject.accepts(np.full((1, 6), 8.0))[0]


def test_weights_are_split_as_the_samples_are():
    weights = np.linspace(0.1, 1.0, len(X))
    seen = []

    class Noting(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            seen.append((X, sample_weight))
            return super().fit(X, y, sample_weight)

    pipe = make_pipeline(StandardScaler(with_mean=False, with_std=False), Noting())
    reject = RejectOptionClassifier(pipe, random_state=0)
    reject.fit(X, Y, noting__sample_weight=weights)
    ((rows, of_rows),) = seen
    numbers = [np.flatnonzero((row == X).all(axis=1))[0] for row in rows]
    np.testing.assert_array_equal(of_rows, weights[numbers])


def test_weights_that_cannot_be_used_are_refused(given):
    prefit = RejectOptionClassifier(given, cv="prefit")
    with pytest.raises(TypeError, match="pass sample_weight to the estimator's fit"):
        prefit.fit(X[HELD_OUT], Y[HELD_OUT], sample_weight=np.ones(200))
    prefit.fit(X[HELD_OUT], Y[HELD_OUT], sample_weight=None)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        RejectOptionClassifier(given).fit(X, Y, sample_weight=np.ones(7))


def test_what_was_not_fitted_to_the_end_is_not_fitted():
    reject = RejectOptionClassifier(LogisticRegression())
    labels = np.where(Y[0] == Y, "reject", "other")
    with pytest.raises(ValueError, match="A class is called 'reject'"):
        reject.fit(X, labels)
    with pytest.raises(NotFittedError):
        reject.predict(X)
