"""Detectors that learn sums over training samples only, so that these may come in batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import _fit_context

from ..._documented import DETECTOR, documented
from ..._network.limits import computing
from ..._posterior.training_range import input_range
from .detector import BaseDetector
from .fitted import Known, Score, cross_fitted
from .reading import AnyReader


@dataclass(frozen=True, eq=False)
class Moments:
    """Counts and means of groups of samples, and the scatter within them; batches add up."""

    counts: np.ndarray
    means: np.ndarray
    scatter: np.ndarray | None = None

    def __add__(self, other: Moments) -> Moments:
        counts = self.counts + other.counts
        share = other.counts / np.maximum(counts, 1)
        gap = other.means - self.means
        means = self.means + share[:, None] * gap
        if self.scatter is None or other.scatter is None:
            return Moments(counts, means)
        between = (gap * (self.counts * share)[:, None]).T @ gap
        return Moments(counts, means, self.scatter + other.scatter + between)

    def together(self) -> Moments:
        """Return the moments of all samples as one group."""
        n_samples = self.counts.sum()
        mean = (self.counts / n_samples) @ self.means
        if self.scatter is None:
            return Moments(n_samples[None], mean[None])
        gap = self.means - mean
        between = (gap * self.counts[:, None]).T @ gap
        return Moments(n_samples[None], mean[None], self.scatter + between)


def moments_of(
    samples: np.ndarray,
    group: np.ndarray | None = None,
    n_groups: int = 1,
    *,
    with_scatter: bool = True,
) -> Moments:
    """Return the moments of samples, by their group if that is given."""
    group = np.zeros(len(samples), int) if group is None else group
    counts = np.bincount(group, minlength=n_groups).astype(float)
    means = np.zeros((n_groups, samples.shape[1]))
    for number in np.flatnonzero(counts):
        means[number] = samples[group == number].mean(axis=0)
    if not with_scatter:
        return Moments(counts, means)
    centred = samples - means[group]
    return Moments(counts, means, centred.T @ centred)


@documented(DETECTOR._replace(sections={}))
class MomentDetector(BaseDetector):
    """Base of detectors that learn moments; these fill in two hooks."""

    def _moments(self, known: Known) -> Moments:
        """Return the moments of training samples."""
        raise NotImplementedError

    def _score_of(self, moments: Moments, reader: AnyReader) -> Score:
        """Return what scores samples, and keeps the moments as an attribute."""
        raise NotImplementedError

    def _learn(self, known: Known) -> Score:
        moments = self._moments(known)
        moments = moments if known.earlier is None else known.earlier + moments
        return self._score_of(moments, known.reader)

    def _score_left_out(self, score: Score, known: Known) -> np.ndarray:  # noqa: ARG002
        return cross_fitted(self._learn, known)

    @_fit_context(prefer_skip_nested_validation=False)
    def partial_fit(self, X: Any, y: Any = None, *, X_val: Any = None) -> Any:
        """Learn from further training samples.

        Scores are those of one `fit` to all samples, up to rounding. A network that is not fitted
        is trained by the first call only.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Further training data.
        y : array-like of shape (n_samples,)
            Labels, of those that the network knows. None takes what the network predicts.
        X_val : array-like of shape (n_val, ...)
            Samples that the network was not trained on, to set the threshold by. None takes X.
        """
        if not hasattr(self, "_fitted"):
            return self.fit(X, y, X_val=X_val)
        inputs = self._check_inputs(X)
        before: Any = self._fitted
        with computing():
            reader = before.reader.knowing(input_range(inputs))
            seen = reader(inputs)
            target = seen.logits.argmax(axis=1) if y is None else self._columns(y, len(inputs))
            held_out = None if X_val is None else reader(self._check_inputs(X_val))
            by_heart = before.known_by_heart
            known = Known(seen, target, reader, before.score.moments, by_heart=by_heart)
            return self._adopt(known, held_out, before.bounds)


def root_of_inverse(matrix: np.ndarray, added: float = 0.0) -> np.ndarray:
    """Return R with R R' the inverse of a covariance, with ``added`` on its diagonal.

    Directions without extent get a tiny one: what differs there is far away, which a pseudo-inverse
    would not see at all.
    """
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, 0.0) + added
    smallest = np.finfo(float).eps * len(values) * values.max()
    return vectors / np.sqrt(np.maximum(values, smallest or 1.0))


def squared_length(vectors: np.ndarray) -> np.ndarray:
    """Return the squared Euclidean length of each vector."""
    return (vectors**2).sum(axis=1)


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Return vectors divided by their length, zeros as they are."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scaled = vectors / np.where(largest > 0, largest, 1.0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled / np.where(length > 0, length, 1.0)


def oas_shrinkage(covariance: np.ndarray, n_samples: float) -> float:
    """Return how far to shrink a covariance to a multiple of the identity, from 0 to 1.

    The oracle approximating estimate; unlike that of Ledoit and Wolf it needs no samples.
    """
    size, mean = float((covariance**2).mean()), np.trace(covariance) / len(covariance)
    excess = (n_samples + 1) * (size - mean**2 / len(covariance))
    return min((size + mean**2) / excess, 1.0) if excess > 0 else 1.0
