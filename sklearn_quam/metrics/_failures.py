"""How well uncertainty finds failures: mistakes, and rows that the network cannot know."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from sklearn.utils.validation import check_consistent_length

from .._messages import checked_arguments
from ._checked import column
from ._functions import _means_of_most_certain, _scaled

_ARRAY = ["array-like"]
_checked = partial(checked_arguments, prefer_skip_nested_validation=True)


@_checked({"loss": _ARRAY, "uncertainty": _ARRAY})
def augrc(loss: Any, uncertainty: Any) -> float:
    """Return the area under the generalised risk as a function of the coverage.

    The generalised risk is what the accepted rows lose, as a share of all rows: the rate of
    undetected failures. With accuracy a and the AUROC of telling mistakes, the area is
    (1 - AUROC) a (1 - a) + (1 - a)^2 / 2.

    Parameters
    ----------
    loss : array-like of shape (n_samples,)
        What each prediction costs, such as 1 for a mistake and 0 else; never negative. In a pool
        with unknown rows, these cost 1.
    uncertainty : array-like of shape (n_samples,)
        Rows with the lowest are kept longest; equal ones go in random order, on average.

    Returns
    -------
    float
        The area, in units of the loss; lower is better.

    References
    ----------
    J. Traub et al., "Overcoming Common Flaws in the Evaluation of Selective Classification
    Systems", NeurIPS 2024.

    Examples
    --------
    >>> from sklearn_quam.metrics import augrc
    >>> augrc([0, 1, 0, 0], [1, 4, 2, 3])
    0.03125
    """
    loss, scale = _scaled(loss)
    return scale * _augrc(loss, uncertainty)


@_checked({"loss": _ARRAY, "uncertainty": _ARRAY})
def excess_augrc(loss: Any, uncertainty: Any) -> float:
    """Return how far `augrc` is above the smallest possible one.

    Parameters
    ----------
    loss : array-like of shape (n_samples,)
        What each prediction costs, such as 1 for a mistake and 0 else; never negative.
    uncertainty : array-like of shape (n_samples,)
        Rows with the lowest are kept longest; equal ones go in random order, on average.

    Returns
    -------
    float
        The excess, in units of the loss: zero where all failures are rejected first.

    Examples
    --------
    >>> from sklearn_quam.metrics import excess_augrc
    >>> excess_augrc([0, 1, 0, 0], [1, 4, 2, 3])
    0.0
    """
    loss, scale = _scaled(loss)
    return scale * max(_augrc(loss, uncertainty) - _augrc(loss, loss), 0.0)


def _augrc(loss: np.ndarray, uncertainty: Any) -> float:
    means = _means_of_most_certain(loss, uncertainty)
    n_rows = len(means)
    accepted = means * np.arange(1, n_rows + 1) / n_rows
    # The trapezoid from a coverage of zero, where nothing is lost.
    return float((accepted.sum() - accepted[-1] / 2) / n_rows)


@_checked({"y_correct": _ARRAY, "uncertainty": _ARRAY, "uncertainty_ood": ["array-like", None]})
def failure_auroc(y_correct: Any, uncertainty: Any, uncertainty_ood: Any = None) -> float:
    """Return how well uncertainty tells correct predictions from all failures.

    Parameters
    ----------
    y_correct : array-like of shape (n_samples,), dtype bool
        Whether each prediction for known rows is correct.
    uncertainty : array-like of shape (n_samples,)
        Uncertainty of known rows.
    uncertainty_ood : array-like of shape (n_ood,), default=None
        Uncertainty of unknown rows: each of them is a failure, whatever is predicted.

    Returns
    -------
    float
        The area under the ROC curve, with mistakes and unknown rows as positives.

    Examples
    --------
    >>> from sklearn_quam.metrics import failure_auroc
    >>> round(failure_auroc([True, True, False], [0.1, 0.3, 0.8], [0.2, 0.9]), 3)
    0.833
    """
    is_correct, known = column(y_correct, "y_correct", 0, 1), column(uncertainty, "uncertainty")
    check_consistent_length(is_correct, known)
    is_failure = is_correct < 1
    if uncertainty_ood is not None:
        unknown = column(uncertainty_ood, "uncertainty_ood")
        is_failure = np.concatenate([is_failure, np.ones(len(unknown), bool)])
        known = np.concatenate([known, unknown])
    if is_failure.all() or not is_failure.any():
        raise ValueError(f"{'All' if is_failure.any() else 'No'} rows are failures.")
    return float(roc_auc_score(is_failure, known))


@_checked({"aleatoric": _ARRAY, "epistemic": _ARRAY})
def rank_correlation(aleatoric: Any, epistemic: Any) -> float:
    """Return the rank correlation of two parts of the uncertainty (Spearman).

    Parts that say different things have a low one.

    Parameters
    ----------
    aleatoric, epistemic : array-like of shape (n_samples,)
        The parts.

    Returns
    -------
    float
        Between -1 and 1; 0 where a part is the same for all rows.

    Examples
    --------
    >>> from sklearn_quam.metrics import rank_correlation
    >>> round(rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]), 3)
    0.8
    """
    first, second = column(aleatoric, "aleatoric"), column(epistemic, "epistemic")
    check_consistent_length(first, second)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(spearmanr(first, second).statistic)
