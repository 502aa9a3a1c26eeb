"""Scorers for scikit-learn's searches and cross-validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import roc_auc_score
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import _num_samples

from .._documented import documented, parsed
from .._messages import checked_arguments
from ..base._inside import COMPONENT, doubt_of, scored_method_and_rows
from ..exceptions import warn
from ..metrics import (
    accuracy_rejection_auc,
    augrc,
    excess_augrc,
    failure_auroc,
    gaussian_log_score,
    risk_coverage_auc,
)
from ..metrics._errors import as_values, correct, log_probabilities, squared_errors
from ..metrics._ranking import DETECTION

# Metrics of detection: the larger, the better.
_DETECTION = {
    name if sign > 0 else f"neg_{name}": (f, sign) for name, (f, sign) in DETECTION.items()
}
_AREAS = {"neg_augrc": augrc, "neg_excess_augrc": excess_augrc}
_ARGUMENTS = parsed(
    """
    Parameters
    ----------
    estimator : estimator
        A fitted estimator of the package, or a pipeline that ends in one.
    X : array-like of shape (n_samples, ...)
        Samples.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Their labels or values.
    X_ood : array-like of shape (n_ood, ...)
        Unknown samples, as the estimator takes them.
    component : {"aleatoric", "epistemic", "total", "doubt"}
        Which uncertainty; detectors have only one score. Doubt takes ``X_val`` and ``y_val`` in
        ``fit``. To choose for ``scoring=``, pass
        ``functools.partial(rejection_scorer, component="epistemic")``.
    """
)


def _checked(**constraints: Any) -> Callable[[Any], Any]:
    """Return a decorator that checks and describes the arguments of a scorer."""
    check = checked_arguments(
        {"component": COMPONENT} | constraints, prefer_skip_nested_validation=False
    )
    return lambda function: documented(_ARGUMENTS)(check(function))


@dataclass(frozen=True, eq=False)
class _OODScorer:
    """How well the uncertainty separates X from other data; a class, so that it can be pickled."""

    X_ood: Any = field(repr=False)
    component: str
    metric: str | Callable[..., float]

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> float:  # noqa: ARG002
        known = doubt_of(estimator, X, self.component, scored=True)
        strange = doubt_of(estimator, self.X_ood, self.component)
        is_ood = np.repeat([0, 1], [len(known), len(strange)])
        metric, sign = (self.metric, 1) if callable(self.metric) else _DETECTION[self.metric]
        return sign * float(metric(is_ood, np.concatenate([known, strange])))


@_checked(metric=[StrOptions(set(_DETECTION)), callable])
def make_ood_scorer(
    X_ood: Any, *, component: str = "epistemic", metric: str | Callable[..., float] = "roc_auc"
) -> Callable[..., float]:
    """Make a scorer of how well the uncertainty separates unknown samples from known ones.

    Known samples are those that the scorer is called with. It scores methods, and outlier
    detectors by ``score_samples``, such as scikit-learn's ``IsolationForest``.

    Parameters
    ----------
    metric : {"roc_auc", "average_precision", "aupr", "neg_fpr95"} or callable
        Greater is better: "neg_fpr95" is minus the false positive rate at a true positive rate of
        95 %. A function is called as ``metric(is_ood, uncertainty)``.

    Returns
    -------
    callable
        To be called as ``scorer(estimator, X, y=None)``, and for ``scoring=``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import cross_val_score
    >>> from sklearn_quam import LaplaceClassifier
    >>> from sklearn_quam.model_selection import make_ood_scorer
    >>> X, y = load_iris(return_X_y=True)
    >>> scorer = make_ood_scorer(3 * X[::10])
    >>> cross_val_score(LaplaceClassifier(random_state=0), X, y, scoring=scorer, cv=3).shape
    (3,)
    """
    if not _num_samples(X_ood):
        raise ValueError("X_ood has no rows.")
    return _OODScorer(X_ood, component, metric)


@dataclass(frozen=True, eq=False)
class _FailureScorer:
    """How well doubt finds mistakes and unknown samples."""

    X_ood: Any = field(repr=False)
    component: str
    metric: str

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        method, rows = scored_method_and_rows(estimator, X)
        is_correct = correct(method.predict(rows), y)
        known = doubt_of(method, rows, self.component)
        unknown = doubt_of(estimator, self.X_ood, self.component)
        if self.metric == "roc_auc":
            return failure_auroc(is_correct, known, unknown)
        loss = np.append(~is_correct, np.ones(len(unknown))).astype(float)
        return -_AREAS[self.metric](loss, np.append(known, unknown))


@_checked(metric=[StrOptions({"roc_auc", *_AREAS})])
def make_failure_scorer(
    X_ood: Any, *, component: str = "doubt", metric: str = "roc_auc"
) -> Callable[..., float]:
    """Make a scorer of how well uncertainty separates failures from correct predictions.

    Failures are mistakes among the samples that the scorer is called with, and unknown samples.

    Parameters
    ----------
    metric : {"roc_auc", "neg_augrc", "neg_excess_augrc"}
        The AUROC of failures, or minus `augrc` or `excess_augrc`. Greater is better.

    Returns
    -------
    callable
        To be called as ``scorer(estimator, X, y)``, and for ``scoring=``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_quam import LaplaceClassifier
    >>> from sklearn_quam.model_selection import make_failure_scorer
    >>> X, y = load_iris(return_X_y=True)
    >>> est = LaplaceClassifier(random_state=0)
    >>> est = est.fit(X[::3], y[::3], X_val=X[1::3], y_val=y[1::3])
    >>> bool(make_failure_scorer(3 * X)(est, X[2::3], y[2::3]) > 0.8)
    True
    """
    if not _num_samples(X_ood):
        raise ValueError("X_ood has no rows.")
    return _FailureScorer(X_ood, component, metric)


@_checked()
def misclassification_scorer(estimator: Any, X: Any, y: Any, *, component: str = "total") -> float:
    """Return how well the uncertainty separates mistakes from correct predictions (AUROC).

    Returns
    -------
    float
        The area under the ROC curve; NaN, with a warning, if all or no predictions are correct.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import cross_val_score
    >>> from sklearn_quam import ReferenceClassifier
    >>> from sklearn_quam.model_selection import misclassification_scorer
    >>> X, y = load_iris(return_X_y=True)
    >>> est = ReferenceClassifier(random_state=0)
    >>> bool(cross_val_score(est, X, y, scoring=misclassification_scorer, cv=2).mean() > 0.8)
    True
    """
    method, rows = scored_method_and_rows(estimator, X)
    if not is_classifier(method):
        raise TypeError(
            f"misclassification_scorer is for classifiers, which {type(method).__name__} is not; "
            "use rejection_scorer or log_score_scorer."
        )
    prediction, uncertainty = method.predict(rows, return_uncertainty=True)
    is_mistake = ~correct(prediction, y)
    if is_mistake.all() or not is_mistake.any():
        warn(
            f"{'All' if is_mistake.any() else 'No'} predictions are mistakes: the score is NaN, as "
            "is the mean over folds. Take fewer and larger folds, or rejection_scorer, "
            "which needs no mistakes.",
            UndefinedMetricWarning,
        )
        return float("nan")
    return float(roc_auc_score(is_mistake, uncertainty._part(component)))


@_checked()
def rejection_scorer(estimator: Any, X: Any, y: Any, *, component: str = "total") -> float:
    """Return how good predictions are when the uncertain ones are rejected.

    Returns
    -------
    float
        `accuracy_rejection_auc` of a classifier; minus the `risk_coverage_auc` of the squared
        errors of a regressor. Greater is better.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_quam import ReferenceClassifier
    >>> from sklearn_quam.model_selection import rejection_scorer
    >>> X, y = load_iris(return_X_y=True)
    >>> est = ReferenceClassifier(random_state=0).fit(X, y)
    >>> rejection_scorer(est, X, y) >= est.score(X, y)
    True
    """
    method, rows = scored_method_and_rows(estimator, X)
    prediction, uncertainty = method.predict(rows, return_uncertainty=True)
    if is_classifier(method):
        return accuracy_rejection_auc(correct(prediction, y), uncertainty._part(component))
    return -risk_coverage_auc(squared_errors(y, prediction), uncertainty._part(component))


@documented(_ARGUMENTS)
def log_score_scorer(estimator: Any, X: Any, y: Any) -> float:
    """Return the mean logarithm of the probability that was predicted for the true label or value.

    With ``setting="given"`` the given network alone predicts.

    Returns
    -------
    float
        In nats; greater is better. For regressors it is the density of a Gaussian with the
        predicted mean and the total variance, the sum of both parts of ``measure="variance"``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.metrics import log_loss
    >>> from sklearn_quam import ReferenceClassifier
    >>> from sklearn_quam.model_selection import log_score_scorer
    >>> X, y = load_iris(return_X_y=True)
    >>> est = ReferenceClassifier(random_state=0).fit(X, y)
    >>> abs(log_score_scorer(est, X, y) + log_loss(y, est.predict_proba(X))) < 1e-6
    True
    """
    method, rows = scored_method_and_rows(estimator, X)
    if is_classifier(method):
        log_proba = log_probabilities(y, method.predict_proba(rows), method.classes_)
        return float(log_proba.mean())
    results = method._results(rows)
    return gaussian_log_score(
        as_values(y, results.prediction), results.prediction, results.variance
    )
