"""A regression with its uncertainty over one feature."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import is_regressor
from sklearn.utils import check_consistent_length

from .._documented import DISPLAY, documented
from .._messages import shown
from .._posterior.results import INFINITE
from ..base._inside import method_and_rows
from ..metrics._checked import numbers
from ._answers import axis_values, check_table, check_vector, column_names, like_table
from ._style import BLUE, GIVEN, GREY, axes_or_new, check_matplotlib, legend_below, remove_frame
from ._surfaces import HATCH

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# The root of an infinite variance, but for rounding.
_INFINITE_STD = 0.999 * np.sqrt(INFINITE)


@documented(DISPLAY)
class RegressionUncertaintyDisplay:
    """Predicted mean over one feature, with a band of epistemic and one of total uncertainty.

    Create it with `from_estimator` or `from_predictions`.

    Parameters
    ----------
    x : ndarray of shape (n_points,)
        Values of the feature.
    mean : ndarray of shape (n_points,)
        Predicted mean.
    epistemic_std : ndarray of shape (n_points,)
        Square root of the epistemic part of the variance.
    total_std : ndarray of shape (n_points,)
        Square root of the whole variance.
    x_train : ndarray of shape (n_samples,), default=None
        Points to draw, such as the training data.
    y_train : ndarray of shape (n_samples,), default=None
        Their targets.
    xlabel : str, default="feature 0"
        Name of the feature.
    ylabel : str, default="y"
        Name of the target.
    interval : ndarray of shape (n_points, 2), default=None
        Ends of predicted intervals, which are drawn instead of the total band.
    coverage : float, default=None
        Share of targets that are to lie in them, for the legend.

    Attributes
    ----------
    ax_
    line_ : matplotlib Line2D
        The mean.
    bands_ : list
        The total band, or that of the intervals, and the epistemic one.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn_quam import PenaltySearch, QUAMRegressor
    >>> from sklearn_quam.display import RegressionUncertaintyDisplay
    >>> X = np.linspace(-2, 2, 50)[:, None]
    >>> y = X[:, 0] + 0.1 * np.random.default_rng(0).normal(size=50)
    >>> search = PenaltySearch(n_steps=20)
    >>> est = QUAMRegressor(Ridge().fit(X, y), search=search, random_state=0).fit(X, y)
    >>> display = RegressionUncertaintyDisplay.from_estimator(est, X, y, grid_resolution=20)
    >>> display.mean.shape
    (20,)
    >>> bool(np.all(display.total_std >= display.epistemic_std))
    True
    """

    def __init__(
        self,
        *,
        x: np.ndarray,
        mean: np.ndarray,
        epistemic_std: np.ndarray,
        total_std: np.ndarray,
        x_train: np.ndarray | None = None,
        y_train: np.ndarray | None = None,
        xlabel: str = "feature 0",
        ylabel: str = "y",
        interval: np.ndarray | None = None,
        coverage: float | None = None,
    ) -> None:
        self.x = x
        self.mean = mean
        self.epistemic_std = epistemic_std
        self.total_std = total_std
        self.x_train = x_train
        self.y_train = y_train
        self.xlabel = xlabel
        self.ylabel = ylabel
        self.interval = interval
        self.coverage = coverage

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any = None,
        *,
        feature: int | str = 0,
        grid_resolution: int = 100,
        eps: float | None = None,
        xlim: tuple[float, float] | None = None,
        coverage: float | None = None,
        xlabel: str | None = None,
        ylabel: str | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Ask a fitted regressor along one feature; the others stay at their median.

        Parameters
        ----------
        estimator : object
            A fitted regressor of the package with one output, or a pipeline that ends in one. The
            variance is split, whatever its `measure`.
        X : array-like of shape (n_samples, n_features)
            Points such as the training data; the curve extends around them.
        y : array-like of shape (n_samples,), default=None
            Their targets; None draws no points.
        feature : int or str, default=0
            Number or name of the feature.
        grid_resolution : int, default=100
            Points of the curve.
        eps : float, default=None
            How far the curve extends beyond X, in units of the feature; None takes a fifth of its
            range.
        xlim : tuple of float, default=None
            First and last value of the feature, instead of `eps`.
        coverage : float, default=None
            Draw the intervals of ``predict_interval`` for this share of targets, such as 0.9,
            instead of a band of standard deviations.
        xlabel : str, default=None
            Name of the feature; None takes the column of a DataFrame, or its number.
        ylabel : str, default=None
            Name of the target; None takes the name of a Series, or "y".

        Returns
        -------
        RegressionUncertaintyDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_estimator")
        points = check_table(X)
        names = column_names(X, points.shape[1])
        column = _column(feature, names)
        own = points[:, column]
        x = axis_values(own, grid_resolution, eps, xlim)
        rows = np.tile(np.median(points, axis=0), (len(x), 1))
        rows[:, column] = x
        method, rows = method_and_rows(estimator, like_table(rows, X))
        mean, uncertainty = _variance_split(method, rows)
        interval = None
        if coverage is not None:
            interval = method.predict_interval(rows, coverage).reshape(len(x), 2)
        return cls.from_predictions(
            x,
            mean,
            np.sqrt(uncertainty.epistemic),
            np.sqrt(uncertainty.total),
            x_train=None if y is None else own,
            y_train=y,
            xlabel=names[column] if xlabel is None else xlabel,
            ylabel=str(getattr(y, "name", None) or "y") if ylabel is None else ylabel,
            interval=interval,
            coverage=coverage,
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        x: Any,
        mean: Any,
        epistemic_std: Any,
        total_std: Any,
        *,
        x_train: Any = None,
        y_train: Any = None,
        xlabel: str = "feature 0",
        ylabel: str = "y",
        interval: Any = None,
        coverage: float | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw predictions that are already known.

        Parameters
        ----------
        x : array-like of shape (n_points,)
            Values of the feature, in any order.

        Returns
        -------
        RegressionUncertaintyDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_predictions")
        arrays = {"x": x, "mean": mean, "epistemic_std": epistemic_std, "total_std": total_std}
        arrays = {name: check_vector(values, name) for name, values in arrays.items()}
        check_consistent_length(*arrays.values())
        if (x_train is None) != (y_train is None):
            raise ValueError("x_train and y_train go together: pass both or neither.")
        if x_train is not None:
            x_train, y_train = numbers(x_train, "x_train"), numbers(y_train, "y_train")
            x_train, y_train = x_train.ravel(), y_train.ravel()
            check_consistent_length(x_train, y_train)
        order = np.argsort(arrays["x"], kind="stable")
        if interval is not None:
            interval = numbers(interval, "interval")
            if interval.shape != (len(order), 2):
                raise ValueError(f"interval must be of shape (n_points, 2); got {interval.shape}.")
            interval = interval[order]
        display = cls(
            **{name: values[order] for name, values in arrays.items()},
            x_train=x_train,
            y_train=y_train,
            xlabel=xlabel,
            ylabel=ylabel,
            interval=interval,
            coverage=coverage,
        )
        return display.plot(ax, **kwargs)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        n_std: float = 2.0,
        scatter_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the mean, the bands and the points.

        Parameters
        ----------
        n_std : float, default=2.0
            Half the width of the bands, in standard deviations; intervals have their own.
        scatter_kwargs : dict, default=None
            Arguments of ``ax.scatter`` for the points.
        **kwargs : dict
            Arguments of ``ax.plot`` for the mean; the bands take its colour.

        Returns
        -------
        RegressionUncertaintyDisplay
            The display itself.
        """
        check_matplotlib(f"{type(self).__name__}.plot")
        ax = axes_or_new(ax)
        options = {"color": BLUE, "linewidth": 1.8, "label": "mean", "zorder": 3, **kwargs}
        beyond = self.total_std >= _INFINITE_STD
        # What is predicted where nothing is known may be of any size; it would hide the rest.
        mean = np.where(beyond, np.nan, self.mean)
        (self.line_,) = ax.plot(self.x, mean, **options)
        self.bands_ = [
            ax.fill_between(
                self.x,
                np.where(beyond, np.nan, lower),
                np.where(beyond, np.nan, upper),
                color=self.line_.get_color(),
                alpha=alpha,
                linewidth=0,
                label=label,
            )
            for (lower, upper, label), alpha in (
                (self._outer_band(n_std), 0.16),
                (self._band("epistemic", self.epistemic_std, n_std), 0.34),
            )
        ]
        if beyond.any():
            across: Any = {"facecolor": "none", "edgecolor": GREY, "hatch": HATCH, "linewidth": 0}
            place: Any = {"transform": ax.get_xaxis_transform(), "label": "beyond range"}
            ax.fill_between(self.x, 0, 1, where=beyond, **across, **place)
        if self.x_train is not None and self.y_train is not None:
            options = {"color": GIVEN, "s": 14, "alpha": 0.6, "linewidths": 0, "zorder": 2.5}
            options |= {"label": "data", **(scatter_kwargs or {})}
            ax.scatter(self.x_train, self.y_train, **options)
        ax.set(xlabel=self.xlabel, ylabel=self.ylabel)
        ax.margins(x=0)
        remove_frame(ax)
        self._draw_legend(ax)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _outer_band(self, n_std: float) -> tuple[np.ndarray, np.ndarray, str]:
        """Return the ends and the name of the band that targets are to lie in."""
        if self.interval is None:
            return self._band("total", self.total_std, n_std)
        share = "" if self.coverage is None else f"{100 * self.coverage:g} % "
        return self.interval[:, 0], self.interval[:, 1], f"{share}interval"

    def _band(self, name: str, std: np.ndarray, n_std: float) -> tuple[np.ndarray, np.ndarray, str]:
        label = f"{name} (±{n_std:g} sd)"
        return self.mean - n_std * std, self.mean + n_std * std, label

    def _draw_legend(self, ax: Axes) -> None:
        handles, labels = ax.get_legend_handles_labels()
        # The epistemic band lies on the total one; its entry shows the colour that this makes.
        total, epistemic = self.bands_
        entries = [(total, epistemic) if handle is epistemic else handle for handle in handles]
        legend_below(ax, entries, labels)


def _column(feature: Any, names: list[str]) -> int:
    if isinstance(feature, str):
        if feature not in names:
            raise ValueError(f"X has no feature {shown(feature)}; its features are {shown(names)}.")
        return names.index(feature)
    if not isinstance(feature, (int, np.integer)):
        raise TypeError(f"feature must be a number or a name; got {shown(feature)}.")
    if not -len(names) <= feature < len(names):
        raise ValueError(f"X has {len(names)} feature(s); there is no feature {feature}.")
    return int(feature) % len(names)


def _variance_split(method: Any, rows: Any) -> tuple[np.ndarray, Any]:
    """Return means and variances, which the estimator itself may not be set to measure."""
    if not is_regressor(method):
        raise ValueError(f"The bands need a regressor; got {type(method).__name__}.")
    if method.n_outputs_ != 1:
        raise ValueError(
            f"The bands need a regressor with one output; this one has {method.n_outputs_}, whose "
            "variances are summed."
        )
    # A shallow copy shares all that is fitted; only how it measures differs.
    method = copy.copy(method)
    method.measure = "variance"
    mean, uncertainty = method.predict(rows, return_uncertainty=True)
    return np.ravel(mean), uncertainty
