"""Thresholds of doubt that hold for new rows: a share that is answered for, or a risk."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import beta

# Shares of the rows that may be accepted, from which `max_risk` chooses: few, because each of them
# takes its part of what the confidence leaves.
_N_SHARES = 20
# Rows that a warning may ask for, as a multiple of those there are.
_MAX_FACTOR = 2.0**20


def conformal_quantile(doubt: np.ndarray, coverage: float) -> float:
    """Return a threshold that at least a share of new rows does not exceed, in expectation.

    Parameters
    ----------
    doubt : ndarray of shape (n_rows,)
        How doubtful held-out rows are, in increasing order.
    coverage : float
        The share.

    Returns
    -------
    float
        Infinite where there are too few rows to tell.
    """
    # Among one more row of the same kind, each rank of the new one is as likely.
    rank = math.ceil(round((len(doubt) + 1) * coverage, 9))
    return float(doubt[rank - 1]) if rank <= len(doubt) else math.inf


def threshold_for_risk(
    doubt: np.ndarray, right: np.ndarray, max_risk: float, error: float
) -> float:
    """Return the largest threshold whose risk is small for sure.

    Given the threshold, rows below it are independent of each other, so that the number of mistakes
    among them is binomial and has an exact upper bound (Clopper and Pearson). A few thresholds, at
    fixed ranks, are looked at; they share the error probability.

    Parameters
    ----------
    doubt : ndarray of shape (n_rows,)
        How doubtful held-out rows are, in increasing order.
    right : ndarray of shape (n_rows,), dtype bool
        For which of them the answer is right.
    max_risk : float
        Largest share of mistakes among the rows that are accepted.
    error : float
        Probability with which it may be exceeded.

    Returns
    -------
    float
        Minus infinity where no threshold will do.
    """
    kept = _kept_at_ranks(doubt, right)
    for rank, n_kept, n_wrong in kept:
        if _largest_risk(n_kept, n_wrong, error / len(kept)) <= max_risk:
            everything = rank == len(doubt)
            return math.inf if everything else float(np.nextafter(doubt[rank], -math.inf))
    return -math.inf


def rows_for_risk(
    doubt: np.ndarray, right: np.ndarray, max_risk: float, error: float
) -> int | None:
    """Return how many rows it would take to promise a risk, if mistakes stay as frequent.

    Parameters
    ----------
    doubt, right, max_risk, error
        See `threshold_for_risk`.

    Returns
    -------
    int or None
        Two digits, rounded up; None where no number of rows is enough.
    """
    kept = [counts[1:] for counts in _kept_at_ranks(doubt, right)]

    def suffices(factor: float) -> bool:
        # More rows have all of the ranks.
        return any(
            _largest_risk(factor * n_kept, factor * n_wrong, error / _N_SHARES) <= max_risk
            for n_kept, n_wrong in kept
        )

    high = 1.0
    while not suffices(high):
        high *= 2
        if high > _MAX_FACTOR:
            return None
    low = high / 2
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if suffices(middle) else (middle, high)
    needed = high * len(doubt)
    unit = 10 ** max(math.floor(math.log10(needed)) - 1, 0)
    return math.ceil(needed / unit) * unit


def _kept_at_ranks(doubt: np.ndarray, right: np.ndarray) -> list[tuple[int, int, int]]:
    """Return each rank that is looked at, the last first, and how many rows and mistakes it keeps.

    The last rank is that of all rows: nothing is rejected. Else the row at the rank is the
    threshold itself, which is not accepted.
    """
    n_rows = len(doubt)
    found = []
    for rank in np.unique(np.linspace(0, n_rows, _N_SHARES + 1, dtype=int)[1:])[::-1]:
        kept = right if rank == n_rows else right[doubt < doubt[rank]]
        found.append((int(rank), len(kept), int((~kept).sum())))
    return found


def _largest_risk(n_kept: float, n_wrong: float, error: float) -> float:
    """Return the upper end of the share of mistakes (Clopper and Pearson)."""
    if n_wrong >= n_kept:
        return 1.0
    return float(beta.ppf(1 - error, n_wrong + 1, n_kept - n_wrong))
