"""How well uncertainty ranks samples: unknown ones, mistakes, losses."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import (
    auc,
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_consistent_length

from .._messages import shown
from ._checked import column, labels_in, metric

# True positive rates are ratios of counts, which differ by more unless they are equal.
_SAME_RATE = 1e-12


@metric(tpr=[Interval(Real, 0, 1, closed="right")])
def fpr_at_tpr(y_true: Any, y_score: Any, *, tpr: float = 0.95) -> float:
    """Return the false positive rate at a true positive rate.

    It is read at the corner of scikit-learn's ``roc_curve`` whose true positive rate is nearest to
    the asked one, above or below, as the published results of QUAM are; of equally near ones, at
    that with the fewest false positives.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        1 for the samples to be found, 0 or -1 for the others.
    tpr : float
        The share of the positive samples that is to be found.

    Returns
    -------
    float
        The share of the negative samples that is reported by mistake.

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


@metric()
def aupr(y_true: Any, y_score: Any) -> float:
    """Return the area under the precision-recall curve, by the trapezoidal rule.

    The published results of QUAM have this area. It is too optimistic where many scores are equal
    or few samples are positive: prefer scikit-learn's ``average_precision_score`` there.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        1 for the samples to be found, 0 or -1 for the others.

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


@metric()
def accuracy_rejection_curve(y_correct: Any, uncertainty: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the accuracy on the most certain samples, for every number of samples.

    Returns
    -------
    fraction_retained : ndarray of shape (n_samples,)
        Share of samples that are kept: 1 / n_samples, 2 / n_samples, ..., 1.
    accuracy : ndarray of shape (n_samples,)
        Mean of ``y_correct`` over the kept samples.

    Examples
    --------
    >>> from sklearn_quam.metrics import accuracy_rejection_curve
    >>> accuracy_rejection_curve([True, False, True, True], [1, 4, 2, 3])
    (array([0.25, 0.5 , 0.75, 1.  ]), array([1.  , 1.  , 1.  , 0.75]))
    """
    accuracy = _means_of_most_certain(column(y_correct, "y_correct", 0, 1), uncertainty)
    return np.arange(1, len(accuracy) + 1) / len(accuracy), accuracy


@metric()
def accuracy_rejection_auc(y_correct: Any, uncertainty: Any) -> float:
    """Return the area under the accuracy as a function of the retained fraction.

    It is the mean of the accuracies on the 1, 2, ..., n_samples most certain samples: the plain
    accuracy if all uncertainties are equal. The area published for QUAM is the trapezoid from
    1 to n_samples - 1 samples, which is smaller by about 2 / n_samples.

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


@metric()
def risk_coverage_auc(loss: Any, uncertainty: Any) -> float:
    """Return the area under the risk as a function of the coverage.

    It is the mean, over the 1, 2, ..., n_samples most certain samples, of their mean loss.

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
    loss, unit = _scaled(loss)
    return unit * float(_means_of_most_certain(loss, uncertainty).mean())


@metric()
def augrc(loss: Any, uncertainty: Any) -> float:
    """Return the area under the generalised risk as a function of the coverage.

    The generalised risk is the loss of the accepted samples, as a share of all samples: the rate of
    undetected failures. With accuracy a and the AUROC of finding mistakes, the area is
    (1 - AUROC) a (1 - a) + (1 - a)^2 / 2.

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
    loss, unit = _scaled(loss)
    n_samples = len(loss)
    risk = _means_of_most_certain(loss, uncertainty) * np.arange(1, n_samples + 1) / n_samples
    # The trapezoidal rule, from a coverage of zero, where nothing is lost.
    return unit * float((risk.sum() - risk[-1] / 2) / n_samples)


@metric()
def excess_augrc(loss: Any, uncertainty: Any) -> float:
    """Return by how much `augrc` exceeds its smallest possible value.

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
    return max(augrc(loss, uncertainty) - augrc(loss, loss), 0.0)


@metric()
def failure_auroc(y_correct: Any, uncertainty: Any, uncertainty_ood: Any = None) -> float:
    """Return how well uncertainty separates failures from correct predictions.

    Parameters
    ----------
    y_correct : array-like of shape (n_samples,), dtype bool
        Whether each prediction for known samples is correct.
    uncertainty : array-like of shape (n_samples,)
        Uncertainty of known samples.
    uncertainty_ood : array-like of shape (n_ood,)
        Uncertainty of unknown samples: each of them is a failure, whatever is predicted.

    Returns
    -------
    float
        The area under the ROC curve, with mistakes and unknown samples as positives.

    Examples
    --------
    >>> from sklearn_quam.metrics import failure_auroc
    >>> round(failure_auroc([True, True, False], [0.1, 0.3, 0.8], [0.2, 0.9]), 3)
    0.833
    """
    is_correct, known = column(y_correct, "y_correct", 0, 1), column(uncertainty, "uncertainty")
    check_consistent_length(is_correct, known)
    unknown = np.empty(0)
    if uncertainty_ood is not None:
        unknown = column(uncertainty_ood, "uncertainty_ood")
    is_failure = np.append(is_correct < 1, np.ones(len(unknown), bool))
    if is_failure.all() or not is_failure.any():
        raise ValueError(f"{'All' if is_failure.any() else 'No'} samples are failures.")
    return float(roc_auc_score(is_failure, np.append(known, unknown)))


@metric()
def rank_correlation(aleatoric: Any, epistemic: Any) -> float:
    """Return the rank correlation of two parts of the uncertainty (Spearman).

    It is low if the parts carry different information.

    Parameters
    ----------
    aleatoric, epistemic : array-like of shape (n_samples,)
        The parts.

    Returns
    -------
    float
        Between -1 and 1; 0 where a part is the same for all samples.

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


def _check_detection(y_true: Any, y_score: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return which samples are positive, and the scores."""
    y_true, y_score = labels_in(y_true, "y_true"), column(y_score, "y_score")
    check_consistent_length(y_true, y_score)
    found = set(y_true.tolist())
    if not (found <= {0, 1} or found <= {-1, 1}):
        raise ValueError(
            f"y_true must be 0 or 1 (or -1 or 1), got {shown(sorted(found, key=str))}."
        )
    if len(found) == 1:
        raise ValueError(f"y_true holds only one class, {shown(found.pop())}.")
    return y_true == 1, y_score


def _scaled(loss: Any) -> tuple[np.ndarray, float]:
    """Return losses and their unit, in which their sum does not overflow."""
    loss = column(loss, "loss", 0)
    unit = max(float(loss.max()), 1.0)
    return loss / unit, unit


def _means_of_most_certain(values: np.ndarray, uncertainty: Any) -> np.ndarray:
    """Return the mean of the values of the 1, 2, ... most certain samples."""
    uncertainty = column(uncertainty, "uncertainty")
    check_consistent_length(values, uncertainty)
    _, groups, counts = np.unique(uncertainty, return_inverse=True, return_counts=True)
    # Samples of equal uncertainty share their mean, which is that of a random order on average.
    group_means = np.bincount(groups, weights=values) / counts
    return np.cumsum(np.repeat(group_means, counts)) / np.arange(1, len(values) + 1)


# Metrics of scorers and tables, and 1 if the larger is the better, else -1.
DETECTION = {
    "roc_auc": (roc_auc_score, 1),
    "average_precision": (average_precision_score, 1),
    "aupr": (aupr, 1),
    "fpr95": (fpr_at_tpr, -1),
}
