"""Split conformal prediction: what holds for new rows, by what held for held-out ones."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from .._messages import shown

# What rounding may add to a number of rows.
_ROUNDING = 1e-9


def check_coverage(coverage: Any) -> float:
    """Return a share of rows, if it is one."""
    if not isinstance(coverage, Real) or not 0 < float(coverage) < 1:
        raise ValueError(
            f"coverage={shown(coverage)} is not understood: pass a share between 0 and 1, such as "
            "0.9."
        )
    return float(coverage)


def conformal_threshold(scores: np.ndarray, coverage: float) -> np.ndarray:
    """Return what the score of a new row does not exceed with a probability of at least coverage.

    If it is exchangeable with the rows that have these scores, its rank among them is uniform: so
    it is at most the k-th smallest of n with a probability of k / (n + 1), however few there are.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, ...)
        Scores of held-out rows, sorted along the first axis.
    coverage : float
        The probability, between 0 and 1.

    Returns
    -------
    ndarray of shape (...)
        The threshold.
    """
    rank = math.ceil((len(scores) + 1) * coverage - _ROUNDING)
    if rank > len(scores):
        needed = math.ceil(coverage / (1 - coverage) - _ROUNDING)
        raise ValueError(
            f"coverage={coverage} cannot be promised by the {len(scores)} row(s) of X_val that "
            f"fit has got: it takes at least {needed}. Pass more, or ask for a smaller coverage."
        )
    return scores[rank - 1]
