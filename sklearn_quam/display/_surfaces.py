"""Coloured surfaces over a plane: contours, meshes and their colour bars."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .._posterior.results import Uncertainty
from ..metrics._checked import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HATCH = "///"
_N_LEVELS = 24
# Values below the largest one by more than this factor share the lowest colour of a log scale.
_MAX_RATIO = 1e6
# Smaller differences are rounding; stretched over all colours they would look like something.
_FLAT = 1e-12


def outline() -> list[Any]:
    """Return what makes a white line visible on bright colours, too."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.6, foreground="black")]


def colorbar(ax: Axes, surface: Any, label: str) -> Any:
    """Return a colour bar with few, round labels."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator

    bar = ax.figure.colorbar(surface, ax=ax, label=label)
    # Left to itself, the bar of a contour plot labels every few levels, however crooked.
    if isinstance(surface.norm, LogNorm):
        bar.set_ticks(LogLocator(numticks=8), format=LogFormatterSciNotation())
    else:
        bar.set_ticks(MaxNLocator(6))
    bar.minorticks_off()
    return bar


def panels_for(ax: Any, number: int) -> np.ndarray:
    """Return an array of axes, one for each component."""
    if ax is None:
        import matplotlib.pyplot as plt

        size = None if number == 1 else (4.4 * number, 4.2)
        figure = plt.figure(figsize=size, layout="constrained")
        return figure.subplots(1, number, sharex=True, sharey=True, squeeze=False)[0]
    panels = np.ravel(np.asarray(ax, dtype=object))
    if len(panels) != number:
        raise ValueError(
            f"{number} component(s) need as many axes; got {len(panels)}. Leave ax=None for a new "
            "figure."
        )
    return panels


def _log_limits(heights: np.ndarray) -> tuple[float, float]:
    if heights.min() < 0 or heights.max() <= 0:
        raise ValueError(
            "log=True needs uncertainties that are positive somewhere and negative nowhere; those "
            f"to be drawn lie between {heights.min():.3g} and {heights.max():.3g}."
        )
    high = heights.max()
    low = max(heights[heights > 0].min(), high / _MAX_RATIO)
    return low, (high if high > low else 10 * low)


def contourf(
    ax: Axes, xx0: np.ndarray, xx1: np.ndarray, heights: np.ndarray, log: bool, options: dict
) -> Any:
    """Draw filled contours, also of heights that are all the same."""
    from matplotlib.colors import LogNorm

    if log:
        low, high = _log_limits(heights)
        options = {"levels": np.geomspace(low, high, _N_LEVELS), "norm": LogNorm(low, high)} | (
            options
        )
        heights = heights.clip(low)
    elif np.ptp(heights) < _FLAT:
        options = {"levels": np.linspace(heights.min(), heights.min() + 1, _N_LEVELS), **options}
    return ax.contourf(xx0, xx1, heights, **{"levels": _N_LEVELS, **options})


def pcolormesh(
    ax: Axes, xx0: np.ndarray, xx1: np.ndarray, heights: np.ndarray, log: bool, options: dict
) -> Any:
    """Draw a mesh of colours, also of heights that are all the same."""
    from matplotlib.colors import LogNorm

    if log:
        low, high = _log_limits(heights)
        options = {"norm": LogNorm(low, high), **options}
        heights = heights.clip(low)
    elif np.ptp(heights) < _FLAT:
        options = {"vmin": heights.min(), "vmax": heights.min() + 1, **options}
    return ax.pcolormesh(xx0, xx1, heights, **{"shading": "auto", "rasterized": True, **options})


def hatched(ax: Axes, xx0: np.ndarray, xx1: np.ndarray, where: np.ndarray) -> Any:
    """Draw lines across a part of the plane: rows beyond the range have no colour of their own."""
    return ax.contourf(xx0, xx1, where.astype(float), [0.5, 1.5], colors="none", hatches=[HATCH])


def hatched_patch() -> Any:
    """Return what explains the lines in a legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor="none", edgecolor="black", hatch=HATCH)


def on_grid(uncertainty: Any, shape: tuple[int, ...]) -> Uncertainty:
    """Return three grids."""
    wanted = f"uncertainty must hold three arrays with {math.prod(shape)} numbers each"
    if isinstance(uncertainty, np.ndarray) and uncertainty.ndim:
        uncertainty = tuple(uncertainty)
    if isinstance(uncertainty, Uncertainty):
        uncertainty = tuple(uncertainty._columns().values())
    if not isinstance(uncertainty, (tuple, list)) or len(uncertainty) not in (3, 4):
        raise ValueError(f"{wanted}, as predict_uncertainty returns them.")
    parts = [numbers(part, "uncertainty") for part in uncertainty]
    if any(part.size != math.prod(shape) for part in parts):
        raise ValueError(f"{wanted}; got {', '.join(str(part.size) for part in parts)}.")
    return Uncertainty(*(part.reshape(shape) for part in parts))


def lead_on_grid(proba: np.ndarray, threshold: float, shape: tuple[int, ...]) -> np.ndarray:
    """Return how far each class is ahead of the best other one, as grids."""
    if proba.shape[1] == 2:
        ahead = proba[:, 1] - threshold
        return np.stack([-ahead, ahead]).reshape(2, *shape)
    ordered = np.sort(proba, axis=1)
    best, second = ordered[:, -1:], ordered[:, -2:-1]
    ahead = np.where(proba == best, proba - second, proba - best)
    return ahead.T.reshape(-1, *shape)
