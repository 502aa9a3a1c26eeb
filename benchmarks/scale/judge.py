"""What a method says about all samples of a case, and what its answers are worth.

Three questions are put to each score of a method: which samples are unknown (AUROC), which of its
predictions for known samples are mistakes (AUROC), and which predictions fail, for either reason
(AUGRC in a pool of known and unknown samples; the lower, the better).
"""

import time
import warnings

import numpy as np
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import log_loss

from sklearn_quam.base._conformal import fit_logit_scale, scaled
from sklearn_quam.base._doubt import DoubtScale
from sklearn_quam.metrics import (
    bootstrap_interval,
    expected_calibration_error,
    fpr_at_tpr,
)

from ..detectors import DETECTORS, ON_INPUTS, WITHOUT_NETWORK
from .case import IN_PAIRS, SETTINGS, TEST, VAL, WITH_MEMBERS

N_RESAMPLES = 200
MIN_FOR_INTERVALS = 200  # of fewer samples, several tables say how sure a mean is
N_WARM_UP = 2
WITHOUT_FORECAST = (*DETECTORS, *ON_INPUTS, *WITHOUT_NETWORK)
# What each question is meant to be answered by. A detector has its score for all of them but the
# last one; the network alone has its entropy for unknown samples.
MEANT = {"unknown": "epistemic", "mistakes": "1 - max p", "both": "doubt"}


def meant(method, question):
    """Return the score that a method is meant to be asked for."""
    if method == "Reference":
        return {"unknown": "epistemic", "mistakes": "1 - max p", "both": "1 - max p"}[question]
    if method in WITHOUT_FORECAST:
        return {"unknown": "epistemic", "mistakes": "epistemic", "both": "doubt"}[question]
    return MEANT[question]


def judged(case, est, method):
    """Return what a fitted method is worth, by setting, and seconds to fit and for a sample."""
    with warnings.catch_warnings():
        # Of training that has not converged, and of searches that take long.
        warnings.simplefilter("ignore")
        start = time.process_time()
        est.fit(case.X, case.y)
        fit_seconds = time.process_time() - start
        if method in WITH_MEMBERS:
            fit_seconds += case.members.seconds
        sets = case.sets
        ask = _of_detector if method in WITHOUT_FORECAST else _of_method
        ask(est, case.X_val[:N_WARM_UP], SETTINGS[0])
        found, seconds = {}, None
        for setting in settings_of(method):
            answers = {}
            for part, X in sets.items():
                start = time.process_time()
                answers[part] = ask(est, X, setting)
                if seconds is None and part == TEST:
                    seconds = (time.process_time() - start) / len(X)
            found[setting] = _worth(case, method, setting, answers)
    return {"fit seconds": fit_seconds, "row seconds": seconds, **found}


def settings_of(method):
    if method in (*WITHOUT_FORECAST, "Reference"):
        return SETTINGS[:1]
    return SETTINGS if method in IN_PAIRS else SETTINGS[:2]


def _of_method(est, X, setting):
    est.set_params(setting=setting)
    proba, u = est.predict_proba(X, return_uncertainty=True)
    return {"proba": proba, "epistemic": _finite(u.epistemic), "aleatoric": _finite(u.aleatoric)}


def _of_detector(est, X, setting):  # noqa: ARG001
    return {"epistemic": _finite(-est.score_samples(X))}


def _finite(doubt):
    largest = np.sqrt(np.finfo(float).max)
    return np.nan_to_num(np.asarray(doubt, dtype=float), posinf=largest)


def _worth(case, method, setting, answers):
    """Return metrics of a setting."""
    classes, detects = np.unique(case.y), method in WITHOUT_FORECAST
    if detects:
        for part, proba in case.proba.items():
            answers[part]["proba"] = proba
    columns = {
        part: np.searchsorted(classes, y) for part, y in ((VAL, case.y_val), (TEST, case.y_test))
    }
    raw = answers[TEST]["proba"]
    scale = fit_logit_scale(answers[VAL]["proba"], columns[VAL])
    right = raw.argmax(axis=1) == columns[TEST]
    # As in `predict_doubt`: an average of models is scaled, the given network is not.
    own = 1.0 if setting == "given" else scale
    risks = {part: 1 - scaled(a["proba"], own).max(axis=1) for part, a in answers.items()}
    doubt = DoubtScale.fit(risks[VAL], answers[VAL]["epistemic"])
    if method == "Reference":
        for each in answers.values():
            each["epistemic"] = each["aleatoric"]
    scores = {part: _scores(a, risks[part], doubt) for part, a in answers.items()}
    names = list(scores[TEST])
    found = {name: {} for name in MEANT}
    for name in names:
        known = scores[TEST][name]
        is_meant = {
            question: meant(method, question) == name and len(known) >= MIN_FOR_INTERVALS
            for question in MEANT
        }
        for part in case.others:
            pool = np.concatenate([known, scores[part][name]])
            is_unknown = np.repeat([0, 1], [len(known), len(pool) - len(known)])
            failed = np.concatenate([~right, np.ones(len(pool) - len(known), bool)])
            value = _interval(
                auroc, is_unknown, pool, stratify=is_unknown, ends=is_meant["unknown"]
            )
            value["fpr95"] = fpr_at_tpr(is_unknown, pool)
            found["unknown"].setdefault(name, {})[part] = value
            value = _interval(_augrc, failed, pool, stratify=is_unknown, ends=is_meant["both"])
            found["both"].setdefault(name, {})[part] = value
        if not right.all():
            value = _interval(auroc, ~right, known, stratify=~right, ends=is_meant["mistakes"])
            found["mistakes"][name] = value
    if not detects:
        found["forecast"] = {
            "accuracy": float(right.mean()),
            **_forecast(raw, columns[TEST], ""),
            **_forecast(scaled(raw, scale), columns[TEST], ", scaled"),
        }
        aleatoric, epistemic = answers[TEST]["aleatoric"], answers[TEST]["epistemic"]
        found["parts"] = {"aleatoric, epistemic": _correlation(aleatoric, epistemic)}
        if case.disagreement is not None:
            found["parts"]["human, aleatoric"] = _correlation(aleatoric, case.disagreement)
            found["parts"]["human, epistemic"] = _correlation(epistemic, case.disagreement)
    return found


def _scores(answer, risk, doubt):
    epistemic = answer["epistemic"]
    found = {"epistemic": epistemic, "1 - max p": risk, "doubt": doubt.share(risk, epistemic)}
    if "aleatoric" in answer:
        found["total"] = answer["aleatoric"] + epistemic
    return found


def _forecast(proba, columns, suffix):
    labels = np.arange(proba.shape[1])
    return {
        f"log score{suffix}": -float(log_loss(columns, proba, labels=labels)),
        f"ece{suffix}": float(expected_calibration_error(columns, proba, labels=labels)),
    }


def _correlation(x, y):
    return float(spearmanr(x, y).statistic) if np.ptp(x) > 0 and np.ptp(y) > 0 else 0.0


def auroc(is_unknown, doubt):
    """Return the same as scikit-learn's roc_auc_score, without its checks: it is called often."""
    unknown = is_unknown == 1
    n_unknown, n_known = unknown.sum(), (~unknown).sum()
    return (rankdata(doubt)[unknown].mean() - (n_unknown + 1) / 2) / n_known


def _augrc(failed, doubt):
    """Return the same as `sklearn_quam.metrics.augrc`, from the AUROC of failures."""
    rate = failed.mean()
    if rate in (0, 1):
        return rate**2 / 2
    return (1 - auroc(failed, doubt)) * rate * (1 - rate) + rate**2 / 2


def _interval(metric, *arrays, stratify, ends):
    if not ends:
        return {"value": float(metric(*arrays))}
    found = bootstrap_interval(
        metric, *arrays, n_resamples=N_RESAMPLES, random_state=0, stratify=stratify
    )
    return {"value": float(found.value), "low": float(found.low), "high": float(found.high)}
