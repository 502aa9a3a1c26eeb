"""What detectors learn from, what they become, and the threshold of `predict`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted

from ..._arguments import allowed, arguments, real
from ..._documented import DETECTOR, documented
from ..._network.reference import ReferenceModel
from ..._typing import RandomState
from ...base._doubt import DoubtScale, needs_known_samples
from .reading import AnyReader, Seen

# Folds that set the threshold, one left out at a time, and as many scores as it takes.
_FOLDS = 5
_ENOUGH_SAMPLES = 400

Score = Callable[[Seen], np.ndarray]
AnyScore = TypeVar("AnyScore", bound=Callable[[Seen], np.ndarray])


@dataclass(frozen=True, eq=False)
class Known:
    """Training samples as detectors see them, with their classes as columns of the logits."""

    seen: Seen
    target: np.ndarray
    reader: AnyReader
    # Moments of the samples of earlier batches.
    earlier: Any = None
    # Labelled samples that the network was not trained on.
    held_out: Known | None = None
    # Whether the network may know the samples by heart.
    by_heart: bool = False

    def __getitem__(self, rows: Any) -> Known:
        return replace(self, seen=self.seen[rows], target=self.target[rows])


@dataclass(frozen=True, eq=False)
class FittedDetector(Generic[AnyScore]):
    """Score samples, with minus infinity beyond the bounds of inputs, features and logits."""

    reader: AnyReader
    score: AnyScore
    bounds: np.ndarray
    # Whether the threshold comes from training samples that the network may know by heart.
    known_by_heart: bool = False
    doubt: DoubtScale | None = None

    @property
    def reference(self) -> ReferenceModel:
        """The given network."""
        return self.reader.reference

    @property
    def device(self) -> torch.device:
        """Where samples are scored."""
        return self.reader.device

    def __call__(self, seen: Seen) -> np.ndarray:
        sane: np.ndarray = np.all(seen.largest <= self.bounds, axis=1)
        scores = np.full(len(sane), -np.inf)
        if sane.any():
            found = self.score(seen[sane])
            scores[sane] = np.where(np.isnan(found), -np.inf, found)
        return scores


@documented(DETECTOR._replace(attributes={}, sections={}))
@arguments
class Thresholded(OutlierMixin):
    """Report samples as outliers whose score is below the fitted threshold."""

    contamination: float = real(default=0.05, below=0.5, closed="right")
    random_state: RandomState = allowed("random_state", default=None)

    fit: ClassVar[Any]
    score_samples: ClassVar[Any]

    def _set_threshold(self, known: np.ndarray) -> None:
        """Take the score below which a share of known samples lies."""
        is_finite = np.isfinite(known)
        floor = known[is_finite].min() if is_finite.any() else 0.0
        finite = np.where(is_finite, known, floor - 1)
        self.offset_ = float(np.quantile(finite, self.contamination))

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the score of each sample minus the threshold.

        Returns
        -------
        ndarray of shape (n_samples,)
            ``score_samples(X) - offset_``; negative for outliers.
        """
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """Predict which samples are outliers.

        Returns
        -------
        ndarray of shape (n_samples,)
            -1 for outliers, 1 for others.
        """
        found = np.where(self.decision_function(X) < 0, -1, 1)
        self._warn_about_threshold()
        return found

    def _warn_about_threshold(self) -> None:
        """Warn if far more known samples may be flagged than were asked for."""

    def _fitted_doubt(self) -> DoubtScale | None:
        """Return the doubt of held-out samples, if there are any."""
        raise NotImplementedError

    def _risk_and_scores(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return 1 - max p of the network, and the scores."""
        raise NotImplementedError

    def _doubt_scale(self) -> DoubtScale:
        check_is_fitted(self)
        found = self._fitted_doubt()
        if found is None:
            raise needs_known_samples("X_val")
        return found

    def predict_doubt(self, X: Any) -> np.ndarray:
        """Return how doubtful each prediction is, for mistakes and unknown samples together.

        Doubt grows with the risk of a mistake, 1 - max p of the network, and with how strange a
        sample is, where it is stranger than two thirds of known samples.

        Returns
        -------
        ndarray of shape (n_samples,)
            From 0 to 1: the share of the samples ``X_val`` of ``fit`` that are less doubtful.
        """
        scale = self._doubt_scale()
        risk, scores = self._risk_and_scores(X)
        return scale.share(np.nan_to_num(risk, nan=1.0), -scores)

    def threshold(self, coverage: float = 0.95) -> float:
        """Return a doubt that a share of known samples does not exceed.

        Parameters
        ----------
        coverage : float, default=0.95
            The share: the doubt of a new sample like the known ones is at most the threshold with
            a probability of at least this.

        Returns
        -------
        float
            The threshold. Known samples are the ``X_val`` of ``fit``.
        """
        return self._doubt_scale().threshold(coverage)

    def fit_predict(self, X: Any, y: Any = None, **fit_params: Any) -> np.ndarray:
        """Fit, and predict which training samples are outliers.

        Returns
        -------
        ndarray of shape (n_samples,)
            -1 for outliers, 1 for others.
        """
        return self.fit(X, y, **fit_params).predict(X)


def cross_fitted(learn: Callable[[Known], Score], known: Known) -> np.ndarray:
    """Return scores of enough training samples, each learnt from other ones if there are ten."""
    n_samples = len(known.target)
    if n_samples < 2 * _FOLDS:
        return learn(known)(known.seen)
    fold = np.empty(n_samples, int)
    shuffled = np.random.default_rng(0).permutation(n_samples)
    n_folds = max(_FOLDS, n_samples // _ENOUGH_SAMPLES)
    # Sorted by class first: each fold has its share of every class.
    fold[np.lexsort((shuffled, known.target))] = np.arange(n_samples) % n_folds
    found = np.empty(0)
    for number in range(_FOLDS):
        out = fold == number
        found = np.append(found, learn(known[~out])(known.seen[out]))
        if len(found) >= _ENOUGH_SAMPLES:
            break
    return found


def risk_of(seen: Seen) -> np.ndarray:
    """Return 1 - max p of the network for each sample."""
    with np.errstate(invalid="ignore"):
        return 1 - softmax(seen.logits, axis=1).max(axis=1)
