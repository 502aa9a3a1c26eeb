"""The regret of the last layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import log_softmax

from .._typing import Device, RandomState
from ..exceptions import warn
from ._detector import BaseDetector, FittedDetector, Score
from ._geometry import Precision, precision_of
from ._reading import Reader, Seen


@dataclass(frozen=True, eq=False)
class _Regret:
    precision: Precision
    normalize: bool

    def __call__(self, seen: Seen) -> np.ndarray:
        leverage = self._leverage(seen)
        return -_regret(seen.logits, leverage / (1 + leverage))

    def left_out(self, seen: Seen) -> np.ndarray:
        """Return scores of training rows, each by all others.

        Without the row itself, its leverage h is h / (1 - h).
        """
        return -_regret(seen.logits, np.minimum(self._leverage(seen), 1.0))

    def _leverage(self, seen: Seen) -> np.ndarray:
        return self.precision.squared_length(_directions(seen.features, self.normalize))


def _regret(logits: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Return how far the best cases of all classes together exceed a probability of one.

    Parameters
    ----------
    logits : ndarray of shape (n_rows, n_classes)
        What the network says.
    exponent : ndarray of shape (n_rows,)
        l / (1 + l), where l is the leverage.

    Returns
    -------
    ndarray of shape (n_rows,)
        In nats.
    """
    log_proba = log_softmax(logits, axis=1)
    exponent = exponent[:, None]
    # q = p / (p + p^a (1 - p)), whose sum is the exponential of the regret, without dividing
    # by zero. As probabilities add up to one, the sum is 1 + sum of (q - p), which is
    # q (1 - p) (1 - p^a): what is added is known to the last digit however small it is.
    rest = -np.expm1(log_proba)
    with np.errstate(over="ignore"):
        q = 1 / (1 + np.exp(-log_proba * (1 - exponent)) * rest)
    return np.log1p((q * rest * -np.expm1(exponent * log_proba)).sum(axis=1))


def _directions(features: np.ndarray, normalize: bool) -> np.ndarray:
    """Return what the last layer multiplies: features and a constant, or features of length one."""
    if not normalize:
        return np.column_stack([features, np.ones(len(features))])
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(length > 0, length, 1)


class PNMLDetector(BaseDetector):
    """Score rows by minus the regret of predictive normalised maximum likelihood.

    For each class, the last layer is trained to convergence on the training data and the row with
    that label; the regret says how far these best cases together exceed a probability of one. It
    has a closed form: it is large where the features lie in a direction that the training data
    leave open, and zero where they determine the layer. QUAM asks a like question of all layers.
    It needs more training rows than the last layer has inputs, better many more, and warns else.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        The network: a fitted one is taken as it is, an unfitted one is trained by `fit`. None
        trains a small default network on scaled inputs.
    normalize : bool, default=False
        Whether features have length one, as published; else a constant for the bias goes along.
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
    Bibas, Feder and Hassner, "Single Layer Predictive Normalized Maximum Likelihood for
    Out-of-Distribution Detection", NeurIPS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import PNMLDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> detector = PNMLDetector(net).fit(X, y)
    >>> detector.predict([X[0], [9, 9, 9, 9]])
    array([ 1, -1])
    """

    _fitted_kind = FittedDetector[_Regret]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "normalize": ["boolean"],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        normalize: bool = False,
        contamination: float = 0.05,
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        random_state: RandomState = None,
    ) -> None:
        self.estimator = estimator
        self.normalize = normalize
        self.contamination = contamination
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state

    def _learn(self, seen: Seen, target: np.ndarray, reader: Reader) -> Score:  # noqa: ARG002
        reader.head()
        directions = _directions(seen.features, self.normalize)
        n_rows, n_directions = directions.shape
        if n_rows <= n_directions:
            warn(
                f"{n_rows} training rows leave some of the {n_directions} directions of the last "
                "layer open: nearly every new row lies in one of these, and regrets tell little. "
                "Choose another detector.",
                UserWarning,
            )
        return _Regret(precision_of(directions.T @ directions), self.normalize)

    def _score_left_out(
        self,
        score: Any,
        seen: Seen,
        target: np.ndarray,  # noqa: ARG002
        reader: Reader,  # noqa: ARG002
    ) -> np.ndarray:
        return score.left_out(seen)
