"""Scorers for scikit-learn's searches and cross-validation, and a table that compares methods.

A scorer goes where scikit-learn takes ``scoring=``. The estimator may be one of the package, a
pipeline that ends in one, or a search over either.

A network that was passed fitted is not trained anew for each fold. If it was trained on all rows,
it has seen those that it is scored on, and the scores are too good. Whether it was can only be
told by what ``fit`` was told: it takes the network's training data. So scorers issue a
`SeenDataWarning`, once for a network, as soon as it is scored on rows that another estimator with
the same weights was fitted to, which is what happens in the second fold of a cross-validation.
Rows are compared as the network gets them, within one process: a transformer that is fitted for
each fold hides them, and each worker of ``n_jobs`` finds out by itself. Nothing is said about
rows that never serve as training data: train the network without them, and score these only, with
``cv=PredefinedSplit(...)``.
"""

from __future__ import annotations

import copy
import hashlib
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError, UndefinedMetricWarning
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions, validate_params
from sklearn.utils.validation import _num_samples, check_is_fitted, column_or_1d
from torch import Tensor
from tqdm.auto import tqdm

from ._adapters import column_of_label, is_given, split_pipeline
from ._rows import RowResults, from_tensor
from .base import BaseUncertaintyEstimator
from .baselines import ReferenceClassifier, ReferenceRegressor
from .metrics import (
    accuracy_rejection_auc,
    aupr,
    bootstrap_interval,
    expected_calibration_error,
    fpr_at_tpr,
    gaussian_log_score,
    risk_coverage_auc,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "SeenDataWarning",
    "compare_uncertainty",
    "log_score_scorer",
    "make_ood_scorer",
    "misclassification_scorer",
    "rejection_scorer",
]

_COMPONENT = [StrOptions({"aleatoric", "epistemic", "total"})]
_ENTROPY = "entropy of the network"
_DETECTION = {"auroc": roc_auc_score, "aupr": aupr, "fpr95": fpr_at_tpr}
_METRICS = (*_DETECTION, "accuracy_rejection_auc", "risk_coverage_auc", "ece", "log_score")
_SEEN_TEXT = (
    "A network that was passed fitted is scored on rows that another estimator of the same network "
    "was fitted to. It is not trained anew for each fold: if it was trained on these rows, the "
    "scores are too good. Hold rows out before you train the network and score those only, with "
    "cv=PredefinedSplit(...); or pass an unfitted estimator, which is trained for each fold."
)
# Networks whose rows are remembered, eight bytes a row.
_MAX_NETWORKS = 8


class SeenDataWarning(UserWarning):
    """Issued where a given network is scored on rows that it has probably been trained on.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.model_selection import SeenDataWarning
    >>> warnings.simplefilter("ignore", SeenDataWarning)    # the rows are new to the network
    """


# -- from any estimator to the method inside -----------------------------------------------


def _opened(estimator: Any) -> tuple[list[Any], Any]:
    """Return the transformers in front of a method, and the method."""
    transformers, opened = [], None
    while opened is not estimator:
        opened = getattr(estimator, "best_estimator_", estimator)
        before, estimator = split_pipeline(opened)
        transformers += [] if before is None else [before]
    if not hasattr(estimator, "predict_uncertainty"):
        hint = " Fit the search first." if hasattr(estimator, "cv") else ""
        raise TypeError(
            f"{type(estimator).__name__} has no predict_uncertainty; pass an estimator such as "
            f"QUAMClassifier, or a pipeline that ends in one.{hint}"
        )
    return transformers, estimator


def _method_and_rows(estimator: Any, X: Any) -> tuple[Any, Any]:
    """Return the method, and rows as it takes them."""
    transformers, method = _opened(estimator)
    for step in transformers:
        X = step.transform(X)
    return method, X


def _uncertainty(estimator: Any, X: Any) -> Any:
    method, rows = _method_and_rows(estimator, X)
    return method.predict_uncertainty(rows)


def _labels(y: Any, like: Any) -> np.ndarray:
    y = column_or_1d(from_tensor(y))
    check_consistent_length(y, like)
    return y


def _squared_error(y: Any, prediction: np.ndarray) -> np.ndarray:
    """Return the squared error of each row, the mean over its outputs."""
    y = np.asarray(from_tensor(y), dtype=float)
    check_consistent_length(y, prediction)
    return ((y.reshape(len(y), -1) - prediction.reshape(len(y), -1)) ** 2).mean(axis=1)


def _log_probabilities(y: Any, proba: np.ndarray, classes: np.ndarray) -> np.ndarray:
    y = _labels(y, proba)
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise ValueError(f"y has labels that the classifier does not know: {set(y[unknown])}.")
    with np.errstate(divide="ignore"):
        return np.log(proba[np.arange(len(y)), column_of_label(classes, y)])


@dataclass(frozen=True)
class _SummaryWithVariance:
    """Summarises rows in a regressor's place: variances follow the means of the prediction."""

    setting: str

    def __call__(self, posterior: Any, found: dict[str, np.ndarray], n_rows: int) -> RowResults:
        results = BaseUncertaintyEstimator._summarise(cast(Any, self), posterior, found, n_rows)
        variance = posterior.prediction(self.setting).variance
        if self.setting == "given":  # how far others are from it is part of the total
            variance = variance + posterior._means.mean("squared_shift")
        beside = np.hstack([results.prediction, variance.cpu().double().numpy()])
        return results._replace(prediction=beside)


def _results_with_variance(method: Any, rows: Any) -> tuple[RowResults, np.ndarray]:
    """Return what a regressor says about rows, and the total variance of each output."""
    judge = copy.copy(method)
    judge._summarise = _SummaryWithVariance(method.setting)
    results = judge._results(rows)
    mean, variance = np.hsplit(results.prediction, 2)
    return results._replace(prediction=mean), variance


# -- whether a given network has seen the rows ---------------------------------------------


@dataclass
class _RowsOfNetwork:
    """Which rows estimators of a network were fitted to, and which others it was scored on."""

    fitted: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    scored: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    warned: bool = False


_rows_of_networks: OrderedDict[bytes, _RowsOfNetwork] = OrderedDict()
_lock = threading.Lock()


def _as_bytes(values: Tensor) -> np.ndarray:
    return values.detach().cpu().contiguous().view(torch.uint8).numpy()


def _digest(module: torch.nn.Module) -> bytes:
    """Return a digest of the weights: workers and copies of a network have the same."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in module.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(name.encode())
            digest.update(_as_bytes(value.reshape(-1)).data)
    return digest.digest()


def _row_digests(inputs: Tensor) -> np.ndarray:
    rows = _as_bytes(inputs.reshape(len(inputs), -1))
    return np.unique(np.fromiter((hash(row.tobytes()) for row in rows), np.int64, len(rows)))


def _warn_if_seen(method: Any, rows: Any) -> None:
    """Warn if a given network is scored on what another estimator says it was trained on."""
    if not isinstance(method, BaseUncertaintyEstimator):
        return
    if not is_given(method.estimator) and getattr(method, "estimators", None) is None:
        return
    scored = _row_digests(method._check_inputs(rows))
    fitted, network = _row_digests(method._inputs), _digest(method._reference.module)
    scored = np.setdiff1d(scored, fitted)  # to score the training data is a choice
    with _lock:
        known = _rows_of_networks.setdefault(network, _RowsOfNetwork())
        _rows_of_networks.move_to_end(network)
        while len(_rows_of_networks) > _MAX_NETWORKS:
            _rows_of_networks.popitem(last=False)
        if known.warned:
            return
        known.warned = bool(np.isin(scored, known.fitted).any() | np.isin(fitted, known.scored).any())
        known.fitted = np.union1d(known.fitted, fitted)
        known.scored = np.union1d(known.scored, scored)
    if known.warned:
        warnings.warn(_SEEN_TEXT, SeenDataWarning, stacklevel=3)


# -- scorers -------------------------------------------------------------------------------


def _negative_fpr95(y_true: Any, y_score: Any) -> float:
    return -fpr_at_tpr(y_true, y_score)


_OOD_METRICS: dict[str, Callable[..., float]] = {
    "roc_auc": roc_auc_score,
    "average_precision": average_precision_score,
    "aupr": aupr,
    "fpr95": _negative_fpr95,
}


@dataclass(frozen=True, eq=False)
class _OODScorer:
    """How well the uncertainty separates X from other data; a class, so that it can be pickled."""

    X_ood: Any = field(repr=False)
    component: str
    metric: str | Callable[..., float]

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> float:  # noqa: ARG002
        method, rows = _method_and_rows(estimator, X)
        _warn_if_seen(method, rows)
        known = getattr(method.predict_uncertainty(rows), self.component)
        strange = getattr(_uncertainty(estimator, self.X_ood), self.component)
        is_ood = np.repeat([0, 1], [len(known), len(strange)])
        metric = self.metric if callable(self.metric) else _OOD_METRICS[self.metric]
        return float(metric(is_ood, np.concatenate([known, strange])))


@validate_params(
    {"component": _COMPONENT, "metric": [StrOptions(set(_OOD_METRICS)), callable]},
    prefer_skip_nested_validation=True,
)
def make_ood_scorer(
    X_ood: Any, *, component: str = "epistemic", metric: str | Callable[..., float] = "roc_auc"
) -> Callable[..., float]:
    """Make a scorer of how well the uncertainty separates known data from other data.

    Parameters
    ----------
    X_ood : array-like of shape (n_ood, ...)
        Rows that are not from the distribution of the training data, as the estimator takes them:
        those to be found. The rows that the scorer is called with are the others.
    component : {"aleatoric", "epistemic", "total"}, default="epistemic"
        Which uncertainty.
    metric : {"roc_auc", "average_precision", "aupr", "fpr95"} or callable, default="roc_auc"
        Greater is better: "fpr95" is minus the false positive rate at a true positive rate of
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
    >>> scorer = make_ood_scorer(10 * X[::10])
    >>> cross_val_score(LaplaceClassifier(random_state=0), X, y, scoring=scorer, cv=3).shape
    (3,)
    """
    if not _num_samples(X_ood):
        raise ValueError("X_ood has no rows.")
    return _OODScorer(X_ood, component, metric)


def misclassification_scorer(
    estimator: Any, X: Any, y: Any, *, component: str = "total"
) -> float:
    """Return how well the uncertainty tells mistakes from correct predictions (AUROC).

    Parameters
    ----------
    estimator : estimator
        A fitted classifier of the package, or a pipeline that ends in one.
    X : array-like of shape (n_samples, ...)
        Rows.
    y : array-like of shape (n_samples,)
        Their labels.
    component : {"aleatoric", "epistemic", "total"}, default="total"
        Which uncertainty; to choose for ``scoring=``, pass
        ``functools.partial(misclassification_scorer, component="epistemic")``.

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
    >>> bool((cross_val_score(est, X, y, scoring=misclassification_scorer, cv=2) > 0.8).all())
    True
    """
    method, rows = _method_and_rows(estimator, X)
    _need_classifier(method, "misclassification_scorer")
    _warn_if_seen(method, rows)
    prediction, uncertainty = method.predict(rows, return_uncertainty=True)
    is_mistake = prediction != _labels(y, prediction)
    if is_mistake.all() or not is_mistake.any():
        warnings.warn(
            f"{'All' if is_mistake.any() else 'No'} predictions are mistakes: how well these are "
            "told from correct predictions is undefined.",
            UndefinedMetricWarning,
            stacklevel=2,
        )
        return float("nan")
    return float(roc_auc_score(is_mistake, getattr(uncertainty, component)))


def _need_classifier(method: Any, caller: str) -> None:
    if not is_classifier(method):
        raise TypeError(
            f"{caller} is for classifiers; {type(method).__name__} makes no plain mistakes. Use "
            "rejection_scorer or log_score_scorer."
        )


def rejection_scorer(estimator: Any, X: Any, y: Any, *, component: str = "total") -> float:
    """Return how good predictions are when the uncertain ones are rejected.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of the package, or a pipeline that ends in one.
    X : array-like of shape (n_samples, ...)
        Rows.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Their labels or values.
    component : {"aleatoric", "epistemic", "total"}, default="total"
        Which uncertainty; to choose for ``scoring=``, pass
        ``functools.partial(rejection_scorer, component="epistemic")``.

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
    method, rows = _method_and_rows(estimator, X)
    _warn_if_seen(method, rows)
    prediction, uncertainty = method.predict(rows, return_uncertainty=True)
    if is_classifier(method):
        is_correct = prediction == _labels(y, prediction)
        return accuracy_rejection_auc(is_correct, getattr(uncertainty, component))
    return -risk_coverage_auc(_squared_error(y, prediction), getattr(uncertainty, component))


def log_score_scorer(estimator: Any, X: Any, y: Any) -> float:
    """Return the mean logarithm of the probability that was predicted for what came true.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of the package, or a pipeline that ends in one. Its ``setting`` decides
        who predicts: with "given", the probabilities are the given network's alone.
    X : array-like of shape (n_samples, ...)
        Rows.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Their labels or values.

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
    method, rows = _method_and_rows(estimator, X)
    _warn_if_seen(method, rows)
    if is_classifier(method):
        log_proba = _log_probabilities(y, method.predict_proba(rows), method.classes_)
        return float(log_proba.mean())
    results, variance = _results_with_variance(method, rows)
    return gaussian_log_score(_matrix(y), results.prediction, variance)


def _matrix(y: Any) -> np.ndarray:
    y = np.asarray(from_tensor(y))
    return y.reshape(len(y), -1)
