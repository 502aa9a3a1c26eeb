"""Classifiers: labels, probabilities, sets of labels."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._documented import QUERY, documented
from .._messages import few
from .._network.adapters import Network, column_of_label
from .._network.likelihood import CLASSIFIER_LINKS
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
from ._estimator import BaseUncertaintyEstimator, ScoresUnseen


@documented(QUERY)
class BaseUncertaintyClassifier(ScoresUnseen, ClassifierMixin, BaseUncertaintyEstimator):
    """Base of all classifiers of the package."""

    _task = "classifier"
    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyEstimator._parameter_constraints,
        "link": [StrOptions(set(CLASSIFIER_LINKS)), None],
        "measure": [StrOptions(set(LOSSES))],
    }

    measure: str

    def _encode_target(
        self,
        y: np.ndarray,
        network: Network,
        n_outputs: int,
        reference: ReferenceModel,  # noqa: ARG002
    ) -> Tensor:
        self.classes_, self.logit_scale_ = match_classes(y, network, n_outputs), 1.0
        return torch.tensor(column_of_label(self.classes_, y))

    def _check_held_out(self, y_val: np.ndarray) -> None:
        unknown = np.unique(y_val[~np.isin(y_val, self.classes_)])
        if len(unknown):
            raise ValueError(f"y_val has labels that y has not: {few(unknown)}.")

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        return labels_of(outputs, self.classes_, self._threshold)

    @property
    def _threshold(self) -> float:
        """The smallest forecast of the second of two classes that makes it the label."""
        # The forecast and its threshold are scaled by one factor: labels stay.
        own = self._fitted.reference.threshold
        return float(self._forecast(np.array([[1 - own, own]]))[0, 1])

    def _forecast(self, outputs: np.ndarray) -> np.ndarray:
        if self.setting == "given" or self.logit_scale_ == 1:
            return outputs
        return scaled(outputs, self.logit_scale_)

    def predict_proba(self, X: Any, *, return_uncertainty: bool = False) -> Any:
        """Predict the probability of each class.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes)
            The given model's in ``setting="given"``; columns as in ``classes_``. In
            ``setting="expected"`` the average of all plausible models; QUAM, whose weights rank
            samples, has the given model's there, too. If held-out samples were passed to ``fit``,
            logits are scaled by ``logit_scale_``, so that ``1 - proba.max(axis=1)`` is about the
            risk of a mistake.
        uncertainty : Uncertainty
            Only with ``return_uncertainty=True``.
        """
        if not return_uncertainty:
            return self._predict_outputs(X)
        results = self._results(X)
        return results.prediction, results.uncertainty

    def predict_set(self, X: Any, coverage: float = 0.9, *, per_class: bool = False) -> np.ndarray:
        """Predict the set of labels that each sample may have.

        A set holds the most probable labels by the average of all plausible models, in any setting
        (by the given model in QUAM): where models disagree, sets are large.

        If held-out samples were passed to ``fit``, sets are calibrated by split conformal
        prediction: the label of a new sample from the same distribution is in its set with a
        probability of at least ``coverage``, for any network and method, on average over samples
        and over draws of the held-out ones. Otherwise a set has a probability of ``coverage``
        according to the models, without a guarantee.

        Parameters
        ----------
        coverage : float, default=0.9
            Share of labels that are to be in their sets. A share of c takes at least c / (1 - c)
            held-out samples; with ``per_class``, of each class.
        per_class : bool, default=False
            Whether ``coverage`` is to hold within each class. Each label is then calibrated by the
            held-out samples that have it (Mondrian conformal prediction); sets are larger.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), dtype bool
            Whether each label is in the set; columns as in ``classes_``. The most probable label
            always is. All are for samples beyond the range of the training data.
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
        """Return the conformal threshold of each label."""
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
        # Scores take logits without the scale, which was fitted to the same samples.
        self.logit_scale_ = fit_logit_scale(predictive, columns)
        scores = _label_scores(share_of_tail(predictive)[np.arange(len(y_val)), columns])
        self.conformal_labels_ = columns[np.argsort(scores)]
        return scores


def share_of_tail(proba: Any) -> np.ndarray:
    """Return the probability of each label plus that of all labels that are not more probable.

    It is 1 for the most probable label. Labels with more than 1 - c are the smallest set with a
    probability of c.
    """
    order = proba.argsort(axis=1)
    rising = np.take_along_axis(proba, order, axis=1)
    share = rising.cumsum(axis=1)
    # Equally probable labels get the same share.
    ties = np.c_[rising[:, :-1] == rising[:, 1:], np.zeros(len(proba), bool)]
    share = np.where(ties, np.inf, share)[:, ::-1]
    share = np.minimum.accumulate(share, axis=1)[:, ::-1]
    found = np.empty_like(share)
    np.put_along_axis(found, order, share / share[:, -1:], axis=1)
    return found


def _label_scores(share: np.ndarray) -> np.ndarray:
    """Return conformal scores of labels: exactly zero for the most probable one."""
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
    """Return the label of each column of the network.

    scikit-learn's networks know their labels. For others, they are the indices of columns, or as
    many labels as there are columns, in sorted order.
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
