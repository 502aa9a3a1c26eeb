"""What users are warned about: nothing that may be wrong goes unsaid."""

from __future__ import annotations

import sys
import warnings

import numpy as np

from ..exceptions import BeyondRangeWarning, FailedRowsWarning

# Functions of these stand between a method of the package and who has called it.
_WRAPPERS = ("contextlib", "sklearn.base", "sklearn.utils._param_validation")

# Rows that a message names.
_MAX_NAMED = 5

_WHY_LOST = (
    "values are so far from those of the training data that the numbers of the network overflow, "
    "saturate or lose all their digits."
)
_LOOK_FOR = (
    "Look for fill values such as 1e20, and for features that are not scaled as they were for "
    "training."
)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside the package that has called it."""
    frame, level, outside = sys._getframe(1), 2, 2
    package = __name__.partition(".")[0]
    was_inside = True
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        inside = name.partition(".")[0] == package or (was_inside and name in _WRAPPERS)
        if inside:
            outside = level + 1
        was_inside = inside
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=outside)


def warn_about_lost_rows(lost: np.ndarray) -> None:
    """Say how many rows the network cannot compute with."""
    n_lost = int(lost.sum())
    if n_lost:
        warn(
            f"The network cannot compute with {n_lost} of {len(lost)} rows (the first is row "
            f"{int(lost.argmax())}): {_WHY_LOST} Their epistemic and total uncertainty is 1e300, "
            f"which stands for infinite. {_LOOK_FOR}",
            BeyondRangeWarning,
        )


def warn_about_failed_rows(errors: np.ndarray, which: np.ndarray) -> None:
    """Say for which rows the network raises an error, and which."""
    failed = np.flatnonzero(which)
    if not len(failed):
        return
    named = ", ".join(map(str, failed[:_MAX_NAMED])) + (", ..." if len(failed) > _MAX_NAMED else "")
    warn(
        f"The network cannot process {len(failed)} of {len(errors)} rows of X ({named}): their "
        "epistemic and total uncertainty is 1e300, which stands for infinite. The diagnostics say "
        f"why, in the column 'error'; for row {failed[0]}: {errors[failed[0]]}",
        FailedRowsWarning,
    )


def refuse_lost_rows(lost: np.ndarray) -> None:
    """Refuse rows that the network cannot compute with, where nothing can be said about them."""
    if lost.any():
        raise ValueError(
            f"The network cannot compute with row {int(lost.argmax())}: {_WHY_LOST} {_LOOK_FOR}"
        )
