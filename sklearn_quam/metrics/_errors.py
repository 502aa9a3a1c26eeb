"""Errors of predictions: mistakes, squared errors, log probabilities of the true labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length

from .._messages import shown
from .._network.adapters import column_of_label
from ._checked import labels_in, numbers


def as_labels(y: Any, like: Any) -> np.ndarray:
    """Return labels of any kind, one for each prediction."""
    y = labels_in(y, "y")
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
    y = numbers(y, "y")
    check_consistent_length(y, like)
    return y.reshape(len(y), -1)


def squared_errors(y: Any, prediction: np.ndarray) -> np.ndarray:
    """Return the squared error of each row, the mean over its outputs."""
    y, prediction = as_values(y, prediction), prediction.reshape(len(prediction), -1)
    if y.shape != prediction.shape:
        raise ValueError(
            f"y has {y.shape[1]} value(s) a row, but {prediction.shape[1]} are predicted."
        )
    return ((y - prediction) ** 2).mean(axis=1)


def log_probabilities(y: Any, proba: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the logarithm of the probability of each true label."""
    y = as_labels(y, proba)
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise ValueError(
            f"y has labels that the classifier does not know: {shown(set(y[unknown].tolist()))}."
        )
    with np.errstate(divide="ignore"):
        return np.log(proba[np.arange(len(y)), column_of_label(classes, y)])
