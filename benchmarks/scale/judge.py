"""Scores of a method for all rows of a case, and what they are worth."""

import time
import warnings

import numpy as np
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import log_loss

from sklearn_quam.metrics import (
    accuracy_rejection_auc,
    aupr,
    bootstrap_interval,
    expected_calibration_error,
    fpr_at_tpr,
)

from .case import DETECTORS, FEW, SLOW, WITH_MEMBERS

N_RESAMPLES = 200
TEST = "test"
SETTINGS = ("given", "expected")


def scores_of(case, name):
    """Return arrays by ``<setting>/<set>/<quantity>``, and the cost.

    Quantities are ``epistemic`` and ``total`` uncertainty, and ``proba`` for the test set. The
    network alone has no epistemic uncertainty: its entropy stands for it. A detector has one score,
    which stands for both, and the given network predicts.
    """
    with warnings.catch_warnings():
        # Of training that has not converged, and of searches that take long.
        warnings.simplefilter("ignore")
        est = case.make(name)
        start = time.perf_counter()
        est.fit(case.X, case.y)
        fit_seconds = time.perf_counter() - start
        if name.partition(",")[0] in WITH_MEMBERS:
            fit_seconds += case.members.seconds
        sets = {TEST: case.X_test, **case.others}
        once = name in (*DETECTORS, "Reference", SLOW) or name.endswith(FEW)
        settings = SETTINGS[:1] if once else SETTINGS
        arrays, seconds = {}, 0.0
        for setting in settings:
            for part, X in sets.items():
                start = time.perf_counter()
                found = _ask(est, name, setting, X, with_proba=part == TEST)
                if setting == settings[0]:
                    seconds += time.perf_counter() - start
                arrays |= {f"{setting}/{part}/{key}": value for key, value in found.items()}
    n_rows = sum(map(len, sets.values()))
    arrays["fit_seconds"] = np.array(fit_seconds)
    arrays["seconds_per_row"] = np.array(seconds / n_rows)
    return arrays


def _ask(est, name, setting, X, *, with_proba):
    if name in DETECTORS:
        doubt = _finite(-est.score_samples(X))
        return {"epistemic": doubt, "total": doubt}
    est.set_params(setting=setting)
    found = {}
    if with_proba:
        found["proba"], uncertainty = est.predict_proba(X, return_uncertainty=True)
    else:
        uncertainty = est.predict_uncertainty(X)
    doubt = uncertainty.total if name == "Reference" else uncertainty.epistemic
    return {"epistemic": _finite(doubt), "total": _finite(uncertainty.total), **found}


def _finite(doubt):
    return np.nan_to_num(np.asarray(doubt, dtype=float), posinf=np.finfo(float).max)


def judged(arrays, case, proba_given):
    """Return the metrics of a method, by setting.

    Parameters
    ----------
    arrays : dict
        From `scores_of`.
    case : Case
        The same.
    proba_given : ndarray of shape (n_test, n_classes)
        What the network alone predicts, for detectors, which do not predict.
    """
    return {
        setting: _judged(arrays, case, proba_given, setting)
        for setting in SETTINGS
        if f"{setting}/{TEST}/epistemic" in arrays
    }


def _judged(arrays, case, proba_given, setting):
    def doubt(part, quantity="epistemic"):
        return arrays[f"{setting}/{part}/{quantity}"]

    classes = np.unique(case.y)
    found = {part: _detection(doubt(TEST), doubt(part)) for part in case.others}
    own = arrays.get(f"{setting}/{TEST}/proba")
    proba = proba_given if own is None else own
    right = classes[proba.argmax(axis=1)] == case.y_test
    for quantity in ("epistemic", "total"):
        rank = doubt(TEST, quantity)
        if not right.all():
            found[f"mistakes, {quantity}"] = _detection(rank[right], rank[~right])
        found[f"selective, {quantity}"] = _interval(accuracy_rejection_auc, right, rank)
    found["accuracy"] = _interval(np.mean, right.astype(float))
    if own is not None:
        found["ece"] = _interval(expected_calibration_error, case.y_test, proba, labels=classes)
        found["log score"] = {"value": -float(log_loss(case.y_test, proba, labels=classes))}
    if case.disagreement is not None:
        epistemic, total = doubt(TEST), doubt(TEST, "total")
        # Of the network alone, the entropy stands in both places.
        aleatoric = total if np.array_equal(epistemic, total) else total - epistemic
        found["human, aleatoric"] = _interval(_rank_correlation, aleatoric, case.disagreement)
        found["human, epistemic"] = _interval(_rank_correlation, epistemic, case.disagreement)
        found["aleatoric, epistemic"] = _interval(_rank_correlation, aleatoric, epistemic)
    return found


def _rank_correlation(x, y):
    return spearmanr(x, y).statistic


def auroc(is_unknown, doubt):
    """Return the same as scikit-learn's roc_auc_score, without its checks: it is called often."""
    unknown = is_unknown == 1
    n_unknown, n_known = unknown.sum(), (~unknown).sum()
    return (rankdata(doubt)[unknown].mean() - (n_unknown + 1) / 2) / n_known


def _detection(known, unknown):
    is_unknown = np.repeat([0, 1], [len(known), len(unknown)])
    both = np.concatenate([known, unknown])
    return {
        **_interval(auroc, is_unknown, both, stratify=is_unknown),
        "aupr": aupr(is_unknown, both),
        "fpr95": fpr_at_tpr(is_unknown, both),
    }


def _interval(metric, *arrays, **arguments):
    found = bootstrap_interval(
        metric, *arrays, n_resamples=N_RESAMPLES, random_state=0, **arguments
    )
    return {"value": float(found.value), "low": float(found.low), "high": float(found.high)}
