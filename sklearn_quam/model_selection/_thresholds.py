"""Thresholds of doubt for a promised coverage or risk of new samples.

Arguments: doubt of held-out samples in increasing order, and whether their answers are right.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
from scipy.stats import beta

# Shares of accepted samples that `max_risk` chooses from: few, because they share the error.
_N_SHARES = 20
# Samples that a warning may ask for, as multiples of those there are: up to a million times.
_FACTORS = np.geomspace(1, 2**20, 1400)


def conformal_quantile(doubt: np.ndarray, coverage: float) -> float:
    """Return a threshold that at least a share of new samples does not exceed, in expectation."""
    # Among one more sample of the same kind, each rank of the new one is equally likely.
    rank = math.ceil(round((len(doubt) + 1) * coverage, 9))
    return float(doubt[rank - 1]) if rank <= len(doubt) else math.inf


def threshold_for_risk(
    doubt: np.ndarray, right: np.ndarray, max_risk: float, error: float
) -> float:
    """Return the largest threshold whose risk is small with probability 1 - error; else -inf.

    Given the threshold, samples below it are independent, so that the number of mistakes among them
    is binomial with an exact upper bound. A few thresholds, at fixed ranks, share the error.
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
    """Return how many samples a promise takes if mistakes stay as frequent; None if no number."""
    kept = [counts[1:] for counts in _kept_at_ranks(doubt, right)]

    def suffices(factor: float) -> bool:
        return any(
            _largest_risk(factor * n_kept, factor * n_wrong, error / _N_SHARES) <= max_risk
            for n_kept, n_wrong in kept
        )

    place = bisect_left(_FACTORS, True, key=suffices)
    if place == len(_FACTORS):
        return None
    needed = _FACTORS[place] * len(doubt)
    unit = 10 ** max(math.floor(math.log10(needed)) - 1, 0)
    return math.ceil(needed / unit) * unit


def _kept_at_ranks(doubt: np.ndarray, right: np.ndarray) -> list[tuple[int, int, int]]:
    """Return ranks, the last first, with the numbers of samples and of mistakes they keep.

    At the last rank nothing is rejected; else the sample at the rank is rejected.
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
