"""Estimators around a network, opened: pipelines, searches, transformed targets."""

from __future__ import annotations

from typing import Any

from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import nn

WRAPPERS = (FrozenEstimator, BaseSearchCV, TransformedTargetRegressor)


def inside(wrapper: Any) -> Any:
    """Return the wrapped estimator, the fitted one if there is one."""
    if isinstance(wrapper, FrozenEstimator):
        return wrapper.estimator
    if isinstance(wrapper, BaseSearchCV):
        if hasattr(wrapper, "cv_results_") and not hasattr(wrapper, "best_estimator_"):
            raise TypeError(
                f"This {type(wrapper).__name__} was fitted with refit=False, so that it holds no "
                "network. Fit it with refit=True, or pass a network that has the best parameters."
            )
        return getattr(wrapper, "best_estimator_", wrapper.estimator)
    default = LinearRegression() if wrapper.regressor is None else wrapper.regressor
    return getattr(wrapper, "regressor_", default)


def split_pipeline(estimator: Any) -> tuple[Pipeline | None, Any]:
    """Return the transformers that run before the network (or None) and the network's estimator."""
    if isinstance(estimator, WRAPPERS):
        return split_pipeline(inside(estimator))
    if not isinstance(estimator, Pipeline):
        return None, estimator
    inner, final = split_pipeline(estimator[-1])
    steps = list(estimator.steps[:-1]) + (inner.steps if inner is not None else [])
    return (Pipeline(steps) if steps else None), final


def is_pretrained(estimator: Any) -> bool:
    """Return whether an estimator holds a network that is not trained again.

    A pipeline is judged by its last step; its transformers must be fitted, too.
    """
    if isinstance(estimator, nn.Module):
        return True
    last, frozen = estimator, False
    while isinstance(last, (Pipeline, *WRAPPERS)):
        if isinstance(last, (BaseSearchCV, TransformedTargetRegressor)):
            return is_fitted(last)
        frozen = frozen or isinstance(last, FrozenEstimator)
        last = last.estimator if isinstance(last, FrozenEstimator) else last[-1]
    if frozen and isinstance(estimator, Pipeline):
        transformers = split_pipeline(estimator)[0]
        if transformers is not None and not all(is_fitted(step) for _, step in transformers.steps):
            return False
    return isinstance(last, nn.Module) or is_fitted(last)


def is_fitted(estimator: Any) -> bool:
    """Return whether an estimator is fitted."""
    if estimator is None or isinstance(estimator, str):  # a step may be "passthrough"
        return estimator is not None
    try:
        check_is_fitted(estimator)
    except (NotFittedError, TypeError):
        return False
    return True
