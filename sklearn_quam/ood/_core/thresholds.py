"""From scores to outliers: thresholds, by rows that were left out when they were scored."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import OutlierMixin
from sklearn.utils._param_validation import Interval

from .known import Known, Score

# Parts of the training rows that are left out in turn to set the threshold, and rows that are
# enough for it.
_FOLDS = 5
_ENOUGH_ROWS = 400
CONTAMINATION = [Interval(Real, 0, 0.5, closed="right")]


class Thresholded(OutlierMixin):
    """Outliers are rows whose score is below the threshold that was fitted."""

    fit: Callable[..., Any]
    score_samples: Callable[[Any], np.ndarray]
    offset_: float

    def decision_function(self, X: Any) -> np.ndarray:
        """Return by how much each row is more normal than the threshold.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.

        Returns
        -------
        ndarray of shape (n_samples,)
            ``score_samples(X) - offset_``; negative for outliers.
        """
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """Tell outliers from normal rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.

        Returns
        -------
        ndarray of shape (n_samples,)
            -1 for outliers, 1 for others.
        """
        found = np.where(self.decision_function(X) < 0, -1, 1)
        self._warn_about_threshold()
        return found

    def _warn_about_threshold(self) -> None:
        """Say if far more known rows may be flagged than were asked for."""

    def fit_predict(self, X: Any, y: Any = None, **fit_params: Any) -> np.ndarray:
        """Fit, and tell outliers among the training rows from the others.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data.
        y : array-like of shape (n_samples,), default=None
            Labels.
        **fit_params : dict
            Arguments of `fit`.

        Returns
        -------
        ndarray of shape (n_samples,)
            -1 for outliers, 1 for others.
        """
        return self.fit(X, y, **fit_params).predict(X)


def cross_fitted(learn: Callable[[Known], Score], known: Known) -> np.ndarray:
    """Return scores of training rows by what is learnt from other training rows.

    Parameters
    ----------
    learn : callable
        Returns what scores rows, by some training rows.
    known : Known
        All training rows; their classes are spread evenly over the folds.

    Returns
    -------
    ndarray of shape (n_scored,)
        Scores of the rows of as many folds as it takes for a threshold. Of very few rows none is
        left out.
    """
    n_rows = len(known.target)
    if n_rows < 2 * _FOLDS:
        return learn(known)(known.seen)
    fold = np.empty(n_rows, int)
    shuffled = np.random.default_rng(0).permutation(n_rows)
    fold[np.lexsort((shuffled, known.target))] = np.arange(n_rows) % max(
        _FOLDS, n_rows // _ENOUGH_ROWS
    )
    found: list[np.ndarray] = []
    for number in range(_FOLDS):
        out = fold == number
        found.append(learn(known[~out])(known.seen[out]))
        if sum(map(len, found)) >= _ENOUGH_ROWS:
            break
    return np.concatenate(found)


def threshold(known: np.ndarray, contamination: float) -> float:
    """Return the score below which a share of known rows lies."""
    finite = known[np.isfinite(known)]
    floor = finite.min() if len(finite) else 0.0
    return float(np.quantile(np.where(np.isfinite(known), known, floor - 1), contamination))
