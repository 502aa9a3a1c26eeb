"""A classifier that rejects doubtful samples."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MetaEstimatorMixin,
    _fit_context,
    clone,
    is_classifier,
)
from sklearn.model_selection import StratifiedShuffleSplit, check_cv
from sklearn.utils import check_consistent_length, get_tags
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from .._documented import documented, parsed
from .._messages import ShortMessages, shown
from .._network.inputs.rows import from_tensor
from .._network.inputs.sources import count_rows, some_rows
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


_ARGUMENTS = parsed(
    """
    Parameters
    ----------
    X : array-like of shape (n_samples, ...)
        Samples like those of the training data.
    y : array-like of shape (n_samples,)
        Labels.
    """
)


@documented(_ARGUMENTS)
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
    threshold : float
        The threshold itself; nothing is chosen then.
    doubt : {"auto", "total", "epistemic", "aleatoric"} or detector
        What is doubtful. "auto" is ``predict_doubt`` of a method of the package; if the method was
        not fitted with ``X_val``, half of the samples held out here measure doubt, and the other
        half chooses the threshold. For other classifiers, and where nothing is held out, it is
        1 - max p. Else a part of the uncertainty, or minus ``score_samples`` of a detector, which
        is cloned and fitted to the same samples.
    confidence : float
        With ``max_risk``: the probability, over the held-out samples, that the risk of new samples
        is at most ``max_risk``. It holds where samples are held out once (``cv`` a float or
        "prefit").
    cv : int, splitter, float or "prefit"
        Which samples are held out: a random share; the folds of a cross-validation, after which
        the estimator is fitted to all samples; or, with "prefit", all samples passed to `fit`, for
        an estimator that is fitted already. **A given network has seen its training data**,
        whatever is held out here: use "prefit" and other samples, or let the estimator train its
        network. A `SeenRowsWarning` says so.
    reject_label : object
        What `predict` returns for rejected samples; None means "reject" where labels are text,
        else -1, or a lower number where -1 is a class.
    random_state : int, RandomState instance or None
        Chooses the held-out samples if ``cv`` is a float.

    Attributes
    ----------
    estimator_ : estimator
        The fitted estimator.
    reject_label_ : object
        What `predict` returns for rejected samples.
    detector_ : estimator or None
        The fitted detector.
    known_rows_ : ndarray of shape (n_known, 2) or None
        Risk and epistemic uncertainty of held-out samples that measure doubt, if any.
    classes_ : ndarray of shape (n_classes,)
        Labels.
    threshold_ : float
        Samples whose doubt is above it are rejected.
    coverage_ : float
        Share of the held-out samples that are accepted; NaN where none was held out.
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

    _parameter_constraints: ClassVar[dict] = {
        "estimator": [HasMethods(["fit", "predict"])],
        "coverage": [Interval(Real, 0, 1, closed="right")],
        "max_risk": [Interval(Real, 0, 1, closed="neither"), None],
        "threshold": [Real, None],
        "doubt": [StrOptions(PARTS), HasMethods(["fit", "score_samples"])],
        "confidence": [Interval(Real, 0, 1, closed="neither")],
        "cv": [
            StrOptions({"prefit"}),
            Interval(Integral, 2, None, closed="left"),
            Interval(Real, 0, 1, closed="neither"),
            HasMethods(["split"]),
        ],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        estimator: Any,
        *,
        coverage: float = 0.9,
        max_risk: float | None = None,
        threshold: float | None = None,
        doubt: Any = "auto",
        confidence: float = 0.9,
        cv: Any = 0.25,
        reject_label: Any = None,
        random_state: RandomState = None,
    ) -> None:
        self.estimator = estimator
        self.coverage = coverage
        self.max_risk = max_risk
        self.threshold = threshold
        self.doubt = doubt
        self.confidence = confidence
        self.cv = cv
        self.reject_label = reject_label
        self.random_state = random_state

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

        Returns
        -------
        self : object
            The fitted classifier.
        """
        self._check_estimator()
        y = column_or_1d(from_tensor(y), warn=True)
        check_classification_targets(y)
        if self.max_risk is not None and self.threshold is not None:
            raise ValueError("max_risk chooses a threshold: pass one of max_risk and threshold.")
        if isinstance(self.cv, (str, bytes)) and self.cv != "prefit":
            # Texts have a method split, too.
            raise ValueError(
                f"cv={shown(self.cv)} is not understood: pass a share of the rows such as 0.25, a "
                "number of folds, a splitter of scikit-learn, or 'prefit'."
            )
        given = [name for name, value in fit_params.items() if value is not None]
        if given and isinstance(self.cv, str):
            raise TypeError(
                f"With cv='prefit' nothing is fitted: pass {', '.join(given)} to the estimator's "
                "fit."
            )
        weights = [value for name, value in fit_params.items() if _is_weight(name, value)]
        check_consistent_length(y, *weights)
        if np.ndim(self.reject_label):
            raise ValueError(f"reject_label={shown(self.reject_label)} is no single label.")
        self.known_rows_: np.ndarray | None = None
        if self.cv == "prefit":
            check_is_fitted(self._inside())
            self.estimator_, self.detector_ = self.estimator, self._given_detector()
            doubt, right = self._judge_held_out(X, y)
        elif self.threshold is not None:
            self._fit_both(X, y, **fit_params)
            doubt, right = np.empty(0), np.empty(0, dtype=bool)
        elif isinstance(self.cv, Real) and not isinstance(self.cv, Integral):
            split = StratifiedShuffleSplit(1, test_size=self.cv, random_state=self.random_state)
            warn_about_held_out_rows(self._inside())
            ((fit, held_out),) = self._splits(split, X, y)
            self._fit_both(*_some(X, y, fit), **_some_weights(fit_params, fit))
            doubt, right = self._judge_held_out(*_some(X, y, held_out))
        else:
            doubt, right = self._judge_folds(X, y, fit_params)
            self._fit_both(X, y, **fit_params)
        self.classes_ = self.estimator_.classes_
        self.reject_label_ = self.reject_label
        if self.reject_label is None:
            numbers = self.classes_.dtype.kind in "biuf"
            self.reject_label_ = min(-1, int(self.classes_.min()) - 1) if numbers else "reject"
        if self.reject_label_ in self.classes_.tolist():
            raise ValueError(
                f"reject_label={shown(self.reject_label_)} is one of the classes: pass another one."
            )
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        self.threshold_ = self._choose_threshold(doubt, right)
        kept = doubt <= self.threshold_
        self.coverage_ = float(kept.mean()) if len(kept) else math.nan
        self.risk_ = float(1 - right[kept].mean()) if kept.any() else math.nan
        return self

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

    def _fit_both(self, X: Any, y: Any, **fit_params: Any) -> None:
        self.estimator_ = clone(self.estimator).fit(X, y, **fit_params)
        self.detector_ = None if isinstance(self.doubt, str) else clone(self.doubt).fit(X, y)

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

    def _judge_held_out(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return doubt of the samples that choose the threshold; others may measure it."""
        doubt, right = self._judge(X, y)
        if doubt.ndim > 1 and doubt[:, 1].any():
            measure, choose = noise_and_calibration_rows(len(doubt))
            self.known_rows_, doubt, right = doubt[measure], doubt[choose], right[choose]
        return self._measured(doubt), right

    def _measured(self, doubt: np.ndarray) -> np.ndarray:
        """Return the doubt of each sample as a number."""
        if doubt.ndim == 1:
            return doubt
        if self.known_rows_ is None:
            return doubt[:, 0]
        return DoubtScale.fit(*self.known_rows_.T).share(*doubt.T)

    def _judge_folds(self, X: Any, y: Any, fit_params: Any) -> tuple[np.ndarray, np.ndarray]:
        found = []
        folds = check_cv(self.cv, np.asarray(y), classifier=True)
        for fit, held_out in self._splits(folds, X, y):
            self._fit_both(*_some(X, y, fit), **_some_weights(fit_params, fit))
            found.append(self._judge(*_some(X, y, held_out)))
        doubt, right = (np.concatenate(part) for part in zip(*found, strict=True))
        self.known_rows_ = doubt if doubt.ndim > 1 else None
        return self._measured(doubt), right

    def _splits(self, splitter: Any, X: Any, y: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return training and held-out samples of each split."""
        n_rows = count_rows(X)
        try:
            found = list(splitter.split(np.zeros(n_rows), np.asarray(y)))
        except ValueError as error:
            raise ValueError(f"cv={shown(self.cv)} cannot split these rows: {error}") from error
        if not found or not all(len(held_out) for _, held_out in found):
            raise ValueError(f"cv={shown(self.cv)} holds out none of the {n_rows} rows.")
        return found

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
        if self.threshold is not None:
            return float(self.threshold)
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
            Of type object where no other holds both, such as text and a number.
        """
        check_is_fitted(self, "threshold_")
        answer, doubt = self._answers(X)
        answer = np.asarray(answer)
        label = np.asarray(self.reject_label_)
        if not _fit_together(answer.dtype, label.dtype):
            answer = answer.astype(object)
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


def _fit_together(labels: np.dtype, label: np.dtype) -> bool:
    """Return whether an array of numbers, or of texts, can hold both unchanged."""
    if (labels.kind == "U") != (label.kind == "U"):
        return False
    common = np.result_type(labels, label)
    # Signed and unsigned numbers of 64 bits have only a float in common, which rounds both.
    return common.kind != "f" or "f" in (labels.kind, label.kind)


def _some(X: Any, y: Any, rows: np.ndarray) -> tuple[Any, Any]:
    return some_rows(X, rows), some_rows(y, rows)


def _some_weights(fit_params: dict[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """Return arguments of ``fit`` with the weights of some samples; steps of a pipeline, too."""
    weights = {name for name, value in fit_params.items() if _is_weight(name, value)}
    return {
        name: some_rows(value, rows) if name in weights else value
        for name, value in fit_params.items()
    }


def _is_weight(name: str, value: Any) -> bool:
    return name.endswith("sample_weight") and value is not None
