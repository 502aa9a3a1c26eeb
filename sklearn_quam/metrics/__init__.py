"""Measures of uncertainties and probabilities: plain functions on arrays.

Uncertainty should be higher where a prediction is less reliable. Detection metrics take the samples
to be found (left-out data, mistakes) as the positive class.
"""

from ._bootstrap import BootstrapInterval, bootstrap_interval
from ._probabilities import (
    expected_calibration_error,
    gaussian_log_score,
    interval_coverage,
)
from ._ranking import (
    accuracy_rejection_auc,
    accuracy_rejection_curve,
    augrc,
    aupr,
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
    "expected_calibration_error",
    "failure_auroc",
    "fpr_at_tpr",
    "gaussian_log_score",
    "interval_coverage",
    "rank_correlation",
    "risk_coverage_auc",
]
