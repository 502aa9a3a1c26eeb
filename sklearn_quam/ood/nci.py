"""Nearness to the weight of the predicted class."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval

from .._documented import DETECTOR, documented
from .._typing import Device, RandomState
from ._core.detector import BaseDetector
from ._core.features import AnyReader
from ._core.known import FittedDetector, Known
from ._core.moments import MomentDetector, Moments, moments_of
from ._core.reading import Seen


@dataclass(frozen=True, eq=False)
class _Nearness:
    moments: Moments
    # In units of their mean length.
    weight: np.ndarray
    alpha: float

    def __call__(self, seen: Seen) -> np.ndarray:
        mean, size = self.moments.means[0, :-1], self.moments.means[0, -1]
        centred = seen.features - mean
        along = (self.weight[seen.logits.argmax(axis=1)] * centred).sum(axis=1)
        away = np.maximum(np.linalg.norm(centred, axis=1), np.finfo(float).tiny)
        sizes = np.abs(seen.features).sum(axis=1) / (size or 1.0)
        return along / away + self.alpha * sizes


@documented(DETECTOR)
class NCIDetector(MomentDetector):
    """Score rows by how near their features are to the weight of the predicted class.

    In a network that was trained to the end, features of a class lie along its weight, seen from
    the mean of all (neural collapse). The score is the part of the weight along the features
    without that mean, and a share of the length of the features, which are often short where the
    network knows nothing. It needs a linear last layer. `partial_fit` takes training rows batch by
    batch.

    Parameters
    ----------
    alpha : float, default=0.1
        How much the length of features counts: in units of the mean length of a weight, where the
        sum of magnitudes of the features is in units of its mean over training rows.

    References
    ----------
    Liu and Qin, "Detecting Out-of-Distribution Through the Lens of Neural Collapse", CVPR 2025.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import NCIDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> detector = NCIDetector(net).fit(X, y)
    >>> detector.predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    _fitted_kind = FittedDetector[_Nearness]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "alpha": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        alpha: float = 0.1,
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
        self.alpha = alpha

    def _moments(self, known: Known) -> Moments:
        features = known.seen.features
        sizes = np.abs(features).sum(axis=1)
        return moments_of(np.column_stack([features, sizes]), with_scatter=False)

    def _score_of(self, moments: Moments, reader: AnyReader) -> _Nearness:
        weight = reader.head().weight
        length = np.linalg.norm(weight, axis=1).mean()
        return _Nearness(moments, weight / (length or 1.0), self.alpha)
