"""What is particular to classifiers: labels, probabilities, sets of labels."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from .._messages import few
from .._network.adapters import Network, column_of_label
from .._network.inputs.layouts import from_tensor, refuse_masked
from .._network.likelihood import CLASSIFIER_LINKS
from .._network.predictions import Prediction
from .._network.reference import ReferenceModel
from .._posterior.measures import LOSSES
from .._posterior.results import RowResults
from ._conformal import (
    check_coverage,
    conformal_threshold,
    fit_logit_scale,
    rows_needed,
    scaled,
)
from ._estimator import BaseUncertaintyEstimator
from .checks.seen import warn_if_seen


class BaseUncertaintyClassifier(ClassifierMixin, BaseUncertaintyEstimator):
    """Base of all classifiers of the package."""

    _task = "classifier"
    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyEstimator._parameter_constraints,
        "link": [StrOptions(set(CLASSIFIER_LINKS)), None],
        "measure": [StrOptions(set(LOSSES))],
    }

    measure: str

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        **fit_params: Any,
    ) -> Any:
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
        X_val : array-like of shape (n_val, ...), default=None
            Held-out rows, which the network was not trained on: they calibrate ``predict_set``,
            and ``predict_proba`` in ``setting="expected"``.
        y_val : array-like of shape (n_val,), default=None
            Their labels.
        **fit_params : dict
            Further arguments for the ``fit`` of the wrapped estimator.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val and y_val go together: pass both or neither.")
        if y_val is not None:
            refuse_masked(y_val, "y_val")
            y_val = column_or_1d(from_tensor(y_val), warn=True)
        self._fit(X, y, sample_weight, fit_params, X_val=X_val, y_val=y_val)
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

    def _complete(
        self,
        reference: ReferenceModel,
        original: Prediction,
        target: Tensor,  # noqa: ARG002
        weight: Tensor | None,  # noqa: ARG002
        X_val: Any = None,  # noqa: ARG002
        y_val: Any = None,
    ) -> tuple[ReferenceModel, Prediction]:
        """Return network and predictions; labels that the network does not know are refused."""
        self.logit_scale_ = 1.0
        if y_val is not None and not np.isin(y_val, self.classes_).all():
            unknown = np.unique(y_val[~np.isin(y_val, self.classes_)])
            raise ValueError(f"y_val has labels that y has not: {few(unknown)}.")
        return reference, original

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        return labels_of(outputs, self.classes_, self._threshold)

    @property
    def _threshold(self) -> float:
        """The forecast of the second of two classes from which on it is the label.

        It goes with the scale of logits: labels are the same as without one.
        """
        own = self._fitted.reference.threshold
        return float(self._forecast(np.array([[1 - own, own]]))[0, 1])

    def _forecast(self, outputs: np.ndarray) -> np.ndarray:
        if self.setting == "given" or self.logit_scale_ == 1:
            return outputs
        return scaled(outputs, self.logit_scale_)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean accuracy on rows, best those that the network was not trained on.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.
        y : array-like of shape (n_samples,)
            Their labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        float
            The accuracy of ``predict(X)``. A `SeenRowsWarning` says if a given network is scored on
            rows that were passed to ``fit``.
        """
        found = super().score(X, y, sample_weight)
        warn_if_seen(self, X)
        return found

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
            The given model's in ``setting="given"``; columns as in ``classes_``. In
            ``setting="expected"`` the average of all plausible models. QUAM's models are weighed to
            rank rows and not to predict: there it is the given model's, too. If held-out rows were
            passed to ``fit``, logits are scaled by ``logit_scale_``, so that ``1 -
            proba.max(axis=1)`` is about the risk of a mistake.
        uncertainty : Uncertainty
            Only with ``return_uncertainty=True``.
        """
        if not return_uncertainty:
            return self._predict_outputs(X)
        results = self._results(X)
        return results.prediction, results.uncertainty

    def predict_set(self, X: Any, coverage: float = 0.9, *, per_class: bool = False) -> np.ndarray:
        """Predict which labels each row may have.

        A set holds the most probable labels, as many as it takes, by the average of all plausible
        models, whatever the setting: where models disagree, sets are large. QUAM's sets are made of
        the given model's probabilities. Neither is scaled by ``logit_scale_``.

        If held-out rows were passed to ``fit`` as ``X_val`` and ``y_val``, how many it takes is
        chosen such that sets hold what they promise, by split conformal prediction: the label of a
        new row that is drawn like these is in its set with a probability of at least ``coverage``,
        whatever network and method; on average over rows, and over draws of the held-out ones.
        Without them, a set has a probability of ``coverage`` by the models' own account, and
        nothing is promised.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.
        coverage : float, default=0.9
            Share of labels that are to be in their sets. A share of c takes at least c / (1 - c)
            held-out rows; with ``per_class``, of each class.
        per_class : bool, default=False
            Whether ``coverage`` is to hold within each class, and not only on average over all
            rows, where sets of a frequent class may make up for those of a rare one. Each label
            is then calibrated by the held-out rows that have it (Mondrian conformal prediction).
            Sets are larger for it.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), dtype bool
            Which labels are in the set of each row; columns as in ``classes_``. The most probable
            one always is, and all are for rows beyond the range of the training data.
        """
        coverage = check_coverage(coverage)
        check_is_fitted(self)
        threshold: Any = None
        if hasattr(self, "conformal_scores_"):
            if per_class:
                threshold = self._threshold_of_each_class(coverage)
            else:
                threshold = conformal_threshold(self.conformal_scores_, coverage)
        elif per_class:
            raise ValueError(
                "per_class=True needs held-out rows: pass X_val and y_val to fit, at least "
                f"{rows_needed(coverage)} rows of each class for coverage={coverage}."
            )
        share = share_of_tail(self._predictive(X))
        if threshold is None:
            return share > 1 - coverage
        return _label_scores(share) <= threshold

    def _threshold_of_each_class(self, coverage: float) -> np.ndarray:
        """Return what the score of each label does not exceed with a probability of coverage."""
        needed = rows_needed(coverage)
        counts = np.bincount(self.conformal_labels_, minlength=len(self.classes_))
        if (counts < needed).any():
            rare = np.flatnonzero(counts < needed)
            named = ", ".join(f"{few(self.classes_[[k]])} has {counts[k]}" for k in rare[:10])
            raise ValueError(
                f"coverage={coverage} takes at least {needed} rows of X_val of each class, but "
                f"{named}{', ...' if len(rare) > 10 else ''}. Hold out more rows of these classes, "
                "ask for a smaller coverage, or pass per_class=False."
            )
        scores, labels = self.conformal_scores_, self.conformal_labels_
        return np.array(
            [conformal_threshold(scores[labels == k], coverage) for k in range(len(counts))]
        )

    def _risk(self, results: RowResults) -> np.ndarray:
        return 1 - results.prediction.max(axis=1)

    def _conformal_scores(self, predictive: Any, y_val: Any) -> np.ndarray:
        columns = column_of_label(self.classes_, y_val)
        # Scores are those of logits as they are: a scale would know the rows that calibrate.
        self.logit_scale_ = fit_logit_scale(predictive, columns)
        scores = _label_scores(share_of_tail(predictive)[np.arange(len(y_val)), columns])
        # In the order of the scores, which are kept sorted.
        self.conformal_labels_ = columns[np.argsort(scores)]
        return scores


def share_of_tail(proba: Any) -> np.ndarray:
    """Return how probable each label is together with all that are not more probable.

    It is 1 for the most probable one. Labels for which it is more than 1 - c are the smallest set
    that has a probability of c.

    Parameters
    ----------
    proba : ndarray of shape (n_samples, n_classes)
        Probabilities.

    Returns
    -------
    ndarray of shape (n_samples, n_classes)
        Shares between 0 and 1.
    """
    order = proba.argsort(axis=1)
    rising = np.take_along_axis(proba, order, axis=1)
    share = rising.cumsum(axis=1)
    # Of equally probable ones, all have what the last of them has.
    ties = np.c_[rising[:, :-1] == rising[:, 1:], np.zeros(len(proba), bool)]
    share = np.where(ties, np.inf, share)[:, ::-1]
    share = np.minimum.accumulate(share, axis=1)[:, ::-1]
    found = np.empty_like(share)
    np.put_along_axis(found, order, share / share[:, -1:], axis=1)
    return found


def _label_scores(share: np.ndarray) -> np.ndarray:
    """Return how far out labels are: zero for the most probable one, where it is exact."""
    with np.errstate(divide="ignore"):
        return -np.log(share)


def labels_of(proba: np.ndarray, classes: np.ndarray, threshold: float) -> np.ndarray:
    """Return the labels that probabilities mean."""
    if len(classes) == 2:
        return classes[(proba[:, 1] > threshold).astype(int)]
    return classes[proba.argmax(axis=1)]


def _is_text(labels: Any) -> bool:
    return np.asarray(labels).dtype.kind in "USO"


def match_classes(y: np.ndarray, network: Network, n_outputs: int) -> np.ndarray:
    """Return the label of each of the network's columns.

    scikit-learn's networks know their labels. Others were trained on column indices: their
    labels are either those indices, or as many labels as there are columns, in sorted order.
    """
    labels = np.unique(y)
    known = network.classes
    if known is not None and _is_text(known) != _is_text(labels):
        known = None if network.labels_are_indices else known
    if known is not None and len(known) == n_outputs and np.isin(labels, known).all():
        if len(known) < 2:
            raise ValueError(
                f"A classifier needs at least two classes; y has one class: {few(labels)}."
            )
        return labels if np.array_equal(labels, known) else np.asarray(known)
    if network.labels_are_indices:
        if len(labels) == n_outputs:
            return labels
        indices = np.arange(n_outputs)
        if labels.dtype.kind in "iu" and np.isin(labels, indices).all():
            return indices
    what = f"it has {n_outputs} columns, and y has {len(labels)} classes: {few(labels)}"
    if network.labels_are_indices:
        raise ValueError(
            f"The network's output does not match the classes: {what}. Pass the labels it was "
            "trained with, one for each column, or 0, 1, ... as the number of its column."
            + " If these are the cumulative logits of ordered classes, pass a module whose forward "
            "makes log-probabilities of them, and link='log_probabilities'."
            * (n_outputs == len(labels) - 1 > 0)
        )
    kind = "" if known is None or known.dtype.kind == labels.dtype.kind else ", not their numbers"
    raise ValueError(
        f"The network's output does not match the classes: {what}, but the network was trained "
        f"with {few(known)}. Pass labels of that kind as y{kind}."
    )
