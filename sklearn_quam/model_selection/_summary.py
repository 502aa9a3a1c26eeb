"""What a comparison of methods comes to: a line for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# More sets of unknown rows than this share a column.
_MAX_SETS = 3
# Columns of the summary, and where they come from: task and column of the details.
_OF_CLASSES = {
    "mistakes": ("misclassification", "roc_auc"),
    "both": ("failures", "roc_auc"),
    "augrc": ("failures", "augrc"),
    "accuracy": ("rejection", "accuracy"),
    "ece": ("rejection", "ece"),
}
_OF_VALUES = {"risk_coverage_auc": ("rejection", "risk_coverage_auc")}
_OF_BOTH = {"log_score": ("rejection", "log_score")}


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """How several methods compare: printed with a line for each, best first.

    Parameters
    ----------
    details : pandas.DataFrame
        A row for each ``method`` and ``task``, with all metrics, their intervals, and errors.
    classification : bool
        Whether the methods are about classes.
    """

    details: pd.DataFrame
    classification: bool

    def to_frame(self) -> pd.DataFrame:
        """Return the summary.

        Returns
        -------
        pandas.DataFrame
            A row for each method and at most ten columns: the AUROC of each set of unknown rows,
            or their mean as ``unknown`` if there are more than three; ``mistakes``, the AUROC of
            mistakes among known rows; ``both``, the AUROC of all failures, mistakes and unknown
            rows, against correct known rows, and ``augrc`` of the same pool; ``accuracy``,
            ``ece``, ``log_score`` and ``rows_per_second``. Regressors have ``risk_coverage_auc``
            in place of what is about classes.
        """
        import pandas as pd

        details = self.details
        sets = [task for task in details.task.unique() if task.startswith("ood")]
        unknown = {task.removeprefix("ood:"): self._column(task, "roc_auc") for task in sets}
        if len(sets) > _MAX_SETS:
            unknown = {"unknown": np.mean(list(unknown.values()), axis=0)}
        kinds = _OF_CLASSES if self.classification else _OF_VALUES
        found: dict[str, Any] = {name.replace("ood", "unknown"): v for name, v in unknown.items()}
        for name, place in {**kinds, **_OF_BOTH}.items():
            found[name] = self._column(*place)
        speed = details.groupby("method", sort=False).rows_per_second.median()
        table = pd.DataFrame(found, index=speed.index).assign(rows_per_second=speed)
        best, rising = ("both", False) if self.classification else ("risk_coverage_auc", True)
        return table.sort_values(best, ascending=rising, kind="stable")

    def _column(self, task: str, column: str) -> np.ndarray:
        """Return a column of the details for each method, in their order."""
        found = self.details[self.details.task == task].set_index("method")[column]
        return found.reindex(self.details.method.unique()).to_numpy()

    def __repr__(self) -> str:
        return self.to_frame().round(3).to_string()

    def _repr_html_(self) -> str:
        return self.to_frame().round(3).to_html()
