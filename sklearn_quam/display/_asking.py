"""What displays ask estimators for, and checks of what users pass."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier

from .._messages import shown
from .._posterior.results import COMPONENTS, INFINITE, Uncertainty
from ..base._conformal import rows_needed
from ..base._inside import METHOD_OR_DETECTOR, method_and_rows
from ..metrics._checked import numbers

SCORE = "score"
# The share of known samples below the thresholds that are drawn.
KNOWN_SHARE = 0.95
_UNITS = {
    "entropy": "nats",
    "variance": "squared units of y",
    "brier": "Brier score",
    "zero_one": "zero-one loss",
}


class Answers(NamedTuple):
    """What a method or a detector says about samples; a detector's score stands for all parts."""

    method: Any
    uncertainty: Uncertainty
    unit: str
    labels: np.ndarray | None
    proba: np.ndarray | None
    rivals: np.ndarray | None


def ask(estimator: Any, X: Any) -> Answers:
    """Return what a method or a detector says about samples."""
    method, rows = method_and_rows(estimator, X, METHOD_OR_DETECTOR)
    rivals = prediction = None
    if hasattr(method, "predict_uncertainty"):
        results = method._results(rows)
        uncertainty, prediction = results.uncertainty, results.prediction
        unit, classifies = _UNITS[getattr(method, "measure", "entropy")], is_classifier(method)
        found = results.diagnostics
        if found.rival is not None:
            # A rival that explains the training data badly is none.
            rivals = np.where(found.feasible, found.rival, np.array(None))
    else:
        doubt = np.minimum(-method.score_samples(rows), INFINITE)
        uncertainty, unit = Uncertainty(doubt, doubt, doubt, doubt), SCORE
        classifies = hasattr(method, "_network_prediction")
        prediction = method._network_prediction(rows) if classifies else None
    labels = None if prediction is None else method._decide(prediction)
    return Answers(method, uncertainty, unit, labels, prediction if classifies else None, rivals)


def threshold_of(method: Any, component: str) -> float | None:
    """Return what 95 % of known samples do not exceed, if there are enough of them."""
    if len(getattr(method, "_known_rows", ())) < rows_needed(KNOWN_SHARE):
        return None
    return method.threshold(KNOWN_SHARE, component=component)


def axis_label(component: str, unit: str) -> str:
    """Return the label of an axis that shows a part of the uncertainty, or a score."""
    if unit == SCORE:
        return "minus the score"
    if component == "doubt":
        return "doubt (share of known samples that are less doubtful)"
    return f"{component} uncertainty ({unit})"


def check_component(component: Any) -> str:
    """Return the name of a part of the uncertainty, if it is one."""
    if component not in COMPONENTS:
        raise ValueError(f"component must be one of {COMPONENTS}; got {shown(component)}.")
    return component


def check_vector(values: Any, name: str) -> np.ndarray:
    """Return finite numbers as an array of shape (n_samples,)."""
    values = numbers(values, name)
    if values.ndim != 1:
        raise ValueError(f"{name} must be of shape (n_samples,); got {values.shape}.")
    return values


def check_table(X: Any) -> tuple[np.ndarray, list[str]]:
    """Return samples as an array of shape (n_samples, n_features), and names of the features."""
    points = numbers(X, "X")
    if points.ndim != 2:
        raise ValueError(f"X must be a table of shape (n_samples, n_features); got {points.shape}.")
    if hasattr(X, "columns"):
        return points, [str(name) for name in X.columns]
    return points, [f"feature {number}" for number in range(points.shape[1])]


def like_table(values: np.ndarray, X: Any) -> Any:
    """Return rows as a DataFrame with the columns of X, if X is one."""
    return type(X)(values, columns=X.columns) if hasattr(X, "iloc") else values


def axis_values(values: np.ndarray, n_points: Any, limits: Any = None) -> np.ndarray:
    """Return points between limits, or if these are None, around the values."""
    if not isinstance(n_points, Integral) or n_points < 2:
        raise ValueError(f"grid_resolution must be a whole number from 2; got {shown(n_points)}.")
    if limits is None:
        # Values that are all the same have no scale.
        room = 0.2 * np.ptp(values) or 1.0
        limits = values.min() - room, values.max() + room
    if np.shape(limits) != (2,):
        raise ValueError(f"xlim must be a pair of numbers; got {shown(limits)}.")
    first, last = numbers(limits, "xlim")
    return np.linspace(first, last, int(n_points))
