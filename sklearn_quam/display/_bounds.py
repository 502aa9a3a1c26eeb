"""Bounds of the probabilities of one sample over plausible models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils import check_consistent_length

from .._documented import DISPLAY, documented
from ..base._data import one_row
from ..base._inside import method_and_rows
from ._asking import check_vector
from ._base import BLUE, GIVEN, _Display, check_matplotlib

# Of more classes than this, only those with the largest upper bounds are drawn.
_MAX_CLASSES = 20


@documented(DISPLAY)
@dataclass(eq=False, repr=False)
class ProbabilityBoundsDisplay(_Display):
    """Bounds of the probability of each class over all plausible models of a sample.

    Where the bars of classes overlap, the training data leave open which is more probable. Create
    it with `from_estimator` or `from_predictions`.

    Parameters
    ----------
    proba : ndarray of shape (n_classes,)
        Probabilities of the given network.
    lower : ndarray of shape (n_classes,)
        Smallest probabilities.
    upper : ndarray of shape (n_classes,)
        Largest probabilities.
    labels : ndarray of shape (n_classes,), default=None
        Names of the classes; None means their numbers.
    slack : float
        Largest cost of the models that count, in nats of the training set; `from_estimator` takes
        that of the estimator by default.

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

    proba: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    labels: Any = None
    slack: float | None = None

    def __post_init__(self) -> None:
        """Check the arrays."""
        for name in ("proba", "lower", "upper"):
            setattr(self, name, check_vector(getattr(self, name), name))
        self.labels = np.asarray(range(len(self.proba)) if self.labels is None else self.labels)
        check_consistent_length(self.proba, self.lower, self.upper, self.labels)
        if (self.lower > self.upper).any():
            raise ValueError("lower is above upper for some classes.")

    @classmethod
    def from_estimator(
        cls, estimator: Any, x: Any, *, slack: float | None = None, **kwargs: Any
    ) -> Self:
        """Search models for one sample.

        Parameters
        ----------
        estimator : QUAMClassifier
            A fitted one, or a pipeline that ends in one.
        x : array-like of shape (n_features,) or (1, ...)
            The sample.
        """
        check_matplotlib(cls)
        method, row = method_and_rows(estimator, one_row(x), "predict_proba_bounds")
        slack = method.slack_ if slack is None else slack
        lower, upper = method.predict_proba_bounds(row, slack)
        proba = method._predict_given(row)[0].to_array()
        display = cls(proba[0], lower[0], upper[0], method.classes_, slack)
        return display.plot(**kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw a bar for each class, of many those with the largest upper bounds.

        Parameters
        ----------
        **kwargs : dict
            Arguments of ``ax.barh`` for the bars.
        """
        ax = self._axes(ax)
        drawn = np.sort(np.argsort(-self.upper, kind="stable")[:_MAX_CLASSES])
        place, lower, upper = np.arange(len(drawn)), self.lower[drawn], self.upper[drawn]
        within = "" if self.slack is None else f" within {self.slack:g} nats"
        options = {"color": BLUE, "alpha": 0.4, "height": 0.6, "label": f"all models{within}"}
        self.bars_ = ax.barh(place, upper - lower, left=lower, **{**options, **kwargs})
        (self.points_,) = ax.plot(
            self.proba[drawn], place, "o", color=GIVEN, markersize=5, label="given network"
        )
        ax.set_yticks(place, [str(label) for label in self.labels[drawn]])
        # The first class is at the top; there is a little room for points at the ends.
        self._finish("probability", "", xlim=(-0.02, 1.02), ylim=(len(drawn) - 0.4, -0.6))
        self._legend()
        return self
