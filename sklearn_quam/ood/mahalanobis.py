"""Distance from the means of the classes."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.utils._param_validation import Interval, StrOptions

from .._documented import DETECTOR, documented
from ._core.detector import BaseDetector
from ._core.fitted import FittedDetector, Known
from ._core.moments import (
    MomentDetector,
    Moments,
    moments_of,
    oas_shrinkage,
    root_of_inverse,
    squared_length,
    unit_length,
)
from ._core.reading import INPUT, AnyReader, Seen

_AT_ONCE = 1000  # samples whose distances from all means are held together


@dataclass(frozen=True, eq=False)
class _Distance:
    moments: Moments
    # Roots of the inverse covariances: within classes, and of all samples.
    within: np.ndarray
    overall: np.ndarray | None
    normalize: bool

    def __call__(self, seen: Seen) -> np.ndarray:
        centre = self.moments.together().means[0]
        features = (unit_length(seen.features) if self.normalize else seen.features) - centre
        # In units of the covariance once, not once for each of what may be a thousand classes.
        means = (self.moments.means[self.moments.counts > 0] - centre) @ self.within
        parts = np.split(features @ self.within, range(_AT_ONCE, len(features), _AT_ONCE))
        nearest = np.concatenate([cdist(part, means, "sqeuclidean").min(axis=1) for part in parts])
        return (
            -nearest if self.overall is None else squared_length(features @ self.overall) - nearest
        )


@documented(DETECTOR)
@dataclass(eq=False, repr=False, kw_only=True)
class MahalanobisDetector(MomentDetector):
    """Score samples by minus the distance from the nearest class mean.

    The score is minus the squared Mahalanobis distance, with the covariance that all classes share,
    of features that are divided by their length first (Mahalanobis++).

    Parameters
    ----------
    normalize : bool or "auto"
        Whether features are divided by their length. "auto" does so for all layers but inputs.
    relative : bool
        Whether the squared distance from the mean of all samples, with the covariance of all
        samples, is subtracted: directions that do not separate the classes then count little.
    shrinkage : "auto" or float
        How far covariances are shrunk to a multiple of the identity, between 0 and 1; "auto" takes
        the oracle approximating estimate. Both covariances are shrunk by the same amount.

    References
    ----------
    Lee, Lee, Lee and Shin, "A Simple Unified Framework for Detecting Out-of-Distribution Samples
    and Adversarial Attacks", NeurIPS 2018; Ren et al., "A Simple Fix to Mahalanobis Distance for
    Improving Near-OOD Detection", 2021; Mueller and Hein, "Mahalanobis++: Improving OOD Detection
    via Feature Normalization", ICML 2025; Chen, Wiesel, Eldar and Hero, "Shrinkage Algorithms for
    MMSE Covariance Estimation", 2010.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_quam.ood import MahalanobisDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> MahalanobisDetector(random_state=0).fit(X, y).predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    layer: str | list[str] = "penultimate"
    normalize: bool | str = "auto"
    relative: bool = False
    shrinkage: str | float = "auto"

    _fitted_kind = FittedDetector[_Distance]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "layer": [str, list, tuple],
        "normalize": ["boolean", StrOptions({"auto"})],
        "relative": ["boolean"],
        "shrinkage": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
    }

    def _needs_logits(self) -> bool:
        return False

    def _normalizes(self) -> bool:
        layers = [self.layer] if isinstance(self.layer, str) else self.layer
        return INPUT not in layers if self.normalize == "auto" else bool(self.normalize)

    def _moments(self, known: Known) -> Moments:
        features = known.seen.features
        features = unit_length(features) if self._normalizes() else features
        return moments_of(features, known.target, len(self.classes_))

    def _score_of(self, moments: Moments, reader: AnyReader) -> _Distance:  # noqa: ARG002
        n_samples = moments.counts.sum()
        within = moments.scatter / n_samples
        auto = self.shrinkage == "auto"
        shrinkage = oas_shrinkage(within, n_samples) if auto else float(self.shrinkage)
        added, overall = shrinkage * np.trace(within) / len(within), None
        if self.relative:
            total = np.asarray(moments.together().scatter) / n_samples
            overall = root_of_inverse((1 - shrinkage) * total, added)
        root = root_of_inverse((1 - shrinkage) * within, added)
        return _Distance(moments, root, overall, self._normalizes())
