"""The images that a network is least and most certain about."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils import check_consistent_length

from .._documented import DISPLAY, documented
from .._messages import shown
from .._posterior.results import INFINITE
from ._answers import as_array, ask, check_vector
from ._answers import unit as unit_of
from ._style import as_text, check_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CHANNELS = (1, 3, 4)
_FONT_SIZE = 8
# Inches that a letter of a caption takes.
_LETTER = 0.075


@documented(DISPLAY)
class UncertainSamplesDisplay:
    """Images that are predicted with the least and with the most certainty.

    A caption says what the network predicts, what another network that explains the training data
    as well would say instead (with a question mark), and the epistemic uncertainty. Create it with
    `from_estimator` or `from_predictions`.

    Parameters
    ----------
    images : ndarray of shape (n_samples, height, width) or (n_samples, height, width, n_channels)
        The images.
    uncertainty : ndarray of shape (n_samples,)
        What they are ordered by.
    labels : ndarray of shape (n_samples,), default=None
        Predictions.
    rivals : ndarray of shape (n_samples,), default=None
        What else they might be; None where there is nothing to say.
    unit : str, default="nats"
        What the uncertainty is measured in.

    Attributes
    ----------
    ax_ : ndarray of Axes of shape (2, n_images)
        Where the images were drawn: the least certain ones, and below them the most certain ones.
    least_certain_ : ndarray of shape (n_images,)
        Rows of the least certain images, beginning with the least certain one.
    most_certain_ : ndarray of shape (n_images,)
        Rows of the most certain images, beginning with the most certain one.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import PenaltySearch, QUAMClassifier
    >>> from sklearn_quam.display import UncertainSamplesDisplay
    >>> X, y = load_digits(n_class=3, return_X_y=True)
    >>> net = LogisticRegression(max_iter=1000).fit(X / 16, y)
    >>> est = QUAMClassifier(net, search=PenaltySearch(n_steps=20), random_state=0).fit(X / 16, y)
    >>> display = UncertainSamplesDisplay.from_estimator(est, X[:20] / 16, n_images=4)
    >>> display.images.shape
    (20, 8, 8)
    >>> display.ax_.shape
    (2, 4)
    """

    def __init__(
        self,
        images: np.ndarray,
        uncertainty: np.ndarray,
        *,
        labels: np.ndarray | None = None,
        rivals: np.ndarray | None = None,
        unit: str = "nats",
    ) -> None:
        self.images = images
        self.uncertainty = uncertainty
        self.labels = labels
        self.rivals = rivals
        self.unit = unit

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        image_shape: tuple[int, ...] | None = None,
        n_images: int = 8,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Ask a fitted estimator about images.

        Parameters
        ----------
        estimator : object
            A fitted estimator of the package, an outlier detector of it or of scikit-learn, a
            pipeline that ends in one, or a fitted ``GridSearchCV`` over one.
        X : array-like of shape (n_samples, ...)
            Images, as the estimator takes them.
        image_shape : tuple of int, default=None
            Height and width, and the number of channels if there are several; None takes the shape
            of X, and takes flat rows for square images.
        n_images : int, default=8
            How many images of each kind to draw.
        ax : matplotlib Axes or array of Axes of shape (2, n_images), default=None
            Where to draw: an Axes is replaced by a grid of images; None makes a new figure.

        Returns
        -------
        UncertainSamplesDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_estimator")
        images = _as_images(X, image_shape)
        answers = ask(estimator, X)
        method, prediction = answers.method, answers.prediction
        return cls.from_predictions(
            images,
            answers.uncertainty.epistemic,
            None if prediction is None else method._decide(prediction),
            answers.rivals,
            unit=unit_of(method),
            n_images=n_images,
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        images: Any,
        uncertainty: Any,
        labels: Any = None,
        rivals: Any = None,
        *,
        image_shape: tuple[int, ...] | None = None,
        unit: str = "nats",
        n_images: int = 8,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw images whose uncertainty is already known.

        Parameters
        ----------
        images : array-like of shape (n_samples, ...)
            Images: flat, with height and width, or with channels before or behind these.
        uncertainty : array-like of shape (n_samples,)
            What to order them by.
        image_shape : tuple of int, default=None
            Height and width, and the number of channels if there are several; None takes the shape
            of `images`, and takes flat rows for square images.
        n_images : int, default=8
            How many images of each kind to draw.
        ax : matplotlib Axes or array of Axes of shape (2, n_images), default=None
            Where to draw: an Axes is replaced by a grid of images; None makes a new figure.

        Returns
        -------
        UncertainSamplesDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_predictions")
        images = _as_images(images, image_shape)
        uncertainty = check_vector(uncertainty, "uncertainty")
        labels, rivals = (None if v is None else as_array(v, "labels") for v in (labels, rivals))
        check_consistent_length(images, uncertainty, labels, rivals)
        display = cls(images, uncertainty, labels=labels, rivals=rivals, unit=unit)
        return display.plot(ax, n_images=n_images, **kwargs)

    def plot(self, ax: Any = None, *, n_images: int = 8, **kwargs: Any) -> Self:
        """Draw a row of the least certain images, and below it one of the most certain ones.

        Parameters
        ----------
        ax : matplotlib Axes or array of Axes of shape (2, n_images), default=None
            Where to draw: an Axes is replaced by a grid of images; None makes a new figure.
        n_images : int, default=8
            How many images of each kind to draw; no image is drawn twice.
        **kwargs : dict
            Arguments of ``ax.imshow``, such as ``cmap``.

        Returns
        -------
        UncertainSamplesDisplay
            The display itself.
        """
        check_matplotlib(f"{type(self).__name__}.plot")
        if n_images < 1 or len(self.images) < 2:
            raise ValueError("There must be at least two images, and n_images at least 1.")
        number = min(n_images, len(self.images) // 2)
        order = np.argsort(self.uncertainty, kind="stable")
        self.most_certain_, self.least_certain_ = order[:number], order[: -number - 1 : -1]
        rows = np.stack([self.least_certain_, self.most_certain_])
        captions = np.array([[self._caption(row) for row in kind] for kind in rows], dtype=object)
        panels = _grid(ax, number, captions)
        options = {"cmap": "gray", "interpolation": "nearest", **kwargs}
        for panel, row, caption in zip(panels.flat, rows.flat, captions.flat, strict=True):
            panel.imshow(_displayable(self.images[row]), **options)
            panel.set_title(caption, fontsize=_FONT_SIZE)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
        for panel, kind in zip(panels[:, 0], ("least certain", "most certain"), strict=True):
            panel.set_ylabel(f"{kind}\n({self.unit})", fontsize=_FONT_SIZE)
        self.ax_, self.figure_ = panels, panels[0, 0].figure
        return self

    def _caption(self, row: int) -> str:
        lines = []
        if self.labels is not None:
            lines.append(as_text(self.labels[row]))
        if self.rivals is not None and self.rivals[row] is not None:
            lines.append(f"{as_text(self.rivals[row])}?")
        value = f"{self.uncertainty[row]:#.2g}".rstrip(".")
        if self.uncertainty[row] >= INFINITE:
            value = "beyond range"
        joined = ", ".join(lines)
        # Short labels fit beside each other.
        return f"{joined}\n{value}" if len(joined) <= 12 else "\n".join([*lines, value])


def _as_images(values: Any, image_shape: tuple[int, ...] | None) -> np.ndarray:
    """Return images of shape (n, height, width) or (n, height, width, n_channels)."""
    images = as_array(values, "images")
    if images.ndim < 2 or images.dtype.kind not in "fiub":
        raise ValueError(
            f"Images must be rows of numbers; got an array of {images.dtype} of shape "
            f"{images.shape}."
        )
    if image_shape is not None:
        if not isinstance(image_shape, (tuple, list)):
            raise TypeError(
                f"image_shape must be a tuple such as (28, 28); got {shown(image_shape)}."
            )
        if math.prod(image_shape) != math.prod(images.shape[1:]):
            raise ValueError(
                f"image_shape={shown(tuple(image_shape))} does not fit rows of shape "
                f"{images.shape[1:]}."
            )
        images = images.reshape(len(images), *image_shape)
    elif images.ndim == 2:
        side = math.isqrt(images.shape[1])
        if side**2 != images.shape[1]:
            raise ValueError(
                f"Rows of {images.shape[1]} values are no square images: pass image_shape."
            )
        images = images.reshape(len(images), side, side)
    if images.ndim == 4 and images.shape[3] not in _CHANNELS and images.shape[1] in _CHANNELS:
        images = np.moveaxis(images, 1, 3)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.ndim != 3 and not (images.ndim == 4 and images.shape[3] in _CHANNELS):
        raise ValueError(
            "Images must have a height, a width and at most one axis of 1, 3 or 4 channels; got "
            f"rows of shape {images.shape[1:]}."
        )
    return images


def _displayable(image: np.ndarray) -> np.ndarray:
    """Return colours within what can be drawn; standardised images leave it."""
    if image.ndim == 2 or image.dtype == np.uint8:
        return image
    low, high = float(image.min()), float(image.max())
    if low >= 0 and high <= 1:
        return image
    return (image - low) / ((high - low) or 1.0)


def _grid(ax: Any, number: int, captions: np.ndarray) -> np.ndarray:
    """Return axes of shape (2, number) for the images."""
    if ax is None:
        import matplotlib.pyplot as plt

        lines = [line for caption in captions.flat for line in caption.split("\n")]
        width = max(1.0, _LETTER * max(map(len, lines)) + 0.1)
        height = 1.1 + 0.16 * max(caption.count("\n") for caption in captions.flat)
        return plt.subplots(
            2,
            number,
            figsize=(width * number + 0.4, 2 * height),
            layout="constrained",
            squeeze=False,
        )[1]
    if hasattr(ax, "get_subplotspec"):
        return _subdivide(ax, number)
    panels = np.asarray(ax, dtype=object)
    if panels.shape != (2, number):
        raise ValueError(
            f"The images need axes of shape {(2, number)}; got {panels.shape}. Pass a single Axes "
            "to have it divided, or leave ax=None for a new figure."
        )
    return panels


def _subdivide(ax: Axes, number: int) -> np.ndarray:
    place = ax.get_subplotspec()
    if place is None:
        raise ValueError("ax is no subplot and cannot be divided; pass one from plt.subplots.")
    ax.set_axis_off()
    return place.subgridspec(2, number).subplots(squeeze=False)
