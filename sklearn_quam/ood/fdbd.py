"""Distance from the boundaries between classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist

from .._documented import DETECTOR, documented
from ._core.features import AnyReader
from ._core.known import FittedDetector, Known
from ._core.moments import MomentDetector, Moments, moments_of
from ._core.reading import Seen


@dataclass(frozen=True, eq=False)
class _BoundaryDistance:
    moments: Moments
    # Between the weights of two classes; infinite where these are the same.
    apart: np.ndarray

    def __call__(self, seen: Seen) -> np.ndarray:
        gaps = seen.logits.max(axis=1, keepdims=True) - seen.logits
        distances = gaps / self.apart[seen.logits.argmax(axis=1)]
        away = np.linalg.norm(seen.features - self.moments.means[0], axis=1)
        smallest = np.finfo(float).tiny
        return distances.sum(axis=1) / (len(self.apart) - 1) / np.maximum(away, smallest)


@documented(DETECTOR)
class FDBDetector(MomentDetector):
    """Score rows by how far their features are from the boundaries of their class.

    The features of an unknown row lie nearer to where another class would win. The score is the
    mean distance from the boundaries to all other classes, divided by the distance from the mean of
    the training features (fDBD). It needs a linear last layer and has nothing to tune.
    `partial_fit` takes training rows batch by batch.

    References
    ----------
    Liu and Qin, "Fast Decision Boundary based Out-of-Distribution Detector", ICML 2024.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import FDBDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> detector = FDBDetector(net).fit(X, y)
    >>> detector.predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    _fitted_kind = FittedDetector[_BoundaryDistance]

    def _moments(self, known: Known) -> Moments:
        return moments_of(known.seen.features, with_scatter=False)

    def _score_of(self, moments: Moments, reader: AnyReader) -> _BoundaryDistance:
        weight = reader.head().weight
        apart = cdist(weight, weight)
        return _BoundaryDistance(moments, np.where(apart > 0, apart, np.inf))
