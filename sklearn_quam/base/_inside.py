"""From a pipeline or a search to the method inside, and what that says about rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, column_or_1d

from .._messages import cut, shown
from .._network.adapters import column_of_label, split_pipeline
from .._network.inputs.layouts import from_tensor
from .._posterior.results import COMPONENTS
from .checks.seen import warn_if_seen

# What `validate_params` allows as a part of the uncertainty.
COMPONENT = [StrOptions(set(COMPONENTS))]


# What has one of these says how doubtful a row is: methods, and outlier detectors.
METHOD_OR_DETECTOR = ("predict_uncertainty", "score_samples")


def opened(
    estimator: Any, needs: str | tuple[str, ...] = "predict_uncertainty"
) -> tuple[list[Any], Any]:
    """Return the transformers in front of a method, and the method, which can do what is needed.

    Of several names that are needed, one is enough.
    """
    if hasattr(estimator, "best_estimator_"):
        return opened(estimator.best_estimator_, needs)
    # Searches have what their estimators have, but need not be fitted.
    is_search = hasattr(estimator, "cv")
    before, last = (None, estimator) if is_search else split_pipeline(estimator)
    if last is not estimator:
        transformers, method = opened(last, needs)
        return ([] if before is None else [before]) + transformers, method
    names = (needs,) if isinstance(needs, str) else needs
    if is_search or not any(hasattr(estimator, name) for name in names):
        hint = " Fit the search with refit=True first." if is_search else ""
        if hasattr(estimator, "novelty"):
            hint = " LocalOutlierFactor judges new rows with novelty=True."
        raise TypeError(
            f"{type(estimator).__name__} has no {' or '.join(names)}: pass an estimator such as "
            f"QUAMClassifier, or a pipeline that ends in one.{hint}"
        )
    return [], estimator


def method_and_rows(
    estimator: Any, X: Any, needs: str | tuple[str, ...] = "predict_uncertainty"
) -> tuple[Any, Any]:
    """Return the fitted method, and rows as it takes them."""
    transformers, method = opened(estimator, needs)
    check_is_fitted(method)
    X = from_tensor(X)
    for step in transformers:
        X = step.transform(X)
    return method, X


def scored_method_and_rows(
    estimator: Any, X: Any, needs: str | tuple[str, ...] = "predict_uncertainty"
) -> tuple[Any, Any]:
    """Return the fitted method, and rows that it is scored on, with a warning if it knows them."""
    method, rows = method_and_rows(estimator, X, needs)
    warn_if_seen(method, rows)
    return method, rows


def doubt_of(estimator: Any, X: Any, component: str, *, scored: bool = False) -> np.ndarray:
    """Return how doubtful rows are: a part of their uncertainty, or minus a detector's score."""
    find = scored_method_and_rows if scored else method_and_rows
    method, rows = find(estimator, X, METHOD_OR_DETECTOR)
    if hasattr(method, "predict_uncertainty"):
        if component == "doubt":
            return method.predict_doubt(rows)
        return finite(method.predict_uncertainty(rows)._part(component))
    return finite(-method.score_samples(rows))


def finite(doubt: np.ndarray) -> np.ndarray:
    """Return numbers that metrics take: what is infinitely doubtful stays the most doubtful."""
    return np.where(doubt == np.inf, np.finfo(float).max, doubt)


def as_labels(y: Any, like: Any) -> np.ndarray:
    y = column_or_1d(from_tensor(y))
    check_consistent_length(y, like)
    return y


def correct(prediction: np.ndarray, y: Any) -> np.ndarray:
    """Return which predicted labels are the true ones."""
    y = as_labels(y, prediction)
    # Compared with numbers, texts are never equal: everything would be a mistake, silently.
    if isinstance(y[0], str) != isinstance(prediction[0], str):
        raise TypeError(
            f"y holds labels such as {shown(y[0])}, but predictions are such as "
            f"{shown(prediction[0])}."
        )
    return prediction == y


def as_values(y: Any, like: Any) -> np.ndarray:
    """Return values as a matrix with a column for each output."""
    try:
        y = np.asarray(from_tensor(y), dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"y must hold numbers: {cut(error)}.") from error
    check_consistent_length(y, like)
    return y.reshape(len(y), -1)


def squared_errors(y: Any, prediction: np.ndarray) -> np.ndarray:
    """Return the squared error of each row, the mean over its outputs."""
    y, prediction = as_values(y, prediction), as_values(prediction, y)
    if y.shape != prediction.shape:
        raise ValueError(
            f"y has {y.shape[1]} value(s) a row, but {prediction.shape[1]} are predicted."
        )
    return ((y - prediction) ** 2).mean(axis=1)


def log_probabilities(y: Any, proba: np.ndarray, classes: np.ndarray) -> np.ndarray:
    y = as_labels(y, proba)
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise ValueError(
            f"y has labels that the classifier does not know: {shown(set(y[unknown].tolist()))}."
        )
    with np.errstate(divide="ignore"):
        return np.log(proba[np.arange(len(y)), column_of_label(classes, y)])
