"""What all displays share: figure, axes, labels, legends, colours, values beyond the range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Self

import numpy as np

from .._posterior.results import INFINITE

# The palette of Okabe and Ito, which colour-blind readers can distinguish, without its black, which
# marks the given network, and its yellow, which is too faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
BLUE, RED = PALETTE[:2]
GIVEN = "#000000"
GREY = "#808080"
HATCH = "///"
# In font sizes: ticks and label of the x axis; mark, gap between columns, and letter of a legend.
_BELOW_AXES = 3.6
_MARK, _GAP, _LETTER = 2.6, 1.4, 0.54
# A legend may be a little wider than the axes: tick labels stick out, too.
_OVERHANG = 1.1


class _Display:
    """A dataclass of arrays, which checks them, and draws them in `plot`."""

    ax_: Any
    figure_: Any

    @classmethod
    def from_predictions(cls, *args: Any, **kwargs: Any) -> Self:
        """Draw arrays that are already known.

        Parameters
        ----------
        *args : tuple
            Arguments of the class, in its order.
        **kwargs : dict
            Further arguments of the class and of `plot`, such as `ax`.

        Returns
        -------
        Self
            The display.
        """
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        own = {name: kwargs.pop(name) for name in names if name in kwargs}
        display: Any = cls(*args, **own)
        return display.plot(**kwargs)

    def _axes(self, ax: Any) -> Any:
        """Return the given axes, or those of a new figure."""
        check_matplotlib(type(self))
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots(layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure
        return ax

    def _finish(self, xlabel: str, ylabel: str, **limits: tuple[float, float]) -> None:
        """Write labels, and leave only the axes that are read."""
        self.ax_.set(xlabel=xlabel, ylabel=ylabel, **limits)
        self.ax_.spines[["top", "right"]].set_visible(False)

    def _legend(
        self, handles: Any = None, labels: Any = None, *, title: Any = None, beyond: Any = False
    ) -> None:
        """Draw a legend below the labels of the axes, with a mark of what is beyond the range."""
        from matplotlib import rcParams
        from matplotlib.patches import Patch
        from matplotlib.transforms import ScaledTranslation

        ax, inches = self.ax_, rcParams["font.size"] / 72
        if handles is None:
            handles, labels = ax.get_legend_handles_labels()
        if beyond:
            hatched = Patch(facecolor="none", edgecolor=GREY, hatch=HATCH, linewidth=0)
            handles, labels = [*handles, hatched], [*labels, "beyond range"]
        if not handles:
            return
        width = _OVERHANG * ax.get_window_extent().width / ax.figure.dpi / inches
        # The room that ticks and labels take does not grow with the axes.
        shift = ScaledTranslation(0, -_BELOW_AXES * inches, ax.figure.dpi_scale_trans)
        ax.legend(
            handles,
            labels,
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            bbox_transform=ax.transAxes + shift,
            ncols=_columns_that_fit(labels, width),
            title=title,
            frameon=False,
            borderaxespad=0,
            columnspacing=_GAP,
            handletextpad=0.6,
        )


def check_matplotlib(kind: type) -> None:
    """Raise an error that says what to install, before anything expensive is computed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{kind.__name__} needs matplotlib. Install it with `pip install matplotlib`, or "
            'together with the package: `pip install "sklearn_quam[plots]"`.'
        ) from error


def _columns_that_fit(labels: Sequence[str], width: float) -> int:
    """Return how many columns a legend may have; they are filled one after the other."""
    widths = [_MARK + _GAP + _LETTER * len(label) for label in labels]
    for n_columns in range(len(labels), 1, -1):
        columns = np.array_split(widths, n_columns)
        if sum(column.max() for column in columns) - _GAP <= width:
            return n_columns
    return 1


def within_range(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values with infinite ones replaced by the largest other, and which these are.

    A scale up to 1e300 would show nothing.
    """
    beyond = values >= INFINITE
    known = values[~beyond & ~np.isnan(values)]
    return np.where(beyond, known.max() if len(known) else 0.0, values), beyond
