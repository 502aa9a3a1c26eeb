"""Which prior precision suits the training data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from .._network.free import Free

# Prior precisions that are tried.
GRID = np.logspace(-4, 6, 41)


class Evidence:
    """The log marginal likelihood of the training data as a function of the prior precision.

    ``log_det`` is that of `Curvature`, ``loss`` the sum of losses.
    """

    def __init__(self, log_det: Callable[[float], Any], free: Free, loss: float = 0.0) -> None:
        self._squared_norm = sum(float(part.double().square().sum()) for part in free.values())
        self._log_det, self._loss = log_det, loss

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
