"""A classifier that rejects doubtful samples."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MetaEstimatorMixin,
    _fit_context,
    clone,
    is_classifier,
)
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.utils import check_consistent_length, get_tags, indexable
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from .._arguments import allowed, arguments, real
from .._documented import documented, parsed
from .._messages import ShortMessages, shown
from .._network.inputs.rows import from_tensor
from .._network.inputs.sources import count_rows, open_source, some_rows
from .._typing import RandomState
from ..base._conformal import noise_and_calibration_rows
from ..base._doubt import DoubtScale
from ..base._inside import finite, method_and_rows, opened, scored_method_and_rows
from ..base.checks.seen import warn_about_held_out_rows
from ..exceptions import warn
from ._thresholds import conformal_quantile, rows_for_risk, threshold_for_risk

PARTS = {"auto", "total", "epistemic", "aleatoric"}
# What has one of these can be asked which rows to reject.
CLASSIFIER = ("predict_uncertainty", "predict_proba")
ARGUMENTS = parsed(
    """
    Parameters
    ----------
    X : array-like of shape (n_samples, ...)
        Samples like those of the training data.
    y : array-like of shape (n_samples,)
        Labels.
    """
)


@documented(ARGUMENTS)
@arguments
class RejectOptionClassifier(ShortMessages, ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Predict samples that are not doubtful, and reject the others.

    A sample is rejected if its doubt is above a threshold, which is chosen on samples that the
    estimator was not fitted to.

    Parameters
    ----------
    estimator : estimator
        A classifier with ``predict_proba``: a method of the package, such as `QUAMClassifier`, a
        pipeline that ends in one, or any other.
    coverage : float
        Share of samples to accept. The threshold is a conformal quantile: of new samples like the
        held-out ones, the expected share is at least this.
    max_risk : float
        Largest share of mistakes among the accepted samples; as many as possible are accepted, and
        ``coverage`` is not used.
    doubt : {"auto", "total", "epistemic", "aleatoric"} or detector
        What is doubtful. "auto" is ``predict_doubt`` of a method of the package; if the method was
        not fitted with ``X_val``, half of the samples held out here measure doubt, and the other
        half chooses the threshold. For other classifiers it is 1 - max p. Else a part of the
        uncertainty, or minus ``score_samples`` of a detector, which is cloned and fitted to the
        same samples.
    confidence : float
        With ``max_risk``: the probability, over the held-out samples, that the risk of new samples
        is at most ``max_risk``.
    cv : float or "prefit"
        Which samples are held out: a random share; or, with "prefit", all samples passed to `fit`,
        for an estimator that is fitted already. **A given network has seen its training data**,
        whatever is held out here: use "prefit" and other samples, or let the estimator train its
        network. A `SeenRowsWarning` says so.
    random_state : int, RandomState instance or None
        Chooses the held-out samples if ``cv`` is a share.

    Attributes
    ----------
    estimator_ : estimator
        The fitted estimator.
    reject_label_ : int or str
        What `predict` returns for rejected samples: "reject" where labels are text, else -1, or a
        lower number where -1 is a class.
    detector_ : estimator or None
        The fitted detector.
    known_rows_ : ndarray of shape (n_known, 2) or None
        Risk and epistemic uncertainty of held-out samples that measure doubt, if any.
    classes_ : ndarray of shape (n_classes,)
        Labels.
    threshold_ : float
        Samples whose doubt is above it are rejected.
    coverage_ : float
        Share of the held-out samples that are accepted.
    risk_ : float
        Share of mistakes among them; NaN where there are none.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.model_selection import train_test_split
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from sklearn_quam import QUAMClassifier
    >>> from sklearn_quam.model_selection import RejectOptionClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, X_new, y, y_new = train_test_split(X, y, random_state=0)
    >>> est = make_pipeline(StandardScaler(), QUAMClassifier(MLPClassifier(random_state=0)))
    >>> reject = RejectOptionClassifier(est, coverage=0.8, random_state=0).fit(X, y)
    >>> answer = reject.predict(X_new)    # 0, 1, or -1: look at this one yourself
    >>> bool(0.6 < (answer != -1).mean() < 1 and reject.score(X_new, y_new) > 0.97)
    True
    """

    estimator: Any = allowed(HasMethods(["fit", "predict"]), kw_only=False)
    coverage: float = real(default=0.9, below=1, closed="right")
    max_risk: float | None = allowed(Interval(Real, 0, 1, closed="neither"), None, default=None)
    doubt: Any = allowed(StrOptions(PARTS), HasMethods(["fit", "score_samples"]), default="auto")
    confidence: float = real(default=0.9, below=1)
    cv: Any = allowed(StrOptions({"prefit"}), Interval(Real, 0, 1, closed="neither"), default=0.25)
    random_state: RandomState = allowed("random_state", default=None)

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, **fit_params: Any) -> Any:
        """Fit the estimator, and choose the threshold.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data; with ``cv="prefit"``, samples that the estimator was not fitted to.
        **fit_params : dict
            Arguments of the estimator's ``fit``. Weights, whose names end in ``sample_weight``, are
            split as the samples are. None with ``cv="prefit"``.
        """
        self._check_estimator()
        y = column_or_1d(from_tensor(y), warn=True)
        check_classification_targets(y)
        fit_params = {name: value for name, value in fit_params.items() if value is not None}
        if fit_params and self.cv == "prefit":
            raise TypeError(
                f"With cv='prefit' nothing is fitted: pass {', '.join(fit_params)} to the "
                "estimator's fit."
            )
        weights = {name for name in fit_params if name.endswith("sample_weight")}
        check_consistent_length(y, *(fit_params[name] for name in weights))
        if self.cv == "prefit":
            check_is_fitted(self._inside())
            self.estimator_, self.detector_ = self.estimator, self._given_detector()
        else:
            warn_about_held_out_rows(self._inside())
            X = indexable(from_tensor(X))[0] if open_source(X) is None else X
            fit, held_out = self._split(X, y)
            known, labels = some_rows(X, fit), y[fit]
            fit_params |= {name: some_rows(fit_params[name], fit) for name in weights}
            self.estimator_ = clone(self.estimator).fit(known, labels, **fit_params)
            given = isinstance(self.doubt, str)
            self.detector_ = None if given else clone(self.doubt).fit(known, labels)
            X, y = some_rows(X, held_out), y[held_out]
        self.classes_ = self.estimator_.classes_
        self.reject_label_ = self._unused_label()
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        doubt, right = self._judge(X, y)
        self.known_rows_: np.ndarray | None = None
        if doubt.ndim > 1 and doubt[:, 1].any():
            measure, choose = noise_and_calibration_rows(len(doubt))
            self.known_rows_, doubt, right = doubt[measure], doubt[choose], right[choose]
        doubt = self._measured(doubt)
        self.threshold_ = self._choose_threshold(doubt, right)
        kept = doubt <= self.threshold_
        self.coverage_ = float(kept.mean())
        self.risk_ = float(1 - right[kept].mean()) if kept.any() else math.nan
        return self

    def _split(self, X: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which samples are fitted to, and which are held out."""
        split = StratifiedShuffleSplit(1, test_size=self.cv, random_state=self.random_state)
        try:
            return next(split.split(np.zeros(count_rows(X)), y))
        except ValueError as error:
            raise ValueError(f"cv={shown(self.cv)} cannot split these rows: {error}") from error

    def _unused_label(self) -> int | str:
        """Return what `predict` returns for rejected samples."""
        if self.classes_.dtype.kind in "biuf":
            return min(-1, int(self.classes_.min()) - 1)
        if "reject" in self.classes_.tolist():
            raise ValueError("A class is called 'reject', as rejected samples are: rename it.")
        return "reject"

    def _inside(self) -> Any:
        """Return the classifier inside of pipelines and searches."""
        return opened(self.estimator, CLASSIFIER)[1]

    def _check_estimator(self) -> None:
        needs = "predict_uncertainty" if self._is_part() else "predict_proba"
        if not is_classifier(opened(self.estimator, ("predict_uncertainty", needs))[1]):
            raise TypeError(
                f"Only classifiers can reject; {type(self.estimator).__name__} is none."
            )

    def _is_part(self) -> bool:
        """Return whether doubt is a part of the uncertainty."""
        return isinstance(self.doubt, str) and self.doubt != "auto"

    def _given_detector(self) -> Any:
        if isinstance(self.doubt, str):
            return None
        check_is_fitted(opened(self.doubt, "score_samples")[1])
        return self.doubt

    def _judge(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return doubt, which may still have to be measured, and which answers are right."""
        scored_method_and_rows(self.estimator_, X, CLASSIFIER)
        answer, doubt = self._answers(X)
        return doubt, np.asarray(answer) == np.asarray(y)

    def _measured(self, doubt: np.ndarray) -> np.ndarray:
        """Return the doubt of each sample as a number."""
        if doubt.ndim == 1:
            return doubt
        if self.known_rows_ is None:
            return doubt[:, 0]
        return DoubtScale.fit(*self.known_rows_.T).share(*doubt.T)

    def _answers(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return predictions with their doubt: a number, or risk and epistemic uncertainty."""
        if self.detector_ is not None:
            return self.estimator_.predict(X), finite(-self.detector_.score_samples(X))
        method, rows = method_and_rows(self.estimator_, X, CLASSIFIER)
        if not hasattr(method, "predict_uncertainty"):
            return method.predict(rows), 1 - method.predict_proba(rows).max(axis=1)
        if self._is_part():
            answer, uncertainty = method.predict(rows, return_uncertainty=True)
            return answer, finite(uncertainty._part(self.doubt))
        proba, uncertainty = method.predict_proba(rows, return_uncertainty=True)
        risk, doubt = 1 - proba.max(axis=1), uncertainty.doubt
        if doubt is None:
            doubt = np.column_stack([risk, uncertainty.epistemic])
        return method._decide(proba), doubt

    def _choose_threshold(self, doubt: np.ndarray, right: np.ndarray) -> float:
        order = np.argsort(doubt)
        doubt, right = doubt[order], right[order]
        if self.max_risk is None:
            return conformal_quantile(doubt, self.coverage)
        found = threshold_for_risk(doubt, right, self.max_risk, 1 - self.confidence)
        if found == -math.inf:
            needed = rows_for_risk(doubt, right, self.max_risk, 1 - self.confidence)
            advice = (
                f"It takes about {needed} rows like these. Hold out as many, or pass a larger "
                "max_risk or a smaller confidence."
            )
            if needed is None:
                advice = (
                    "No number of rows like these would do: the least doubtful have too many "
                    "mistakes. Pass a larger max_risk, or another doubt."
                )
            warn(
                f"A risk of at most {self.max_risk} cannot be promised with these "
                f"{len(doubt)} held-out rows: all rows will be rejected. {advice}",
                UserWarning,
            )
        return found

    def accepts(self, X: Any) -> np.ndarray:
        """Return which samples are accepted.

        Returns
        -------
        ndarray of shape (n_samples,), dtype bool
            False for samples that are rejected.
        """
        check_is_fitted(self, "threshold_")
        return self._measured(self._answers(X)[1]) <= self.threshold_

    def predict(self, X: Any) -> np.ndarray:
        """Return labels, and ``reject_label_`` for doubtful samples.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels.
        """
        check_is_fitted(self, "threshold_")
        answer, doubt = self._answers(X)
        answer = np.asarray(answer)
        if answer.dtype == np.uint64:  # signed numbers have only floats in common with it
            answer = answer.astype(object)
        label = np.asarray(self.reject_label_)
        return np.where(self._measured(doubt) <= self.threshold_, answer, label)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):
            tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the estimator's probabilities, also for rejected samples.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities of the classes.
        """
        check_is_fitted(self, "threshold_")
        return self.estimator_.predict_proba(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy among the accepted samples.

        Parameters
        ----------
        sample_weight : array-like of shape (n_samples,)
            Weights of the samples.

        Returns
        -------
        float
            The accuracy; NaN if every sample is rejected.
        """
        check_is_fitted(self, "threshold_")
        doubt, right = self._judge(X, y)
        kept = self._measured(doubt) <= self.threshold_
        if not kept.any():
            return math.nan
        weights = None if sample_weight is None else np.asarray(sample_weight)[kept]
        return float(np.average(right[kept], weights=weights))
