"""Scorers for scikit-learn's searches and cross-validation, and a table that compares methods.

A scorer goes where scikit-learn takes ``scoring=``. The estimator may be one of the package, a
pipeline that ends in one, or a search over either.

A network that was passed fitted is not trained for each fold: scored on rows that it was trained
on, it looks too good. What it was trained on is what ``fit`` is told. Scorers therefore issue a
`SeenDataWarning`, once for a network, where it is scored on rows that another estimator of the same
weights was fitted to, as in the second fold of a cross-validation. Rows are compared as the network
gets them and within one process: a transformer that is fitted for each fold hides them, and every
worker finds out by itself. Rows that never serve as training data raise no warning: train the
network without them and score only these, with ``cv=PredefinedSplit(...)``.
"""

from __future__ import annotations

import hashlib
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions, validate_params
from sklearn.utils.validation import _num_samples, column_or_1d
from torch import Tensor
from tqdm.auto import tqdm

from ._adapters import _is_fitted, column_of_label, is_given, split_pipeline
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

_checked = partial(validate_params, prefer_skip_nested_validation=False)
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
# Networks whose rows are remembered, with about a hundred bytes a row.
_MAX_NETWORKS = 4


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
    if hasattr(estimator, "best_estimator_"):
        return _opened(estimator.best_estimator_)
    before, last = split_pipeline(estimator)
    if last is not estimator:
        transformers, method = _opened(last)
        return ([] if before is None else [before]) + transformers, method
    if not hasattr(estimator, "predict_uncertainty"):
        hint = " Fit the search with refit=True first." if hasattr(estimator, "cv") else ""
        raise TypeError(
            f"{type(estimator).__name__} has no predict_uncertainty: pass an estimator such as "
            f"QUAMClassifier, or a pipeline that ends in one.{hint}"
        )
    return [], estimator


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


def _values(y: Any, like: Any) -> np.ndarray:
    """Return values as a matrix with a column for each output."""
    y = np.asarray(from_tensor(y), dtype=float)
    check_consistent_length(y, like)
    return y.reshape(len(y), -1)


def _squared_error(y: Any, prediction: np.ndarray) -> np.ndarray:
    """Return the squared error of each row, the mean over its outputs."""
    return ((_values(y, prediction) - _values(prediction, y)) ** 2).mean(axis=1)


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
    judge = object.__new__(type(method))
    vars(judge).update(vars(method))  # copy.copy would leave out what is prepared for all rows
    judge._summarise = _SummaryWithVariance(method.setting)
    results = judge._results(rows)
    mean, variance = np.hsplit(results.prediction, 2)
    return results._replace(prediction=mean), variance


# -- whether a given network has seen the rows ---------------------------------------------


# What estimators of a network were fitted to, by a digest of its weights; None: has been warned of.
_rows_of_networks: OrderedDict[bytes, set[int] | None] = OrderedDict()
_lock = threading.Lock()


def _digest(module: torch.nn.Module) -> bytes:
    """Return a digest of the weights: workers and copies of a network have the same."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in module.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(name.encode())
            digest.update(value.detach().cpu().numpy().tobytes())
    return digest.digest()


def _row_digests(inputs: Tensor) -> set[int]:
    return {hash(row.tobytes()) for row in inputs.detach().cpu().numpy()}


def _warn_if_seen(method: Any, rows: Any) -> None:
    """Warn if a given network is scored on what another estimator says it was trained on."""
    if not isinstance(method, BaseUncertaintyEstimator):
        return
    if not is_given(method.estimator) and getattr(method, "estimators", None) is None:
        return
    scored, fitted = _row_digests(method._check_inputs(rows)), _row_digests(method._inputs)
    network = _digest(method._reference.module)
    with _lock:
        known = _rows_of_networks.setdefault(network, set())
        _rows_of_networks.move_to_end(network)
        if len(_rows_of_networks) > _MAX_NETWORKS:
            _rows_of_networks.popitem(last=False)
        if known is None:
            return
        # Whoever scores an estimator's own training data knows what that means.
        is_seen = not known.isdisjoint(scored - fitted)
        _rows_of_networks[network] = None if is_seen else known | fitted
    if is_seen:
        warnings.warn(_SEEN_TEXT, SeenDataWarning, stacklevel=3)


# -- scorers -------------------------------------------------------------------------------


_OOD_METRICS: dict[str, Callable[..., float]] = {
    "roc_auc": roc_auc_score,
    "average_precision": average_precision_score,
    "aupr": aupr,
    "fpr95": lambda is_ood, uncertainty: -fpr_at_tpr(is_ood, uncertainty),
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


@_checked({"component": _COMPONENT, "metric": [StrOptions(set(_OOD_METRICS)), callable]})
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


@_checked({"component": _COMPONENT})
def misclassification_scorer(estimator: Any, X: Any, y: Any, *, component: str = "total") -> float:
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
    if not is_classifier(method):
        raise TypeError(
            f"misclassification_scorer is for classifiers, which {type(method).__name__} is not; "
            "use rejection_scorer or log_score_scorer."
        )
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


@_checked({"component": _COMPONENT})
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
    return gaussian_log_score(_values(y, variance), results.prediction, variance)


# -- comparison ----------------------------------------------------------------------------


class _Answers(NamedTuple):
    """What a method says about some rows."""

    method: Any
    results: RowResults
    variance: np.ndarray | None
    seconds_per_point: float


@dataclass(frozen=True)
class _Comparison:
    """The data and options that all methods of a comparison share."""

    data: tuple[Any, Any, Any, Any]
    ood_sets: dict[str, Any]
    classification: bool
    bootstrap: dict[str, Any]

    def judge(self, name: str, estimator: Any, component: str) -> tuple[list[dict], Any]:
        """Return a row for each task, and the estimator, fitted unless that failed."""
        row: dict[str, Any] = {"method": name, "component": component, "error": ""}
        tasks = [*self.ood_sets, *["misclassification"] * self.classification, "rejection"]
        X_train, y_train, X_test, _ = self.data
        try:
            if estimator is None:
                raise ValueError("No method was fitted, so there is no network to look at.")
            if not _is_fitted(estimator):
                start = time.perf_counter()
                estimator = clone(estimator).fit(X_train, y_train)
                row["fit_seconds"] = time.perf_counter() - start
            answers = self._ask(estimator, X_test)
        except Exception as error:  # the other methods go on
            return [row | {"task": task, "error": _reason(error)} for task in tasks], estimator
        rows = [row | {"task": task} for task in tasks]
        for row in rows:
            try:
                for column, value in self._judge_task(row["task"], estimator, answers, component):
                    row[column] = value
            except Exception as error:
                row["error"] = _reason(error)
        return rows, estimator

    def _ask(self, estimator: Any, X: Any) -> _Answers:
        start, variance = time.perf_counter(), None
        method, rows = _method_and_rows(estimator, X)
        if is_classifier(method) != self.classification:
            raise TypeError("Classifiers and regressors cannot be compared with each other.")
        if self.classification:
            results = method._results(rows)
        else:
            results, variance = _results_with_variance(method, rows)
        seconds = time.perf_counter() - start
        return _Answers(method, results, variance, seconds / len(results.prediction))

    def _judge_task(
        self, task: str, estimator: Any, answers: _Answers, component: str
    ) -> Iterator[tuple[str, float]]:
        """Yield columns and their values."""
        uncertainty, y_test = getattr(answers.results.uncertainty, component), self.data[-1]
        if task in self.ood_sets:
            strange = self._ask(estimator, self.ood_sets[task])
            yield "seconds_per_point", strange.seconds_per_point
            is_ood = np.repeat([0, 1], [len(uncertainty), len(strange.results.prediction)])
            other = getattr(strange.results.uncertainty, component)
            yield from self._detection(is_ood, np.concatenate([uncertainty, other]))
            return
        yield "seconds_per_point", answers.seconds_per_point
        method, prediction = answers.method, answers.results.prediction
        if not self.classification:
            y_test = _values(y_test, prediction)
            loss = _squared_error(y_test, prediction)
            yield from self._interval("risk_coverage_auc", risk_coverage_auc, loss, uncertainty)
            gaussian = (y_test, prediction, answers.variance)
            yield from self._interval("log_score", gaussian_log_score, *gaussian)
            return
        y_test = _labels(y_test, prediction)
        is_correct = method._decide(prediction) == y_test
        if task == "misclassification":
            yield from self._detection(~is_correct, uncertainty)
            return
        rejection = (accuracy_rejection_auc, is_correct, uncertainty)
        yield from self._interval("accuracy_rejection_auc", *rejection)
        calibration = (expected_calibration_error, y_test, prediction)
        yield from self._interval("ece", *calibration, labels=method.classes_)
        log_proba = _log_probabilities(y_test, prediction, method.classes_)
        yield from self._interval("log_score", np.mean, log_proba)

    def _detection(self, y_true: Any, y_score: np.ndarray) -> Iterator[tuple[str, float]]:
        for column, metric in _DETECTION.items():
            if len(set(y_true.tolist())) == 1:
                raise ValueError(f"{'All' if y_true[0] else 'No'} predictions are mistakes.")
            yield from self._interval(column, metric, y_true, y_score, stratify=y_true)

    def _interval(
        self, column: str, metric: Callable[..., Any], *arrays: Any, **options: Any
    ) -> Iterator[tuple[str, float]]:
        found = bootstrap_interval(metric, *arrays, **self.bootstrap, **options)
        yield from zip([column, f"{column}_low", f"{column}_high"], found, strict=True)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _is_classifier(estimator: Any) -> bool:
    return hasattr(estimator, "__sklearn_tags__") and is_classifier(estimator)


def _named(estimators: Any) -> dict[str, Any]:
    """Return estimators by name; those of a list are named after the class of their last step."""
    if not estimators:
        raise ValueError("estimators is empty: there is nothing to compare.")
    if isinstance(estimators, dict):
        return estimators
    named: dict[str, Any] = {}
    for estimator in estimators:
        kind = type(split_pipeline(estimator)[1]).__name__
        number = 1 + sum(name.split(" ")[0] == kind for name in named)
        named[kind if number == 1 else f"{kind} {number}"] = estimator
    return named


def _entropy_of_network(estimator: Any) -> tuple[bytes, Any]:
    """Return a digest of the network's weights, and the network alone as a method, or None."""
    try:
        transformers, method = _opened(estimator)
    except TypeError:
        return b"", None
    network = getattr(method, "estimator_", getattr(method, "estimator", None))
    if not is_given(network):
        return b"", None
    arguments = {name: getattr(method, name) for name in ("link", "device")}
    if is_classifier(method):
        reference: Any = ReferenceClassifier(network, **arguments)
    else:
        arguments["noise_variance"] = getattr(method, "noise_variance_", None)
        reference = ReferenceRegressor(network, measure=method.measure, **arguments)
    digest = _digest(method._reference.module) if hasattr(method, "_reference") else b""
    return digest, make_pipeline(*map(FrozenEstimator, transformers), reference)


@_checked(
    {"estimators": [dict, list], "component": _COMPONENT, "random_state": ["random_state"]}
    | {"n_resamples": [Interval(Integral, 1, None, closed="left")], "verbose": ["verbose"]}
    | {"confidence": [Interval(Real, 0, 1, closed="neither")]}
)
def compare_uncertainty(
    estimators: Any,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    y_test: Any,
    X_ood: Any = None,
    *,
    component: str = "epistemic",
    n_resamples: int = 200,
    confidence: float = 0.95,
    random_state: Any = None,
    verbose: int = 0,
) -> pd.DataFrame:
    """Compare how good the uncertainties of several methods are.

    Every method is asked once about each data set. What goes wrong with one method or task is
    told in its rows; the others go on.

    Parameters
    ----------
    estimators : dict of str to estimator, or list of estimators
        Methods of the package, or pipelines that end in one; all classifiers or all regressors.
        Fitted ones are taken as they are, others are cloned and fitted.
    X_train, y_train : array-likes of length n_train
        Training data.
    X_test, y_test : array-likes of length n_test
        Held-out data of the same kind.
    X_ood : array-like of length n_ood, or dict of str to array-like, default=None
        Data of other kinds, which are to be told from X_test.
    component : {"aleatoric", "epistemic", "total"}, default="epistemic"
        Which uncertainty of the methods.
    n_resamples : int, default=200
        Bootstrap resamples of the intervals; the same for all methods.
    confidence : float, default=0.95
        Coverage of the intervals.
    random_state : int, RandomState instance or None, default=None
        Seeds the resampling.
    verbose : int, default=0
        Whether to show a progress bar.

    Returns
    -------
    pandas.DataFrame
        A row for each ``method`` and ``task``. Tasks "ood:name" ("ood" for a single array) and
        "misclassification" (classifiers) have ``auroc``, ``aupr`` and ``fpr95``. The task
        "rejection" has ``accuracy_rejection_auc`` and ``ece`` (classifiers) or
        ``risk_coverage_auc`` of squared errors (regressors), and ``log_score``. Each comes with
        ``_low`` and ``_high``, the ends of its interval; what does not apply is NaN. Further
        columns: ``component``; ``seconds_per_point``, of the out-of-distribution or the test rows;
        ``fit_seconds``, NaN for what was fitted before; ``error``, empty where all went well.
        The last rows are the entropy of the network (its total uncertainty, without any method),
        one for each network if there are several.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import LaplaceClassifier
    >>> from sklearn_quam.model_selection import compare_uncertainty
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X[::2], y[::2])
    >>> methods = {"Laplace": LaplaceClassifier(net, random_state=0)}
    >>> data = (X[::2], y[::2], X[1::2], y[1::2], 5 * X[1::2])
    >>> frame = compare_uncertainty(methods, *data, n_resamples=20, random_state=0)
    >>> frame[["method", "task"]]
                       method               task
    0                 Laplace                ood
    1                 Laplace  misclassification
    2                 Laplace          rejection
    3  entropy of the network                ood
    4  entropy of the network  misclassification
    5  entropy of the network          rejection
    """
    import pandas as pd

    methods = _named(estimators)
    bootstrap = {"n_resamples": n_resamples, "confidence": confidence}
    # One seed for all: methods are compared on the same resamples.
    bootstrap["random_state"] = check_random_state(random_state).randint(np.iinfo(np.int32).max)
    sets = {f"ood:{name}": X for name, X in X_ood.items()} if isinstance(X_ood, dict) else {}
    if not isinstance(X_ood, (dict, type(None))):
        sets["ood"] = X_ood
    classification = any(map(_is_classifier, methods.values()))
    comparison = _Comparison((X_train, y_train, X_test, y_test), sets, classification, bootstrap)
    rows: list[dict[str, Any]] = []
    networks: dict[bytes, tuple[str, Any]] = {}
    for name, estimator in tqdm(methods.items(), unit="method", disable=not verbose):
        judged, estimator = comparison.judge(name, estimator, component)
        digest, reference = _entropy_of_network(estimator)
        networks.setdefault(digest, (name, reference))
        rows += judged
    if len(networks) > 1:
        networks.pop(b"", None)
    for number, (name, reference) in enumerate(networks.values()):
        label = f"{_ENTROPY} of {name}" if number else _ENTROPY
        rows += comparison.judge(label, reference, "total")[0]
    ends = [f"{metric}{end}" for metric in _METRICS for end in ("", "_low", "_high")]
    columns = ["method", "task", "component", *ends, "seconds_per_point", "fit_seconds", "error"]
    return pd.DataFrame(rows, columns=columns)
