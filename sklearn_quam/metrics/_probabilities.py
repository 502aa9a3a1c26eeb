"""How well probabilities, densities and intervals fit what is observed."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.fft import dct, idct
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_consistent_length

from .._messages import shown
from ._checked import labels_in, metric, numbers

# Probabilities of a network that works in half precision sum to one only so far.
_SUM_TOLERANCE = 1e-2
# Of confidences, whose gaps are smoothed, and what a kernel's width is known to.
_N_CELLS = 2000
_WIDTH_TOLERANCE = 1e-5
_COUNT = [Interval(Integral, 1, None, closed="left")]


@metric(n_bins=_COUNT, strategy=[StrOptions({"uniform", "quantile"})])
def expected_calibration_error(
    y_true: Any, y_proba: Any, *, n_bins: int = 15, strategy: str = "uniform", labels: Any = None
) -> float:
    """Return how far the confidence in the most probable label is from its accuracy.

    Samples are put into bins by that confidence; the error is the distance between the mean
    confidence and the accuracy of a bin, averaged over samples.

    Parameters
    ----------
    n_bins : int
        Number of bins.
    strategy : {"uniform", "quantile"}
        Bins of equal width between 0 and 1, or with equally many samples. A probability on an edge
        belongs to the lower bin.

    Returns
    -------
    float
        The error, between 0 and 1.

    Examples
    --------
    >>> from sklearn_quam.metrics import expected_calibration_error
    >>> expected_calibration_error(["no", "no", "yes", "no"], [0.25, 0.25, 0.75, 0.75])
    0.0
    """
    confidence, is_correct = _most_probable(y_true, y_proba, labels)
    edges = np.linspace(0, 1, n_bins + 1)
    if strategy == "quantile":
        edges = np.quantile(confidence, edges)
    bins = np.searchsorted(edges[1:-1], confidence, side="left")
    gaps = np.bincount(bins, weights=is_correct - confidence)
    return float(np.abs(gaps).sum() / len(confidence))


@metric(n_bins=_COUNT)
def classwise_calibration_error(
    y_true: Any, y_proba: Any, *, n_bins: int = 15, labels: Any = None
) -> float:
    """Return how far the probabilities of each label are from its frequency, the mean over labels.

    Parameters
    ----------
    n_bins : int
        Number of bins of equal width between 0 and 1, for each label.

    Returns
    -------
    float
        The error, between 0 and 1.

    Examples
    --------
    >>> from sklearn_quam.metrics import classwise_calibration_error
    >>> classwise_calibration_error(["no", "no", "yes", "no"], [0.25, 0.25, 0.75, 0.75])
    0.25
    """
    proba, is_true = _proba_and_truth(y_true, y_proba, labels)
    edges = np.linspace(0, 1, n_bins + 1)[1:-1]
    bins = np.searchsorted(edges, proba, side="left") + n_bins * np.arange(proba.shape[1])
    gaps = np.bincount(bins.ravel(), weights=(is_true - proba).ravel())
    return float(np.abs(gaps).sum() / proba.size)


@metric()
def smooth_calibration_error(y_true: Any, y_proba: Any, *, labels: Any = None) -> float:
    """Return how far the confidence in the most probable label is from its accuracy, without bins.

    Gaps between confidence and correctness are smoothed by a Gaussian kernel on the confidence,
    reflected at 0 and 1. Its width is the error itself: the largest width at which the error is
    not smaller.

    Returns
    -------
    float
        The error, between 0 and 1.

    References
    ----------
    J. Blasiok, P. Nakkiran, "Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing",
    ICLR 2024.

    Examples
    --------
    >>> from sklearn_quam.metrics import smooth_calibration_error
    >>> round(smooth_calibration_error([1, 1, 1, 0], [0.75, 0.75, 0.75, 0.75]), 3)
    0.0
    """
    confidence, is_correct = _most_probable(y_true, y_proba, labels)
    cells = np.minimum((confidence * _N_CELLS).astype(int), _N_CELLS - 1)
    gaps = np.bincount(cells, weights=is_correct - confidence, minlength=_N_CELLS)
    waves = dct(gaps / len(confidence), norm="ortho")
    frequency = np.pi * np.arange(_N_CELLS)

    def error_at(width: float) -> float:
        return float(
            np.abs(idct(waves * np.exp(-((width * frequency) ** 2) / 2), norm="ortho")).sum()
        )

    # The error falls with the width.
    low, high = 0.0, 1.0
    while high - low > _WIDTH_TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if error_at(middle) > middle else (low, middle)
    return error_at((low + high) / 2)


@metric(variance=["array-like", Real])
def gaussian_log_score(y_true: Any, mean: Any, variance: Any) -> float:
    """Return the mean logarithm of the density of Gaussian predictions; higher is better.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        True values. Outputs are independent: their log-densities are summed.
    mean : array-like of the shape of ``y_true``
        Predicted means.
    variance : array-like of the shape of ``y_true``, or float
        Predicted variances, above zero; a number is the variance of all.

    Returns
    -------
    float
        The score, in nats.

    Examples
    --------
    >>> from sklearn_quam.metrics import gaussian_log_score
    >>> round(gaussian_log_score([0.0, 1.0], [0.0, 0.0], [1.0, 1.0]), 4)
    -1.1689
    """
    if isinstance(variance, Real):
        variance = np.full(np.shape(y_true), variance)
    y_true, mean, variance = _check_same_shape(y_true=y_true, mean=mean, variance=variance)
    if variance.min() <= 0:
        raise ValueError("variance must be above zero.")
    log_density = -0.5 * (np.log(2 * math.pi * variance) + (y_true - mean) ** 2 / variance)
    return float(log_density.sum(axis=1).mean())


@metric()
def interval_coverage(y_true: Any, lower: Any, upper: Any) -> float:
    """Return the share of values that lie in their predicted intervals, ends included.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        True values; those of several outputs are counted one by one.
    lower, upper : array-like of the shape of ``y_true``
        Ends of the intervals, which may be infinite: ``*est.predict_interval(X).T``, say.

    Returns
    -------
    float
        The share, between 0 and 1.

    Examples
    --------
    >>> from sklearn_quam.metrics import interval_coverage
    >>> interval_coverage([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 3.0, 5.0], [2.0, 1.0, 4.0, 6.0])
    0.5
    """
    y_true, lower, upper = _check_same_shape(y_true=y_true, lower=lower, upper=upper)
    if (lower > upper).any():
        raise ValueError("lower is above upper in some rows.")
    return float(((lower <= y_true) & (y_true <= upper)).mean())


def _proba_and_truth(y_true: Any, y_proba: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of all labels, and which of these are the true ones."""
    y_true, y_proba = labels_in(y_true, "y_true"), numbers(y_proba, "y_proba")
    check_consistent_length(y_true, y_proba)
    if y_proba.ndim > 2:
        raise ValueError(f"y_proba must have one or two dimensions, got {y_proba.ndim}.")
    if y_proba.min() < 0 or y_proba.max() > 1:
        raise ValueError("y_proba must lie between 0 and 1.")
    if y_proba.ndim == 1 or y_proba.shape[1] == 1:
        y_proba = np.column_stack([1 - y_proba.ravel(), y_proba.ravel()])
    if np.abs(y_proba.sum(axis=1) - 1).max() > _SUM_TOLERANCE:
        raise ValueError("The rows of y_proba must sum to one.")
    try:
        columns = np.unique(y_true) if labels is None else labels_in(labels, "labels")
    except TypeError as error:  # numbers and texts have no order
        raise TypeError(
            "y_true holds labels of several kinds: name the columns by labels=."
        ) from error
    if not len(set(columns.tolist())) == len(columns) == y_proba.shape[1]:
        raise ValueError(
            f"y_proba is about {y_proba.shape[1]} classes, but there are {len(columns)} labels "
            f"({shown(columns.tolist())}); name each column once with labels=."
        )
    unknown = set(y_true.tolist()) - set(columns.tolist())
    if unknown:
        raise ValueError(
            f"y_true holds labels without a column: {shown(sorted(unknown, key=str))}."
        )
    return y_proba, columns == y_true[:, None]


def _most_probable(*arrays: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest probability of each row, and whether its label is the true one."""
    proba, is_true = _proba_and_truth(*arrays)
    rows, largest = np.arange(len(proba)), proba.argmax(axis=1)
    return proba[rows, largest], is_true[rows, largest]


def _check_same_shape(**arrays: Any) -> list[np.ndarray]:
    """Return arrays of shape (n_samples, n_outputs); nothing is stretched to fit."""
    checked = []
    for name, values in arrays.items():
        array = numbers(values, name, finite=name not in ("lower", "upper"))  # may be open
        if np.isnan(array).any():
            raise ValueError(f"Input {name} contains NaN.")
        checked.append(array.reshape(len(array), -1))
    check_consistent_length(*checked)
    if len({array.shape for array in checked}) > 1:
        shapes = ", ".join(str(array.shape) for array in checked)
        raise ValueError(f"{', '.join(arrays)} must have the same shape, got {shapes}.")
    return checked
