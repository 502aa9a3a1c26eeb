"""What held-out rows tell about new ones: split conformal prediction, and the scale of logits."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from .._messages import shown

# What rounding may add to a number of rows.
_ROUNDING = 1e-9
# How far the logarithm of a logit scale is from zero: the standard deviation of its prior. Few
# rows, or rows without a mistake, do not move it far.
_SCALE_SPREAD = 0.25
_LARGEST_SCALE = 1e3


def check_coverage(coverage: Any) -> float:
    """Return a share of rows, if it is one."""
    if not isinstance(coverage, Real) or not 0 < float(coverage) < 1:
        raise ValueError(
            f"coverage={shown(coverage)} is not understood: pass a share between 0 and 1, such as "
            "0.9."
        )
    return float(coverage)


def noise_and_calibration_rows(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which held-out rows measure the noise, and which others calibrate.

    A score must be a fixed function of a row when it is calibrated. A noise variance that was
    measured on the same rows would know them, but not the new ones.

    Parameters
    ----------
    n_rows : int
        Number of held-out rows.

    Returns
    -------
    tuple of ndarray
        Numbers of rows, two halves of all of them, drawn at random: rows may come in an order.
    """
    if n_rows < 2:
        raise ValueError(
            f"X_val has {n_rows} row(s), but at least 2 are needed: half of them measure the noise "
            "variance, the others calibrate intervals. Pass more rows, or noise_variance=."
        )
    order = np.random.default_rng(0).permutation(n_rows)
    n_noise = (n_rows + 1) // 2
    return np.sort(order[:n_noise]), np.sort(order[n_noise:])


def rows_needed(coverage: float) -> int:
    """Return how many held-out rows it takes to promise a coverage."""
    return math.ceil(coverage / (1 - coverage) - _ROUNDING)


def conformal_threshold(scores: np.ndarray, coverage: float, *, which: str = "") -> np.ndarray:
    """Return what the score of a new row does not exceed with a probability of at least coverage.

    If it is exchangeable with the rows that have these scores, its rank among them is uniform: so
    it is at most the k-th smallest of n with a probability of k / (n + 1), however few there are.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, ...)
        Scores of held-out rows, sorted along the first axis.
    coverage : float
        The probability, between 0 and 1.
    which : str, default=""
        What tells these rows from others of X_val, for the error message.

    Returns
    -------
    ndarray of shape (...)
        The threshold.
    """
    rank = math.ceil((len(scores) + 1) * coverage - _ROUNDING)
    if rank > len(scores):
        raise ValueError(
            f"coverage={coverage} cannot be promised by the {len(scores)} row(s) of X_val that "
            f"fit has got{which}: it takes at least {rows_needed(coverage)}. Pass more, or ask for "
            "a smaller coverage."
        )
    return scores[rank - 1]


def scaled(proba: np.ndarray, scale: float) -> np.ndarray:
    """Return probabilities whose logarithms are multiplied by a factor: those of scaled logits.

    Parameters
    ----------
    proba : ndarray of shape (n_rows, n_classes)
        Probabilities.
    scale : float
        The factor; less than one makes them less sure.

    Returns
    -------
    ndarray of shape (n_rows, n_classes)
        Probabilities that sum to one.
    """
    return np.exp(log_softmax(scale * _log(proba), axis=1))


def fit_logit_scale(proba: np.ndarray, columns: np.ndarray) -> float:
    """Return the factor of logits under which held-out labels are most likely.

    It is temperature scaling, with a prior. The log loss is convex in the factor and falls between
    one and its minimum, where the answer lies: on these rows it is never worse than no factor.

    Parameters
    ----------
    proba : ndarray of shape (n_rows, n_classes)
        What was predicted for held-out rows.
    columns : ndarray of shape (n_rows,)
        Columns of their labels.

    Returns
    -------
    float
        The factor.
    """
    log_proba, rows = _log(proba), np.arange(len(columns))

    def cost(log_scale: float) -> float:
        likely = log_softmax(math.exp(log_scale) * log_proba, axis=1)[rows, columns]
        return float((log_scale / _SCALE_SPREAD) ** 2 / 2 - likely.sum())

    largest = math.log(_LARGEST_SCALE)
    found = minimize_scalar(cost, bounds=(-largest, largest), method="bounded")
    return math.exp(float(found.x))


def _log(proba: np.ndarray) -> np.ndarray:
    """Return logarithms; a label that is held impossible must not cost everything."""
    return np.log(proba.clip(min=np.finfo(float).tiny))
