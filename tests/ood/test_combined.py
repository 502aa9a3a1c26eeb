"""Several detectors as one."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import combine_pvalues
from sklearn.base import clone
from sklearn.ensemble import IsolationForest
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.neighbors import KernelDensity
from sklearn.neural_network import MLPClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks
from skorch.helper import SliceDataset
from torch.utils.data import DataLoader, TensorDataset

from sklearn_quam import QUAMClassifier
from sklearn_quam.base._doubt import DoubtScale
from sklearn_quam.model_selection import compare_uncertainty, make_ood_scorer
from sklearn_quam.ood import (
    CombinedDetector,
    EnergyDetector,
    MahalanobisDetector,
    NearestNeighborDetector,
)

from ..networks import module_state
from .common import make_data, make_module

X, Y = make_data()
X_VAL, X_NEW = make_data(n_samples=40, seed=2)[0], make_data(n_samples=15, seed=1)[0] * 1.5


def parts(module=None):
    module = make_module() if module is None else module
    return [QUAMClassifier(module, random_state=0), NearestNeighborDetector(module, layer="input")]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        CombinedDetector(
            [KernelDensity(), IsolationForest(n_estimators=5, random_state=0)], random_state=0
        )
    ]
)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.parametrize("combine", ["fisher", "max"])
def test_p_values_by_hand(combine):
    both = CombinedDetector(parts(), combine=combine).fit(X, Y, X_val=X_VAL)
    expected, inside = [], np.ones(len(X_NEW), dtype=bool)
    for detector in parts():
        detector.fit(X, Y)
        known, new = detector.score_samples(X_VAL), detector.score_samples(X_NEW)
        expected.append([(1 + (known <= score).sum()) / 41 for score in new])
        inside &= new >= known.min()
    assert inside.sum() > 3
    expected = np.array(expected).T[inside]
    found = both.score_samples(X_NEW)[inside]
    if combine == "max":
        np.testing.assert_allclose(found, np.log(expected.min(axis=1)))
        return
    statistics = [combine_pvalues(row, method="fisher").statistic for row in expected]
    np.testing.assert_allclose(found, -np.array(statistics) / 2)


def test_order_is_kept_below_all_known_rows():
    one = CombinedDetector([NearestNeighborDetector(make_module(), layer="input")])
    one.set_params(nearestneighbordetector__metric="euclidean").fit(X, Y, X_val=X_VAL)
    far = X_NEW[:1] + np.arange(1, 9, dtype=np.float32)[:, None] * 3
    scores = one.score_samples(far)
    assert (np.diff(scores) < 0).all()
    assert (scores < one.score_samples(X_VAL).min()).all()


def test_held_out_rows_are_not_seen_by_the_detectors():
    density = CombinedDetector([KernelDensity()], random_state=0)
    density.fit(X)
    assert density.detectors_[0].tree_.data.shape == (48, 4)
    assert len(density._ranks[0].known) == 12
    density.fit(X, X_val=np.tile(X_VAL, (30, 1)))
    assert density.detectors_[0].tree_.data.shape == (60, 4)
    assert len(density._ranks[0].known) == 1000


def test_contamination_is_the_share_of_known_rows_that_are_flagged():
    both = CombinedDetector(parts(), contamination=0.25).fit(X, Y, X_val=X_VAL)
    assert abs((both.predict(X_VAL) == -1).sum() - 10) <= 1
    np.testing.assert_allclose(
        both.decision_function(X_NEW), both.score_samples(X_NEW) - both.offset_
    )


def test_networks_are_given_and_clones_keep_them():
    module = make_module()
    before = module_state(module)
    both = CombinedDetector(parts(module), random_state=0)
    fitted = both.fit(X, Y)
    assert all(detector.estimator is module for detector in fitted.detectors_)
    assert fitted.detectors_[0] is not both.detectors[0]
    duplicate = clone(both)
    assert duplicate.detectors[0].estimator is module
    assert not hasattr(duplicate, "detectors_")
    np.testing.assert_allclose(
        duplicate.fit(X, Y).score_samples(X_NEW), fitted.score_samples(X_NEW)
    )
    assert module_state(module) == before
    restored = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(restored.score_samples(X_NEW), fitted.score_samples(X_NEW))
    copied = copy.deepcopy(fitted)
    np.testing.assert_array_equal(copied.score_samples(X_NEW), fitted.score_samples(X_NEW))


def test_frozen_detectors_are_not_fitted_again():
    ready = NearestNeighborDetector(make_module(), layer="input").fit(X, Y)
    both = CombinedDetector([FrozenEstimator(ready), EnergyDetector(make_module())])
    both.fit(X[:30], Y[:30], X_val=X_VAL)
    np.testing.assert_array_equal(
        both.detectors_[0].score_samples(X_NEW), ready.score_samples(X_NEW)
    )


def test_arguments_of_detectors_are_tuned():
    both = CombinedDetector(parts(), random_state=0)
    assert both.get_params()["nearestneighbordetector__n_neighbors"] == 5
    search = GridSearchCV(
        both,
        {"nearestneighbordetector__n_neighbors": [1, 3], "combine": ["fisher", "max"]},
        scoring=make_ood_scorer(X_NEW + 4),
        cv=PredefinedSplit([-1] * 40 + [0] * 20),
    ).fit(X, Y)
    best = search.best_params_["nearestneighbordetector__n_neighbors"]
    assert search.best_estimator_.detectors_[1].n_neighbors == best
    with pytest.raises(ValueError, match="Invalid parameter 'lof'"):
        both.set_params(lof__n_neighbors=3)


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.BeyondRangeWarning")
def test_absurd_rows_never_look_safe():
    both = CombinedDetector([EnergyDetector(make_module()), KernelDensity()]).fit(X, X_val=X_VAL)
    rows = np.repeat(X[:1], 3, axis=0)
    rows[:, 1] = [1e10, 1e20, 1e30]
    assert (both.score_samples(rows) == -np.inf).all()
    assert (both.predict(rows) == -1).all()


def test_what_cannot_be_combined_is_refused():
    with pytest.raises(ValueError, match="nothing to combine"):
        CombinedDetector([]).fit(X, Y)
    with pytest.raises(TypeError, match="MLPClassifier has no score_samples"):
        CombinedDetector([MLPClassifier()]).fit(X, Y)


def test_compared_beside_its_parts():
    both = {"both": CombinedDetector(parts(), random_state=0), "quam": parts()[0]}
    data = (X[:40], Y[:40], X[40:], Y[40:])
    held_out = {"X_val": X_VAL, "y_val": Y[:40]}
    frame = compare_uncertainty(both, *data, X_NEW + 3, n_resamples=5, **held_out).details
    assert frame.error.eq("").all()
    assert frame.roc_auc[frame.task == "ood"].notna().all()


def test_doubt_and_its_threshold():
    both = CombinedDetector(parts(), random_state=0).fit(X, Y, X_val=X_VAL)
    risk = 1 - both.detectors_[0].predict_proba(X_VAL).max(axis=1)
    expected = DoubtScale.fit(risk, -both.score_samples(X_VAL)).share(
        1 - both.detectors_[0].predict_proba(X_NEW).max(axis=1), -both.score_samples(X_NEW)
    )
    np.testing.assert_allclose(both.predict_doubt(X_NEW), expected, atol=1e-6)
    assert both.predict_doubt(X_NEW + 9).min() > 0.9
    known = np.sort(both.predict_doubt(X_VAL))
    np.testing.assert_allclose(both.threshold(0.9), known[36], atol=1e-6)
    alone = CombinedDetector([KernelDensity()]).fit(X, X_val=X_VAL)
    assert alone.predict_doubt(X_NEW + 9).min() > 0.9
    with pytest.raises(ValueError, match="Pass some of them to fit, as X_val"):
        CombinedDetector(parts(), random_state=0).fit(X, Y).predict_doubt(X_NEW)


HOLDERS = {
    "tensor": torch.as_tensor,
    "dataset": lambda X: TensorDataset(torch.as_tensor(X)),
    "loader": lambda X: DataLoader(TensorDataset(torch.as_tensor(X)), shuffle=True),
    "slices": lambda X: SliceDataset(TensorDataset(torch.as_tensor(X))),
    "dask": lambda X: pytest.importorskip("dask.array").from_array(X, chunks=7),
    "frame": pd.DataFrame,
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_rows_are_held_out_of_whatever_holds_them(kind):
    def both():
        detectors = [EnergyDetector(make_module()), NearestNeighborDetector(make_module())]
        return CombinedDetector(detectors, random_state=0)

    expected = both().fit(X, Y).score_samples(X_NEW)
    hold = HOLDERS[kind]
    found = both().fit(hold(X), Y).score_samples(hold(X_NEW))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_targets_of_a_data_set_are_found():
    data = TensorDataset(torch.as_tensor(X), torch.as_tensor(Y))
    both = CombinedDetector([MahalanobisDetector(make_module())], random_state=0).fit(data)
    assert np.isfinite(both.score_samples(X_NEW)).all()


def test_rows_of_different_lengths_are_refused():
    both = CombinedDetector([IsolationForest(n_estimators=5)]).fit(X)
    for ask in (both.score_samples, both.fit, lambda y: both.fit(X, y)):
        with pytest.raises(ValueError, match=r"rows of (X|y) are not of the same length"):
            ask([[1, 2], [3]])
