"""The largest logit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._typing import Device, RandomState
from ._detector import BaseDetector, FittedDetector, Score
from ._reading import Reader, Seen


@dataclass(frozen=True, eq=False)
class _LargestLogit:
    def __call__(self, seen: Seen) -> np.ndarray:
        return seen.logits.max(axis=1)


class MaxLogitDetector(BaseDetector):
    """Score rows by their largest logit.

    It costs a forward pass. Unlike the largest probability, it still says how much speaks for the
    best class where a second one is nearly as good.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        The network: a fitted one is taken as it is, an unfitted one is trained by `fit`. None
        trains a small default network on scaled inputs.
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
    Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import MaxLogitDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> detector = MaxLogitDetector(net).fit(X, y)
    >>> detector.predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    _fitted_kind = FittedDetector[_LargestLogit]

    def __init__(
        self,
        estimator: Any = None,
        *,
        contamination: float = 0.05,
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        random_state: RandomState = None,
    ) -> None:
        self.estimator = estimator
        self.contamination = contamination
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state

    def _learn(self, seen: Seen, target: np.ndarray, reader: Reader) -> Score:  # noqa: ARG002
        return _LargestLogit()
