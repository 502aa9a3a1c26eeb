"""Which prior precision suits the training data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

# Prior precisions that are tried.
GRID = np.logspace(-4, 6, 41)


class Evidence:
    """The log marginal likelihood of the training data as a function of the prior precision."""

    def __init__(self, log_det: Callable[[float], Any], squared_norm: float, loss: float) -> None:
        # The log-determinant as in `Curvature`; the norm of the free parameters; the sum of losses.
        self._log_det, self._squared_norm, self._loss = log_det, squared_norm, loss

    def __call__(self, precision: float) -> float:
        """Return the log marginal likelihood at a precision."""
        if np.isinf(precision):
            return -np.inf
        log_det = float(self._log_det(precision))
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
