"""Accuracy over the share of samples that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from .._documented import DISPLAY, documented
from ..base._inside import method_and_rows
from ..metrics import accuracy_rejection_auc, accuracy_rejection_curve
from ..metrics._errors import correct
from ..model_selection import RejectOptionClassifier
from ._asking import check_component, check_vector, threshold_of
from ._base import PALETTE, _Display, check_matplotlib

# Dashes show a curve that lies below another one.
_LINE_STYLES = ("-", "--", ":", "-.")
# Marks the curves among whatever else is drawn on the same axes.
_CURVE = "accuracy-rejection"


@documented(DISPLAY)
@dataclass(eq=False, repr=False)
class AccuracyRejectionDisplay(_Display):
    """Accuracy of the samples that are kept when the most uncertain ones are rejected.

    Create it with `from_estimator` or `from_predictions`; pass the axes of one display to the next
    to compare several.

    Parameters
    ----------
    y_correct : ndarray of shape (n_samples,)
        Whether each prediction is right.
    uncertainty : ndarray of shape (n_samples,)
        What samples are rejected by, the highest first.
    threshold : float
        Samples whose uncertainty is above it are rejected: marked on the curve.
    name : str
        Name of the curve in the legend; `from_estimator` takes that of the class by default.

    Attributes
    ----------
    fraction_retained : ndarray of shape (n_points,)
        Share of the samples that are not rejected.
    accuracy : ndarray of shape (n_points,)
        Their accuracy.
    auc : float
        Area under the curve.
    answered : float or None
        Share of samples that the threshold accepts.
    ax_
    line_ : matplotlib Line2D
        The curve.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import QUAMClassifier, ReferenceClassifier
    >>> from sklearn_quam.display import AccuracyRejectionDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> net = LogisticRegression(max_iter=1000).fit(X, y)
    >>> est = QUAMClassifier(net).fit(X, y)
    >>> display = AccuracyRejectionDisplay.from_estimator(est, X, y, name="QUAM")
    >>> est = ReferenceClassifier(net).fit(X, y)
    >>> display = AccuracyRejectionDisplay.from_estimator(
    ...     est, X, y, name="entropy", ax=display.ax_)
    >>> len(display.ax_.lines)
    2
    """

    y_correct: np.ndarray
    uncertainty: np.ndarray
    threshold: float | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        """Compute the curve."""
        curve = self.y_correct, self.uncertainty
        self.fraction_retained, self.accuracy = accuracy_rejection_curve(*curve)
        self.auc = float(accuracy_rejection_auc(*curve))
        self.answered = None
        if self.threshold is not None:
            doubt = check_vector(self.uncertainty, "uncertainty")
            self.answered = float((doubt <= self.threshold).mean())

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        component: str = "total",
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Let a fitted classifier predict samples, and rank them by its uncertainty.

        Parameters
        ----------
        estimator : object
            A fitted classifier of the package, a pipeline that ends in one, or a fitted
            ``GridSearchCV`` over one. Of a fitted `RejectOptionClassifier`, samples are ranked by
            what it rejects them by, and its threshold is marked.
        X : array-like of shape (n_samples, ...)
            Test samples.
        y : array-like of shape (n_samples,)
            Their true classes.
        """
        check_matplotlib(cls)
        check_component(component)
        threshold: float | None
        if isinstance(estimator, RejectOptionClassifier):
            check_is_fitted(estimator)
            method, threshold = estimator, estimator.threshold_
            doubt, is_right = estimator._judge(X, y)
            doubt = estimator._measured(doubt)
        else:
            method, rows = method_and_rows(estimator, X)
            if not is_classifier(method):
                raise ValueError(
                    f"Accuracy is about classes, but {type(method).__name__} predicts numbers."
                )
            predicted, uncertainty = method.predict(rows, return_uncertainty=True)
            doubt, is_right = uncertainty._part(component), correct(predicted, y)
            threshold = threshold_of(method, component)
        name = type(method).__name__ if name is None else name
        options = {"threshold": threshold, "name": name, **kwargs}
        return cls.from_predictions(is_right, doubt, **options)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the curve, beside those that are already on the axes.

        Parameters
        ----------
        **kwargs : dict
            Arguments of ``ax.plot``, such as ``color``.
        """
        ax = self._axes(ax)
        area = f"area = {self.auc:.3f}"
        label = f"{self.name} ({area})" if self.name else area
        number = sum(line.get_gid() == _CURVE for line in ax.lines)
        options = {
            "color": PALETTE[number % len(PALETTE)],
            "linestyle": _LINE_STYLES[number % len(_LINE_STYLES)],
            "linewidth": 1.8,
            "label": label,
            **kwargs,
        }
        (self.line_,) = ax.plot(self.fraction_retained, self.accuracy, gid=_CURVE, **options)
        if self.answered:  # where all samples are rejected there is no accuracy
            place = np.searchsorted(self.fraction_retained, self.answered - 1e-9)
            mark: Any = {"marker": "o", "color": self.line_.get_color(), "linestyle": ""}
            ax.plot(self.answered, self.accuracy[place], label="threshold", **mark)
        self._finish(
            "share of samples retained, the most certain first",
            "accuracy of the retained samples",
            xlim=(0, 1),
        )
        if ax.get_legend_handles_labels()[0]:
            ax.legend(loc="best", frameon=False)
        return self
