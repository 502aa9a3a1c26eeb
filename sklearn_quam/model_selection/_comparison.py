"""A table that compares methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import joblib
import numpy as np
from sklearn.base import clone, is_classifier, is_outlier_detector
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from torch import nn

from .._messages import checked_arguments, few
from .._network.adapters import is_fitted, is_pretrained, split_pipeline
from .._network.outputs import NETWORK_ERRORS
from .._posterior.progress import tracked
from .._posterior.results import COMPONENTS
from ..base._inside import (
    METHOD_OR_DETECTOR,
    finite,
    method_and_rows,
    opened,
    scored_method_and_rows,
)
from ..baselines import ReferenceClassifier, ReferenceRegressor
from ..exceptions import UncertaintyWarning, warn
from ..metrics import (
    accuracy_rejection_auc,
    augrc,
    bootstrap_interval,
    classwise_calibration_error,
    excess_augrc,
    expected_calibration_error,
    gaussian_log_score,
    rank_correlation,
    risk_coverage_auc,
    smooth_calibration_error,
)
from ..metrics._errors import as_labels, as_values, correct, log_probabilities, squared_errors
from ..metrics._ranking import DETECTION
from ..ood._core.once import clock, read_once
from ._summary import Comparison

_checked = partial(checked_arguments, prefer_skip_nested_validation=False)
_ENTROPY = "entropy of the network"
_DETECTION = ("roc_auc", "aupr", "fpr95")
_OF_PREDICTIONS = (
    "augrc",
    "excess_augrc",
    "accuracy",
    "accuracy_rejection_auc",
    "risk_coverage_auc",
    "ece",
)
_CALIBRATION = ("smooth_ece", "classwise_ece", "log_score")
_METRICS = (*_DETECTION, *_OF_PREDICTIONS, *_CALIBRATION, "rank_correlation")
_CONFIDENCE = "1 - max p of the network"
# Components besides the parts of an uncertainty.
_AUTO, _RISK = "auto", "1 - max p"
# Errors of a method that leave the other methods alone.
_METHOD_ERRORS = (*NETWORK_ERRORS, MemoryError)


class _Answers(NamedTuple):
    """Predictions of a method or detector for some samples, and their doubt."""

    method: Any
    doubt: np.ndarray
    prediction: np.ndarray | None
    variance: np.ndarray | None
    rows_per_second: float
    component: str = "score"
    uncertainty: Any = None


@dataclass(frozen=True)
class _Comparison:
    """The data and options that all methods of a comparison share."""

    data: tuple[Any, Any, Any, Any]
    held_out: dict[str, Any]
    ood_sets: dict[str, Any]
    classification: bool
    bootstrap: dict[str, Any]
    errors: str

    def judge(self, name: str, estimator: Any, component: str) -> tuple[list[dict], Any]:
        """Return a row for each task, and the estimator, fitted unless that failed."""
        row: dict[str, Any] = {"method": name, "component": component, "error": ""}
        of_classes = ["misclassification", "failures"] * self.classification
        tasks = [*self.ood_sets, *of_classes, "rejection"]
        X_train, y_train, X_test, _ = self.data
        if estimator is None:
            reason = "There is no network to compare with."
            return [row | {"task": task, "error": reason} for task in tasks], None
        try:
            if not is_fitted(estimator):
                start = clock()
                # A pipeline would not transform the held-out samples.
                held_out = self.held_out if hasattr(estimator, "predict_doubt") else {}
                estimator = clone(estimator).fit(X_train, y_train, **held_out)
                row["fit_seconds"] = clock() - start
            answers = self._ask(estimator, X_test, component, scored=True)
        except _METHOD_ERRORS as error:
            row |= self._failure(error, name)
            return [row | {"task": task} for task in tasks], estimator
        row["trains_again"] = getattr(answers.method, "_trains_again", False)
        row["component"] = answers.component
        asked: dict[str, _Answers] = {}
        rows = [row | {"task": task} for task in tasks]
        for row in rows:
            try:
                for column, value in self._judge_task(row["task"], estimator, answers, asked):
                    row[column] = value
            except UndefinedMetricWarning as reason:
                row["error"] = str(reason)
            except _METHOD_ERRORS as error:
                row |= self._failure(error, f"{name}, task {row['task']}")
        return rows, estimator

    def _failure(self, error: Exception, where: str) -> dict[str, Any]:
        """Return the columns of a row that has failed, unless errors are to be raised."""
        if self.errors == "raise":
            error.add_note(
                f"compare_uncertainty: {where}. With errors='warn' the others are judged anyway."
            )
            raise error
        return {"error": f"{type(error).__name__}: {error}", "failed": True}

    def _ask(self, estimator: Any, X: Any, component: str, *, scored: bool = False) -> _Answers:
        find = scored_method_and_rows if scored else method_and_rows
        method, rows = find(estimator, X, METHOD_OR_DETECTOR)
        start = clock()
        if _task_of(method) not in (None, "classifier" if self.classification else "regressor"):
            raise TypeError("Classifiers and regressors cannot be compared with each other.")
        if hasattr(method, "predict_uncertainty"):
            results = method._results(rows)
            uncertainty = results.uncertainty
            if component == _AUTO:
                component = "epistemic" if uncertainty.doubt is None else "doubt"
            if component == _RISK:
                doubt = 1 - results.prediction.max(axis=1)
            else:
                doubt = finite(uncertainty._part(component))
            rate = len(doubt) / (clock() - start)
            found = (method, doubt, results.prediction, results.variance, rate)
            return _Answers(*found, component, uncertainty)
        doubt = finite(-method.score_samples(rows))
        rate = len(doubt) / (clock() - start)
        # A detector around a network is judged by the network's predictions, others have none.
        proba = method._network_prediction(rows) if _task_of(method) else None
        return _Answers(method, doubt, proba, None, rate)

    def _judge_task(
        self, task: str, estimator: Any, answers: _Answers, asked: dict[str, _Answers]
    ) -> Iterator[tuple[str, float]]:
        """Yield columns and their values."""
        uncertainty, y_test = answers.doubt, self.data[-1]
        if task in self.ood_sets:
            component = answers.component
            asked[task] = strange = self._ask(estimator, self.ood_sets[task], component)
            yield "rows_per_second", strange.rows_per_second
            is_ood = np.repeat([0, 1], [len(uncertainty), len(strange.doubt)])
            yield from self._detection(is_ood, np.concatenate([uncertainty, strange.doubt]))
            return
        yield "rows_per_second", answers.rows_per_second
        method, prediction = answers.method, answers.prediction
        if prediction is None:
            return
        if not self.classification:
            y_test = as_values(y_test, prediction)
            loss = squared_errors(y_test, prediction)
            yield from self._interval("risk_coverage_auc", risk_coverage_auc, loss, uncertainty)
            gaussian = (y_test, prediction, answers.variance)
            yield from self._interval("log_score", gaussian_log_score, *gaussian)
            return
        y_test = as_labels(y_test, prediction)
        is_correct = correct(method._decide(prediction), y_test)
        if task == "misclassification":
            yield from self._detection(~is_correct, uncertainty)
            return
        if task == "failures":
            unknown = [one.doubt for one in asked.values()]
            doubt = np.concatenate([uncertainty, *unknown])
            is_failure = np.r_[~is_correct, np.ones(len(doubt) - len(uncertainty), bool)]
            for name, area in (("augrc", augrc), ("excess_augrc", excess_augrc)):
                yield from self._interval(name, area, is_failure.astype(float), doubt)
            yield from self._detection(is_failure, doubt)
            return
        yield from self._interval("accuracy", np.mean, is_correct.astype(float))
        rejection = (accuracy_rejection_auc, is_correct, uncertainty)
        yield from self._interval("accuracy_rejection_auc", *rejection)
        calibration = (expected_calibration_error, y_test, prediction)
        yield from self._interval("ece", *calibration, labels=method.classes_)
        for column, metric in (
            ("smooth_ece", smooth_calibration_error),
            ("classwise_ece", classwise_calibration_error),
        ):
            yield column, metric(y_test, prediction, labels=method.classes_)
        if answers.uncertainty is not None:
            yield "rank_correlation", rank_correlation(*list(map(finite, answers.uncertainty))[:2])
        log_proba = log_probabilities(y_test, prediction, method.classes_)
        yield from self._interval("log_score", np.mean, log_proba)

    def _detection(self, y_true: Any, y_score: np.ndarray) -> Iterator[tuple[str, float]]:
        if len(set(y_true.tolist())) == 1:
            raise UndefinedMetricWarning(
                f"{'All' if y_true[0] else 'No'} predictions are mistakes."
            )
        for column in _DETECTION:
            metric = DETECTION[column][0]
            yield from self._interval(column, metric, y_true, y_score, stratify=y_true)

    def _interval(
        self, column: str, metric: Callable[..., Any], *arrays: Any, **options: Any
    ) -> Iterator[tuple[str, float]]:
        found = bootstrap_interval(metric, *arrays, **self.bootstrap, **options)
        yield from zip([column, f"{column}_low", f"{column}_high"], found, strict=True)


def _warn_about_failures(rows: list[dict[str, Any]]) -> None:
    """Warn which methods have failed."""
    failed = [row for row in rows if row.get("failed")]
    if failed:
        names = list(dict.fromkeys(row["method"] for row in failed))
        warn(
            f"{few(names)} failed in {len(failed)} row(s) of the table, whose column 'error' says "
            f"why. The first: {failed[0]['error']}",
            UncertaintyWarning,
        )


def _task_of(method: Any) -> str | None:
    """Return the task of a method or detector of the package, None of others."""
    return getattr(method, "_task", None)


def _is_for_classes(estimator: Any) -> bool:
    """Return whether a method, or a search over one, is about classes."""
    if not hasattr(estimator, "__sklearn_tags__"):
        return False
    while hasattr(estimator, "cv") and hasattr(estimator, "estimator"):
        estimator = estimator.estimator
    if is_classifier(estimator):
        return True
    return is_outlier_detector(estimator) and _task_of(split_pipeline(estimator)[1]) == "classifier"


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


def _digest(module: nn.Module) -> str:
    """Return the same for copies of a network."""
    weights = (*module.named_parameters(), *module.named_buffers())
    return joblib.hash([(name, weight.numpy(force=True)) for name, weight in weights])


def _entropy_of_network(estimator: Any) -> tuple[str, Any]:
    """Return a digest of the network's weights, and the network alone as a method, or None."""
    try:
        transformers, method = opened(estimator, METHOD_OR_DETECTOR)
    except TypeError:
        return "", None
    network = getattr(method, "estimator_", getattr(method, "estimator", None))
    if _task_of(method) is None or not is_pretrained(network):
        return "", None
    arguments = {name: getattr(method, name) for name in ("link", "output", "device")}
    if _task_of(method) == "classifier":
        reference: Any = ReferenceClassifier(network, **arguments)
    else:
        arguments["noise_variance"] = getattr(method, "noise_variance_", None)
        reference = ReferenceRegressor(network, measure=method.measure, **arguments)
    fitted = getattr(method, "_fitted", None)
    digest = "" if fitted is None else _digest(fitted.reference.module)
    return digest, make_pipeline(*map(FrozenEstimator, transformers), reference)


WHICH = [StrOptions({*COMPONENTS, _AUTO})]


@_checked(
    {"estimators": [dict, list], "component": WHICH, "random_state": ["random_state"]}
    | {"n_resamples": [Interval(Integral, 1, None, closed="left")], "verbose": ["verbose", None]}
    | {"confidence": [Interval(Real, 0, 1, closed="neither")]}
    | {"errors": [StrOptions({"raise", "warn"})]}
)
def compare_uncertainty(
    estimators: Any,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    y_test: Any,
    X_ood: Any = None,
    *,
    X_val: Any = None,
    y_val: Any = None,
    component: str = "auto",
    n_resamples: int = 200,
    confidence: float = 0.95,
    random_state: Any = None,
    verbose: int | None = None,
    errors: str = "raise",
) -> Comparison:
    """Compare how well methods and detectors find mistakes and unknown samples.

    Parameters
    ----------
    estimators : dict of str to estimator, or list of estimators
        Methods and detectors of the package, other outlier detectors such as scikit-learn's
        ``IsolationForest`` or ``LocalOutlierFactor(novelty=True)``, pipelines that end in one, or
        searches over either; all classifiers or all regressors. Fitted ones are taken as they are,
        others are cloned and fitted. Those of a list are named after their classes.
    X_train, y_train : array-likes of length n_train
        Training data.
    X_test, y_test : array-likes of length n_test
        Held-out data of the same kind.
    X_ood : array-like of length n_ood, or dict of str to array-like, default=None
        Data of other kinds, to be separated from X_test.
    X_val, y_val : array-likes of length n_val, default=None
        Further held-out data for the ``fit`` of methods, which then know doubt.
    component : {"auto", "aleatoric", "epistemic", "total", "doubt"}, default="auto"
        Which uncertainty of the methods, in all tasks. "auto" is doubt where it is known, else the
        epistemic one.
    n_resamples : int, default=200
        Bootstrap resamples of the intervals; the same for all methods.
    confidence : float, default=0.95
        Coverage of the intervals.
    random_state : int, RandomState instance or None, default=None
        Seeds the resampling.
    verbose : int, default=None
        1 shows progress bars, 0 none; None shows those that take more than about ten seconds.
    errors : {"raise", "warn"}, default="raise"
        What happens where a method or a task fails: "raise" raises the error; "warn" warns, puts
        the error into the column ``error``, and goes on with the others.

    Returns
    -------
    Comparison
        Printed with a line for each method, tasks side by side; ``to_frame()`` returns that. Its
        ``details`` have a row for each ``method`` and ``task``, with the ends of each interval as
        ``_low`` and ``_high``, and NaN where a metric does not apply. Tasks "ood:name" ("ood" for a
        single array), "misclassification" and "failures" (classifiers; mistakes and all unknown
        samples together) have ``roc_auc``, ``aupr`` and ``fpr95``, the last one ``augrc`` and
        ``excess_augrc``, too. The task "rejection" has ``accuracy``, ``accuracy_rejection_auc``,
        ``ece``, ``smooth_ece``, ``classwise_ece`` and ``rank_correlation`` (classifiers) or
        ``risk_coverage_auc`` of squared errors (regressors), and ``log_score``, by the ``setting``
        of a method or the network of a detector. Further columns: ``component`` ("score" for
        detectors), ``rows_per_second``, ``fit_seconds`` (NaN for what was fitted before),
        ``trains_again`` (whether a method trains networks besides the given one), and ``error``,
        which says why numbers are missing. The last rows are 1 - max p and the entropy of the given
        network, or of each network if there are several.

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
    >>> found = compare_uncertainty(methods, *data, n_resamples=20, random_state=0)
    >>> list(found.to_frame().columns)
    ['unknown', 'mistakes', 'both', 'augrc', 'accuracy', 'ece', 'log_score', 'rows_per_second']
    >>> sorted(found.to_frame().index)
    ['1 - max p of the network', 'Laplace', 'entropy of the network']
    >>> list(found.details.task.unique())
    ['ood', 'misclassification', 'failures', 'rejection']
    """
    import pandas as pd

    methods = _named(estimators)
    bootstrap = {"n_resamples": n_resamples, "confidence": confidence}
    # One seed for all: methods are compared on the same resamples.
    bootstrap["random_state"] = check_random_state(random_state).randint(np.iinfo(np.int32).max)
    sets = {f"ood:{name}": X for name, X in X_ood.items()} if isinstance(X_ood, dict) else {}
    if not isinstance(X_ood, (dict, type(None))):
        sets["ood"] = X_ood
    classification = any(map(_is_for_classes, methods.values()))
    data = (X_train, y_train, X_test, y_test)
    if (X_val is None) != (y_val is None):
        raise ValueError("X_val and y_val go together: pass both or neither.")
    held_out = {} if X_val is None else {"X_val": X_val, "y_val": y_val}
    comparison = _Comparison(data, held_out, sets, classification, bootstrap, errors)
    rows: list[dict[str, Any]] = []
    networks: dict[str, tuple[str, Any]] = {}
    with read_once():
        for name, estimator in tracked(methods.items(), "Comparing", verbose, unit="method"):
            judged, estimator = comparison.judge(name, estimator, component)
            digest, reference = _entropy_of_network(estimator)
            networks.setdefault(digest, (name, reference))
            rows += judged
    if len(networks) > 1:
        networks.pop("", None)
    for number, (name, reference) in enumerate(networks.values()):
        of_whom = f" of {name}" if number else ""
        if classification:
            rows += comparison.judge(_CONFIDENCE + of_whom, reference, _RISK)[0]
        rows += comparison.judge(_ENTROPY + of_whom, reference, "total")[0]
    _warn_about_failures(rows)
    ends = [f"{metric}{end}" for metric in _METRICS for end in ("", "_low", "_high")]
    costs = ["rows_per_second", "fit_seconds", "trains_again"]
    columns = ["method", "task", "component", *ends, *costs, "error"]
    return Comparison(pd.DataFrame(rows, columns=columns), classification)
