"""Detectors that look at features of any layer: distances, and a virtual logit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from sklearn.neighbors import NearestNeighbors
from sklearn.utils._param_validation import Interval, StrOptions

from .._arguments import allowed, arguments, integer
from .._documented import DETECTOR, documented
from .._messages import shown
from ..base._wrapping import N_JOBS
from ..exceptions import warn
from ._core.detector import BaseDetector
from ._core.fitted import FittedDetector, Known, Score, cross_fitted
from ._core.moments import (
    MomentDetector,
    Moments,
    moments_of,
    oas_shrinkage,
    root_of_inverse,
    squared_length,
    unit_length,
)
from ._core.reading import INPUT, PENULTIMATE, AnyReader, Seen

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
@arguments
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
    """

    layer: str | list[str] = allowed(str, list, tuple, default="penultimate")
    normalize: bool | str = allowed("boolean", StrOptions({"auto"}), default="auto")
    relative: bool = allowed("boolean", default=False)
    shrinkage: str | float = allowed(
        StrOptions({"auto"}), Interval(Real, 0, 1, closed="both"), default="auto"
    )

    _fitted_kind = FittedDetector[_Distance]

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


# Training samples that set the threshold, at most: each is compared with all others.
_FOR_THRESHOLD = 10_000


@dataclass(frozen=True, eq=False)
class _Neighborhood:
    points: np.ndarray
    n_neighbors: int
    metric: str
    n_jobs: int | None
    # Log-sum-exp of the logits of the training samples, if they guide.
    energies: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Build the search tree now: predictions write nothing."""
        _ = self.neighbors

    @cached_property
    def neighbors(self) -> NearestNeighbors:
        """The search tree."""
        metric = "euclidean" if self.metric == "cosine" else self.metric
        found = NearestNeighbors(n_neighbors=self.n_neighbors, metric=metric, n_jobs=self.n_jobs)
        return found.fit(self.points)

    def __call__(self, seen: Seen) -> np.ndarray:
        points = _points(seen.features, self.metric)
        own = None if self.energies is None else logsumexp(seen.logits, axis=1)
        distances, numbers = self.neighbors.kneighbors(points)
        return self._score(points, distances, numbers, own)

    def left_out(self) -> np.ndarray:
        """Return scores of training samples, each by its distance from others."""
        points, some = self.points, np.arange(len(self.points))
        if len(points) > _FOR_THRESHOLD:
            some = np.random.default_rng(0).choice(len(points), _FOR_THRESHOLD, replace=False)
            # The nearest one is the sample itself.
            found = self.neighbors.kneighbors(points[some], self.n_neighbors + 1)
            distances, numbers = (each[:, 1:] for each in found)
        else:
            # Without arguments, no sample is its own neighbour.
            distances, numbers = self.neighbors.kneighbors()
        own = None if self.energies is None else self.energies[some]
        return self._score(points[some], distances, numbers, own)

    def _score(
        self, points: np.ndarray, distances: np.ndarray, numbers: np.ndarray, own: Any
    ) -> np.ndarray:
        """Return scores by the distances and numbers of the nearest training samples."""
        if self.metric == "cosine":
            distances = np.where(points[:, -1:] > 0, 1.0, distances**2 / 2)
        if own is None or self.energies is None:
            return -distances[:, -1]
        return own * ((1 - distances) * self.energies[numbers]).mean(axis=1)


def _points(features: np.ndarray, metric: Any) -> np.ndarray:
    """Return the points to search, whose squared distances are twice the cosine distances.

    Features of length zero are at a right angle to all others: they have an axis of their own.
    """
    if metric != "cosine":
        return features
    return np.hstack([unit_length(features), ~features.any(axis=1, keepdims=True)])


@documented(DETECTOR)
@arguments
class NearestNeighborDetector(BaseDetector):
    """Score samples by minus the distance from the k-th nearest training sample.

    Distances are between features of the network. With ``guided=True`` (NNGuide) the score is the
    log-sum-exp of the sample's logits times the mean of its neighbours' ones, weighted by their
    cosine similarity.

    Parameters
    ----------
    n_neighbors : int
        Which neighbour. All training samples are kept; at most 10,000 of them set the threshold.
    metric : str or callable
        Any metric of `sklearn.neighbors.NearestNeighbors`.
    guided : bool
        Whether the logits of a sample and its ``n_neighbors`` nearest neighbours count, too; with
        the cosine metric only.
    n_jobs : int
        Threads or processes of the search for neighbours.

    References
    ----------
    Sun, Ming, Zhu and Li, "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022;
    Park, Jung and Teoh, "Nearest Neighbor Guidance for Out-of-Distribution Detection", ICCV 2023.
    """

    layer: str | list[str] = allowed(str, list, tuple, default="penultimate")
    n_neighbors: int = integer(default=5)
    metric: Any = allowed(str, callable, default="cosine")
    guided: bool = allowed("boolean", default=False)
    n_jobs: int | None = allowed(*N_JOBS, None, default=None)

    _fitted_kind = FittedDetector[_Neighborhood]

    def _needs_logits(self) -> bool:
        return self.guided

    def _learn(self, known: Known) -> Score:
        if self.guided and self.metric != "cosine":
            raise ValueError(f"guided=True takes metric='cosine', got {shown(self.metric)}.")
        n_others = max(1, len(known.seen.features) - 1)
        if self.n_neighbors > n_others:
            warn(
                f"n_neighbors={self.n_neighbors} is more than there are other training samples, "
                f"{n_others}: the farthest of them is taken.",
                UserWarning,
            )
        points, energies = _points(known.seen.features, self.metric), None
        if self.guided:
            energies = logsumexp(known.seen.logits, axis=1)
        n_neighbors = min(self.n_neighbors, n_others)
        return _Neighborhood(points, n_neighbors, self.metric, self.n_jobs, energies)

    def _score_left_out(self, score: Any, known: Known) -> np.ndarray:  # noqa: ARG002
        return score.left_out()


# Features do not vary in directions whose eigenvalue is a smaller share of the largest one.
_NO_EXTENT = 1e-6


@dataclass(frozen=True, eq=False)
class _VirtualLogit:
    origin: np.ndarray
    residual_space: np.ndarray
    scale: float

    def residual(self, seen: Seen) -> np.ndarray:
        return np.linalg.norm((seen.features - self.origin) @ self.residual_space, axis=1)

    def __call__(self, seen: Seen) -> np.ndarray:
        return logsumexp(seen.logits, axis=1) - self.scale * self.residual(seen)


def _extent(values: np.ndarray) -> int:
    """Return in how many directions features have extent, by their eigenvalues."""
    return int((values > _NO_EXTENT * values.max()).sum())


def _virtual_logit(known: Known, n_principal: Callable[[np.ndarray], int]) -> _VirtualLogit:
    """Return the virtual logit; eigenvalues of the features choose the principal dimension."""
    seen, reader = known.seen, known.reader
    if reader.layers == (PENULTIMATE,):
        # Where the logits of the last layer are as close to zero as possible.
        head = reader.head()
        origin = -np.linalg.pinv(head.weight) @ head.bias
    else:
        origin = seen.features.mean(axis=0)
    centred = seen.features - origin
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    n_residual = len(values) - n_principal(values)
    score = _VirtualLogit(origin, vectors[:, :n_residual], 1.0)
    scale = seen.logits.max(axis=1).mean() / score.residual(seen).mean()
    return _VirtualLogit(origin, score.residual_space, float(scale))


@documented(DETECTOR)
@arguments
class ViMDetector(BaseDetector):
    """Score samples by the log-sum-exp of their logits, minus a virtual logit.

    The virtual logit is the length of the features outside of the principal space of the training
    features, scaled so that it is as large as the largest logit on average.

    Parameters
    ----------
    n_components : int
        Dimension of the principal space; None takes half of the directions in which the training
        features have extent.

    References
    ----------
    Wang, Li, Feng and Zhang, "ViM: Out-Of-Distribution with Virtual-logit Matching", CVPR 2022.
    """

    layer: str | list[str] = allowed(str, list, tuple, default="penultimate")
    n_components: int | None = allowed(
        Interval(Integral, 1, None, closed="left"), None, default=None
    )

    _fitted_kind = FittedDetector[_VirtualLogit]

    def _learn(self, known: Known) -> Score:
        return _virtual_logit(known, self._n_principal)

    def _score_left_out(self, score: Any, known: Known) -> np.ndarray:
        n_principal = known.seen.features.shape[1] - score.residual_space.shape[1]

        def of_others(values: np.ndarray) -> int:
            # Fewer samples may have extent in fewer directions.
            return max(0, min(n_principal, _extent(values) - 1))

        return cross_fitted(lambda some: _virtual_logit(some, of_others), known)

    def _n_principal(self, values: np.ndarray) -> int:
        """Return the dimension of the principal space, by the eigenvalues of the features."""
        extent = _extent(values)
        wanted = max(1, extent // 2) if self.n_components is None else self.n_components
        if wanted >= extent:
            raise ValueError(
                f"The training features have extent in {extent} directions: a principal space of "
                f"{wanted} leaves nothing outside. Choose fewer n_components or another layer."
            )
        return wanted
