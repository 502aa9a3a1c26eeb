"""From a pipeline or a search to the method inside, and what that says about rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import column_or_1d

from ._adapters import column_of_label, split_pipeline
from ._rows import from_tensor


def opened(estimator: Any) -> tuple[list[Any], Any]:
    """Return the transformers in front of a method, and the method."""
    if hasattr(estimator, "best_estimator_"):
        return opened(estimator.best_estimator_)
    before, last = split_pipeline(estimator)
    if last is not estimator:
        transformers, method = opened(last)
        return ([] if before is None else [before]) + transformers, method
    if not hasattr(estimator, "predict_uncertainty"):
        hint = " Fit the search with refit=True first." if hasattr(estimator, "cv") else ""
        raise TypeError(
            f"{type(estimator).__name__} has no predict_uncertainty: pass an estimator such as "
            f"QUAMClassifier, or a pipeline that ends in one.{hint}"
        )
    return [], estimator


def method_and_rows(estimator: Any, X: Any) -> tuple[Any, Any]:
    """Return the method, and rows as it takes them."""
    transformers, method = opened(estimator)
    for step in transformers:
        X = step.transform(X)
    return method, X


def uncertainty_of(estimator: Any, X: Any) -> Any:
    method, rows = method_and_rows(estimator, X)
    return method.predict_uncertainty(rows)


def as_labels(y: Any, like: Any) -> np.ndarray:
    y = column_or_1d(from_tensor(y))
    check_consistent_length(y, like)
    return y


def as_values(y: Any, like: Any) -> np.ndarray:
    """Return values as a matrix with a column for each output."""
    y = np.asarray(from_tensor(y), dtype=float)
    check_consistent_length(y, like)
    return y.reshape(len(y), -1)


def squared_errors(y: Any, prediction: np.ndarray) -> np.ndarray:
    """Return the squared error of each row, the mean over its outputs."""
    return ((as_values(y, prediction) - as_values(prediction, y)) ** 2).mean(axis=1)


def log_probabilities(y: Any, proba: np.ndarray, classes: np.ndarray) -> np.ndarray:
    y = as_labels(y, proba)
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise ValueError(f"y has labels that the classifier does not know: {set(y[unknown])}.")
    with np.errstate(divide="ignore"):
        return np.log(proba[np.arange(len(y)), column_of_label(classes, y)])
