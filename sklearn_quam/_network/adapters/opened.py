"""Estimators around a network, opened: pipelines, searches, transformed targets."""

from __future__ import annotations

from typing import Any

import numpy as np
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


def target_scale(estimator: Any, n_outputs: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return factors and shifts from what the network predicts to the target; None for neither."""
    scale, shift, found = np.ones(n_outputs), np.zeros(n_outputs), False
    while isinstance(estimator, (*WRAPPERS, Pipeline)):
        if isinstance(estimator, TransformedTargetRegressor):
            own_scale, own_shift = _affine(estimator.transformer_, n_outputs)
            # The outermost transformation is undone last.
            scale, shift, found = scale * own_scale, shift + scale * own_shift, True
        estimator = estimator[-1] if isinstance(estimator, Pipeline) else inside(estimator)
    return (scale, shift) if found else None


def _affine(transformer: Any, n_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return factors and shifts of a transformer's inverse; refuse other transformers."""
    points = np.array([[-3.0], [-1.0], [0.0], [1.0], [3.0], [10.0]]) * np.ones(n_outputs)
    with np.errstate(all="ignore"):
        values = np.asarray(transformer.inverse_transform(points), float)
    shift = values[2]
    scale = values[3] - shift
    if not np.allclose(values, points * scale + shift, rtol=1e-6) or not (scale != 0).all():
        raise ValueError(
            "The TransformedTargetRegressor transforms the target by more than a factor and a "
            "shift, so that Gaussians around what the network predicts are none around the target. "
            "Pass the network itself (its regressor_) with the transformed target as y."
        )
    return scale, shift
