"""What pictures ask estimators for."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_array

from .._posterior.results import Uncertainty


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
