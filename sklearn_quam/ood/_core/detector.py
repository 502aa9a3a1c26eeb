"""What all detectors share: fit, score_samples, decision_function, predict.

A detector is a subclass that fills in one hook, `_learn`: return a frozen object that scores rows
by what the network shows of them.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from ..._messages import few
from ..._network.adapters import (
    Network,
    column_of_label,
    is_pretrained,
    is_torch,
    split_pipeline,
)
from ..._network.inputs.layouts import from_tensor
from ..._network.inputs.rows import StoredRows
from ..._network.inputs.sources import brings_targets, open_source
from ..._network.inputs.transformed import transformed
from ..._network.likelihood import CLASSIFIER_LINKS
from ..._network.limits import computing
from ..._network.reference import ReferenceModel, build_reference
from ..._posterior.training_range import input_range, warn_beyond_range
from ..._typing import Device, RandomState
from ...base import NetworkEstimator
from ...base._classifier import labels_of, match_classes
from ...base._data import validated
from ...base._doubt import DoubtScale
from ...base._saving import Saved
from ...base._wrapping import parameters_now
from ...base.checks.seen import may_be_known_by_heart, warn_about_threshold
from .features import AnyReader, given_features, network_of, seen_of
from .known import FittedDetector, Known, Score, risk_of
from .once import remembered
from .reading import INPUT, PENULTIMATE, Seen, make_reader
from .thresholds import CONTAMINATION, Thresholded, threshold

# A row with an input, feature or logit so many times as large as any of the training rows is
# absurd: several scores grow with the logits, and would call it the most normal one of all.
_ABSURD = 100.0
PROBE_ROWS = 4

# Attributes that come from network and training rows alone.
_LEARNT_BY_THE_WAY = (
    *("n_features_in_", "feature_names_in_", "classes_", "estimator_", "reference_loss_"),
    *("_passed_rows", "_scales_inputs"),
)


class BaseDetector(Saved, Thresholded, NetworkEstimator):
    """Base of all detectors of the package."""

    _task = "classifier"
    _parameter_constraints: ClassVar[dict] = {
        **NetworkEstimator._parameter_constraints,
        "link": [StrOptions(set(CLASSIFIER_LINKS)), None],
        "output": [str, Integral, None],
        "contamination": CONTAMINATION,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        contamination: float = 0.05,
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        random_state: RandomState = None,
    ) -> None:
        self.estimator = estimator
        self.contamination = contamination
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state

    def _learn(self, known: Known) -> Score:
        """Return what scores rows: the one hook a detector fills in.

        Parameters
        ----------
        known : Known
            The training rows.

        Returns
        -------
        callable
            A frozen object that can be pickled; takes what was seen of rows and returns their
            scores.
        """
        raise NotImplementedError

    def _score_left_out(self, score: Score, known: Known) -> np.ndarray:
        """Return scores of training rows, each by what is learnt from the others.

        Detectors that learn from training rows fill this in: a row looks more normal to what was
        learnt from the row itself than a new one would.

        Parameters
        ----------
        score : callable
            What `_learn` returned.
        known : Known
            What it was given.

        Returns
        -------
        ndarray of shape (n_scored,)
            Scores of the training rows, or of some of them.
        """
        return score(known.seen)

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Any, y: Any = None, *, X_val: Any = None, y_val: Any = None, **fit_params: Any
    ) -> Any:
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
        y_val : array-like of shape (n_val,), default=None
            Labels of X_val, for detectors that choose something by mistakes of the network.
        **fit_params : dict
            Further arguments for the ``fit`` of the wrapped estimator, if that is trained.

        Returns
        -------
        self : object
            The fitted detector.
        """
        if is_pretrained(self.estimator) and not fit_params:
            # What the network shows of the rows is the same for all detectors of it.
            self._validate_params()
            how = [self._layer(), self.link, self.output, str(self.device)]
            known, by_heart, attributes = remembered(
                repr(how), (self.estimator, X, y), lambda: self._read(X, y, {})
            )
            self.__dict__.pop("_fitted", None)
            self.__dict__.update(attributes)
        else:
            known, by_heart, _ = self._read(X, y, fit_params)
        with computing():
            if X_val is None:
                return self._adopt(known, known_by_heart=by_heart)
            held_out = self._seen(X_val, known.reader)
            if y_val is not None:
                columns = self._columns(y_val, len(held_out.logits))
                known = replace(known, held_out=Known(held_out, columns, known.reader))
            return self._adopt(known, held_out)

    def _layer(self) -> Any:
        return getattr(self, "layer", PENULTIMATE)

    def _read(self, X: Any, y: Any, fit_params: dict) -> tuple[Known, bool, dict[str, Any]]:
        """Read training rows.

        Returns
        -------
        known : Known
            What the network shows of them.
        by_heart : bool
            Whether the network may know them by heart.
        attributes : dict
            What the detector has learnt about network and rows by the way.
        """
        if y is None and not brings_targets(X):
            y = self._labels_of_network(X)
        data, layer = self._given(X, y, None, fit_params), self._layer()
        inputs, target = data.training.inputs, data.training.target.cpu().numpy()
        with computing():
            reader = make_reader(data.reference, layer, inputs[:PROBE_ROWS])
            reader = reader.knowing(input_range(inputs))
            known = Known(reader(inputs), target, reader)
        by_heart = layer != INPUT and may_be_known_by_heart(inputs)
        attributes = {name: vars(self)[name] for name in _LEARNT_BY_THE_WAY if name in vars(self)}
        return known, by_heart, attributes

    def _seen(self, X: Any, reader: AnyReader) -> Seen:
        """Return what the network shows of rows."""
        return remembered(
            "seen", (reader, X), lambda: reader(self._check_rows(X, reader.reference))
        )

    def _adopt(
        self,
        known: Known,
        held_out: Seen | None = None,
        *,
        known_by_heart: bool = False,
        bounds: np.ndarray | float = 0.0,
    ) -> Any:
        """Learn from known rows, and set the threshold."""
        score = self._learn(known)
        largest = known.seen.largest.max(axis=0)
        bounds = np.maximum(bounds, _ABSURD * np.where(largest > 0, largest, np.inf))
        fitted = FittedDetector(known.reader, score, bounds, known_by_heart)
        scores = self._score_left_out(score, known) if held_out is None else fitted(held_out)
        if held_out is not None and held_out.logits.shape[1]:
            fitted = replace(fitted, doubt=DoubtScale.fit(risk_of(held_out), -scores))
        self.offset_ = threshold(scores, self.contamination)
        self._fitted = fitted
        self._fitted_parameters = parameters_now(self)
        return self

    def _needs_logits(self) -> bool:
        """Tell whether features alone are not enough."""
        return True

    @_fit_context(prefer_skip_nested_validation=False)
    def fit_features(
        self,
        features: Any,
        y: Any = None,
        *,
        logits: Any = None,
        features_val: Any = None,
        logits_val: Any = None,
        y_val: Any = None,
    ) -> Any:
        """Learn from features of known rows; no network runs.

        Parameters
        ----------
        features : array-like of shape (n_samples, n_features)
            What the last layer of the network takes, such as `read_features` returns; or others,
            for detectors that need no last layer.
        y : array-like of shape (n_samples,), default=None
            Labels. None takes what the logits say.
        logits : array-like of shape (n_samples, n_classes), default=None
            What the network makes of the features. Needed where ``estimator`` is None or a whole
            network; of a `torch.nn.Linear` they are computed.
        features_val, logits_val, y_val : array-like, default=None
            The same of known rows that the network was not trained on, to set the threshold by.

        Returns
        -------
        self : object
            The fitted detector, which takes features only: `score_features`.
        """
        for name in ("_fitted", "estimator_", "n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        network = network_of(self.estimator)
        seen = seen_of(features, logits, None, needs_logits=False)
        passed = None if logits is None else seen.logits
        reader = given_features(network.module, seen.features, passed)
        seen = seen_of(seen.features, passed, reader, self._needs_logits())
        known = Known(seen, self._target_of(y, seen, network), reader)
        if features_val is None:
            return self._adopt(known)
        held_out = seen_of(features_val, logits_val, reader, self._needs_logits())
        if y_val is not None:
            columns = self._columns(y_val, len(held_out.features))
            known = replace(known, held_out=Known(held_out, columns, reader))
        return self._adopt(known, held_out)

    def _target_of(self, y: Any, seen: Seen, network: Network) -> np.ndarray:
        """Return the classes of rows whose features were passed, as columns of the logits."""
        n_rows, n_classes = seen.logits.shape
        if y is None and not n_classes:
            raise ValueError("y is None, and there are no logits to take labels from. Pass either.")
        known = network.classes
        if y is None:
            named = known is not None and len(known) == n_classes
            self.classes_ = np.asarray(known) if named else np.arange(n_classes)
            return seen.logits.argmax(axis=1)
        labels = column_or_1d(from_tensor(y))
        self.classes_ = (
            match_classes(labels, network, n_classes) if n_classes else np.unique(labels)
        )
        return self._columns(labels, n_rows)

    @computing()
    def score_features(self, features: Any, *, logits: Any = None) -> np.ndarray:
        """Return how normal rows are whose features were read before; no network runs.

        Parameters
        ----------
        features : array-like of shape (n_samples, n_features)
            What the chosen layer of the network shows of each row.
        logits : array-like of shape (n_samples, n_classes), default=None
            What the network makes of it. None computes them, where features are what a linear last
            layer takes.

        Returns
        -------
        ndarray of shape (n_samples,)
            The scores that `score_samples` returns for the rows, but that nobody can tell from
            features whether an input was far outside of the range of all training rows.
        """
        check_is_fitted(self)
        self._refuse_changed_parameters()
        seen = seen_of(features, logits, self._fitted.reader, self._needs_logits())
        scores = self._fitted(seen)
        warn_beyond_range(np.isneginf(scores), "Their score is minus infinity.")
        return scores

    def _labels_of_network(self, X: Any) -> np.ndarray:
        """Return what a given network predicts for training rows that have no labels."""
        estimator = self._wrapped()
        if not is_pretrained(estimator):
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: without "
                "labels the network cannot be trained. Pass them, or a network that is fitted."
            )
        reference, network, inputs = self._network_and_rows(X)
        prediction = reference.predict(inputs).to_array()
        known = network.classes
        named = known is not None and len(known) == prediction.shape[1]
        columns = prediction.argmax(axis=1)
        return np.asarray(known)[columns] if named else columns

    def _network_and_rows(self, X: Any) -> tuple[ReferenceModel, Network, StoredRows]:
        """Return a given network, and rows as it takes them."""
        estimator = self._wrapped()
        X, source = from_tensor(X), open_source(X)
        transformers, final = split_pipeline(estimator)
        if transformers is None and source is None:
            X = validated(self, X, allow_nd=is_torch(final))
        rows = transformed(transformers, X, source)
        reference, network, _ = build_reference(
            estimator,
            rows,
            task=self._task,
            link=self.link,
            output=self.output,
            device=self.device,
        )
        return reference, network, reference.inputs(rows)

    def _encode_target(
        self,
        y: np.ndarray,
        network: Network,
        n_outputs: int,
        reference: ReferenceModel,  # noqa: ARG002
    ) -> Tensor:
        self.classes_ = match_classes(y, network, n_outputs)
        return torch.tensor(column_of_label(self.classes_, y))

    def _columns(self, y: Any, n_rows: int) -> np.ndarray:
        """Return the column of the logits of each label, all of which are known."""
        y = column_or_1d(from_tensor(y))
        if len(y) != n_rows:
            raise ValueError(f"There are {n_rows} rows, but {len(y)} labels.")
        if unknown := sorted(set(y.tolist()) - set(self.classes_.tolist())):
            raise ValueError(f"{few(unknown)} is none of the labels {few(self.classes_)}.")
        return column_of_label(self.classes_, y)

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
        scores = self._fitted(self._seen(X, self._fitted.reader))
        warn_beyond_range(np.isneginf(scores), "Their score is minus infinity.")
        return scores

    @computing()
    def predict_doubt(self, X: Any) -> np.ndarray:
        """Return how doubtful each prediction is, for mistakes and unknown rows together.

        It is the share of known rows that are less doubtful. Doubt grows with the risk of a
        mistake, 1 - max p of the network, and with how strange a row is, where it is stranger than
        two thirds of known rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.

        Returns
        -------
        ndarray of shape (n_samples,)
            From 0 to 1. Known rows are those of the ``X_val`` that was passed to ``fit``.
        """
        check_is_fitted(self)
        self._refuse_changed_parameters()
        if self._fitted.doubt is None:
            raise ValueError(
                "Doubt is measured on known rows that the network was not trained on. Pass some of "
                "them to fit, as X_val."
            )
        seen = self._seen(X, self._fitted.reader)
        scores = self._fitted(seen)
        warn_beyond_range(np.isneginf(scores), "Their doubt is 1.")
        risk = np.nan_to_num(risk_of(seen), nan=1.0)
        return self._fitted.doubt.share(risk, -scores)

    def _warn_about_threshold(self) -> None:
        if self._fitted.known_by_heart:
            warn_about_threshold(self.contamination)

    def _network_prediction(self, X: Any) -> np.ndarray:
        """Return the probabilities that the network predicts."""
        reference = self._fitted.reference
        return remembered(
            "prediction",
            (reference, X),
            lambda: reference.predict(self._check_rows(X, reference)).to_array(),
        )

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        return labels_of(outputs, self.classes_, self._fitted.reference.threshold)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = not is_pretrained(self.estimator)
        return tags
