"""How good uncertainties and probabilities are: plain functions on arrays.

Uncertainty is meant to be higher where a prediction is less to be trusted. Detection metrics take
the rows to be found (left-out data, mistakes) as the positive class.
"""

from ._bootstrap import BootstrapInterval, bootstrap_interval
from ._calibration import (
    classwise_calibration_error,
    expected_calibration_error,
    smooth_calibration_error,
)
from ._failures import augrc, excess_augrc, failure_auroc, rank_correlation
from ._functions import (
    accuracy_rejection_auc,
    accuracy_rejection_curve,
    aupr,
    excess_risk_coverage_auc,
    fpr_at_tpr,
    gaussian_log_score,
    interval_coverage,
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
    "excess_risk_coverage_auc",
    "expected_calibration_error",
    "failure_auroc",
    "fpr_at_tpr",
    "gaussian_log_score",
    "interval_coverage",
    "rank_correlation",
    "risk_coverage_auc",
    "smooth_calibration_error",
]
