"""Metrics of how well a score finds rows: one registry, for scorers and tables alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sklearn.metrics import average_precision_score, roc_auc_score

from ._functions import aupr, fpr_at_tpr


@dataclass(frozen=True)
class DetectionMetric:
    """A metric of which rows are to be found (1), and of a score that is higher for these.

    Parameters
    ----------
    name : str
        What columns of tables are called.
    function : callable
        Takes ``(y_true, y_score)``.
    sign : int
        1 if more of it is better, else -1.
    """

    name: str
    function: Callable[..., Any]
    sign: int = 1

    @property
    def scorer_name(self) -> str:
        """What a scorer is called, of which more is better always."""
        return self.name if self.sign > 0 else f"neg_{self.name}"

    def score(self, y_true: Any, y_score: Any) -> float:
        """Return the metric, turned round if less of it is better."""
        return self.sign * float(self.function(y_true, y_score))


_METRICS = (
    DetectionMetric("roc_auc", roc_auc_score),
    DetectionMetric("average_precision", average_precision_score),
    DetectionMetric("aupr", aupr),
    DetectionMetric("fpr95", fpr_at_tpr, sign=-1),
)
DETECTION_METRICS = {metric.name: metric for metric in _METRICS}
DETECTION_SCORERS = {metric.scorer_name: metric for metric in _METRICS}
