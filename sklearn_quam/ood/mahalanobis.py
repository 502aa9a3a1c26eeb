"""Distance from the means of the classes."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.utils._param_validation import Interval, StrOptions

from .._typing import Device, RandomState
from ._detector import BaseDetector, FittedDetector, Score, cross_fitted
from ._geometry import Precision, precision_of
from ._reading import Reader, Seen

_ROWS = 1000  # whose distances from all means are held together


@dataclass(frozen=True, eq=False)
class _Distance:
    means: np.ndarray
    within: Precision
    centre: np.ndarray
    overall: Precision | None

    def __call__(self, seen: Seen) -> np.ndarray:
        # In units of the covariance once, not once for each of what may be a thousand classes.
        means = self.within.in_units(self.means - self.centre)
        rows = self.within.in_units(seen.features - self.centre)
        nearest = np.concatenate(
            [
                cdist(rows[start : start + _ROWS], means, "sqeuclidean").min(axis=1)
                for start in range(0, len(rows), _ROWS)
            ]
        )
        if self.overall is None:
            return -nearest
        return self.overall.squared_length(seen.features - self.centre) - nearest


class MahalanobisDetector(BaseDetector):
    """Score rows by minus the distance from the nearest class mean.

    Features of each class are taken for Gaussians with the covariance that all classes share; the
    score is minus the squared Mahalanobis distance from the nearest of their means.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        The network: a fitted one is taken as it is, an unfitted one is trained by `fit`. None
        trains a small default network on scaled inputs.
    layer : str or list of str, default="penultimate"
        Where the features are taken: "penultimate" is what the last layer takes, "input" what
        the network takes, and a name of a submodule means what that returns, averaged over
        places or tokens. Features of several layers are put side by side.
    relative : bool, default=False
        Whether the squared distance from the mean of all rows, with the covariance of all rows, is
        subtracted: directions that do not tell the classes apart then count little.
    shrinkage : "auto" or float, default="auto"
        How far covariances are shrunk to a multiple of the identity, between 0 and 1; "auto" takes
        Ledoit's and Wolf's estimate. Both covariances are shrunk by the same, so that
        rows do not look the more normal the farther away they are.
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
    Lee, Lee, Lee and Shin, "A Simple Unified Framework for Detecting Out-of-Distribution Samples
    and Adversarial Attacks", NeurIPS 2018; Ren et al., "A Simple Fix to Mahalanobis Distance for
    Improving Near-OOD Detection", 2021.

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
        "relative": ["boolean"],
        "shrinkage": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        layer: str | list[str] = "penultimate",
        relative: bool = False,
        shrinkage: str | float = "auto",
        contamination: float = 0.05,
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        random_state: RandomState = None,
    ) -> None:
        self.estimator = estimator
        self.layer = layer
        self.relative = relative
        self.shrinkage = shrinkage
        self.contamination = contamination
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state

    def _learn(self, seen: Seen, target: np.ndarray, reader: Reader) -> Score:  # noqa: ARG002
        features = seen.features
        present = np.unique(target)
        means = np.stack([features[target == column].mean(axis=0) for column in present])
        centred = features - means[np.searchsorted(present, target)]
        shrinkage = self.shrinkage
        if shrinkage == "auto":
            shrinkage = ledoit_wolf_shrinkage(centred, assume_centered=True)
        within = centred.T @ centred / len(centred)
        added = float(shrinkage) * np.trace(within) / len(within)
        centre = features.mean(axis=0)

        def shrunk(covariance: np.ndarray) -> Precision:
            return precision_of((1 - float(shrinkage)) * covariance, added)

        overall = None
        if self.relative:
            around = features - centre
            overall = shrunk(around.T @ around / len(around))
        return _Distance(means, shrunk(within), centre, overall)

    def _score_left_out(
        self,
        score: Score,  # noqa: ARG002
        seen: Seen,
        target: np.ndarray,
        reader: Reader,
    ) -> np.ndarray:
        return cross_fitted(lambda some, own: self._learn(some, own, reader), seen, target)
