"""Detectors beside methods: in the table, in scorers, in pictures."""

import numpy as np
import pytest
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import LocalOutlierFactor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

import sklearn_quam
from sklearn_quam import DeepEnsembleClassifier, ReferenceClassifier, ReferenceRegressor, ood
from sklearn_quam.exceptions import UncertaintyWarning
from sklearn_quam.metrics import accuracy_rejection_auc
from sklearn_quam.model_selection import compare_uncertainty, make_ood_scorer

from ..networks import TARGET, X64
from .common import HELD_OUT, NOISY, TEST, TRAIN, X_OOD, network, unfitted

DATA = (X64[TRAIN], NOISY[TRAIN], X64[TEST], NOISY[TEST])
FAST = {"n_resamples": 5, "random_state": 0}
OTHERS = {
    "forest": IsolationForest(n_estimators=10, random_state=0),
    "lof": LocalOutlierFactor(novelty=True),
    "svm": make_pipeline(StandardScaler(), OneClassSVM()),
}


def row(frame, method, task):
    (found,) = frame[(frame.method == method) & (frame.task == task)].to_dict("records")
    return found


def auroc(estimator):
    scores = [-estimator.score_samples(X) for X in (X64[TEST], X_OOD)]
    return roc_auc_score(np.repeat([0, 1], [20, 25]), np.concatenate(scores))


def own_detectors(net):
    names = [
        name for name in ood.__all__ if name.endswith("Detector") and name != "CombinedDetector"
    ]
    return {name: getattr(ood, name)(net) for name in names}


def test_one_table_for_methods_and_detectors():
    net = network()
    own = own_detectors(net)
    methods = {"reference": ReferenceClassifier(net), **own, **OTHERS}
    frame = compare_uncertainty(methods, *DATA, X_OOD, **FAST).details
    assert frame.error.eq("").all(), frame.error.unique()
    assert len(frame) == 4 * (len(methods) + 2)
    for name, detector in {**own, **OTHERS}.items():
        found = row(frame, name, "ood")
        assert found["roc_auc"] == pytest.approx(auroc(detector.fit(*DATA[:2])))
        assert found["component"] == "score"
        assert not found["trains_again"]
        assert found["rows_per_second"] > 0
        assert found["fit_seconds"] > 0
    correct = net.predict(X64[TEST]) == NOISY[TEST]
    for name, detector in own.items():
        doubt = -detector.score_samples(X64[TEST])
        assert row(frame, name, "misclassification")["roc_auc"] == pytest.approx(
            roc_auc_score(~correct, doubt)
        )
        found = row(frame, name, "rejection")
        assert found["accuracy"] == pytest.approx(correct.mean())
        assert found["accuracy_rejection_auc"] == accuracy_rejection_auc(correct, doubt)
    for name in OTHERS:
        found = row(frame, name, "rejection")
        assert np.isnan([found["accuracy"], found["accuracy_rejection_auc"], found["ece"]]).all()
        assert np.isnan(row(frame, name, "misclassification")["roc_auc"])


def test_accuracy_and_who_trains_again():
    net = network()
    methods = {
        "alone": ReferenceClassifier(net),
        "several": DeepEnsembleClassifier(net, n_estimators=2),
    }
    frame = compare_uncertainty(methods, *DATA, **FAST).details
    found = row(frame, "alone", "rejection")
    assert found["accuracy"] == pytest.approx(net.score(X64[TEST], NOISY[TEST]))
    assert found["accuracy_low"] <= found["accuracy"] <= found["accuracy_high"]
    assert not found["trains_again"]
    assert row(frame, "several", "rejection")["trains_again"]
    again = {"DeepEnsemble", "MixtureLaplace", "SWAG", "CyclicalSGHMC", "HMC"}
    for name in sklearn_quam.__all__:
        if name.endswith(("Classifier", "Regressor")):
            base = name.removesuffix("Classifier").removesuffix("Regressor")
            assert getattr(sklearn_quam, name)._trains_again == (base in again)


def test_regressors_and_detectors():
    net = network(y=TARGET, kind=MLPRegressor)
    methods = {"reference": ReferenceRegressor(net), "forest": OTHERS["forest"]}
    methods["energy"] = ood.EnergyDetector(network())
    data = (X64[TRAIN], TARGET[TRAIN], X64[TEST], TARGET[TEST])
    with pytest.raises(TypeError, match="cannot be compared with each other"):
        compare_uncertainty(methods, *data, X_OOD, **FAST)
    with pytest.warns(UncertaintyWarning, match="'reference', 'energy'.* failed in 16 row"):
        frame = compare_uncertainty(methods, *data, X_OOD, errors="warn", **FAST).details
    assert frame[frame.method == "reference"].error.str.contains("cannot be compared").all()
    assert row(frame, "forest", "ood")["roc_auc"] == auroc(OTHERS["forest"].fit(X64[TRAIN]))


def test_scorers_take_detectors():
    scorer = make_ood_scorer(X_OOD)
    for detector in [ood.MahalanobisDetector(network()), *OTHERS.values()]:
        fitted = detector.fit(*DATA[:2])
        assert scorer(fitted, X64[TEST]) == auroc(fitted)
    search = GridSearchCV(
        ood.NearestNeighborDetector(network()),
        {"n_neighbors": [1, 5], "layer": ["penultimate", "input"]},
        scoring=scorer,
        cv=HELD_OUT,
    ).fit(X64, NOISY)
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])
    assert len(set(search.cv_results_["mean_test_score"])) > 1
    assert scorer(search, X64[TEST]) == auroc(search.best_estimator_)
    with pytest.raises(TypeError, match="novelty=True"):
        scorer(LocalOutlierFactor().fit(X64), X64)
    with pytest.raises(TypeError, match="no predict_uncertainty or score_samples"):
        scorer(unfitted(), X64)


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.BeyondRangeWarning")
@pytest.mark.parametrize("metric", ["roc_auc", "average_precision", "aupr", "neg_fpr95"])
def test_absurd_rows_can_be_scored(metric):
    detector = ood.EnergyDetector(network()).fit(*DATA[:2])
    absurd = X_OOD * 1e20
    assert (detector.score_samples(absurd) == -np.inf).all()
    expected = 0.0 if metric == "neg_fpr95" else 1.0
    assert make_ood_scorer(absurd, metric=metric)(detector, X64[TEST]) == expected
