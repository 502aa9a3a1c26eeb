"""What all detectors share: fit, score_samples, decision_function, predict.

A detector is a subclass that fills in one hook, `_learn`: return a frozen object that scores
samples by their logits and features. Constructor arguments are fields, see `_arguments`.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from ..._arguments import allowed, arguments
from ..._documented import DETECTOR, documented
from ..._messages import few
from ..._network.adapters import (
    Network,
    column_of_label,
    is_pretrained,
    is_torch,
    split_pipeline,
)
from ..._network.inputs.rows import StoredRows, from_tensor
from ..._network.inputs.sources import brings_targets, open_source, transformed
from ..._network.likelihood import CLASSIFIER_LINKS
from ..._network.limits import computing
from ..._network.reference import ReferenceModel, build_reference
from ..._posterior.training_range import input_range, warn_beyond_range
from ..._typing import Device
from ...base import NetworkEstimator
from ...base._classifier import labels_of, match_classes
from ...base._data import validated
from ...base._doubt import DoubtScale
from ...base._saving import Saved
from ...base._wrapping import parameters_now
from ...base.checks.seen import may_be_known_by_heart, warn_about_threshold
from .fitted import FittedDetector, Known, Score, Thresholded, risk_of
from .once import remembered
from .reading import INPUT, PENULTIMATE, Seen, given_features, make_reader, network_of, seen_of

# Some scores grow with the logits, and would call a sample with huge ones the most normal of all:
# inputs, features and logits so many times as large as of any training sample are outliers.
_ABSURD = 100.0
_PROBE_SAMPLES = 4

# Attributes that come from network and training samples alone.
_OF_NETWORK = (
    *("n_features_in_", "feature_names_in_", "classes_", "estimator_", "reference_loss_"),
    *("_passed_rows", "_scales_inputs"),
)


@documented(DETECTOR._replace(sections={}))
@arguments
class BaseDetector(Saved, Thresholded, NetworkEstimator):
    """Base of all detectors of the package."""

    estimator: Any = field(default=None, kw_only=False)
    link: str | None = allowed(StrOptions(set(CLASSIFIER_LINKS)), None, default=None)
    output: str | int | None = None
    device: Device = None

    _task = "classifier"

    def _learn(self, known: Known) -> Score:
        """Return a frozen object that scores samples and can be pickled."""
        raise NotImplementedError

    def _score_left_out(self, score: Score, known: Known) -> np.ndarray:
        """Return scores of training samples, each learnt from others if anything is learnt."""
        return score(known.seen)

    def _needs_logits(self) -> bool:
        return True

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Any, y: Any = None, *, X_val: Any = None, y_val: Any = None, **fit_params: Any
    ) -> Any:
        """Learn from known samples; train the network if it is not fitted.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data: of the given network, or to train it on.
        X_val : array-like of shape (n_val, ...)
            Samples that the network was not trained on, to set the threshold of `predict` by.
            None takes X: each sample is scored by what is learnt from others, but more than a
            share of ``contamination`` of new samples is flagged where the network has overfitted.
        y_val : array-like of shape (n_val,)
            Labels of X_val, for detectors that choose something by mistakes of the network.
        **fit_params : dict
            Further arguments for the ``fit`` of the wrapped estimator, if that is trained.
        """
        read = partial(self._read, X, y, fit_params)
        if is_pretrained(self.estimator) and not fit_params:
            # Detectors of the same network may share what is read.
            how = repr([self._layer(), self.link, self.output, str(self.device)])
            known, attributes = remembered(how, (self.estimator, X, y), read)
            self.__dict__.pop("_fitted", None)
            self.__dict__.update(attributes)
        else:
            known, _ = read()
        with computing():
            held_out = None if X_val is None else self._seen(X_val, known.reader)
            if held_out is not None and y_val is not None:
                columns = self._columns(y_val, len(held_out.features))
                known = replace(known, held_out=Known(held_out, columns, known.reader))
            return self._adopt(known, held_out)

    def _layer(self) -> Any:
        return getattr(self, "layer", PENULTIMATE)

    def _read(self, X: Any, y: Any, fit_params: dict) -> tuple[Known, dict[str, Any]]:
        """Return training samples, and attributes of this detector that they set."""
        if y is None and not brings_targets(X):
            y = self._labels_of_network(X)
        data, layer = self._given(X, y, None, fit_params), self._layer()
        inputs, target = data.training.inputs, data.training.target.cpu().numpy()
        with computing():
            reader = make_reader(data.reference, layer, inputs[:_PROBE_SAMPLES])
            reader = reader.knowing(input_range(inputs))
            by_heart = layer != INPUT and may_be_known_by_heart(inputs)
            known = Known(reader(inputs), target, reader, by_heart=by_heart)
        return known, {name: vars(self)[name] for name in _OF_NETWORK if name in vars(self)}

    def _seen(self, X: Any, reader: Any) -> Seen:
        """Return logits and features of samples."""
        return remembered(
            "seen", (reader, X), lambda: reader(self._check_rows(X, reader.reference))
        )

    def _adopt(
        self, known: Known, held_out: Seen | None = None, bounds: np.ndarray | float = 0.0
    ) -> Any:
        """Learn from known samples, and set the threshold."""
        score = self._learn(known)
        largest = known.seen.largest.max(axis=0)
        bounds = np.maximum(bounds, _ABSURD * np.where(largest > 0, largest, np.inf))
        by_heart = known.by_heart and held_out is None
        fitted = FittedDetector(known.reader, score, bounds, by_heart)
        scores = self._score_left_out(score, known) if held_out is None else fitted(held_out)
        if held_out is not None and held_out.logits.shape[1]:
            fitted = replace(fitted, doubt=DoubtScale.fit(risk_of(held_out), -scores))
        self._set_threshold(scores)
        self._fitted = fitted
        self._fitted_parameters = parameters_now(self)
        return self

    @_fit_context(prefer_skip_nested_validation=False)
    def fit_features(self, features: Any, y: Any = None, *, logits: Any = None) -> Any:
        """Learn from features of known samples, which `score_features` takes then.

        Parameters
        ----------
        features : array-like of shape (n_samples, n_features)
            The inputs of the last layer, such as `read_features` returns; or others, for detectors
            that need no last layer.
        y : array-like of shape (n_samples,)
            Labels. None takes the classes with the largest logits.
        logits : array-like of shape (n_samples, n_classes)
            Outputs of the network. Needed where ``estimator`` is None or a whole network; those of
            a `torch.nn.Linear` are computed.
        """
        for name in ("_fitted", "estimator_", "n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        network = network_of(self.estimator)
        seen = seen_of(features, logits)
        given = None if logits is None else seen.logits
        reader = given_features(network.module, seen.features, given)
        seen = seen_of(seen.features, given, reader, self._needs_logits())
        return self._adopt(Known(seen, self._target_of(y, seen, network), reader))

    def _target_of(self, y: Any, seen: Seen, network: Network) -> np.ndarray:
        """Return the classes of samples whose features were passed, as columns of the logits."""
        n_rows, n_classes = seen.logits.shape
        if y is None:
            if not n_classes:
                raise ValueError(
                    "y is None, and there are no logits to take labels from. Pass either."
                )
            self.classes_ = _names_of_columns(network, n_classes)
            return seen.logits.argmax(axis=1)
        labels = column_or_1d(from_tensor(y))
        self.classes_ = (
            match_classes(labels, network, n_classes) if n_classes else np.unique(labels)
        )
        return self._columns(labels, n_rows)

    @computing()
    def score_features(self, features: Any, *, logits: Any = None) -> np.ndarray:
        """Return how normal samples are, by features that were read before.

        Parameters
        ----------
        features : array-like of shape (n_samples, n_features)
            Features of the chosen layer.
        logits : array-like of shape (n_samples, n_classes)
            Outputs of the network. None computes them, if the features are inputs of a linear last
            layer.

        Returns
        -------
        ndarray of shape (n_samples,)
            The scores of `score_samples`, without its check of inputs that are far out of range.
        """
        self._check_fitted()
        return self._scores(seen_of(features, logits, self._fitted.reader, self._needs_logits()))

    def _check_fitted(self) -> None:
        check_is_fitted(self)
        self._refuse_changed_parameters()

    def _scores(self, seen: Seen, consequence: str = "Their score is minus infinity.") -> Any:
        scores = self._fitted(seen)
        warn_beyond_range(np.isneginf(scores), consequence)
        return scores

    def _labels_of_network(self, X: Any) -> np.ndarray:
        """Return the labels that a given network predicts for training samples without any."""
        if not is_pretrained(self._wrapped()):
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: without "
                "labels the network cannot be trained. Pass them, or a network that is fitted."
            )
        reference, network, inputs = self._network_and_rows(X)
        prediction = reference.predict(inputs).to_array()
        return _names_of_columns(network, prediction.shape[1])[prediction.argmax(axis=1)]

    def _network_and_rows(self, X: Any) -> tuple[ReferenceModel, Network, StoredRows]:
        """Return a given network, and samples as it takes them."""
        estimator = self._wrapped()
        X, source = from_tensor(X), open_source(X)
        transformers, final = split_pipeline(estimator)
        if transformers is None and source is None:
            X = validated(self, X, allow_nd=is_torch(final))
        rows = transformed(transformers, X, source)
        options: Any = {"link": self.link, "output": self.output, "device": self.device}
        reference, network, _ = build_reference(estimator, rows, task=self._task, **options)
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
            raise ValueError(f"There are {n_rows} samples, but {len(y)} labels.")
        if unknown := sorted(set(y.tolist()) - set(self.classes_.tolist())):
            raise ValueError(f"{few(unknown)} is none of the labels {few(self.classes_)}.")
        return column_of_label(self.classes_, y)

    @computing()
    def score_samples(self, X: Any) -> np.ndarray:
        """Return how normal each sample is.

        Returns
        -------
        ndarray of shape (n_samples,)
            Scores: the higher, the more normal. Samples far out of the range of the training
            samples have minus infinity, as have those with values within the network a hundred
            times as large as those of any training sample.
        """
        self._check_fitted()
        return self._scores(self._seen(X, self._fitted.reader))

    def _fitted_doubt(self) -> DoubtScale | None:
        return self._fitted.doubt

    @computing()
    def _risk_and_scores(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        self._check_fitted()
        seen = self._seen(X, self._fitted.reader)
        return risk_of(seen), self._scores(seen, "Their doubt is 1.")

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


def _names_of_columns(network: Network, n_columns: int) -> np.ndarray:
    """Return the labels of the columns if the network knows them, else their numbers."""
    known = network.classes
    return (
        np.asarray(known) if known is not None and len(known) == n_columns else np.arange(n_columns)
    )


class Features(NamedTuple):
    """Features and logits of samples.

    Parameters
    ----------
    features : ndarray of shape (n_samples, n_features)
        Features of the chosen layer.
    logits : ndarray of shape (n_samples, n_classes)
        Scores of the classes; of two classes with one logit, minus and plus half of it.
    """

    features: np.ndarray
    logits: np.ndarray


@documented(DETECTOR)
@computing()
def read_features(
    estimator: Any,
    X: Any,
    *,
    layer: str | list[str] = PENULTIMATE,
    link: str | None = None,
    output: str | int | None = None,
    device: Any = None,
) -> Features:
    """Return features and logits of samples, for any number of detectors.

    Returns
    -------
    Features
        Two arrays, ``features`` and ``logits``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import FDBDetector, MahalanobisDetector, read_features
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> features, logits = read_features(net, X)
    >>> for kind in (FDBDetector, MahalanobisDetector):
    ...     detector = kind(net).fit_features(features, y, logits=logits)
    ...     print(detector.score_features(features).shape)
    (150,)
    (150,)
    """
    asked = BaseDetector(estimator, link=link, output=output, device=device)
    reference, _, inputs = asked._network_and_rows(X)
    seen = make_reader(reference, layer, inputs[:_PROBE_SAMPLES])(inputs)
    return Features(seen.features, seen.logits)
