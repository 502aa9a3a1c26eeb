"""How well uncertainty tells rows apart: unknown from known ones, wrong from right ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.metrics import roc_auc_score
from sklearn.utils.validation import check_is_fitted

from .._documented import DISPLAY, documented
from .._posterior.results import INFINITE
from ..base._inside import correct, method_and_rows
from ..metrics import accuracy_rejection_auc, accuracy_rejection_curve
from ..model_selection import RejectOptionClassifier
from ._answers import ask, check_component, check_vector, label, threshold_of, within_range
from ._answers import unit as unit_of
from ._style import (
    BLUE,
    LINE_STYLES,
    RED,
    axes_or_new,
    bin_edges,
    check_matplotlib,
    legend_below,
    line_style,
    remove_frame,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Marks the curves among whatever else is drawn on the same axes.
_CURVE = "accuracy-rejection"


@documented(DISPLAY)
class UncertaintyHistogramDisplay:
    """Histograms of the uncertainty of known and of unknown data.

    Create it with `from_estimator` or `from_predictions`.

    Parameters
    ----------
    uncertainty_id : ndarray of shape (n_id,)
        Uncertainty of rows like the training data (in distribution).
    uncertainty_ood : ndarray of shape (n_ood,)
        Uncertainty of other rows (out of distribution).
    auroc : float, default=None
        Area under the ROC curve of telling the latter by their uncertainty.
    xlabel : str, default="uncertainty"
        What is shown, and its unit.
    threshold : float, default=None
        A value to be marked by a line: 95 % of known rows are below it.

    Attributes
    ----------
    ax_
    bins_ : ndarray of shape (n_bins + 1,)
        Edges of the bars.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import PenaltySearch, QUAMClassifier
    >>> from sklearn_quam.display import UncertaintyHistogramDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> net = LogisticRegression().fit(X, y)
    >>> est = QUAMClassifier(net, search=PenaltySearch(n_steps=20), random_state=0).fit(X, y)
    >>> display = UncertaintyHistogramDisplay.from_estimator(est, X[::5], -X[::5], log=True)
    >>> display.uncertainty_ood.shape
    (30,)
    >>> display.ax_.get_xlabel()
    'epistemic uncertainty (nats)'
    """

    def __init__(
        self,
        uncertainty_id: np.ndarray,
        uncertainty_ood: np.ndarray,
        *,
        auroc: float | None = None,
        xlabel: str = "uncertainty",
        threshold: float | None = None,
    ) -> None:
        self.uncertainty_id = uncertainty_id
        self.uncertainty_ood = uncertainty_ood
        self.auroc = auroc
        self.xlabel = xlabel
        self.threshold = threshold

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X_id: Any,
        X_ood: Any,
        *,
        component: str = "epistemic",
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Ask a fitted estimator about known and unknown rows.

        Parameters
        ----------
        estimator : object
            A fitted estimator of the package, an outlier detector of it or of scikit-learn, a
            pipeline that ends in one, or a fitted ``GridSearchCV`` over one.
        X_id : array-like of shape (n_id, ...)
            Rows like the training data, but not from it.
        X_ood : array-like of shape (n_ood, ...)
            Other rows.
        component : {"aleatoric", "epistemic", "total", "doubt"}, default="epistemic"
            What to show.

        Returns
        -------
        UncertaintyHistogramDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_estimator")
        check_component(component)
        both = [ask(estimator, X) for X in (X_id, X_ood)]
        parts = [answers.uncertainty._part(component) for answers in both]
        options = {
            "xlabel": label(component, unit_of(both[0].method)),
            "threshold": threshold_of(both[0].method, component),
        }
        return cls.from_predictions(*parts, ax=ax, **{**options, **kwargs})

    @classmethod
    def from_predictions(
        cls,
        uncertainty_id: Any,
        uncertainty_ood: Any,
        *,
        xlabel: str = "uncertainty",
        threshold: float | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw uncertainties that are already known.

        Parameters
        ----------
        uncertainty_id : array-like of shape (n_id,)
            Uncertainty of rows like the training data, or any score that is low for them.
        uncertainty_ood : array-like of shape (n_ood,)
            Uncertainty of other rows.
        threshold : float, default=None
            A value to be marked by a line, such as ``est.threshold(0.95, component="epistemic")``.

        Returns
        -------
        UncertaintyHistogramDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_predictions")
        known = check_vector(uncertainty_id, "uncertainty_id")
        unknown = check_vector(uncertainty_ood, "uncertainty_ood")
        is_unknown = np.repeat([False, True], [len(known), len(unknown)])
        auroc = roc_auc_score(is_unknown, np.concatenate([known, unknown]))
        return cls(known, unknown, auroc=float(auroc), xlabel=xlabel, threshold=threshold).plot(
            ax, **kwargs
        )

    def plot(
        self, ax: Axes | None = None, *, bins: Any = 30, log: bool = False, **kwargs: Any
    ) -> Self:
        """Draw both histograms; bars are shares, so that sets of different size compare.

        Parameters
        ----------
        bins : int or array-like of shape (n_bins + 1,), default=30
            Number of bars, or their edges.
        log : bool, default=False
            Whether the axis is logarithmic, for uncertainties that span magnitudes. What is zero
            counts in the first bar.
        **kwargs : dict
            Arguments of ``ax.hist``, such as ``alpha``.

        Returns
        -------
        UncertaintyHistogramDisplay
            The display itself.
        """
        check_matplotlib(f"{type(self).__name__}.plot")
        ax = axes_or_new(ax)
        both = np.concatenate([self.uncertainty_id, self.uncertainty_ood])
        shown, _ = within_range(both)
        self.bins_ = bin_edges(shown, bins, log)
        for values, name, colour in (
            (self.uncertainty_id, "in distribution", BLUE),
            (self.uncertainty_ood, "out of distribution", RED),
        ):
            n_beyond = int((values >= INFINITE).sum())
            count = f"{len(values)} rows" + (f", {n_beyond} beyond range" if n_beyond else "")
            options = {
                "histtype": "stepfilled",
                "alpha": 0.55,
                "facecolor": colour,
                "edgecolor": colour,
                "linewidth": 1.2,
                "label": f"{name} ({count})",
                **kwargs,
            }
            # Rows beyond the range are in the last bar; on a log axis zeros are in the first one.
            low = self.bins_[0] if log else -np.inf
            ax.hist(
                np.where(values >= INFINITE, self.bins_[-1], values).clip(low),
                self.bins_.tolist(),
                weights=np.full(len(values), 1 / len(values)),
                **options,
            )
        if self.threshold is not None and self.bins_[0] <= self.threshold <= self.bins_[-1]:
            style: Any = {"color": "black", "linestyle": "--", "linewidth": 1.0}
            ax.axvline(self.threshold, label=f"threshold {self.threshold:.3g}", **style)
        ax.set(xlabel=self.xlabel, ylabel="share of rows", xscale="log" if log else "linear")
        remove_frame(ax)
        title = None if self.auroc is None else f"AUROC = {self.auroc:.3f}"
        legend_below(ax, *ax.get_legend_handles_labels(), title=title)
        self.ax_, self.figure_ = ax, ax.figure
        return self


@documented(DISPLAY)
class AccuracyRejectionDisplay:
    """Accuracy of what is left when the most uncertain rows are rejected.

    Create it with `from_estimator` or `from_predictions`; pass the axes of one display to the next
    to compare several.

    Parameters
    ----------
    fraction_retained : ndarray of shape (n_points,)
        Share of the rows that are not rejected.
    accuracy : ndarray of shape (n_points,)
        Their accuracy.
    auc : float, default=None
        Area under the curve.
    name : str, default=None
        What the legend calls the curve.
    answered : float, default=None
        Share of rows that a threshold accepts, to be marked on the curve.

    Attributes
    ----------
    ax_
    line_ : matplotlib Line2D
        The curve.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import PenaltySearch, QUAMClassifier, ReferenceClassifier
    >>> from sklearn_quam.display import AccuracyRejectionDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> net = LogisticRegression().fit(X, y)
    >>> est = QUAMClassifier(net, search=PenaltySearch(n_steps=20), random_state=0).fit(X, y)
    >>> display = AccuracyRejectionDisplay.from_estimator(est, X, y, name="QUAM")
    >>> est = ReferenceClassifier(net).fit(X, y)
    >>> display = AccuracyRejectionDisplay.from_estimator(
    ...     est, X, y, name="entropy", ax=display.ax_)
    >>> len(display.ax_.lines)
    2
    """

    def __init__(
        self,
        fraction_retained: np.ndarray,
        accuracy: np.ndarray,
        *,
        auc: float | None = None,
        name: str | None = None,
        answered: float | None = None,
    ) -> None:
        self.fraction_retained = fraction_retained
        self.accuracy = accuracy
        self.auc = auc
        self.name = name
        self.answered = answered

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        component: str = "total",
        name: str | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Let a fitted classifier predict rows, and rank them by its uncertainty.

        Parameters
        ----------
        estimator : object
            A fitted classifier of the package, a pipeline that ends in one, or a fitted
            ``GridSearchCV`` over one. Of a fitted `RejectOptionClassifier`, rows are ranked by what
            it rejects them by, and its threshold is marked.
        X : array-like of shape (n_samples, ...)
            Test rows.
        y : array-like of shape (n_samples,)
            Their true classes.
        component : {"aleatoric", "epistemic", "total", "doubt"}, default="total"
            What rows are rejected by, as for `rejection_scorer`.
        name : str, default=None
            What the legend calls the curve; None takes the name of the class.

        Returns
        -------
        AccuracyRejectionDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_estimator")
        check_component(component)
        if isinstance(estimator, RejectOptionClassifier):
            check_is_fitted(estimator)
            doubt, is_right = estimator._judge(X, y)
            name = type(estimator).__name__ if name is None else name
            options = {"threshold": estimator.threshold_, "name": name, "ax": ax, **kwargs}
            return cls.from_predictions(is_right, doubt, **options)
        method, rows = method_and_rows(estimator, X)
        if not is_classifier(method):
            raise ValueError(
                f"Accuracy is about classes, but {type(method).__name__} predicts numbers."
            )
        predicted, uncertainty = method.predict(rows, return_uncertainty=True)
        return cls.from_predictions(
            correct(predicted, y),
            uncertainty._part(component),
            threshold=threshold_of(method, component),
            name=type(method).__name__ if name is None else name,
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        y_correct: Any,
        uncertainty: Any,
        *,
        threshold: float | None = None,
        name: str | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the curve of predictions that are already known to be right or wrong.

        Parameters
        ----------
        y_correct : array-like of shape (n_samples,)
            Whether each prediction is right.
        uncertainty : array-like of shape (n_samples,)
            What rows are rejected by, the highest first.
        threshold : float, default=None
            Rows whose uncertainty is above it are rejected: marked on the curve.

        Returns
        -------
        AccuracyRejectionDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_predictions")
        fraction, accuracy = accuracy_rejection_curve(y_correct, uncertainty)
        auc = float(accuracy_rejection_auc(y_correct, uncertainty))
        answered = None
        if threshold is not None:
            answered = float((check_vector(uncertainty, "uncertainty") <= threshold).mean())
        display = cls(fraction, accuracy, auc=auc, name=name, answered=answered)
        return display.plot(ax, **kwargs)

    def plot(self, ax: Axes | None = None, *, name: str | None = None, **kwargs: Any) -> Self:
        """Draw the curve.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw, beside curves that are already there; None makes a new figure.
        name : str, default=None
            What the legend calls the curve; None takes the name the display was made with.
        **kwargs : dict
            Arguments of ``ax.plot``, such as ``color``.

        Returns
        -------
        AccuracyRejectionDisplay
            The display itself.
        """
        check_matplotlib(f"{type(self).__name__}.plot")
        ax = axes_or_new(ax)
        name = self.name if name is None else name
        area = None if self.auc is None else f"area = {self.auc:.3f}"
        parts = [part for part in (name, f"({area})" if name and area else area) if part]
        number = sum(line.get_gid() == _CURVE for line in ax.lines)
        # Dashes show a curve that lies below another one.
        style = {**line_style(number), "linestyle": LINE_STYLES[number % len(LINE_STYLES)]}
        options = {**style, "linewidth": 1.8, "label": " ".join(parts), **kwargs}
        (self.line_,) = ax.plot(self.fraction_retained, self.accuracy, gid=_CURVE, **options)
        if self.answered:  # where all rows are rejected there is no accuracy
            place = np.searchsorted(self.fraction_retained, self.answered - 1e-9)
            mark: Any = {"marker": "o", "color": self.line_.get_color(), "linestyle": ""}
            ax.plot(self.answered, self.accuracy[place], label="threshold", **mark)
        ax.set(
            xlabel="share of rows retained, the most certain first",
            ylabel="accuracy of the retained rows",
            xlim=(0, 1),
        )
        remove_frame(ax)
        if parts or "label" in kwargs:
            ax.legend(loc="best", frameon=False)
        self.ax_, self.figure_ = ax, ax.figure
        return self
