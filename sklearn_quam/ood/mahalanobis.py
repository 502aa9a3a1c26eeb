"""Distance from the means of the classes."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.utils._param_validation import Interval, StrOptions

from .._documented import DETECTOR, documented
from .._typing import Device, RandomState
from ._core.detector import BaseDetector
from ._core.features import AnyReader
from ._core.geometry import Precision, oas_shrinkage, precision_of, unit_length
from ._core.known import FittedDetector, Known
from ._core.moments import MomentDetector, Moments, moments_of
from ._core.reading import INPUT, Seen

_ROWS = 1000  # whose distances from all means are held together


@dataclass(frozen=True, eq=False)
class _Distance:
    moments: Moments
    within: Precision
    overall: Precision | None
    normalize: bool

    def __call__(self, seen: Seen) -> np.ndarray:
        centre = self.moments.together().means[0]
        features = unit_length(seen.features) if self.normalize else seen.features
        # In units of the covariance once, not once for each of what may be a thousand classes.
        means = self.within.in_units(self.moments.means[self.moments.counts > 0] - centre)
        rows = self.within.in_units(features - centre)
        nearest = np.concatenate(
            [
                cdist(rows[start : start + _ROWS], means, "sqeuclidean").min(axis=1)
                for start in range(0, len(rows), _ROWS)
            ]
        )
        if self.overall is None:
            return -nearest
        return self.overall.squared_length(features - centre) - nearest


@documented(DETECTOR)
class MahalanobisDetector(MomentDetector):
    """Score rows by minus the distance from the nearest class mean.

    Features of each class are taken for Gaussians with the covariance that all classes share; the
    score is minus the squared Mahalanobis distance from the nearest of their means. Features are
    divided by their length first (Mahalanobis++). `partial_fit` takes training rows batch by batch.

    Parameters
    ----------
    normalize : bool or "auto", default="auto"
        Whether features are divided by their length, which tells little about how known a row is.
        "auto" does so for all layers but inputs.
    relative : bool, default=False
        Whether the squared distance from the mean of all rows, with the covariance of all rows, is
        subtracted: directions that do not tell the classes apart then count little.
    shrinkage : "auto" or float, default="auto"
        How far covariances are shrunk to a multiple of the identity, between 0 and 1; "auto" takes
        the oracle approximating estimate. Both covariances are shrunk by the same, so that rows do
        not look the more normal the farther away they are.

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
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import MahalanobisDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> detector = MahalanobisDetector(net).fit(X, y)
    >>> detector.predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    _fitted_kind = FittedDetector[_Distance]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "layer": [str, list, tuple],
        "normalize": ["boolean", StrOptions({"auto"})],
        "relative": ["boolean"],
        "shrinkage": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        layer: str | list[str] = "penultimate",
        normalize: bool | str = "auto",
        relative: bool = False,
        shrinkage: str | float = "auto",
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
        self.layer = layer
        self.normalize = normalize
        self.relative = relative
        self.shrinkage = shrinkage

    def _needs_logits(self) -> bool:
        return False

    def _normalizes(self) -> bool:
        """Tell whether features are divided by their length; that of an input tells much."""
        layers = [self.layer] if isinstance(self.layer, str) else self.layer
        return INPUT not in layers if self.normalize == "auto" else bool(self.normalize)

    def _moments(self, known: Known) -> Moments:
        features = known.seen.features
        rows = unit_length(features) if self._normalizes() else features
        return moments_of(rows, known.target, len(self.classes_))

    def _score_of(self, moments: Moments, reader: AnyReader) -> _Distance:  # noqa: ARG002
        scatter, n_rows = moments.scatter, moments.counts.sum()
        assert scatter is not None
        within = scatter / n_rows
        chosen = self.shrinkage
        shrinkage = oas_shrinkage(within, n_rows) if chosen == "auto" else float(chosen)
        added = shrinkage * np.trace(within) / len(within)
        overall = None
        if self.relative:
            total = moments.together().scatter
            assert total is not None
            overall = precision_of((1 - shrinkage) * total / n_rows, added)
        within_classes = precision_of((1 - shrinkage) * within, added)
        return _Distance(moments, within_classes, overall, self._normalizes())
