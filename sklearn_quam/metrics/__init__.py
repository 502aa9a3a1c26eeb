"""How good uncertainties and probabilities are: plain functions on arrays.

Uncertainty is meant to be higher where a prediction is less to be trusted. Detection metrics take
the rows to be found (left-out data, mistakes) as the positive class.
"""

from ._bootstrap import BootstrapInterval, bootstrap_interval
from ._functions import (
    accuracy_rejection_auc,
    accuracy_rejection_curve,
    aupr,
    excess_risk_coverage_auc,
    expected_calibration_error,
    fpr_at_tpr,
    gaussian_log_score,
    interval_coverage,
    risk_coverage_auc,
)

__all__ = [
    "BootstrapInterval",
    "accuracy_rejection_auc",
    "accuracy_rejection_curve",
    "aupr",
    "bootstrap_interval",
    "excess_risk_coverage_auc",
    "expected_calibration_error",
    "fpr_at_tpr",
    "gaussian_log_score",
    "interval_coverage",
    "risk_coverage_auc",
]
