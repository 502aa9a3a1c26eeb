"""The free energy of the logits."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy.special import logsumexp
from sklearn.utils._param_validation import Interval

from .._documented import DETECTOR, documented
from .._typing import Device, RandomState
from ._core.detector import BaseDetector
from ._core.known import FittedDetector, Known, Score
from ._core.reading import Seen


@dataclass(frozen=True)
class _Energy:
    temperature: float

    def __call__(self, seen: Seen) -> np.ndarray:
        return self.temperature * logsumexp(seen.logits / self.temperature, axis=1)


@documented(DETECTOR)
class EnergyDetector(BaseDetector):
    """Score rows by the log-sum-exp of their logits, minus their free energy.

    It costs a forward pass. Training pushes up the logits of known rows; of unknown ones they are
    often low. Logits that grow with distance, as those of ReLU networks do, mislead it.

    Parameters
    ----------
    temperature : float, default=1.0
        What the logits are divided by, and the result multiplied with.

    References
    ----------
    Liu, Wang, Owens and Li, "Energy-based Out-of-distribution Detection", NeurIPS 2020.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import EnergyDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> detector = EnergyDetector(net).fit(X, y)
    >>> detector.predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    _fitted_kind = FittedDetector[_Energy]
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

    def _learn(self, known: Known) -> Score:  # noqa: ARG002
        return _Energy(self.temperature)
