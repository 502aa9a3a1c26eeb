"""What all detectors share: fit, score_samples, decision_function, predict.

A detector is a subclass that fills in one hook, `_learn`: return a frozen object that scores rows
by what the network shows of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from sklearn.base import OutlierMixin, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._network.adapters import (
    Network,
    column_of_label,
    is_pretrained,
    is_torch,
    split_pipeline,
)
from .._network.inputs.layouts import from_tensor
from .._network.inputs.rows import StoredRows
from .._network.inputs.sources import brings_targets, open_source
from .._network.inputs.transformed import transformed
from .._network.likelihood import CLASSIFIER_LINKS
from .._network.limits import computing
from .._network.reference import ReferenceModel, build_reference
from .._posterior.known import input_range
from ..base import NetworkEstimator
from ..base._classifier import labels_of, match_classes
from ..base._data import validated
from ..base._saving import Saved
from ..base._wrapping import parameters_now
from ..base.checks.seen import may_be_known_by_heart, warn_about_threshold
from ..base.checks.warned import warn_about_lost_rows
from ._reading import INPUT, Reader, Seen, make_reader

# A row with an input, feature or logit so many times as large as any of the training rows is
# absurd: several scores grow with the logits, and would call it the most normal one of all.
_ABSURD = 100.0
_PROBE_ROWS = 4
# Parts of the training rows that are left out in turn to set the threshold, and rows that are
# enough for it.
_FOLDS = 5
_ENOUGH_ROWS = 400
CONTAMINATION = [Interval(Real, 0, 0.5, closed="right")]

Score = Callable[[Seen], np.ndarray]


AnyScore = TypeVar("AnyScore", bound=Callable[[Seen], np.ndarray])


@dataclass(frozen=True, eq=False)
class FittedDetector(Generic[AnyScore]):
    """What scores rows.

    Parameters
    ----------
    reader : Reader
        Runs rows through the network.
    score : callable
        Returns how normal each row is, by what was seen of it.
    bounds : ndarray of shape (3,)
        Magnitudes of inputs, features and logits beyond which a row is absurd.
    known_by_heart : bool, default=False
        Whether the threshold is set by training rows that the network may know by heart.
    """

    reader: Reader
    score: AnyScore
    bounds: np.ndarray
    known_by_heart: bool = False

    @property
    def reference(self) -> ReferenceModel:
        """The given network."""
        return self.reader.reference

    def __call__(self, inputs: StoredRows) -> np.ndarray:
        """Return a score for each row, minus infinity for absurd ones."""
        seen = self.reader(inputs)
        sane: np.ndarray = np.all(seen.largest <= self.bounds, axis=1)
        scores = np.full(len(inputs), -np.inf)
        if sane.any():
            found = self.score(seen[sane])
            scores[sane] = np.where(np.isnan(found), -np.inf, found)
        return scores


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
        return np.where(self.decision_function(X) < 0, -1, 1)

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


class BaseDetector(Saved, Thresholded, NetworkEstimator):
    """Base of all detectors of the package."""

    _task = "classifier"
    _parameter_constraints: ClassVar[dict] = {
        **NetworkEstimator._parameter_constraints,
        "link": [StrOptions(set(CLASSIFIER_LINKS)), None],
        "output": [str, Integral, None],
        "contamination": CONTAMINATION,
    }

    contamination: float

    def _learn(self, seen: Seen, target: np.ndarray, reader: Reader) -> Score:
        """Return what scores rows: the one hook a detector fills in.

        Parameters
        ----------
        seen : Seen
            What the network shows of the training rows.
        target : ndarray of shape (n_rows,)
            Their classes, as columns of the logits.
        reader : Reader
            The network.

        Returns
        -------
        callable
            A frozen object that can be pickled; takes what was seen of rows and returns their
            scores.
        """
        raise NotImplementedError

    def _score_left_out(
        self,
        score: Score,
        seen: Seen,
        target: np.ndarray,  # noqa: ARG002
        reader: Reader,  # noqa: ARG002
    ) -> np.ndarray:
        """Return scores of training rows, each by what is learnt from the others.

        Detectors that learn from training rows fill this in: a row looks more normal to what was
        learnt from the row itself than a new one would.

        Parameters
        ----------
        score : callable
            What `_learn` returned.
        seen, target, reader : object
            What it was given.

        Returns
        -------
        ndarray of shape (n_scored,)
            Scores of the training rows, or of some of them.
        """
        return score(seen)

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, *, X_val: Any = None, **fit_params: Any) -> Any:
        """Learn what the network shows of known rows; train the network if it is not fitted.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data: of the given network, or to train it on.
        y : array-like of shape (n_samples,), default=None
            Labels of any kind. None takes what a given network predicts for X.
        X_val : array-like of shape (n_val, ...), default=None
            Known rows that the network was not trained on, to set the threshold of `predict`
            by. None takes X: each row is scored by what is learnt from others, but the network
            itself knows it. More than a share of ``contamination`` of new rows is flagged where
            the network has overfitted.
        **fit_params : dict
            Further arguments for the ``fit`` of the wrapped estimator, if that is trained.

        Returns
        -------
        self : object
            The fitted detector.
        """
        if y is None and not brings_targets(X):
            y = self._labels_of_network(X)
        data = self._given(X, y, None, fit_params)
        inputs, target = data.training.inputs, data.training.target.cpu().numpy()
        with computing():
            layer = getattr(self, "layer", "penultimate")
            reader = make_reader(data.reference, layer, inputs[:_PROBE_ROWS])
            reader = replace(reader, known=input_range(inputs))
            seen = reader(inputs)
            score = self._learn(seen, target, reader)
            largest = seen.largest.max(axis=0)
            bounds = _ABSURD * np.where(largest > 0, largest, np.inf)
            known_by_heart = X_val is None and layer != INPUT and may_be_known_by_heart(inputs)
            self._fitted = FittedDetector(reader, score, bounds, known_by_heart)
            self._fitted_parameters = parameters_now(self)
            if X_val is None:
                known = self._score_left_out(score, seen, target, reader)
            else:
                known = self._fitted(self._check_rows(X_val, data.reference))
        self.offset_ = threshold(known, self.contamination)
        return self

    def _labels_of_network(self, X: Any) -> np.ndarray:
        """Return what a given network predicts for training rows that have no labels."""
        estimator = self._wrapped()
        if not is_pretrained(estimator):
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: without "
                "labels the network cannot be trained. Pass them, or a network that is fitted."
            )
        X, source = from_tensor(X), open_source(X)
        transformers, final = split_pipeline(estimator)
        if transformers is None and source is None:
            X = validated(self, X, allow_nd=is_torch(final))
        rows = transformed(transformers, X, source)
        reference, network, n_outputs = build_reference(
            estimator,
            rows,
            task=self._task,
            link=self.link,
            output=self.output,
            device=self.device,
        )
        columns = reference.predict(reference.inputs(rows)).to_array().argmax(axis=1)
        known = network.classes
        named = known is not None and len(known) == n_outputs
        return np.asarray(known)[columns] if named else columns

    def _encode_target(
        self,
        y: np.ndarray,
        network: Network,
        n_outputs: int,
        reference: ReferenceModel,  # noqa: ARG002
    ) -> Tensor:
        self.classes_ = match_classes(y, network, n_outputs)
        return torch.tensor(column_of_label(self.classes_, y))

    @computing()
    def score_samples(self, X: Any) -> np.ndarray:
        """Return how normal each row is: the higher, the more normal.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.

        Returns
        -------
        ndarray of shape (n_samples,)
            Scores. Rows far outside of the range of all training rows have minus infinity, as have
            those with values within the network a hundred times as large as of any of these.
        """
        check_is_fitted(self)
        self._refuse_changed_parameters()
        scores = self._fitted(self._check_rows(X, self._fitted.reference))
        warn_about_lost_rows(np.isneginf(scores), "Their score is minus infinity.")
        return scores

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
        found = super().predict(X)
        if self._fitted.known_by_heart:
            warn_about_threshold(self.contamination)
        return found

    def _network_prediction(self, X: Any) -> np.ndarray:
        """Return the probabilities that the network predicts."""
        reference = self._fitted.reference
        return reference.predict(self._check_rows(X, reference)).to_array()

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        return labels_of(outputs, self.classes_, self._fitted.reference.threshold)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = not is_pretrained(self.estimator)
        return tags


def cross_fitted(
    learn: Callable[[Seen, np.ndarray], Score], seen: Seen, target: np.ndarray
) -> np.ndarray:
    """Return scores of training rows by what is learnt from other training rows.

    Parameters
    ----------
    learn : callable
        Returns what scores rows, by what was seen of some rows and their classes.
    seen : Seen
        What the network shows of the training rows.
    target : ndarray of shape (n_rows,)
        Their classes, which are spread evenly over the folds.

    Returns
    -------
    ndarray of shape (n_scored,)
        Scores of the rows of as many folds as it takes for a threshold. Of very few rows none is
        left out.
    """
    n_rows = len(target)
    if n_rows < 2 * _FOLDS:
        return learn(seen, target)(seen)
    fold = np.empty(n_rows, int)
    shuffled = np.random.default_rng(0).permutation(n_rows)
    fold[np.lexsort((shuffled, target))] = np.arange(n_rows) % max(_FOLDS, n_rows // _ENOUGH_ROWS)
    found: list[np.ndarray] = []
    for number in range(_FOLDS):
        out = fold == number
        found.append(learn(seen[~out], target[~out])(seen[out]))
        if sum(map(len, found)) >= _ENOUGH_ROWS:
            break
    return np.concatenate(found)


def threshold(known: np.ndarray, contamination: float) -> float:
    """Return the score below which a share of known rows lies."""
    finite = known[np.isfinite(known)]
    floor = finite.min() if len(finite) else 0.0
    return float(np.quantile(np.where(np.isfinite(known), known, floor - 1), contamination))
