"""Rows that a network was trained on, where new ones would be due."""

from __future__ import annotations

from ..._network.inputs.rows import StoredRows
from ...exceptions import SeenRowsWarning
from .warned import warn

# With fewer rows than this for each column, a network can learn most of them by heart.
_ROWS_PER_COLUMN = 10


def may_be_known_by_heart(inputs: StoredRows) -> bool:
    """Tell whether training rows are a table of so few rows that a network may know them by heart.

    Parameters
    ----------
    inputs : StoredRows
        The training rows, as the network takes them.

    Returns
    -------
    bool
        False for images and the like, whose numbers are no columns.
    """
    parts = inputs[:1].parts
    is_table = len(parts) == 1 and parts[0].ndim == 2
    return is_table and len(inputs) < _ROWS_PER_COLUMN * parts[0].shape[1]


def warn_about_threshold(contamination: float) -> None:
    """Say that a threshold is set by training rows that the network may know by heart."""
    warn(
        "The threshold is set by training rows, of which there are fewer than "
        f"{_ROWS_PER_COLUMN} for each column: the network may know them by heart, and far more "
        f"known rows than a share of contamination={contamination:g} may be flagged. Pass X_val=, "
        "known rows that the network was not trained on, to fit.",
        SeenRowsWarning,
    )
