"""Uncertainty over a plane of two features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .._documented import DISPLAY, documented
from .._messages import shown
from .._posterior.results import Uncertainty
from ..base._inside import as_labels
from ..metrics._checked import numbers
from ._answers import (
    SCORE,
    ask,
    axis_values,
    check_component,
    check_table,
    column_names,
    label,
    like_table,
    within_range,
)
from ._answers import unit as unit_of
from ._style import (
    COLOUR_MAP,
    GREY,
    category_style,
    check_matplotlib,
    legend_below,
    legend_of_figure,
)
from ._surfaces import (
    colorbar,
    contourf,
    hatched,
    hatched_patch,
    lead_on_grid,
    on_grid,
    outline,
    panels_for,
    pcolormesh,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_CLASSES_IN_LEGEND = 12


@documented(DISPLAY)
class UncertaintyMapDisplay:
    """Map of the uncertainty over a plane of two features.

    Create it with `from_estimator` or `from_predictions`.

    Parameters
    ----------
    xx0 : ndarray of shape (n_rows, n_columns)
        First feature of the points of a grid, as from ``np.meshgrid``.
    xx1 : ndarray of shape (n_rows, n_columns)
        Second feature.
    uncertainty : Uncertainty of three ndarrays of shape (n_rows, n_columns)
        Aleatoric, epistemic and total uncertainty there.
    lead : ndarray of shape (n_classes, n_rows, n_columns), default=None
        How far the probability of a class is above that of the best other class; the decision
        boundary is where it is zero. None draws no boundary.
    X : ndarray of shape (n_samples, 2), default=None
        Points to draw, such as the training data.
    y : ndarray of shape (n_samples,), default=None
        Their classes.
    classes : ndarray of shape (n_classes,), default=None
        All classes, in the order of their colours; None takes those of `y`.
    xlabel : str, default="feature 0"
        Name of the first feature.
    ylabel : str, default="feature 1"
        Name of the second feature.
    unit : str, default="nats"
        What the uncertainty is measured in.

    Attributes
    ----------
    ax_ : matplotlib Axes or ndarray of Axes
        Where it was drawn; an array if several components were asked for as a list.
    surfaces_ : list
        The coloured surface of each panel.
    boundaries_ : list
        The lines of the decision boundary, of all panels.
    colorbars_ : list of matplotlib Colorbar
        The scale of each panel.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import PenaltySearch, QUAMClassifier
    >>> from sklearn_quam.display import UncertaintyMapDisplay
    >>> X, y = make_blobs(centers=[[-3, 0], [3, 0]], random_state=0)
    >>> net = LogisticRegression().fit(X, y)
    >>> est = QUAMClassifier(net, search=PenaltySearch(n_steps=20), random_state=0).fit(X, y)
    >>> display = UncertaintyMapDisplay.from_estimator(est, X, y, grid_resolution=10)
    >>> display.uncertainty.epistemic.shape
    (10, 10)
    >>> display.ax_.get_xlabel()
    'feature 0'
    """

    def __init__(
        self,
        *,
        xx0: np.ndarray,
        xx1: np.ndarray,
        uncertainty: Uncertainty,
        lead: np.ndarray | None = None,
        X: np.ndarray | None = None,
        y: np.ndarray | None = None,
        classes: np.ndarray | None = None,
        xlabel: str = "feature 0",
        ylabel: str = "feature 1",
        unit: str = "nats",
    ) -> None:
        self.xx0 = xx0
        self.xx1 = xx1
        self.uncertainty = uncertainty
        self.lead = lead
        self.X = X
        self.y = y
        self.classes = classes
        self.xlabel = xlabel
        self.ylabel = ylabel
        self.unit = unit

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any = None,
        *,
        component: str | Sequence[str] = "epistemic",
        grid_resolution: int = 50,
        eps: float | None = None,
        xlim: tuple[float, float] | None = None,
        ylim: tuple[float, float] | None = None,
        xlabel: str | None = None,
        ylabel: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Ask a fitted estimator about every point of a grid.

        Parameters
        ----------
        estimator : object
            A fitted estimator of the package for two features, an outlier detector of it or of
            scikit-learn, a pipeline that ends in one, or a search.
        X : array-like of shape (n_samples, 2)
            Points to draw, such as the training data; the grid extends around them.
        y : array-like of shape (n_samples,), default=None
            Their classes; not used for regressors.
        component : str or list of str, default="epistemic"
            What to show: "aleatoric", "epistemic", "total" or "doubt". A list makes a panel for
            each.
        grid_resolution : int, default=50
            Points of the grid along each feature. QUAM searches at every point: 50 are 2500 rows.
        eps : float, default=None
            How far the map extends beyond X, in units of the features; None takes a fifth of the
            range of each.
        xlim : tuple of float, default=None
            First and last value of the first feature, instead of `eps`.
        ylim : tuple of float, default=None
            The same of the second feature.
        xlabel : str, default=None
            Name of the first feature; None takes the column of a DataFrame, or its number.
        ax : matplotlib Axes or sequence of Axes, default=None
            Where to draw, an Axes for each component; None makes a new figure.

        Returns
        -------
        UncertaintyMapDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_estimator")
        if getattr(X, "ndim", 2) > 2:
            raise ValueError(
                f"A map is drawn over two features, but rows of X have the shape {X.shape[1:]}. "
                "For images, use UncertainSamplesDisplay or UncertaintyHistogramDisplay."
            )
        points = check_table(X)
        if points.shape[1] != 2:
            raise ValueError(
                f"A map needs X with two features; got {points.shape[1]}. Fit the estimator on "
                "two features, or on two components of them."
            )
        xx0, xx1 = np.meshgrid(
            axis_values(points[:, 0], grid_resolution, eps, xlim),
            axis_values(points[:, 1], grid_resolution, eps, ylim, "ylim"),
        )
        grid = like_table(np.column_stack([xx0.ravel(), xx1.ravel()]), X)
        answers = ask(estimator, grid)
        method, classifier = answers.method, answers.is_classifier
        names = column_names(X, 2)
        return cls.from_predictions(
            xx0,
            xx1,
            answers.uncertainty,
            proba=answers.prediction if classifier else None,
            threshold=_threshold(method) if classifier else 0.5,
            X=points,
            y=y if classifier or unit_of(method) == SCORE else None,
            classes=method.classes_ if classifier else None,
            xlabel=names[0] if xlabel is None else xlabel,
            ylabel=names[1] if ylabel is None else ylabel,
            unit=unit_of(method),
            component=component,
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        xx0: Any,
        xx1: Any,
        uncertainty: Any,
        *,
        proba: Any = None,
        threshold: float = 0.5,
        X: Any = None,
        y: Any = None,
        classes: Any = None,
        xlabel: str = "feature 0",
        ylabel: str = "feature 1",
        unit: str = "nats",
        component: str | Sequence[str] = "epistemic",
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw uncertainties that are already known at the points of a grid.

        Parameters
        ----------
        uncertainty : Uncertainty
            Aleatoric, epistemic and total uncertainty of the points, as ``predict_uncertainty``
            gives them for the raveled grid.
        proba : array-like of shape (n_rows * n_columns, n_classes), default=None
            Probabilities of the classes, for the decision boundary.
        threshold : float, default=0.5
            Probability above which the second of two classes is predicted.
        component : str or list of str, default="epistemic"
            What to show: "aleatoric", "epistemic", "total" or "doubt". A list makes a panel for
            each.
        ax : matplotlib Axes or sequence of Axes, default=None
            Where to draw, an Axes for each component; None makes a new figure.

        Returns
        -------
        UncertaintyMapDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_predictions")
        xx0, xx1 = numbers(xx0, "xx0"), numbers(xx1, "xx1")
        if xx0.ndim != 2 or xx0.shape != xx1.shape:
            raise ValueError(
                "xx0 and xx1 must be grids of the same shape, such as np.meshgrid returns; got "
                f"{xx0.shape} and {xx1.shape}."
            )
        uncertainty = on_grid(uncertainty, xx0.shape)
        if y is not None:
            y = as_labels(y, X)
            classes = np.unique(y) if classes is None else np.asarray(classes)
        display = cls(
            xx0=xx0,
            xx1=xx1,
            uncertainty=uncertainty,
            lead=None if proba is None else lead_on_grid(np.asarray(proba), threshold, xx0.shape),
            X=None if X is None else np.asarray(X),
            y=y,
            classes=classes,
            xlabel=xlabel,
            ylabel=ylabel,
            unit=unit,
        )
        return display.plot(ax, component=component, **kwargs)

    def plot(
        self,
        ax: Any = None,
        *,
        component: str | Sequence[str] = "epistemic",
        plot_method: str = "contourf",
        log: bool = False,
        show_points: bool = True,
        scatter_kwargs: dict[str, Any] | None = None,
        boundary_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the map.

        Parameters
        ----------
        ax : matplotlib Axes or sequence of Axes, default=None
            Where to draw, an Axes for each component; None makes a new figure.
        component : str or list of str, default="epistemic"
            What to show: "aleatoric", "epistemic", "total" or "doubt". A list makes a panel for
            each.
        plot_method : {"contourf", "pcolormesh"}, default="contourf"
            How to draw the surface: between lines of equal height, or each point of the grid.
        log : bool, default=False
            Whether colours follow the logarithm, for uncertainties that span magnitudes.
        show_points : bool, default=True
            Whether to draw X.
        scatter_kwargs : dict, default=None
            Arguments of ``ax.scatter`` for the points.
        boundary_kwargs : dict, default=None
            Arguments of ``ax.contour`` for the decision boundary.
        **kwargs : dict
            Arguments of ``ax.contourf`` or ``ax.pcolormesh``, such as ``cmap``.

        Returns
        -------
        UncertaintyMapDisplay
            The display itself.
        """
        check_matplotlib(f"{type(self).__name__}.plot")
        if plot_method not in ("contourf", "pcolormesh"):
            raise ValueError(
                f"plot_method must be 'contourf' or 'pcolormesh'; got {shown(plot_method)}."
            )
        names = [component] if isinstance(component, str) else list(component)
        values = [self.uncertainty._part(check_component(name)) for name in names]
        panels = panels_for(ax, len(names))
        self.surfaces_: list[Any] = []
        self.boundaries_: list[Any] = []
        self.colorbars_: list[Any] = []
        self.beyond_: list[Any] = []
        for panel, name, heights in zip(panels, names, values, strict=True):
            draw = contourf if plot_method == "contourf" else pcolormesh
            drawn, beyond = within_range(heights)
            surface = draw(panel, self.xx0, self.xx1, drawn, log, {"cmap": COLOUR_MAP, **kwargs})
            if beyond.any():
                self.beyond_.append(hatched(panel, self.xx0, self.xx1, beyond))
            self.surfaces_.append(surface)
            self.colorbars_.append(colorbar(panel, surface, label(name, self.unit)))
            self._draw_boundary(panel, boundary_kwargs or {})
            if show_points and self.X is not None:
                self._draw_points(panel, scatter_kwargs or {})
            panel.set(
                xlabel=self.xlabel,
                ylabel=self.ylabel,
                xlim=(self.xx0.min(), self.xx0.max()),
                ylim=(self.xx1.min(), self.xx1.max()),
            )
        if ax is None:
            for panel in panels[1:]:
                panel.set_ylabel("")
        self._draw_legend(panels, shared=ax is None and len(panels) > 1)
        self.ax_ = panels[0] if isinstance(component, str) else panels
        self.figure_ = panels[0].figure
        return self

    def _draw_boundary(self, ax: Axes, options: dict[str, Any]) -> None:
        if self.lead is None:
            return
        options = {"colors": "white", "linewidths": 1.4, **options}
        # With two classes, the lines of both are the same.
        for lead in self.lead if len(self.lead) > 2 else self.lead[:1]:
            if lead.min() < 0 < lead.max():
                lines = ax.contour(self.xx0, self.xx1, lead, [0.0], **options)
                lines.set_path_effects(outline())
                self.boundaries_.append(lines)

    def _draw_legend(self, panels: np.ndarray, shared: bool) -> None:
        """Explain classes and boundary, which are the same in all panels."""
        middle = panels[len(panels) // 2]
        handles, labels = middle.get_legend_handles_labels()
        if self.boundaries_:
            line = self.boundaries_[0].legend_elements()[0][0]
            line.set_path_effects(outline())
            handles, labels = [*handles, line], [*labels, "decision boundary"]
        if self.beyond_:
            handles, labels = [*handles, hatched_patch()], [*labels, "beyond range"]
        if handles and shared:
            legend_of_figure(middle.figure, handles, labels)
        elif handles:
            legend_below(middle, handles, labels)

    def _draw_points(self, ax: Axes, options: dict[str, Any]) -> None:
        assert self.X is not None
        common = {"s": 22, "edgecolors": "white", "linewidths": 0.6, "zorder": 3, **options}
        if self.y is None:
            ax.scatter(*self.X.T, **{"color": GREY, **common})
            return
        assert self.classes is not None
        in_legend = len(self.classes) <= _MAX_CLASSES_IN_LEGEND
        for number, name in enumerate(self.classes):
            own = self.X[self.y == name]
            if len(own):
                label = {"label": _class_name(name)} if in_legend else {}
                ax.scatter(*own.T, **{**category_style(number), **label, **common})


def _class_name(label: Any) -> str:
    """Return what a legend calls a class: a number alone says little."""
    return label if isinstance(label, str) else f"class {label}"


def _threshold(method: Any) -> float:
    """Return from which probability on the second of two classes is the label."""
    # A detector has the network's own probabilities.
    own = method._fitted.reference.threshold
    return getattr(method, "_threshold", own)
