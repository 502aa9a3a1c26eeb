"""Distance from the nearest training samples."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from scipy.special import logsumexp
from sklearn.neighbors import NearestNeighbors
from sklearn.utils._param_validation import Interval

from .._documented import DETECTOR, documented
from .._messages import shown
from ..base._wrapping import N_JOBS
from ..exceptions import warn
from ._core.detector import BaseDetector
from ._core.fitted import FittedDetector, Known, Score
from ._core.moments import unit_length
from ._core.reading import Seen

# Training samples that set the threshold, at most: each is compared with all others.
_FOR_THRESHOLD = 10_000


@dataclass(frozen=True, eq=False)
class _Neighborhood:
    neighbors: NearestNeighbors
    metric: Any
    # Log-sum-exp of the logits of the training samples, if they guide.
    energies: np.ndarray | None = None

    def __call__(self, seen: Seen) -> np.ndarray:
        points = _points(seen.features, self.metric)
        own = None if self.energies is None else logsumexp(seen.logits, axis=1)
        distances, numbers = self.neighbors.kneighbors(points)
        return self._score(points, distances, numbers, own)

    def left_out(self) -> np.ndarray:
        """Return scores of training samples, each by its distance from others."""
        points, some = self.neighbors._fit_X, np.arange(len(self.neighbors._fit_X))
        if len(points) > _FOR_THRESHOLD:
            some = np.random.default_rng(0).choice(len(points), _FOR_THRESHOLD, replace=False)
            # The nearest one is the sample itself.
            found = self.neighbors.kneighbors(points[some], self.neighbors.n_neighbors + 1)
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

    # In a file; a search tree is built again.
    _stored: ClassVar[dict[str, Any]] = {
        "points": np.ndarray,
        "n_neighbors": int,
        "metric": str,
        "n_jobs": int | None,
        "energies": np.ndarray | None,
    }

    def _to_store(self) -> dict[str, Any]:
        found = self.neighbors
        own = {"points": found._fit_X, "n_neighbors": found.n_neighbors, "n_jobs": found.n_jobs}
        return {**own, "metric": self.metric, "energies": self.energies}

    @classmethod
    def _from_store(cls, **stored: Any) -> _Neighborhood:
        return _among(**stored)


def _points(features: np.ndarray, metric: Any) -> np.ndarray:
    """Return the points to search, whose squared distances are twice the cosine distances.

    Features of length zero are at a right angle to all others: they have an axis of their own.
    """
    if metric != "cosine":
        return features
    return np.hstack([unit_length(features), ~features.any(axis=1, keepdims=True)])


def _among(
    points: np.ndarray,
    n_neighbors: int,
    metric: Any,
    n_jobs: int | None,
    energies: np.ndarray | None = None,
) -> _Neighborhood:
    searched = "euclidean" if metric == "cosine" else metric
    neighbors = NearestNeighbors(n_neighbors=n_neighbors, metric=searched, n_jobs=n_jobs)
    return _Neighborhood(neighbors.fit(points), metric, energies)


@documented(DETECTOR)
@dataclass(eq=False, repr=False, kw_only=True)
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

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_quam.ood import NearestNeighborDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> NearestNeighborDetector(random_state=0).fit(X, y).predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    layer: str | list[str] = "penultimate"
    n_neighbors: int = 5
    metric: Any = "cosine"
    guided: bool = False
    n_jobs: int | None = None

    _fitted_kind = FittedDetector[_Neighborhood]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "layer": [str, list, tuple],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "metric": [str, callable],
        "guided": ["boolean"],
        "n_jobs": [*N_JOBS, None],
    }

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
        return _among(points, min(self.n_neighbors, n_others), self.metric, self.n_jobs, energies)

    def _score_left_out(self, score: Any, known: Known) -> np.ndarray:  # noqa: ARG002
        return score.left_out()
