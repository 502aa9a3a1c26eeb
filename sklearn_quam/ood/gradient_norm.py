"""The length of features times the sureness of the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax
from sklearn.utils._param_validation import Interval

from .._documented import DETECTOR, documented
from .._typing import Device, RandomState
from ._core.detector import BaseDetector
from ._core.known import FittedDetector, Known, Score
from ._core.reading import Seen


@dataclass(frozen=True)
class _GradientNorm:
    temperature: float

    def __call__(self, seen: Seen) -> np.ndarray:
        # The gradient is the outer product of these two, so that its norm needs no gradient.
        proba = softmax(seen.logits / self.temperature, axis=1)
        by_logit = np.abs(proba - 1 / proba.shape[1]).sum(axis=1) / self.temperature
        return by_logit * np.abs(seen.features).sum(axis=1)


@documented(DETECTOR)
class GradientNormDetector(BaseDetector):
    """Score rows by the length of their features times how sure the network is.

    That product is the sum of magnitudes of a gradient, by the weights of the last layer, of the
    cross-entropy between the uniform distribution and the prediction, and was published as such
    (GradNorm). It says no more than its two factors, and has the worst mean rank of all methods and
    detectors of the package: take another one.

    Parameters
    ----------
    temperature : float, default=1.0
        What the logits are divided by.

    References
    ----------
    Huang, Geng and Li, "On the Importance of Gradients for Detecting Distributional Shifts in the
    Wild", NeurIPS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import GradientNormDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> detector = GradientNormDetector(net).fit(X, y)
    >>> detector.predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    _fitted_kind = FittedDetector[_GradientNorm]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "temperature": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        temperature: float = 1.0,
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
        self.temperature = temperature

    def _learn(self, known: Known) -> Score:
        known.reader.head()
        return _GradientNorm(self.temperature)
