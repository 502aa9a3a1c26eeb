"""What the scripts that compare searches share: scores of a network, QUAM's scores and their time.

Rows that are judged come as one array, the known ones first.
"""

import time

import numpy as np
from scipy.special import log_softmax, logsumexp
from sklearn.metrics import roc_auc_score

from sklearn_quam import QUAMClassifier

N_WARM_UP = 2  # rows of a first call that is not measured: libraries take their time once


def auroc(scores, n_known):
    """Return how well scores tell the rows from n_known on from those before."""
    return float(roc_auc_score(np.arange(len(scores)) >= n_known, scores))


def plain_scores(logits):
    """Return what the given network alone can say; higher is more doubtful."""
    log_probabilities = log_softmax(logits, axis=1)
    return {
        "entropy": -(np.exp(log_probabilities) * log_probabilities).sum(axis=1),
        "max-softmax": -log_probabilities.max(axis=1),
        "energy": -logsumexp(logits, axis=1),
    }


def quam(network, X, y, X_new, search, *, settings=("given", "expected"), **arguments):
    """Return QUAM's epistemic uncertainty in each setting, and what it cost.

    Parameters
    ----------
    network : estimator or torch.nn.Module
        The given network.
    X, y : array-like
        Its training data.
    X_new : array-like
        Rows to judge.
    search : str or object
        How rivals are looked for.
    settings : tuple of str
        Whose uncertainty; all of them judge with the same fitted estimator. The first is timed.
    arguments : dict
        Other arguments of QUAM.

    Returns
    -------
    dict
        ``scores`` by setting, ``fit_seconds``, ``seconds_per_row`` and ``n_parameters`` searched.
    """
    est = QUAMClassifier(network, **{"search": search, "random_state": 0, **arguments})
    start = time.perf_counter()
    est.fit(X, y)
    fit_seconds = time.perf_counter() - start
    est.set_params(setting=settings[0]).predict_uncertainty(X_new[:N_WARM_UP])
    scores, seconds = {}, []
    for setting in settings:
        est.set_params(setting=setting)
        start = time.perf_counter()
        scores[setting] = np.asarray(est.predict_uncertainty(X_new).epistemic)
        seconds.append(time.perf_counter() - start)
    return {
        "scores": scores,
        "fit_seconds": fit_seconds,
        "seconds_per_row": seconds[0] / len(X_new),
        "n_parameters": est.n_parameters_searched_,
    }


def named(search, setting):
    """Return how a search in a setting is called in results."""
    return search if setting == "given" else f"{search}, {setting}"
