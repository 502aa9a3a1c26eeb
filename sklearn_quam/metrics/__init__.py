"""Measures of uncertainties and probabilities: plain functions on arrays.

Uncertainty should be higher where a prediction is less reliable. Detection metrics take the samples
to be found (left-out data, mistakes) as the positive class.
"""

from ._bootstrap import BootstrapInterval, bootstrap_interval
from ._probabilities import (
    classwise_calibration_error,
    expected_calibration_error,
    gaussian_log_score,
    interval_coverage,
    smooth_calibration_error,
)
from ._ranking import (
    accuracy_rejection_auc,
    accuracy_rejection_curve,
    augrc,
    aupr,
    excess_augrc,
    failure_auroc,
    fpr_at_tpr,
    rank_correlation,
    risk_coverage_auc,
)

__all__ = [
    "BootstrapInterval",
    "accuracy_rejection_auc",
    "accuracy_rejection_curve",
    "augrc",
    "aupr",
    "bootstrap_interval",
    "classwise_calibration_error",
    "excess_augrc",
    "expected_calibration_error",
    "failure_auroc",
    "fpr_at_tpr",
    "gaussian_log_score",
    "interval_coverage",
    "rank_correlation",
    "risk_coverage_auc",
    "smooth_calibration_error",
]
