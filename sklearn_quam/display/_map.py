"""Uncertainty over a plane of two features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from .._documented import DISPLAY, documented
from .._messages import shown
from .._posterior.results import Uncertainty
from ..metrics._checked import numbers
from ..metrics._errors import as_labels
from ._asking import SCORE, ask, axis_label, axis_values, check_component, check_table, like_table
from ._base import (
    GREY,
    HATCH,
    PALETTE,
    _Display,
    check_matplotlib,
    within_range,
)

# Shapes distinguish classes in print, and where the colours begin again.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h")
_MAX_CLASSES_IN_LEGEND = 12
_N_LEVELS = 24
# Smaller differences are rounding; stretched over all colours they would look like something.
_FLAT = 1e-12


@documented(DISPLAY)
@dataclass(eq=False, repr=False)
class UncertaintyMapDisplay(_Display):
    """Map of the uncertainty over a plane of two features.

    Create it with `from_estimator` or `from_predictions`.

    Parameters
    ----------
    xx0 : ndarray of shape (n_rows, n_columns)
        First feature of the points of a grid, as from ``np.meshgrid``.
    xx1 : ndarray of shape (n_rows, n_columns)
        Second feature.
    uncertainty : Uncertainty
        Uncertainty there, as ``predict_uncertainty`` returns it for the raveled grid.
    proba : ndarray of shape (n_rows * n_columns, n_classes), default=None
        Probabilities of the classes, for the decision boundary; None draws none.
    threshold : float
        Probability above which the second of two classes is predicted.
    X : ndarray of shape (n_samples, 2), default=None
        Points to draw, such as the training data.
    y : ndarray of shape (n_samples,), default=None
        Their classes; not used for regressors.
    classes : ndarray of shape (n_classes,), default=None
        All classes, in the order of their colours; None takes those of `y`.
    xlabel : str
        Name of the first feature.
    ylabel : str
        Name of the second feature.
    unit : str
        What the uncertainty is measured in.

    Attributes
    ----------
    lead : ndarray of shape (n_classes, n_rows, n_columns) or None
        Probability of a class minus that of the best other class; the decision boundary is where it
        is zero.
    ax_
    surface_ : matplotlib QuadContourSet or QuadMesh
        The coloured surface.
    boundaries_ : list
        The lines of the decision boundary.
    colorbar_ : matplotlib Colorbar
        The scale.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import QUAMClassifier
    >>> from sklearn_quam.display import UncertaintyMapDisplay
    >>> X, y = make_blobs(centers=[[-3, 0], [3, 0]], random_state=0)
    >>> est = QUAMClassifier(LogisticRegression().fit(X, y)).fit(X, y)
    >>> display = UncertaintyMapDisplay.from_estimator(est, X, y, grid_resolution=10)
    >>> display.uncertainty.epistemic.shape
    (10, 10)
    """

    xx0: np.ndarray
    xx1: np.ndarray
    uncertainty: Uncertainty
    proba: np.ndarray | None = None
    threshold: float = 0.5
    X: np.ndarray | None = None
    y: np.ndarray | None = None
    classes: np.ndarray | None = None
    xlabel: str = "feature 0"
    ylabel: str = "feature 1"
    unit: str = "nats"

    def __post_init__(self) -> None:
        """Check the arrays, and bring them onto the grid."""
        self.xx0, self.xx1 = numbers(self.xx0, "xx0"), numbers(self.xx1, "xx1")
        shape = self.xx0.shape
        if len(shape) != 2 or shape != self.xx1.shape:
            raise ValueError(
                "xx0 and xx1 must be grids of the same shape, such as np.meshgrid returns; got "
                f"{shape} and {self.xx1.shape}."
            )
        self.uncertainty = _on_grid(self.uncertainty, shape)
        self.lead = None
        if self.proba is not None:
            self.lead = _lead(np.asarray(self.proba), self.threshold).T.reshape(-1, *shape)
        self.X = None if self.X is None else np.asarray(self.X)
        if self.y is not None:
            self.y = as_labels(self.y, self.X)
            self.classes = np.unique(self.y) if self.classes is None else np.asarray(self.classes)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any = None, *, grid_resolution: int = 50, **kwargs: Any
    ) -> Self:
        """Ask a fitted estimator about every point of a grid.

        Parameters
        ----------
        X : array-like of shape (n_samples, 2)
            Points to draw, such as the training data; the grid extends their range by a fifth.
        grid_resolution : int
            Points of the grid along each feature; 50 are 2500 samples.
        """
        check_matplotlib(cls)
        points, names = check_table(X)
        if len(names) != 2:
            raise ValueError(
                f"A map needs X with two features; got {len(names)}. Fit the estimator on "
                "two features, or on two components of them."
            )
        xx0, xx1 = np.meshgrid(*(axis_values(own, grid_resolution) for own in points.T))
        answers = ask(estimator, like_table(np.column_stack([xx0.ravel(), xx1.ravel()]), X))
        method, classifies = answers.method, answers.proba is not None
        options = {"xlabel": names[0], "ylabel": names[1], **kwargs}
        if classifies:
            # A detector has the network's own probabilities.
            own = method._fitted.reference.threshold
            options |= {"classes": method.classes_, "proba": answers.proba}
            options |= {"threshold": getattr(method, "_threshold", own)}
        return cls.from_predictions(
            xx0,
            xx1,
            answers.uncertainty,
            X=points,
            y=y if classifies or answers.unit == SCORE else None,
            unit=answers.unit,
            **options,
        )

    def plot(
        self,
        ax: Any = None,
        *,
        component: str = "epistemic",
        plot_method: str = "contourf",
        scatter_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the map.

        Parameters
        ----------
        plot_method : {"contourf", "pcolormesh"}
            How to draw the surface: between lines of equal height, or each point of the grid.
        scatter_kwargs : dict
            Arguments of ``ax.scatter`` for the points.
        **kwargs : dict
            Arguments of ``ax.contourf`` or ``ax.pcolormesh``, such as ``norm``.
        """
        if plot_method not in ("contourf", "pcolormesh"):
            raise ValueError(
                f"plot_method must be 'contourf' or 'pcolormesh'; got {shown(plot_method)}."
            )
        heights, beyond = within_range(self.uncertainty._part(check_component(component)))
        ax = self._axes(ax)
        from matplotlib.ticker import MaxNLocator

        self.surface_ = self._draw_surface(ax, heights, plot_method, kwargs)
        label = axis_label(component, self.unit)
        self.colorbar_ = ax.figure.colorbar(self.surface_, ax=ax, label=label)
        if plot_method == "contourf":
            # Left to itself, it would label every few levels, however crooked.
            self.colorbar_.set_ticks(MaxNLocator(6))
            self.colorbar_.minorticks_off()
        if beyond.any():
            style: Any = {"colors": "none", "hatches": [HATCH]}
            ax.contourf(self.xx0, self.xx1, beyond.astype(float), [0.5, 1.5], **style)
        self._draw_boundary(ax)
        self._draw_points(ax, scatter_kwargs or {})
        ax.set(xlabel=self.xlabel, ylabel=self.ylabel)
        ax.set_xlim(self.xx0.min(), self.xx0.max())
        ax.set_ylim(self.xx1.min(), self.xx1.max())
        handles, labels = ax.get_legend_handles_labels()
        if self.boundaries_:
            handles.append(self.boundaries_[0].legend_elements()[0][0])
            handles[-1].set_path_effects(_outline())
            labels.append("decision boundary")
        self._legend(handles, labels, beyond=beyond.any())
        return self

    def _draw_surface(
        self, ax: Any, heights: np.ndarray, plot_method: str, options: dict[str, Any]
    ) -> Any:
        """Return the coloured surface, also of heights that are all the same."""
        own: dict[str, Any] = {"levels": _N_LEVELS}
        if plot_method == "pcolormesh":
            own = {"shading": "auto", "rasterized": True}
        known = heights[~np.isnan(heights)]
        if not len(known):
            raise ValueError("uncertainty is NaN everywhere: there is nothing to draw.")
        if np.ptp(known) < _FLAT:
            low, high = known.min(), known.min() + 1
            own |= {"vmin": low, "vmax": high}
            if plot_method == "contourf":
                own["levels"] = np.linspace(low, high, _N_LEVELS)
        draw = getattr(ax, plot_method)
        return draw(self.xx0, self.xx1, heights, **{"cmap": "viridis", **own, **options})

    def _draw_boundary(self, ax: Any) -> None:
        """Draw where another class takes the lead; with two classes, the lines are the same."""
        self.boundaries_: list[Any] = []
        if self.lead is None:
            return
        for lead in self.lead if len(self.lead) > 2 else self.lead[:1]:
            if lead.min() < 0 < lead.max():
                lines = ax.contour(self.xx0, self.xx1, lead, [0.0], colors="white", linewidths=1.4)
                lines.set_path_effects(_outline())
                self.boundaries_.append(lines)

    def _draw_points(self, ax: Any, options: dict[str, Any]) -> None:
        """Draw the points, each class in a colour and a shape of its own."""
        if self.X is None:
            return
        options = {"s": 22, "edgecolors": "white", "linewidths": 0.6, "zorder": 3, **options}
        if self.y is None or self.classes is None:
            ax.scatter(*self.X.T, **{"color": GREY, **options})
            return
        for number, name in enumerate(self.classes):
            own = self.X[self.y == name]
            style: Any = {
                "color": PALETTE[number % len(PALETTE)],
                "marker": _MARKERS[number % len(_MARKERS)],
            }
            if len(self.classes) <= _MAX_CLASSES_IN_LEGEND:
                # A number alone says little.
                style["label"] = name if isinstance(name, str) else f"class {name}"
            if len(own):
                ax.scatter(*own.T, **{**style, **options})


def _outline() -> list[Any]:
    """Return what makes a white line visible on bright colours, too."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.6, foreground="black")]


def _on_grid(uncertainty: Any, shape: tuple[int, ...]) -> Uncertainty:
    """Return the parts of the uncertainty as grids."""
    wanted = f"uncertainty must hold three arrays with {math.prod(shape)} numbers each"
    if isinstance(uncertainty, Uncertainty):
        uncertainty = tuple(uncertainty._columns().values())
    if not isinstance(uncertainty, (tuple, list)) or len(uncertainty) not in (3, 4):
        raise ValueError(f"{wanted}, as predict_uncertainty returns them.")
    parts = [numbers(part, "uncertainty", finite="allow-nan") for part in uncertainty]
    if any(part.size != math.prod(shape) for part in parts):
        raise ValueError(f"{wanted}; got {', '.join(str(part.size) for part in parts)}.")
    return Uncertainty(*(part.reshape(shape) for part in parts))


def _lead(proba: np.ndarray, threshold: float) -> np.ndarray:
    """Return how far each class is ahead of the best other one."""
    if proba.shape[1] == 2:
        ahead = proba[:, 1] - threshold
        return np.stack([-ahead, ahead], axis=1)
    second, best = np.sort(proba, axis=1)[:, -2:].T[..., None]
    return np.where(proba == best, proba - second, proba - best)
