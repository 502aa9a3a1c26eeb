"""Which prior precision suits the training data."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar

from .structures import Curvature

# What prior precisions are looked at.
GRID = np.logspace(-4, 6, 41)


class Evidence:
    """The log marginal likelihood of the training data as a function of the prior precision.

    It is an approximation, for the Gaussian posterior is one.

    Parameters
    ----------
    curvature : Curvature
        Of the sum of the losses.
    squared_norm : float
        Of the free parameters.
    loss : float
        Sum of the losses of the given network.
    """

    def __init__(self, curvature: Curvature, squared_norm: float, loss: float) -> None:
        self._curvature, self._squared_norm, self._loss = curvature, squared_norm, loss

    def __call__(self, precision: float) -> float:
        """Return the log marginal likelihood at a precision."""
        if np.isinf(precision):
            return -np.inf
        log_det = float(self._curvature.log_det(precision))
        return -self._loss - 0.5 * (precision * self._squared_norm + log_det)

    def best(self) -> float:
        """Return the prior precision that makes the training data most likely."""
        best = int(np.argmax([self(precision) for precision in GRID]))
        low, high = GRID[max(best - 1, 0)], GRID[min(best + 1, len(GRID) - 1)]
        found = minimize_scalar(
            lambda logarithm: -self(math.exp(logarithm)),
            bounds=(math.log(low), math.log(high)),
            method="bounded",
        )
        return math.exp(found.x)
