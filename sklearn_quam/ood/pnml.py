"""The regret of the last layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import log_softmax

from .._documented import DETECTOR, documented
from .._typing import Device, RandomState
from ..exceptions import warn
from ._core.detector import BaseDetector
from ._core.features import AnyReader
from ._core.geometry import Precision, precision_of, unit_length
from ._core.known import FittedDetector, Known
from ._core.moments import MomentDetector, Moments, moments_of
from ._core.reading import Seen


@dataclass(frozen=True, eq=False)
class _Regret:
    moments: Moments
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
    return unit_length(features)


@documented(DETECTOR)
class PNMLDetector(MomentDetector):
    """Score rows by minus the regret of predictive normalised maximum likelihood.

    For each class, the last layer is trained to convergence on the training data and the row with
    that label; the regret says how far these best cases together exceed a probability of one. It
    has a closed form: it is large where the features lie in a direction that the training data
    leave open, and zero where they determine the layer. QUAM asks a like question of all layers.
    It needs more training rows than the last layer has inputs, better many more, and warns else.
    `partial_fit` takes them batch by batch.

    Parameters
    ----------
    normalize : bool, default=False
        Whether features have length one, as published; else a constant for the bias goes along.

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
        super().__init__(
            estimator,
            contamination=contamination,
            link=link,
            output=output,
            device=device,
            random_state=random_state,
        )
        self.normalize = normalize

    def _moments(self, known: Known) -> Moments:
        known.reader.head()
        return moments_of(_directions(known.seen.features, self.normalize))

    def _score_of(self, moments: Moments, reader: AnyReader) -> _Regret:  # noqa: ARG002
        # The sum of outer products of the rows themselves.
        (n_rows,), (mean,), scatter = moments.counts, moments.means, moments.scatter
        assert scatter is not None
        if n_rows <= len(mean):
            warn(
                f"{n_rows:.0f} training rows leave some of the {len(mean)} directions of the last "
                "layer open: nearly every new row lies in one of these, and regrets tell little. "
                "Choose another detector.",
                UserWarning,
            )
        return _Regret(
            moments, precision_of(scatter + n_rows * np.outer(mean, mean)), self.normalize
        )

    def _score_left_out(self, score: Any, known: Known) -> np.ndarray:
        return score.left_out(known.seen)
