"""Find the fitted method inside a pipeline or a search."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from .._network.adapters import split_pipeline
from .._network.inputs.rows import from_tensor
from .._posterior.results import COMPONENTS
from .checks.seen import warn_if_seen

# Allowed values of an argument `component`.
COMPONENT = [StrOptions(set(COMPONENTS))]
# Methods have the one, outlier detectors the other.
METHOD_OR_DETECTOR = ("predict_uncertainty", "score_samples")


def opened(
    estimator: Any, needs: str | tuple[str, ...] = "predict_uncertainty"
) -> tuple[list[Any], Any]:
    """Return the transformers in front of a method, and the method, which has one of the names."""
    if hasattr(estimator, "best_estimator_"):
        return opened(estimator.best_estimator_, needs)
    # A search has the methods of its estimator even if it is not refitted.
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
    """Return the fitted method, and samples as it takes them."""
    transformers, method = opened(estimator, needs)
    check_is_fitted(method)
    X = from_tensor(X)
    for step in transformers:
        X = step.transform(X)
    return method, X


def scored_method_and_rows(
    estimator: Any, X: Any, needs: str | tuple[str, ...] = "predict_uncertainty"
) -> tuple[Any, Any]:
    """Return the same as `method_and_rows`; warn if the samples are training data."""
    method, rows = method_and_rows(estimator, X, needs)
    warn_if_seen(method, rows)
    return method, rows


def doubt_of(estimator: Any, X: Any, component: str, *, scored: bool = False) -> np.ndarray:
    """Return a part of the uncertainty of samples, or minus the score of a detector."""
    find = scored_method_and_rows if scored else method_and_rows
    method, rows = find(estimator, X, METHOD_OR_DETECTOR)
    if hasattr(method, "predict_uncertainty"):
        if component == "doubt":
            return method.predict_doubt(rows)
        return finite(method.predict_uncertainty(rows)._part(component))
    return finite(-method.score_samples(rows))


def finite(doubt: np.ndarray) -> np.ndarray:
    """Return finite numbers, as metrics need them."""
    return np.where(doubt == np.inf, np.finfo(float).max, doubt)
