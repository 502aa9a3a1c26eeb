"""What pictures ask estimators for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils import check_array

from .._posterior.results import SearchDiagnostics, Uncertainty
from ..base._inside import METHOD_OR_DETECTOR, method_and_rows

SCORE = "score"


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
        shown = Uncertainty(*map(_drawable, results.uncertainty))
        return Answers(method, shown, results.prediction, is_classifier(method), rivals)
    doubt = _drawable(-method.score_samples(rows))
    holds_network = hasattr(method, "_network_prediction")
    proba = method._network_prediction(rows) if holds_network else None
    return Answers(method, Uncertainty(doubt, doubt, doubt), proba, holds_network, None)


def _drawable(doubt: np.ndarray) -> np.ndarray:
    """Return what can be drawn: infinite doubt as large as the largest other."""
    known = doubt[np.isfinite(doubt)]
    return np.where(doubt == np.inf, known.max() if len(known) else 0.0, doubt)


def label(component: str, unit: str) -> str:
    """Return what an axis is called that shows a part of the uncertainty, or a score."""
    return "minus the score" if unit == SCORE else f"{component} uncertainty ({unit})"


def check_component(component: str) -> str:
    """Return the name of a part of the uncertainty, if it is one."""
    if component not in Uncertainty._fields:
        raise ValueError(f"component must be one of {Uncertainty._fields}; got {component!r}.")
    return component


def check_vector(values: Any, name: str) -> np.ndarray:
    """Return finite numbers as an array of shape (n_samples,)."""
    values = check_array(values, ensure_2d=False, dtype="numeric", input_name=name)
    if values.ndim != 1:
        raise ValueError(f"{name} must be of shape (n_samples,); got {values.shape}.")
    return values


def check_row(x: Any) -> Any:
    """Return a single row as rows of a table, however it was passed."""
    if hasattr(x, "to_frame"):  # a row of a DataFrame
        return x.to_frame().T.infer_objects()
    if not hasattr(x, "shape"):
        x = np.asarray(x)
    # A vector of texts or objects is a column of rows for the transformers of a pipeline.
    is_column = hasattr(x, "dtype") and getattr(x.dtype, "kind", "f") in "OUS"
    if len(x.shape) == 1 and not is_column:
        x = x[None]
    if len(x) != 1:
        raise ValueError(f"x must be a single row; got {len(x)} rows. Pass X[i : i + 1].")
    return x


def unit(estimator: Any) -> str:
    """Return what the uncertainty of an estimator is measured in."""
    if not hasattr(estimator, "predict_uncertainty"):
        return SCORE
    if getattr(estimator, "measure", "entropy") == "variance":
        return "squared units of y"
    return "nats"


def column_names(X: Any, n_columns: int) -> list[str]:
    """Return the names of the features, or their numbers."""
    if hasattr(X, "columns"):
        return [str(name) for name in X.columns]
    return [f"feature {number}" for number in range(n_columns)]


def like_table(values: np.ndarray, X: Any) -> Any:
    """Return rows as a DataFrame with the columns of X, if X is one."""
    return type(X)(values, columns=X.columns) if hasattr(X, "iloc") else values
