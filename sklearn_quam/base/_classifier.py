"""What is particular to classifiers: labels, probabilities."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from .._network.adapters import Network, column_of_label
from .._network.likelihood import CLASSIFIER_LINKS
from .._network.reference import ReferenceModel
from ._estimator import BaseUncertaintyEstimator


class BaseUncertaintyClassifier(ClassifierMixin, BaseUncertaintyEstimator):
    """Base of all classifiers of the package."""

    _task = "classifier"
    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyEstimator._parameter_constraints,
        "link": [StrOptions(set(CLASSIFIER_LINKS)), None],
    }

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Any:
        """Take over the network and its training data; train the network if it is not fitted.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data: of the given network, or to train it on.
        y : array-like of shape (n_samples,)
            Labels of any kind.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows in the loss on the training data, handed on to the wrapped
            estimator if it is trained. In that loss they are scaled to mean one over all rows:
            only ratios count, and beside rows of weight zero the others count for more. To leave
            rows out, do not pass them.
        **fit_params : dict
            Further arguments for the ``fit`` of the wrapped estimator.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._fit(X, y, sample_weight, fit_params)
        return self

    def _encode_target(
        self,
        y: np.ndarray,
        network: Network,
        n_outputs: int,
        reference: ReferenceModel,  # noqa: ARG002
    ) -> Tensor:
        self.classes_ = match_classes(y, network, n_outputs)
        return torch.tensor(column_of_label(self.classes_, y))

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        return labels_of(outputs, self.classes_, self._fitted.reference.threshold)

    def predict_proba(self, X: Any, *, return_uncertainty: bool = False) -> Any:
        """Predict the probability of each class.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.
        return_uncertainty : bool, default=False
            Whether to return the uncertainty, too: both come from the same models, which are
            sampled only once.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes)
            The given model's in ``setting="given"``, the average of all plausible models in
            ``setting="expected"``; columns as in ``classes_``.
        uncertainty : Uncertainty
            Only with ``return_uncertainty=True``.
        """
        if not return_uncertainty:
            return self._predict_outputs(X)
        results = self._results(X)
        return results.prediction, results.uncertainty


def labels_of(proba: np.ndarray, classes: np.ndarray, threshold: float) -> np.ndarray:
    """Return the labels that probabilities mean."""
    if len(classes) == 2:
        return classes[(proba[:, 1] > threshold).astype(int)]
    return classes[proba.argmax(axis=1)]


def match_classes(y: np.ndarray, network: Network, n_outputs: int) -> np.ndarray:
    """Return the label of each of the network's columns.

    scikit-learn's networks know their labels. Others were trained on column indices: their
    labels are either those indices, or as many labels as there are columns, in sorted order.
    """
    labels = np.unique(y)
    known = network.classes
    if known is not None and len(known) == n_outputs and np.isin(labels, known).all():
        if len(known) < 2:
            raise ValueError(f"A classifier needs at least two classes; y has one class: {labels}.")
        return labels if np.array_equal(labels, known) else np.asarray(known)
    if network.labels_are_indices:
        if len(labels) == n_outputs:
            return labels
        indices = np.arange(n_outputs)
        if labels.dtype.kind in "iu" and np.isin(labels, indices).all():
            return indices
    what = f"it has {n_outputs} columns, and y has {len(labels)} classes: {_few(labels)}"
    if network.labels_are_indices:
        raise ValueError(
            f"The network's output does not match the classes: {what}. Pass the labels it was "
            "trained with, one for each column, or 0, 1, ... as the number of its column."
        )
    kind = "" if known is None or known.dtype.kind == labels.dtype.kind else ", not their numbers"
    raise ValueError(
        f"The network's output does not match the classes: {what}, but the network was trained "
        f"with {_few(known)}. Pass labels of that kind as y{kind}."
    )


def _few(labels: Any) -> str:
    """Return some labels as a user would write them."""
    shown = [label.item() if hasattr(label, "item") else label for label in labels[:10]]
    return ", ".join(map(repr, shown)) + (", ..." if len(labels) > 10 else "")
