"""Between which bounds plausible models put the probabilities of one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils import check_consistent_length

from .._documented import DISPLAY, documented
from ..base._data import one_row
from ..base._inside import method_and_rows
from ._answers import check_vector
from ._style import BLUE, GIVEN, axes_or_new, check_matplotlib, legend_below, remove_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of more classes than this, only those with the largest upper bounds are drawn.
_MAX_CLASSES = 20


@documented(DISPLAY)
class ProbabilityBoundsDisplay:
    """Bounds of the probability of each class over all plausible models of a row.

    Classes whose bars overlap cannot be told apart by the training data. Create it with
    `from_estimator` or `from_predictions`.

    Parameters
    ----------
    proba : ndarray of shape (n_classes,)
        Probabilities of the given network.
    lower : ndarray of shape (n_classes,)
        Smallest probabilities.
    upper : ndarray of shape (n_classes,)
        Largest probabilities.
    labels : ndarray of shape (n_classes,)
        Names of the classes.
    slack : float, default=None
        Largest cost of the models that count, in nats, for the legend.

    Attributes
    ----------
    ax_
    bars_ : matplotlib BarContainer
        A bar from the lower to the upper bound of each class.
    points_ : matplotlib Line2D
        The given network.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import QUAMClassifier
    >>> from sklearn_quam.display import ProbabilityBoundsDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y)).fit(X, y)
    >>> display = ProbabilityBoundsDisplay.from_estimator(est, X[77], slack=2.0)
    >>> len(display.bars_)
    3
    """

    def __init__(
        self,
        *,
        proba: np.ndarray,
        lower: np.ndarray,
        upper: np.ndarray,
        labels: np.ndarray,
        slack: float | None = None,
    ) -> None:
        self.proba = proba
        self.lower = lower
        self.upper = upper
        self.labels = labels
        self.slack = slack

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        x: Any,
        *,
        slack: float | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Search models for one row.

        Parameters
        ----------
        estimator : QUAMClassifier
            A fitted one, or a pipeline that ends in one.
        x : array-like of shape (n_features,) or (1, ...)
            The row.
        slack : float, default=None
            Largest cost of a model that counts, in nats; None takes that of the estimator.

        Returns
        -------
        ProbabilityBoundsDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_estimator")
        method, row = method_and_rows(estimator, one_row(x), "predict_proba_bounds")
        slack = method.slack_ if slack is None else slack
        lower, upper = method.predict_proba_bounds(row, slack)
        proba = method._predict_reference(row).to_array()
        return cls.from_predictions(
            proba[0], lower[0], upper[0], labels=method.classes_, slack=slack, ax=ax, **kwargs
        )

    @classmethod
    def from_predictions(
        cls,
        proba: Any,
        lower: Any,
        upper: Any,
        *,
        labels: Any = None,
        slack: float | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw bounds that are already known.

        Parameters
        ----------
        labels : array-like of shape (n_classes,), default=None
            Names of the classes; None means their numbers.

        Returns
        -------
        ProbabilityBoundsDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_predictions")
        arrays = {"proba": proba, "lower": lower, "upper": upper}
        arrays = {name: check_vector(values, name) for name, values in arrays.items()}
        names = np.arange(len(arrays["proba"])) if labels is None else np.asarray(labels)
        check_consistent_length(*arrays.values(), names)
        if (arrays["lower"] > arrays["upper"]).any():
            raise ValueError("lower is above upper for some classes.")
        return cls(**arrays, labels=names, slack=slack).plot(ax, **kwargs)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw a bar for each class, of many those with the largest upper bounds.

        Parameters
        ----------
        **kwargs : dict
            Arguments of ``ax.barh`` for the bars.

        Returns
        -------
        ProbabilityBoundsDisplay
            The display itself.
        """
        check_matplotlib(f"{type(self).__name__}.plot")
        ax = axes_or_new(ax)
        shown = np.sort(np.argsort(-self.upper, kind="stable")[:_MAX_CLASSES])
        place, lower, upper = np.arange(len(shown)), self.lower[shown], self.upper[shown]
        within = "" if self.slack is None else f" within {self.slack:g} nats"
        options = {"color": BLUE, "alpha": 0.4, "height": 0.6, "label": f"all models{within}"}
        self.bars_ = ax.barh(place, upper - lower, left=lower, **{**options, **kwargs})
        (self.points_,) = ax.plot(
            self.proba[shown], place, "o", color=GIVEN, markersize=5, label="given network"
        )
        ax.set_yticks(place, [str(label) for label in self.labels[shown]])
        # The first class comes first, at the top; a little room for points at the ends.
        ax.set(xlabel="probability", xlim=(-0.02, 1.02), ylim=(len(shown) - 0.4, -0.6))
        remove_frame(ax)
        legend_below(ax, *ax.get_legend_handles_labels())
        self.ax_, self.figure_ = ax, ax.figure
        return self
