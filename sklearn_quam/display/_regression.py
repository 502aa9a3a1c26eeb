"""A regression with its uncertainty over one feature."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import is_regressor
from sklearn.utils import check_consistent_length

from .._documented import DISPLAY, documented
from .._messages import shown
from .._posterior.results import INFINITE
from ..base._inside import method_and_rows
from ..metrics._checked import numbers
from ._asking import axis_values, check_table, check_vector, like_table
from ._base import BLUE, GIVEN, GREY, HATCH, _Display, check_matplotlib

# The root of an infinite variance, except for rounding.
_INFINITE_STD = 0.999 * np.sqrt(INFINITE)

# Half the width of bands, in standard deviations.
_N_STD = 2


@documented(DISPLAY)
@dataclass(eq=False, repr=False)
class RegressionUncertaintyDisplay(_Display):
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
    xlabel : str
        Name of the feature.
    ylabel : str
        Name of the target.
    interval : ndarray of shape (n_points, 2), default=None
        Ends of predicted intervals, which are drawn instead of the total band.
    coverage : float
        Share of targets that the intervals are to contain, such as 0.9. `from_estimator` then draws
        those of ``predict_interval``.

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
    >>> from sklearn_quam import QUAMRegressor
    >>> from sklearn_quam.display import RegressionUncertaintyDisplay
    >>> X = np.linspace(-2, 2, 50)[:, None]
    >>> y = X[:, 0] + 0.1 * np.random.default_rng(0).normal(size=50)
    >>> est = QUAMRegressor(Ridge().fit(X, y)).fit(X, y)
    >>> display = RegressionUncertaintyDisplay.from_estimator(est, X, y)
    >>> bool(np.all(display.total_std >= display.epistemic_std))
    True
    """

    x: np.ndarray
    mean: np.ndarray
    epistemic_std: np.ndarray
    total_std: np.ndarray
    x_train: np.ndarray | None = None
    y_train: np.ndarray | None = None
    xlabel: str = "feature 0"
    ylabel: str = "y"
    interval: np.ndarray | None = None
    coverage: float | None = None

    def __post_init__(self) -> None:
        """Check the arrays, and sort them by x."""
        columns = ["x", "mean", "epistemic_std", "total_std"]
        arrays = {name: check_vector(getattr(self, name), name) for name in columns}
        if self.interval is not None:
            arrays["interval"] = numbers(self.interval, "interval")
            shape = arrays["interval"].shape
            if shape != (len(arrays["x"]), 2):
                raise ValueError(f"interval must be of shape (n_points, 2); got {shape}.")
        check_consistent_length(*arrays.values())
        order = np.argsort(arrays["x"], kind="stable")
        for name, values in arrays.items():
            setattr(self, name, values[order])
        if (self.x_train is None) != (self.y_train is None):
            raise ValueError("x_train and y_train go together: pass both or neither.")
        if self.x_train is not None:
            self.x_train = numbers(self.x_train, "x_train").ravel()
            self.y_train = numbers(self.y_train, "y_train").ravel()
            check_consistent_length(self.x_train, self.y_train)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any = None,
        *,
        feature: int | str = 0,
        grid_resolution: int = 100,
        xlim: tuple[float, float] | None = None,
        coverage: float | None = None,
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
        feature : int or str
            Number or name of the feature.
        grid_resolution : int
            Points of the curve.
        xlim : tuple of float
            First and last value of the feature; None extends the range of X by a fifth.
        """
        check_matplotlib(cls)
        points, names = check_table(X)
        column = _column(feature, names)
        own = points[:, column]
        x = axis_values(own, grid_resolution, xlim)
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
            xlabel=names[column],
            ylabel=str(getattr(y, "name", None) or "y"),
            interval=interval,
            coverage=coverage,
            **kwargs,
        )

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the mean, bands of two standard deviations to each side, and the points.

        Parameters
        ----------
        **kwargs : dict
            Arguments of ``ax.plot`` for the mean; the bands have its colour.
        """
        ax = self._axes(ax)
        beyond = self.total_std >= _INFINITE_STD
        options = {"color": BLUE, "linewidth": 1.8, "label": "mean", "zorder": 3, **kwargs}
        # What is predicted where nothing is known may be of any size; it would hide the rest.
        (self.line_,) = ax.plot(self.x, np.where(beyond, np.nan, self.mean), **options)
        if self.interval is None:
            ends = self._band(self.total_std)
            name = f"total (±{_N_STD} sd)"
        else:
            ends = self.interval.T
            name = "interval" if self.coverage is None else f"{100 * self.coverage:g} % interval"
        inner = self._band(self.epistemic_std), 0.34, f"epistemic (±{_N_STD} sd)"
        self.bands_ = []
        for band, alpha, label in ((ends, 0.16, name), inner):
            style: Any = {"color": self.line_.get_color(), "alpha": alpha, "linewidth": 0}
            band = np.where(beyond, np.nan, band)
            self.bands_.append(ax.fill_between(self.x, *band, label=label, **style))
        if self.x_train is not None and self.y_train is not None:
            style = {"color": GIVEN, "s": 14, "alpha": 0.6, "linewidths": 0, "zorder": 2.5}
            ax.scatter(self.x_train, self.y_train, label="data", **style)
        ax.margins(x=0)
        self._finish(self.xlabel, self.ylabel)
        handles: list[Any]
        handles, labels = ax.get_legend_handles_labels()
        # The epistemic band lies on the total one; its entry shows the colour that this makes.
        total, epistemic = self.bands_
        handles = [(total, epistemic) if handle is epistemic else handle for handle in handles]
        if beyond.any():
            across: Any = {"facecolor": "none", "edgecolor": GREY, "hatch": HATCH, "linewidth": 0}
            place = ax.get_xaxis_transform()
            ax.fill_between(self.x, 0, 1, where=beyond, transform=place, **across)
        self._legend(handles, labels, beyond=beyond.any())
        return self

    def _band(self, std: np.ndarray) -> np.ndarray:
        """Return both ends of a band around the mean."""
        return self.mean + _N_STD * np.stack([-std, std])


def _column(feature: Any, names: list[str]) -> int:
    """Return the number of a feature."""
    if isinstance(feature, str) and feature in names:
        return names.index(feature)
    if isinstance(feature, (int, np.integer)) and -len(names) <= feature < len(names):
        return int(feature) % len(names)
    raise ValueError(
        f"X has no feature {shown(feature)}: pass a number below {len(names)}, or one of "
        f"{shown(names)}."
    )


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
