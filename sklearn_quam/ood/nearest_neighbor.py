"""Distance from the nearest training rows."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.neighbors import NearestNeighbors
from sklearn.utils._param_validation import Interval

from .._typing import Device, RandomState
from ..base._wrapping import N_JOBS
from ..exceptions import warn
from ._detector import BaseDetector, FittedDetector, Score
from ._reading import Reader, Seen

# Training rows that set the threshold: with many more, each against all others takes long.
_ROWS_FOR_THRESHOLD = 10_000


@dataclass(frozen=True, eq=False)
class _NeighborDistance:
    neighbors: NearestNeighbors
    metric: Any

    def __call__(self, seen: Seen) -> np.ndarray:
        points = _points(seen.features, self.metric)
        return -self._distance(points, self.neighbors.kneighbors(points)[0][:, -1])

    def left_out(self) -> np.ndarray:
        """Return scores of training rows, each by its distance from others."""
        points, n_neighbors = self.neighbors._fit_X, self.neighbors.n_neighbors
        if len(points) > _ROWS_FOR_THRESHOLD:
            some = np.random.default_rng(0).choice(len(points), _ROWS_FOR_THRESHOLD, replace=False)
            points = points[some]
            # The nearest one is the row itself.
            found = self.neighbors.kneighbors(points, n_neighbors + 1)[0]
        else:
            # Without rows, none of them is its own neighbour.
            found = self.neighbors.kneighbors()[0]
        return -self._distance(points, found[:, -1])

    def _distance(self, points: np.ndarray, found: np.ndarray) -> np.ndarray:
        """Return distances in the metric that was asked for."""
        if self.metric != "cosine":
            return found
        return np.where(points[:, -1] > 0, 1.0, found**2 / 2)

    # In a file; a search tree is built again.
    _stored: ClassVar[dict[str, Any]] = {
        "points": np.ndarray,
        "n_neighbors": int,
        "metric": str,
        "n_jobs": int | None,
    }

    def _to_store(self) -> dict[str, Any]:
        found = self.neighbors
        own = {"points": found._fit_X, "n_neighbors": found.n_neighbors}
        return {**own, "metric": self.metric, "n_jobs": found.n_jobs}

    @classmethod
    def _from_store(
        cls, points: np.ndarray, n_neighbors: int, metric: str, n_jobs: int | None
    ) -> _NeighborDistance:
        return _among(points, n_neighbors, metric, n_jobs)


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
    points: np.ndarray, n_neighbors: int, metric: Any, n_jobs: int | None
) -> _NeighborDistance:
    searched = "euclidean" if metric == "cosine" else metric
    neighbors = NearestNeighbors(n_neighbors=n_neighbors, metric=searched, n_jobs=n_jobs)
    return _NeighborDistance(neighbors.fit(points), metric)


class NearestNeighborDetector(BaseDetector):
    """Score rows by minus the distance from the k-th nearest training row.

    Distances are between features of the network. The cosine distance, as published, compares their
    directions and not their lengths.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        The network: a fitted one is taken as it is, an unfitted one is trained by `fit`. None
        trains a small default network on scaled inputs.
    layer : str or list of str, default="penultimate"
        Where the features are taken: "penultimate" is what the last layer takes, "input" what
        the network takes, and a name of a submodule means what that returns, averaged over
        places or tokens. Features of several layers are put side by side.
    n_neighbors : int, default=5
        Which neighbour; all training rows are kept, so that memory and time grow with them. At most
        10,000 of them, drawn at random, set the threshold.
    metric : str or callable, default="cosine"
        Any metric of `sklearn.neighbors.NearestNeighbors`.
    n_jobs : int, default=None
        Threads or processes of the search for neighbours.
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
    Sun, Ming, Zhu and Li, "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022.

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

    _fitted_kind = FittedDetector[_NeighborDistance]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "layer": [str, list, tuple],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "metric": [str, callable],
        "n_jobs": [*N_JOBS, None],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        layer: str | list[str] = "penultimate",
        n_neighbors: int = 5,
        metric: Any = "cosine",
        n_jobs: int | None = None,
        contamination: float = 0.05,
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        random_state: RandomState = None,
    ) -> None:
        self.estimator = estimator
        self.layer = layer
        self.n_neighbors = n_neighbors
        self.metric = metric
        self.n_jobs = n_jobs
        self.contamination = contamination
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state

    def _learn(self, seen: Seen, target: np.ndarray, reader: Reader) -> Score:  # noqa: ARG002
        n_others = max(1, len(seen.features) - 1)
        if self.n_neighbors > n_others:
            warn(
                f"n_neighbors={self.n_neighbors} is more than there are other training rows, "
                f"{n_others}: the farthest of them is taken.",
                UserWarning,
            )
        points = _points(seen.features, self.metric)
        return _among(points, min(self.n_neighbors, n_others), self.metric, self.n_jobs)

    def _score_left_out(
        self,
        score: Any,
        seen: Seen,  # noqa: ARG002
        target: np.ndarray,  # noqa: ARG002
        reader: Reader,  # noqa: ARG002
    ) -> np.ndarray:
        return score.left_out()
