"""Split conformal prediction, and temperature scaling of logits, by held-out samples."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from .._messages import shown

# Rounding error of a number of samples.
_ROUNDING = 1e-9
# Standard deviation of the prior of the logarithm of a logit scale: few samples, or samples without
# a mistake, do not move it far from zero.
_SCALE_SPREAD = 0.25
_LARGEST_SCALE = 1e3


def check_coverage(coverage: Any) -> float:
    """Return the share as a float; refuse what is no share."""
    if not isinstance(coverage, Real) or not 0 < float(coverage) < 1:
        raise ValueError(
            f"coverage={shown(coverage)} is not understood: pass a share between 0 and 1, such as "
            "0.9."
        )
    return float(coverage)


def noise_and_calibration_rows(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random halves of the samples: one measures the noise, the other calibrates.

    Conformal scores must not depend on the samples that calibrate, as a noise variance would that
    was measured on them.
    """
    if n_rows < 2:
        raise ValueError(
            f"X_val has {n_rows} row(s), but at least 2 are needed: half of them measure the noise "
            "variance, the others calibrate intervals. Pass more rows, or noise_variance=."
        )
    order = np.random.default_rng(0).permutation(n_rows)
    n_noise = (n_rows + 1) // 2
    return np.sort(order[:n_noise]), np.sort(order[n_noise:])


def rows_needed(coverage: float) -> int:
    """Return the number of held-out samples that a coverage needs."""
    return math.ceil(coverage / (1 - coverage) - _ROUNDING)


def conformal_threshold(scores: np.ndarray, coverage: float, *, which: str = "") -> np.ndarray:
    """Return a threshold that a new score does not exceed with a probability of coverage.

    The rank of an exchangeable score among n sorted others is uniform: it is at most the k-th
    smallest with a probability of k / (n + 1). ``which`` names the samples in the error message.
    """
    rank = math.ceil((len(scores) + 1) * coverage - _ROUNDING)
    if rank > len(scores):
        raise ValueError(
            f"coverage={coverage} cannot be promised by the {len(scores)} row(s) of X_val that "
            f"fit has got{which}: it takes at least {rows_needed(coverage)}. Pass more, or ask for "
            "a smaller coverage."
        )
    return scores[rank - 1]


def scaled(proba: np.ndarray, scale: float) -> np.ndarray:
    """Return the probabilities of scaled logits."""
    return np.exp(log_softmax(scale * _log(proba), axis=1))


def fit_logit_scale(proba: np.ndarray, columns: np.ndarray) -> float:
    """Return the scale of logits under which held-out labels are most likely.

    It is temperature scaling with a prior. The log loss is convex in the scale, so on these samples
    the result is never worse than no scale.
    """
    log_proba, rows = _log(proba), np.arange(len(columns))

    def cost(log_scale: float) -> float:
        likely = log_softmax(math.exp(log_scale) * log_proba, axis=1)[rows, columns]
        return float((log_scale / _SCALE_SPREAD) ** 2 / 2 - likely.sum())

    largest = math.log(_LARGEST_SCALE)
    found = minimize_scalar(cost, bounds=(-largest, largest), method="bounded")
    return math.exp(float(found.x))


def _log(proba: np.ndarray) -> np.ndarray:
    """Return logarithms; one impossible label must not cost everything."""
    return np.log(proba.clip(min=np.finfo(float).tiny))
