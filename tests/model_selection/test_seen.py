"""A given network that is scored on rows that were passed to fit as its training data."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_quam import LaplaceClassifier, ReferenceClassifier, ReferenceRegressor
from sklearn_quam.base.checks import seen
from sklearn_quam.exceptions import SeenRowsWarning
from sklearn_quam.model_selection import (
    RejectOptionClassifier,
    compare_uncertainty,
    log_score_scorer,
    make_ood_scorer,
    rejection_scorer,
)
from sklearn_quam.ood import EnergyDetector

from ..networks import TARGET
from .common import HELD_OUT, NOISY, TEST, TRAIN, X64, X_OOD, network, unfitted

ALL = slice(None)


def n_warned(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return sum(w.category is SeenRowsWarning for w in caught)


@pytest.mark.parametrize("scoring", [None, rejection_scorer, log_score_scorer])
def test_folds_of_a_given_network_are_warned_of_once(scoring):
    est = ReferenceClassifier(network(ALL))
    grid = {"measure": ["entropy", "brier"]}
    search = GridSearchCV(est, grid, scoring=scoring, cv=3)
    assert n_warned(lambda: search.fit(X64, NOISY)) == 1
    # A family of estimators is warned of once.
    assert n_warned(lambda: cross_val_score(est, X64, NOISY, scoring=scoring, cv=3)) == 0


def test_a_pipeline_inside_is_the_network():
    net = make_pipeline(StandardScaler(), unfitted()).fit(X64, NOISY)
    for est in (LaplaceClassifier(net), make_pipeline(ReferenceClassifier(net))):
        assert n_warned(lambda est=est: cross_val_score(est, X64, NOISY, cv=KFold(4))) == 1


def test_rows_that_were_held_out_are_not_warned_of():
    est = ReferenceClassifier(network(TRAIN))
    search = GridSearchCV(est, {"measure": ["entropy", "brier"]}, cv=HELD_OUT)
    # Once it has chosen, the search passes all rows to fit; those held out stay so.
    for _ in range(2):
        assert n_warned(lambda: search.fit(X64, NOISY)) == 0
    assert n_warned(lambda: search.score(X64[TEST], NOISY[TEST])) == 0
    assert n_warned(lambda: search.score(X64[TRAIN], NOISY[TRAIN])) == 1


def test_networks_that_are_trained_for_each_fold_are_not_warned_of():
    for est in (ReferenceClassifier(unfitted()), ReferenceClassifier(random_state=0)):
        assert n_warned(lambda est=est: cross_val_score(est, X64, NOISY, cv=3)) == 0
        est.fit(X64, NOISY)
        assert n_warned(lambda est=est: est.score(X64, NOISY)) == 0


def test_each_network_has_rows_of_its_own():
    first, second = network(TRAIN), network(TEST)
    est = ReferenceClassifier(first).fit(X64[TRAIN], NOISY[TRAIN])
    other = clone(est).set_params(estimator=second).fit(X64[TEST], NOISY[TEST])
    assert n_warned(lambda: other.score(X64[TRAIN], NOISY[TRAIN])) == 0
    assert n_warned(lambda: est.score(X64[TEST], NOISY[TEST])) == 0
    assert n_warned(lambda: other.score(X64[TEST], NOISY[TEST])) == 1


def test_who_scores_is_told_where():
    est = ReferenceRegressor(network(kind=MLPRegressor, y=TARGET)).fit(X64[TRAIN], TARGET[TRAIN])
    with pytest.warns(SeenRowsWarning, match=r"passed to fit .* cv=PredefinedSplit") as warned:
        est.score(X64[TRAIN], TARGET[TRAIN])
    assert warned[0].filename == __file__
    detector = EnergyDetector(network()).fit(X64[TRAIN], NOISY[TRAIN])
    scorer = make_ood_scorer(X_OOD)
    assert n_warned(lambda: scorer(detector, X64[TEST])) == 0
    assert n_warned(lambda: scorer(detector, X64[TRAIN])) == 1


def test_comparisons_look_at_the_test_rows():
    data = X64[TRAIN], NOISY[TRAIN]
    est = ReferenceClassifier(network())
    options = {"n_resamples": 2, "random_state": 0}
    held_out = (X64[TEST], NOISY[TEST])
    assert n_warned(lambda: compare_uncertainty([est], *data, *held_out, **options)) == 0
    # Once for the method, once for the network alone.
    assert n_warned(lambda: compare_uncertainty([est], *data, *data, **options)) == 2


def test_rejection_thresholds_of_a_given_network():
    est = ReferenceClassifier(network(TRAIN))

    def fit(cv, X=X64, y=NOISY, est=est):
        return n_warned(lambda: RejectOptionClassifier(clone(est), cv=cv).fit(X, y))

    assert fit(0.25) == 1
    ready = ReferenceClassifier(network(TRAIN)).fit(X64[TRAIN], NOISY[TRAIN])
    reject = RejectOptionClassifier(ready, cv="prefit")
    assert n_warned(lambda: reject.fit(X64[TEST], NOISY[TEST])) == 0
    assert n_warned(lambda: reject.fit(X64[TRAIN], NOISY[TRAIN])) == 1
    assert fit(0.25, est=ReferenceClassifier(unfitted())) == 0


def test_rows_that_repeat_need_not_be_the_same():
    """Of a few kinds of rows, new ones are equal to known ones."""
    rows = X64[np.arange(60) % 6]
    est = ReferenceClassifier(network(X=rows)).fit(rows[TRAIN], NOISY[TRAIN])
    assert n_warned(lambda: est.score(rows[TEST], NOISY[TEST])) == 0


def test_of_many_rows_some_are_looked_at(monkeypatch):
    monkeypatch.setattr(seen, "_MAX_ROWS", 20)
    est = ReferenceClassifier(network())
    est.fit(X64, NOISY)
    assert len(est._passed_rows._digests) == 20
    assert n_warned(lambda: est.score(X64[10:50] + 0.1, NOISY[10:50])) == 0
    assert n_warned(lambda: est.score(X64[::2], NOISY[::2])) == 1


def test_what_is_stored_knows_no_rows():
    est = ReferenceClassifier(network()).fit(X64[TRAIN], NOISY[TRAIN])
    again = pickle.loads(pickle.dumps(est))
    assert n_warned(lambda: again.score(X64[TRAIN], NOISY[TRAIN])) == 0
    assert n_warned(lambda: clone(again).fit(X64[TRAIN], NOISY[TRAIN])) == 0
