"""Distance from the nearest training rows."""

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
from .._typing import Device, RandomState
from ..base._wrapping import N_JOBS
from ..exceptions import warn
from ._core.detector import BaseDetector
from ._core.known import FittedDetector, Known, Score
from ._core.reading import Seen

# Training rows that set the threshold: with many more, each against all others takes long.
_ROWS_FOR_THRESHOLD = 10_000


@dataclass(frozen=True, eq=False)
class _Neighborhood:
    neighbors: NearestNeighbors
    metric: Any
    # Of the training rows, where neighbours count by how sure the network is of them.
    energies: np.ndarray | None = None

    def __call__(self, seen: Seen) -> np.ndarray:
        points = _points(seen.features, self.metric)
        own = None if self.energies is None else logsumexp(seen.logits, axis=1)
        distances, numbers = self.neighbors.kneighbors(points)
        return self._score(points, distances, numbers, own)

    def left_out(self) -> np.ndarray:
        """Return scores of training rows, each by its distance from others."""
        points, n_neighbors = self.neighbors._fit_X, self.neighbors.n_neighbors
        some: Any = slice(None)
        if len(points) > _ROWS_FOR_THRESHOLD:
            some = np.random.default_rng(0).choice(len(points), _ROWS_FOR_THRESHOLD, replace=False)
            # The nearest one is the row itself.
            found = self.neighbors.kneighbors(points[some], n_neighbors + 1)
            distances, numbers = (each[:, 1:] for each in found)
        else:
            # Without rows, none of them is its own neighbour.
            distances, numbers = self.neighbors.kneighbors()
        own = None if self.energies is None else self.energies[some]
        return self._score(points[some], distances, numbers, own)

    def _score(
        self,
        points: np.ndarray,
        distances: np.ndarray,
        numbers: np.ndarray,
        own: np.ndarray | None,
    ) -> np.ndarray:
        """Return scores by the distances and numbers of the nearest training rows."""
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
        own = {"points": found._fit_X, "n_neighbors": found.n_neighbors}
        more = {"n_jobs": found.n_jobs, "energies": self.energies}
        return {**own, "metric": self.metric, **more}

    @classmethod
    def _from_store(cls, **stored: Any) -> _Neighborhood:
        return _among(**stored)


def _points(features: np.ndarray, metric: Any) -> np.ndarray:
    """Return what neighbours are looked for among.

    Squared distances of vectors of length one are twice their cosine distances, and are much
    faster to search. One of length zero is at a right angle to all others: it has an axis of its
    own.
    """
    if metric != "cosine":
        return features
    largest = np.abs(features).max(axis=1, keepdims=True)
    empty = largest == 0
    scaled = features / np.where(empty, 1.0, largest)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.hstack([scaled / np.where(empty, 1.0, length), empty])


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
class NearestNeighborDetector(BaseDetector):
    """Score rows by minus the distance from the k-th nearest training row.

    Distances are between features of the network. The cosine distance, as published, compares their
    directions and not their lengths. With ``guided=True`` (NNGuide) the score is the log-sum-exp of
    the row's logits times the mean of the neighbours' ones, weighted by their cosine similarity.

    Parameters
    ----------
    n_neighbors : int, default=5
        Which neighbour; all training rows are kept, so that memory and time grow with them. At most
        10,000 of them, drawn at random, set the threshold.
    metric : str or callable, default="cosine"
        Any metric of `sklearn.neighbors.NearestNeighbors`.
    guided : bool, default=False
        Whether the logits of a row and its ``n_neighbors`` nearest neighbours count, too; with the
        cosine metric only.
    n_jobs : int, default=None
        Threads or processes of the search for neighbours.

    References
    ----------
    Sun, Ming, Zhu and Li, "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022;
    Park, Jung and Teoh, "Nearest Neighbor Guidance for Out-of-Distribution Detection", ICCV 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import NearestNeighborDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> detector = NearestNeighborDetector(net).fit(X, y)
    >>> detector.predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    _fitted_kind = FittedDetector[_Neighborhood]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "layer": [str, list, tuple],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "metric": [str, callable],
        "guided": ["boolean"],
        "n_jobs": [*N_JOBS, None],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        layer: str | list[str] = "penultimate",
        n_neighbors: int = 5,
        metric: Any = "cosine",
        guided: bool = False,
        n_jobs: int | None = None,
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
        self.n_neighbors = n_neighbors
        self.metric = metric
        self.guided = guided
        self.n_jobs = n_jobs

    def _needs_logits(self) -> bool:
        return self.guided

    def _learn(self, known: Known) -> Score:
        if self.guided and self.metric != "cosine":
            raise ValueError(f"guided=True takes metric='cosine', got {shown(self.metric)}.")
        n_others = max(1, len(known.seen.features) - 1)
        if self.n_neighbors > n_others:
            warn(
                f"n_neighbors={self.n_neighbors} is more than there are other training rows, "
                f"{n_others}: the farthest of them is taken.",
                UserWarning,
            )
        points, energies = _points(known.seen.features, self.metric), None
        if self.guided:
            energies = logsumexp(known.seen.logits, axis=1)
        return _among(points, min(self.n_neighbors, n_others), self.metric, self.n_jobs, energies)

    def _score_left_out(self, score: Any, known: Known) -> np.ndarray:  # noqa: ARG002
        return score.left_out()
