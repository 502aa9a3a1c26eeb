"""What pictures ask estimators for."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier

from .._messages import shown
from .._network.inputs.layouts import from_tensor
from .._posterior.results import COMPONENTS, INFINITE, SearchDiagnostics, Uncertainty
from ..base._conformal import rows_needed
from ..base._inside import METHOD_OR_DETECTOR, method_and_rows
from ..metrics._checked import numbers

SCORE = "score"
# Of known rows, so many are below the thresholds that are drawn.
KNOWN_SHARE = 0.95
UNITS = {
    "entropy": "nats",
    "variance": "squared units of y",
    "brier": "Brier score",
    "zero_one": "zero-one loss",
}


class Answers(NamedTuple):
    """What a method or a detector says about rows.

    Parameters
    ----------
    method : object
        The method or detector inside of what was asked.
    uncertainty : Uncertainty
        A detector has one score, which stands for all parts.
    prediction : ndarray or None
        Probabilities or values; None where there is no network.
    is_classifier : bool
        Whether these are probabilities.
    rivals : ndarray or None
        What else rows might be; None where there is nothing to say.
    """

    method: Any
    uncertainty: Uncertainty
    prediction: np.ndarray | None
    is_classifier: bool
    rivals: np.ndarray | None


def ask(estimator: Any, X: Any) -> Answers:
    """Return what a method or a detector says about rows."""
    method, rows = method_and_rows(estimator, X, METHOD_OR_DETECTOR)
    if hasattr(method, "predict_uncertainty"):
        results = method._results(rows)
        found, rivals = results.diagnostics, None
        if isinstance(found, SearchDiagnostics):
            # A rival that explains the training data badly is none.
            rivals = np.where(found.feasible, found.rival, np.array(None))
        found_for = results.uncertainty, results.prediction
        return Answers(method, *found_for, is_classifier(method), rivals)
    doubt = np.minimum(-method.score_samples(rows), INFINITE)
    holds_network = hasattr(method, "_network_prediction")
    proba = method._network_prediction(rows) if holds_network else None
    return Answers(method, Uncertainty(doubt, doubt, doubt, doubt), proba, holds_network, None)


def threshold_of(method: Any, component: str) -> float | None:
    """Return what 95 % of known rows do not exceed, if there are enough of them."""
    known = getattr(method, "_known_rows", ())
    if len(known) < rows_needed(KNOWN_SHARE):
        return None
    return method.threshold(KNOWN_SHARE, component=component)


def within_range(doubt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what can be drawn, and which rows are beyond the range: their doubt is infinite.

    These are drawn as the largest other: a scale up to 1e300 would show nothing.
    """
    beyond = doubt >= INFINITE
    known = doubt[~beyond]
    return np.where(beyond, known.max() if len(known) else 0.0, doubt), beyond


def label(component: str, unit: str) -> str:
    """Return what an axis is called that shows a part of the uncertainty, or a score."""
    if unit == SCORE:
        return "minus the score"
    if component == "doubt":
        return "doubt (share of known rows that are less doubtful)"
    return f"{component} uncertainty ({unit})"


def check_component(component: str) -> str:
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


def as_array(values: Any, name: str) -> np.ndarray:
    """Return anything as an array, unless its rows differ in length."""
    try:
        return np.asarray(from_tensor(values))
    except ValueError as error:
        raise ValueError(f"{name} must have rows of the same length.") from error


def unit(estimator: Any) -> str:
    """Return what the uncertainty of an estimator is measured in."""
    if not hasattr(estimator, "predict_uncertainty"):
        return SCORE
    return UNITS[getattr(estimator, "measure", "entropy")]


def column_names(X: Any, n_columns: int) -> list[str]:
    """Return the names of the features, or their numbers."""
    if hasattr(X, "columns"):
        return [str(name) for name in X.columns]
    return [f"feature {number}" for number in range(n_columns)]


def like_table(values: np.ndarray, X: Any) -> Any:
    """Return rows as a DataFrame with the columns of X, if X is one."""
    return type(X)(values, columns=X.columns) if hasattr(X, "iloc") else values


def check_table(X: Any) -> np.ndarray:
    """Return rows of numbers as an array of shape (n_samples, n_features)."""
    points = numbers(X, "X")
    if points.ndim != 2:
        raise ValueError(f"X must be a table of shape (n_samples, n_features); got {points.shape}.")
    return points


def axis_values(
    values: np.ndarray, n_points: Any, eps: Any = None, limits: Any = None, name: str = "xlim"
) -> np.ndarray:
    """Return points along an axis that shows values and some room beyond.

    Parameters
    ----------
    values : ndarray of shape (n_samples,)
        What is to be seen.
    n_points : int
        What the user passed as ``grid_resolution``.
    eps : float or None
        Room beyond the values; None takes a fifth of their range.
    limits : tuple of float or None
        First and last point, instead of `eps`.
    name : str, default="xlim"
        What the user calls the limits.

    Returns
    -------
    ndarray of shape (n_points,)
        The points, evenly spaced.
    """
    if not isinstance(n_points, Integral) or n_points < 2:
        raise ValueError(f"grid_resolution must be a whole number from 2; got {shown(n_points)}.")
    if limits is None:
        if eps is not None and not (isinstance(eps, Real) and math.isfinite(eps)):
            raise ValueError(f"eps must be a number or None; got {shown(eps)}.")
        # Values that are all the same have no scale.
        room = (0.2 * np.ptp(values) or 1.0) if eps is None else float(eps)
        limits = values.min() - room, values.max() + room
    if np.shape(limits) != (2,):
        raise ValueError(f"{name} must be a pair of numbers; got {shown(limits)}.")
    first, last = numbers(limits, name)
    return np.linspace(first, last, int(n_points))
