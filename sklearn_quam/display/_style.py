"""What all pictures share: colours, axes, legends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

# The palette of Okabe and Ito, which colour-blind readers can tell apart; its black marks the
# given network, and its yellow is too faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Values below the largest one by more than this factor share the first bar of a log axis.
_MAX_RATIO = 1e9
BLUE, RED = PALETTE[:2]
GIVEN = "#000000"
GREY = "#808080"
# Shapes tell categories apart in print, and where the colours begin again.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h")
LINE_STYLES = ("-", "--", ":", "-.")
COLOUR_MAP = "viridis"
# Ticks and the label of the x axis take this many times the font size.
_LINES_BELOW_AXES = 3.6
# In font sizes: the mark of a legend's entry, the gap between its columns, a letter.
_LEGEND_MARK, _LEGEND_GAP, _LEGEND_LETTER = 2.6, 1.4, 0.54
# A legend may be a little wider than the axes: tick labels stick out, too.
_OVERHANG = 1.1


def check_matplotlib(caller: str) -> None:
    """Say what to install, before anything expensive is computed.

    Parameters
    ----------
    caller : str
        What needs matplotlib.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{caller} needs matplotlib. Install it with `pip install matplotlib`, or together "
            'with the package: `pip install "sklearn_quam[plots]"`.'
        ) from error


def axes_or_new(ax: Axes | None, **figure_options: Any) -> Axes:
    """Return the given axes, or those of a new figure whose parts make room for each other."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained", **figure_options)[1]


def category_style(number: int) -> dict[str, str]:
    """Return the colour and the marker of a category."""
    return {
        "color": PALETTE[number % len(PALETTE)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def line_style(number: int) -> dict[str, str]:
    """Return the colour and the line style of a category."""
    return {
        "color": PALETTE[number % len(PALETTE)],
        "linestyle": LINE_STYLES[number // len(PALETTE) % len(LINE_STYLES)],
    }


def remove_frame(ax: Axes) -> None:
    """Leave only the axes that are read."""
    ax.spines[["top", "right"]].set_visible(False)


def legend_below(
    ax: Axes,
    handles: Sequence[Any],
    labels: Sequence[str],
    *,
    n_lines: float = _LINES_BELOW_AXES,
    **options: Any,
) -> Legend:
    """Draw the legend below the labels of the axes, where it hides nothing.

    Parameters
    ----------
    ax : matplotlib Axes
        Where to draw.
    handles : sequence of artists
        What it explains.
    labels : sequence of str
        What they are called.
    n_lines : float, default=3.6
        Room to leave for what is written below the axes, in font sizes.
    **options : dict
        Further arguments of ``ax.legend``.

    Returns
    -------
    matplotlib Legend
        The legend.
    """
    from matplotlib.transforms import ScaledTranslation

    font_size = _font_size()
    # The room that ticks and labels take does not grow with the axes.
    shift = ScaledTranslation(0, -n_lines * font_size, ax.figure.dpi_scale_trans)
    width = _OVERHANG * ax.get_window_extent().width / ax.figure.dpi
    return ax.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=ax.transAxes + shift,
        borderaxespad=0,
        # A legend much wider than the axes would make the layout shrink them.
        **_legend_style(labels, width / font_size),
        **options,
    )


def legend_of_figure(figure: Any, handles: Sequence[Any], labels: Sequence[str]) -> Legend:
    """Draw a legend below all axes of a figure that has a constrained layout.

    Parameters
    ----------
    figure : matplotlib Figure
        Where to draw.
    handles : sequence of artists
        What it explains.
    labels : sequence of str
        What they are called.

    Returns
    -------
    matplotlib Legend
        The legend.
    """
    width = figure.get_figwidth() / _font_size()
    return figure.legend(
        handles, labels, loc="outside lower center", **_legend_style(labels, width)
    )


def _font_size() -> float:
    """Return the size of usual letters in inches."""
    from matplotlib.font_manager import FontProperties

    return FontProperties(size="medium").get_size_in_points() / 72


def _legend_style(labels: Sequence[str], width: float) -> dict[str, Any]:
    return {
        "frameon": False,
        "columnspacing": _LEGEND_GAP,
        "handletextpad": 0.6,
        "ncols": _columns_that_fit(labels, width),
    }


def _columns_that_fit(labels: Sequence[str], width: float) -> int:
    """Return how many columns a legend may have; they are filled one after the other."""
    widths = [_LEGEND_MARK + _LEGEND_GAP + _LEGEND_LETTER * len(label) for label in labels]
    for n_columns in range(len(labels), 1, -1):
        columns = np.array_split(widths, n_columns)
        if sum(column.max() for column in columns) - _LEGEND_GAP <= width:
            return n_columns
    return 1


def as_text(value: Any) -> str:
    """Return a label as it is written in a figure: long fractions are rounded."""
    return f"{value:.3g}" if isinstance(value, float | np.floating) else str(value)


def bin_edges(values: np.ndarray, bins: Any, log: bool) -> np.ndarray:
    """Return the edges of the bars of several histograms."""
    if not log or np.ndim(bins):
        return np.histogram_bin_edges(values, bins)
    if values.min() < 0 or values.max() <= 0:
        raise ValueError(
            "log=True needs uncertainties that are positive somewhere and negative nowhere; these "
            f"lie between {values.min():.3g} and {values.max():.3g}."
        )
    low = max(values[values > 0].min(), values.max() / _MAX_RATIO)
    return 10 ** np.histogram_bin_edges(np.log10(values.clip(low)), bins)
