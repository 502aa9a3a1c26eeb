"""The gradient of the last layer."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax
from sklearn.utils._param_validation import Interval

from .._typing import Device, RandomState
from ._detector import BaseDetector, FittedDetector, Score
from ._reading import Reader, Seen


@dataclass(frozen=True)
class _GradientNorm:
    temperature: float

    def __call__(self, seen: Seen) -> np.ndarray:
        # The gradient is the outer product of these two, so that its norm needs no gradient.
        proba = softmax(seen.logits / self.temperature, axis=1)
        by_logit = np.abs(proba - 1 / proba.shape[1]).sum(axis=1) / self.temperature
        return by_logit * np.abs(seen.features).sum(axis=1)


class GradientNormDetector(BaseDetector):
    """Score rows by a gradient norm of the last layer.

    The loss is the cross-entropy between the uniform distribution and the prediction; the score is
    the sum of the magnitudes of its gradient by the weights of the last layer, which has a closed
    form. It is large where the features are large and the prediction is far from uniform.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        The network: a fitted one is taken as it is, an unfitted one is trained by `fit`. None
        trains a small default network on scaled inputs.
    temperature : float, default=1.0
        What the logits are divided by.
    contamination : float, default=0.05
        Share of known rows that `predict` flags.
    link : str, default=None
        What the network returns, as for `QUAMClassifier`.
    output : str or int, default=None
        Which output is meant, by its name or number, if the network returns several. None takes
        ``logits``, or what comes first.
    device : str or torch.device, default=None
        Where to run; None stays where the network is.
    random_state : int, RandomState instance or None, default=None
        Seeds the training, if the network is trained.

    Attributes
    ----------
    offset_ : float
        Score below which a row is an outlier.
    classes_ : ndarray of shape (n_classes,)
        The labels.
    estimator_ : estimator or torch.nn.Module
        The network that was used.

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
        self.estimator = estimator
        self.temperature = temperature
        self.contamination = contamination
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state

    def _learn(self, seen: Seen, target: np.ndarray, reader: Reader) -> Score:  # noqa: ARG002
        reader.head()
        return _GradientNorm(self.temperature)
