"""How good uncertainties and probabilities are: plain functions on arrays."""

from __future__ import annotations

import math
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from sklearn.metrics import auc, precision_recall_curve, roc_curve
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_consistent_length

from .._messages import checked_arguments, shown
from ._checked import column, labels_in, numbers

# True positive rates are ratios of counts; what differs by less is the same but for rounding.
_SAME_RATE = 1e-12
_ARRAY = ["array-like"]
_checked = partial(checked_arguments, prefer_skip_nested_validation=True)


@_checked({"y_true": _ARRAY, "y_score": _ARRAY, "tpr": [Interval(Real, 0, 1, closed="right")]})
def fpr_at_tpr(y_true: Any, y_score: Any, *, tpr: float = 0.95) -> float:
    """Return the false positive rate at a true positive rate.

    It is read at the corner of scikit-learn's ``roc_curve`` whose true positive rate is nearest to
    the asked one, be it above or below, as the published results of QUAM are; of equally near
    ones, at that with the fewest false positives.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        1 for the rows to be found, 0 or -1 for the others.
    y_score : array-like of shape (n_samples,)
        Higher for rows that look more like those to be found, such as an uncertainty.
    tpr : float, default=0.95
        The share of the positive rows that is to be found.

    Returns
    -------
    float
        The share of the negative rows that is reported by mistake.

    Examples
    --------
    >>> from sklearn_quam.metrics import fpr_at_tpr
    >>> fpr_at_tpr([0, 0, 0, 0, 1, 1], [0.1, 0.2, 0.3, 0.6, 0.5, 0.9])
    0.25
    """
    is_positive, y_score = _check_detection(y_true, y_score)
    fprs, tprs, _ = roc_curve(is_positive, y_score)
    distance = np.abs(tprs - tpr)
    return float(fprs[np.argmax(distance <= distance.min() + _SAME_RATE)])


@_checked({"y_true": _ARRAY, "y_score": _ARRAY})
def aupr(y_true: Any, y_score: Any) -> float:
    """Return the area under the precision-recall curve, by the trapezoidal rule.

    The published results of QUAM have this area. Straight lines between the points of the curve
    are too optimistic where these are far apart: prefer scikit-learn's ``average_precision_score``,
    a sum of steps, when many scores are equal, few rows are positive, or there are no published
    areas to compare with.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        1 for the rows to be found, 0 or -1 for the others.
    y_score : array-like of shape (n_samples,)
        Higher for rows that look more like those to be found, such as an uncertainty.

    Returns
    -------
    float
        The area, at most 1.

    Examples
    --------
    >>> from sklearn_quam.metrics import aupr
    >>> aupr([0, 1, 0, 1], [0.1, 0.2, 0.3, 0.4])
    0.7916666666666666
    """
    is_positive, y_score = _check_detection(y_true, y_score)
    precision, recall, _ = precision_recall_curve(is_positive, y_score)
    return float(auc(recall, precision))


@_checked({"y_correct": _ARRAY, "uncertainty": _ARRAY})
def accuracy_rejection_curve(y_correct: Any, uncertainty: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the accuracy on the most certain rows, for every number of rows.

    Parameters
    ----------
    y_correct : array-like of shape (n_samples,)
        Whether each prediction is correct, or how correct it is, from 0 to 1.
    uncertainty : array-like of shape (n_samples,)
        Rows with the lowest are kept longest. Among equal ones, the accuracy is the one expected
        if they are rejected in random order, so that the order of rows does not matter.

    Returns
    -------
    fraction_retained : ndarray of shape (n_samples,)
        Share of rows that are kept: 1 / n_samples, 2 / n_samples, ..., 1.
    accuracy : ndarray of shape (n_samples,)
        Mean of ``y_correct`` over the kept rows.

    Examples
    --------
    >>> from sklearn_quam.metrics import accuracy_rejection_curve
    >>> accuracy_rejection_curve([True, False, True, True], [1, 4, 2, 3])
    (array([0.25, 0.5 , 0.75, 1.  ]), array([1.  , 1.  , 1.  , 0.75]))
    """
    accuracy = _means_of_most_certain(column(y_correct, "y_correct", 0, 1), uncertainty)
    return np.arange(1, len(accuracy) + 1) / len(accuracy), accuracy


@_checked({"y_correct": _ARRAY, "uncertainty": _ARRAY})
def accuracy_rejection_auc(y_correct: Any, uncertainty: Any) -> float:
    """Return the area under the accuracy as a function of the retained fraction.

    It is the mean of the accuracies on the 1, 2, ..., n_samples most certain rows: the plain
    accuracy if all uncertainties are equal. The area published for QUAM is the trapezoid from
    1 to n_samples - 1 rows, which is smaller by about 2 / n_samples.

    Parameters
    ----------
    y_correct : array-like of shape (n_samples,)
        Whether each prediction is correct, or how correct it is, from 0 to 1.
    uncertainty : array-like of shape (n_samples,)
        Rows with the lowest are kept longest; equal ones go in random order, on average.

    Returns
    -------
    float
        The area, between 0 and 1; higher is better.

    Examples
    --------
    >>> from sklearn_quam.metrics import accuracy_rejection_auc
    >>> accuracy_rejection_auc([True, False, True, True], [1, 4, 2, 3])
    0.9375
    """
    return float(accuracy_rejection_curve(y_correct, uncertainty)[1].mean())


@_checked({"loss": _ARRAY, "uncertainty": _ARRAY})
def risk_coverage_auc(loss: Any, uncertainty: Any) -> float:
    """Return the area under the risk as a function of the coverage.

    It is the mean, over the 1, 2, ..., n_samples most certain rows, of their mean loss.

    Parameters
    ----------
    loss : array-like of shape (n_samples,)
        What each prediction costs, such as 0 or 1, or a squared error; never negative.
    uncertainty : array-like of shape (n_samples,)
        Rows with the lowest are kept longest; equal ones go in random order, on average.

    Returns
    -------
    float
        The area, in units of the loss; lower is better.

    Examples
    --------
    >>> from sklearn_quam.metrics import risk_coverage_auc
    >>> risk_coverage_auc([0, 1, 0, 0], [1, 4, 2, 3])
    0.0625
    """
    loss, scale = _scaled(loss)
    return scale * float(_means_of_most_certain(loss, uncertainty).mean())


@_checked({"loss": _ARRAY, "uncertainty": _ARRAY})
def excess_risk_coverage_auc(loss: Any, uncertainty: Any) -> float:
    """Return how far the risk-coverage area is above the smallest possible one.

    The smallest is that of an oracle that knows the losses and rejects the largest first.

    Parameters
    ----------
    loss : array-like of shape (n_samples,)
        What each prediction costs, such as 0 or 1, or a squared error; never negative.
    uncertainty : array-like of shape (n_samples,)
        Rows with the lowest are kept longest; equal ones go in random order, on average.

    Returns
    -------
    float
        The excess, in units of the loss: zero at best.

    Examples
    --------
    >>> from sklearn_quam.metrics import excess_risk_coverage_auc
    >>> excess_risk_coverage_auc([0, 1, 0, 0], [1, 4, 2, 3])
    0.0
    """
    loss, scale = _scaled(loss)
    excess = _means_of_most_certain(loss, uncertainty) - _means_of_most_certain(loss, loss)
    return scale * max(float(excess.mean()), 0.0)


@_checked({"y_true": _ARRAY, "mean": _ARRAY, "variance": ["array-like", Real]})
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


@_checked({"y_true": _ARRAY, "lower": _ARRAY, "upper": _ARRAY})
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


def _scaled(loss: Any) -> tuple[np.ndarray, float]:
    """Return losses of at most one, and their unit: the sum of large ones may be no number."""
    loss = column(loss, "loss", 0)
    scale = max(float(loss.max()), 1.0)
    return loss / scale, scale


def _check_detection(y_true: Any, y_score: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows are positive, and the scores."""
    y_true, y_score = labels_in(y_true, "y_true"), column(y_score, "y_score")
    check_consistent_length(y_true, y_score)
    found = set(y_true.tolist())
    if not (found <= {0, 1} or found <= {-1, 1}):
        raise ValueError(
            f"y_true must be 0 or 1 (or -1 or 1), got {shown(sorted(found, key=str))}."
        )
    if len(found) == 1:
        raise ValueError(
            f"y_true holds only one class, {shown(found.pop())}: nothing to tell apart."
        )
    return y_true == 1, y_score


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


def _means_of_most_certain(values: np.ndarray, uncertainty: Any) -> np.ndarray:
    """Return the mean of the 1, 2, ... most certain rows' values."""
    uncertainty = column(uncertainty, "uncertainty")
    check_consistent_length(values, uncertainty)
    _, groups, counts = np.unique(uncertainty, return_inverse=True, return_counts=True)
    # Rows of equal uncertainty count as much as each other: what a random order has on average.
    group_means = np.bincount(groups, weights=values) / counts
    return np.cumsum(np.repeat(group_means, counts)) / np.arange(1, len(values) + 1)
