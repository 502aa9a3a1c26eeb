"""The generalised entropy of the probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from scipy.special import log_softmax
from sklearn.utils._param_validation import Interval

from .._documented import DETECTOR, documented
from .._typing import Device, RandomState
from ._core.detector import BaseDetector
from ._core.known import FittedDetector, Known, Score
from ._core.reading import Seen


@dataclass(frozen=True)
class _GeneralizedEntropy:
    gamma: float
    n_largest: int

    def __call__(self, seen: Seen) -> np.ndarray:
        log_proba = np.sort(log_softmax(seen.logits, axis=1), axis=1)[:, -self.n_largest :]
        with np.errstate(divide="ignore"):
            log_rest = np.log(-np.expm1(log_proba))
        return -np.exp(self.gamma * (log_proba + log_rest)).sum(axis=1)


@documented(DETECTOR)
class GENDetector(BaseDetector):
    """Score rows by minus the generalised entropy of their largest probabilities.

    The sum of ``p**gamma * (1 - p)**gamma``: with a small exponent, small probabilities that are
    not quite zero count much. It costs a forward pass and looks at nothing but the probabilities,
    so that it takes any network, transformers among them.

    Parameters
    ----------
    gamma : float, default=0.1
        The exponent.
    n_largest : int, default=100
        How many of the largest probabilities count; of fewer classes, all do.

    References
    ----------
    Liu, Lochman and Zach, "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection",
    CVPR 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import GENDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> detector = GENDetector(net).fit(X, y)
    >>> detector.predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    _fitted_kind = FittedDetector[_GeneralizedEntropy]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "gamma": [Interval(Real, 0, None, closed="neither")],
        "n_largest": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        gamma: float = 0.1,
        n_largest: int = 100,
        contamination: float = 0.05,
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        random_state: RandomState = None,
    ) -> None:
        super().__init__(
            estimator,
            contamination=contamination,
            link=link,
            output=output,
            device=device,
            random_state=random_state,
        )
        self.gamma = gamma
        self.n_largest = n_largest

    def _learn(self, known: Known) -> Score:  # noqa: ARG002
        return _GeneralizedEntropy(self.gamma, self.n_largest)
