"""The way of adversarial searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils import check_consistent_length

from .._documented import DISPLAY, documented
from .._messages import shown
from ..base._data import one_row
from ..base._inside import method_and_rows
from ..metrics._checked import numbers
from ._style import (
    GIVEN,
    GREY,
    axes_or_new,
    check_matplotlib,
    legend_below,
    line_style,
    remove_frame,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Divergences below the largest one by more than this factor are drawn near zero.
_LINEAR_SHARE = 1e-3


@documented(DISPLAY)
class SearchTraceDisplay:
    """Divergence against loss increase along the searches of one row.

    A search starts at the given network, where both are zero. It has found something if it gets
    high up without going far to the right: a model that disagrees and yet explains the training
    data. Create it with `from_estimator` or `from_predictions`.

    Parameters
    ----------
    divergence : list of ndarray of shape (n_steps + 1,)
        For each search, how far the models it met are from the given network, in nats.
    loss_increase : list of ndarray of shape (n_steps + 1,)
        What they cost on the training data, the mean over the mini-batches of the last few steps,
        in nats a row.
    targets : sequence of length n_searches, default=None
        What each search has looked for, such as a class.
    slack : float, default=None
        Loss increase up to which a model counts as one that explains the data.

    Attributes
    ----------
    ax_
    lines_ : list of matplotlib Line2D
        A line for each search.
    slack_ : matplotlib Line2D or None
        The vertical line.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import PenaltySearch, QUAMClassifier
    >>> from sklearn_quam.display import SearchTraceDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> net = LogisticRegression().fit(X, y)
    >>> est = QUAMClassifier(net, search=PenaltySearch(n_steps=20), random_state=0).fit(X, y)
    >>> display = SearchTraceDisplay.from_estimator(est, X[77])
    >>> display.divergence[0].shape
    (21,)
    >>> len(display.lines_)
    3
    """

    def __init__(
        self,
        divergence: Sequence[np.ndarray],
        loss_increase: Sequence[np.ndarray],
        *,
        targets: Sequence[Any] | None = None,
        slack: float | None = None,
    ) -> None:
        self.divergence = divergence
        self.loss_increase = loss_increase
        self.targets = targets
        self.slack = slack

    @classmethod
    def from_estimator(
        cls, estimator: Any, x: Any, *, ax: Axes | None = None, **kwargs: Any
    ) -> Self:
        """Search models for one row.

        Parameters
        ----------
        estimator : QUAMClassifier or QUAMRegressor
            A fitted one, or a pipeline that ends in one.
        x : array-like of shape (n_features,) or (1, ...)
            The row.

        Returns
        -------
        SearchTraceDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_estimator")
        method, row = method_and_rows(estimator, one_row(x), needs="search_traces")
        traces = method.search_traces(row)[0]
        targets = [trace["target"] for trace in traces]
        return cls.from_predictions(
            [trace["divergence"] for trace in traces],
            [trace["loss_increase"] for trace in traces],
            None if targets[0] is None else targets,
            slack=method.slack_ / method.n_training_rows_,
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        divergence: Any,
        loss_increase: Any,
        targets: Any = None,
        *,
        slack: float | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw searches that were already run.

        Parameters
        ----------
        divergence : sequence of array-like of shape (n_steps + 1,)
            For each search, how far the models it met are from the given network.
        loss_increase : sequence of array-like of shape (n_steps + 1,)
            What they cost on the training data.

        Returns
        -------
        SearchTraceDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_predictions")
        if divergence is None or loss_increase is None:
            raise ValueError("Pass both divergence and loss_increase.")
        check_consistent_length(divergence, loss_increase, targets)
        targets = None if targets is None else list(targets)
        heights = [numbers(values, "divergence", finite=False) for values in divergence]
        costs = [numbers(values, "loss_increase", finite=False) for values in loss_increase]
        for number, (height, cost) in enumerate(zip(heights, costs, strict=True)):
            if height.ndim != 1 or height.shape != cost.shape or not len(height):
                raise ValueError(
                    "divergence and loss_increase need a sequence of numbers for each search, of "
                    f"equal length; search {number} has shapes {height.shape} and {cost.shape}."
                )
        return cls(heights, costs, targets=targets, slack=slack).plot(ax, **kwargs)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        xscale: str = "auto",
        yscale: str = "symlog",
        **kwargs: Any,
    ) -> Self:
        """Draw a line for each search, from its start to its end.

        Parameters
        ----------
        xscale : {"auto", "symlog", "linear", "log"}, default="auto"
            Scale of the loss increase. "symlog" is linear up to the slack and logarithmic beyond;
            "auto" chooses it where searches go beyond ten times the slack, and "linear" elsewhere.
            "log" leaves out the start, and models that are better than the given network.
        yscale : {"symlog", "linear", "log"}, default="symlog"
            Scale of the divergence; "log" leaves out the start.
        **kwargs : dict
            Arguments of ``ax.plot`` for the lines, such as ``linewidth``.

        Returns
        -------
        SearchTraceDisplay
            The display itself.
        """
        check_matplotlib(f"{type(self).__name__}.plot")
        ax = axes_or_new(ax)
        largest = _largest(self.loss_increase)
        threshold = self.slack or _LINEAR_SHARE * largest
        if xscale == "auto":
            xscale = "symlog" if largest > 10 * threshold else "linear"
        _set_scale(ax, "x", xscale, threshold)
        _set_scale(ax, "y", yscale, _LINEAR_SHARE * _largest(self.divergence))
        self.slack_ = None
        if self.slack is not None:
            self.slack_ = ax.axvline(
                self.slack,
                color=GREY,
                linestyle=(0, (4, 3)),
                linewidth=1.2,
                zorder=1,
                label=f"slack ({self.slack:.2g})",
            )
        self.lines_ = [
            self._draw_search(ax, number, kwargs) for number in range(len(self.divergence))
        ]
        ax.set(
            xlabel="loss increase on training rows (nats)",
            ylabel="divergence (nats)",
        )
        remove_frame(ax)
        self._draw_legend(ax)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _draw_search(self, ax: Axes, number: int, options: dict[str, Any]) -> Any:
        cost, height = self.loss_increase[number], self.divergence[number]
        fine = np.isfinite(cost) & np.isfinite(height)
        cost, height = cost[fine], height[fine]
        label = "search" if self.targets is None else str(self.targets[number])
        style = {**line_style(number), "linewidth": 1.2, "alpha": 0.8, "label": label, **options}
        (line,) = ax.plot(cost, height, **style)
        ends: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.8}
        ax.scatter(cost[:1], height[:1], marker="*", s=130, color=GIVEN, zorder=5, **ends)
        ax.scatter(cost[-1:], height[-1:], s=48, color=line.get_color(), zorder=4, **ends)
        return line

    def _draw_legend(self, ax: Axes) -> None:
        from matplotlib.lines import Line2D

        handles = {str(line.get_label()): line for line in self.lines_}
        point: dict[str, Any] = {"linestyle": "none", "markeredgecolor": "white"}
        handles["start"] = Line2D([], [], marker="*", markersize=11, color=GIVEN, **point)
        handles["end"] = Line2D([], [], marker="o", markersize=7, color=GREY, **point)
        if self.slack_ is not None:
            handles[str(self.slack_.get_label())] = self.slack_
        title = None if self.targets is None else "search towards"
        legend_below(ax, list(handles.values()), list(handles), title=title)


def _largest(values: Sequence[np.ndarray]) -> float:
    finite = np.concatenate([np.abs(part[np.isfinite(part)]) for part in values])
    return float(finite.max(initial=0.0)) or 1.0


def _set_scale(ax: Axes, axis: str, scale: str, threshold: float) -> None:
    from matplotlib.ticker import NullLocator, SymmetricalLogLocator

    if scale not in ("symlog", "linear", "log"):
        raise ValueError(f"{axis}scale must be 'symlog', 'linear' or 'log'; got {shown(scale)}.")
    set_scale = ax.set_xscale if axis == "x" else ax.set_yscale
    if scale == "symlog":
        set_scale(scale, linthresh=threshold)
        # Powers of ten within the linear part would crowd around zero.
        decade = 10 ** np.ceil(np.log10(threshold))
        lines = ax.xaxis if axis == "x" else ax.yaxis
        lines.set_major_locator(SymmetricalLogLocator(base=10, linthresh=decade))
        lines.set_minor_locator(NullLocator())
    elif scale == "log":
        set_scale(scale, nonpositive="mask")
    else:
        set_scale(scale)
