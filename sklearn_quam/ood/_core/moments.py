"""Detectors that learn sums over training rows only, so that these may come batch by batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from sklearn.base import _fit_context

from ..._network.limits import computing
from ..._posterior.training_range import input_range
from .detector import BaseDetector
from .features import AnyReader
from .known import FittedDetector, Known, Score
from .reading import Seen
from .thresholds import cross_fitted


@dataclass(frozen=True, eq=False)
class Moments:
    """Counts, means and scatter of rows in groups; those of more rows are a sum.

    Parameters
    ----------
    counts : ndarray of shape (n_groups,)
        Rows of each group.
    means : ndarray of shape (n_groups, n_features)
        Their means, zeros of an empty group.
    scatter : ndarray of shape (n_features, n_features) or None
        Sum over all rows of the outer product of what is left of a row without the mean of its
        group.
    """

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
        """Return the moments of all rows as one group."""
        n_rows = self.counts.sum()
        mean = (self.counts / n_rows) @ self.means
        if self.scatter is None:
            return Moments(n_rows[None], mean[None])
        gap = self.means - mean
        between = (gap * self.counts[:, None]).T @ gap
        return Moments(n_rows[None], mean[None], self.scatter + between)


def moments_of(
    rows: np.ndarray,
    group: np.ndarray | None = None,
    n_groups: int = 1,
    *,
    with_scatter: bool = True,
) -> Moments:
    """Return the moments of rows.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        The rows.
    group : ndarray of shape (n_rows,), default=None
        The group of each, as a number; None is a single group.
    n_groups : int, default=1
        How many groups there may be.
    with_scatter : bool, default=True
        Whether to sum up outer products.

    Returns
    -------
    Moments
        The moments.
    """
    group = np.zeros(len(rows), int) if group is None else group
    counts = np.bincount(group, minlength=n_groups).astype(float)
    means = np.zeros((n_groups, rows.shape[1]))
    for number in np.flatnonzero(counts):
        means[number] = rows[group == number].mean(axis=0)
    if not with_scatter:
        return Moments(counts, means)
    centred = rows - means[group]
    return Moments(counts, means, centred.T @ centred)


class MomentScore(Protocol):
    """What scores rows, and has kept the moments that it comes from."""

    @property
    def moments(self) -> Moments:
        """What was summed up over training rows."""

    def __call__(self, seen: Seen) -> np.ndarray:
        """Return how normal rows are."""


class MomentDetector(BaseDetector):
    """Base of detectors that learn moments; these fill in two hooks."""

    def _moments(self, known: Known) -> Moments:
        """Return what is summed up over training rows."""
        raise NotImplementedError

    def _score_of(self, moments: Moments, reader: AnyReader) -> MomentScore:
        """Return what scores rows, by the moments of all training rows."""
        raise NotImplementedError

    def _learn(self, known: Known) -> Score:
        moments = self._moments(known)
        moments = moments if known.earlier is None else known.earlier + moments
        return self._score_of(moments, known.reader)

    def _score_left_out(self, score: Score, known: Known) -> np.ndarray:  # noqa: ARG002
        return cross_fitted(self._learn, known)

    @_fit_context(prefer_skip_nested_validation=False)
    def partial_fit(self, X: Any, y: Any = None, *, X_val: Any = None) -> Any:
        """Learn from further known rows, which need not be in memory with those before.

        Scores are those of one `fit` to all rows, to rounding. The threshold of `predict` is set
        by ``X_val``, or by the rows of this call. A network that is not fitted is trained by the
        first call only.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Further training data.
        y : array-like of shape (n_samples,), default=None
            Labels, of those that the first call has seen or the network knows. None takes what
            the network predicts for X.
        X_val : array-like of shape (n_val, ...), default=None
            Known rows that the network was not trained on, to set the threshold by.

        Returns
        -------
        self : object
            The fitted detector.
        """
        if not hasattr(self, "_fitted"):
            return self.fit(X, y, X_val=X_val)
        inputs = self._check_inputs(X)
        before: FittedDetector[Any] = self._fitted
        with computing():
            reader = before.reader.knowing(input_range(inputs))
            seen = reader(inputs)
            target = seen.logits.argmax(axis=1) if y is None else self._columns(y, len(inputs))
            held_out = None if X_val is None else reader(self._check_inputs(X_val))
            return self._adopt(
                Known(seen, target, reader, before.score.moments),
                held_out,
                known_by_heart=before.known_by_heart and X_val is None,
                bounds=before.bounds,
            )
