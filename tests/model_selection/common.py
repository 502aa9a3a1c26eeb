"""Networks, data and scorers that the tests of this folder share."""

import numpy as np
import pandas as pd
from sklearn.model_selection import PredefinedSplit
from sklearn.neural_network import MLPClassifier

from sklearn_quam import PenaltySearch, QUAMClassifier
from sklearn_quam.model_selection import (
    log_score_scorer,
    make_ood_scorer,
    misclassification_scorer,
    rejection_scorer,
)

from ..networks import WORDS, X64, X64_NEW, fitted

_rng = np.random.default_rng(1)
NOISY = ((X64[:, 0] + 0.8 * _rng.normal(size=60)) > 0).astype(int) + (X64[:, 1] > 0)
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


def quam(net, *, n_steps=4, **options):
    return QUAMClassifier(net, search=PenaltySearch(n_steps=n_steps), random_state=0, **options)
