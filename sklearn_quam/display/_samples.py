"""The images that a network is least and most certain about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils import check_consistent_length

from .._documented import DISPLAY, documented
from .._messages import shown
from .._network.inputs.rows import from_tensor
from .._posterior.results import INFINITE
from ._asking import ask, check_vector
from ._base import _Display, check_matplotlib

_CHANNELS = (1, 3, 4)
_FONT_SIZE = 8
# Inches that a letter and a line of a caption take.
_LETTER, _LINE = 0.075, 0.16


@documented(DISPLAY)
@dataclass(eq=False, repr=False)
class UncertainSamplesDisplay(_Display):
    """Images that are predicted with the least and with the most certainty.

    A caption has the prediction, the rival class with a question mark (that of another network
    which explains the training data as well), and the epistemic uncertainty. Create it with
    `from_estimator` or `from_predictions`.

    Parameters
    ----------
    images : ndarray of shape (n_samples, height, width) or (n_samples, height, width, n_channels)
        The images; flat ones and channels before height and width will do, too.
    uncertainty : ndarray of shape (n_samples,)
        Their order.
    labels : ndarray of shape (n_samples,), default=None
        Predictions.
    rivals : ndarray of shape (n_samples,), default=None
        Rival classes; None where there is none.
    unit : str
        What the uncertainty is measured in.

    Attributes
    ----------
    ax_ : ndarray of Axes of shape (2, n_images)
        Where the images were drawn: the least certain ones, and below them the most certain ones.
    least_certain_ : ndarray of shape (n_images,)
        Numbers of the least certain images, beginning with the least certain one.
    most_certain_ : ndarray of shape (n_images,)
        Numbers of the most certain images, beginning with the most certain one.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import QUAMClassifier
    >>> from sklearn_quam.display import UncertainSamplesDisplay
    >>> X, y = load_digits(n_class=3, return_X_y=True)
    >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y)).fit(X, y)
    >>> display = UncertainSamplesDisplay.from_estimator(est, X[:20], n_images=4)
    >>> display.images.shape
    (20, 8, 8)
    >>> display.ax_.shape
    (2, 4)
    """

    images: np.ndarray
    uncertainty: np.ndarray
    labels: np.ndarray | None = None
    rivals: np.ndarray | None = None
    unit: str = "nats"
    image_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check the arrays."""
        self.images = _as_images(self.images, self.image_shape)
        self.uncertainty = check_vector(self.uncertainty, "uncertainty")
        for name in ("labels", "rivals"):
            if getattr(self, name) is not None:
                setattr(self, name, _as_array(getattr(self, name), name))
        check_consistent_length(self.images, self.uncertainty, self.labels, self.rivals)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, *, image_shape: tuple[int, ...] | None = None, **kwargs: Any
    ) -> Self:
        """Ask a fitted estimator about images.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Images, as the estimator takes them.
        """
        check_matplotlib(cls)
        images = _as_images(X, image_shape)
        answers = ask(estimator, X)
        arrays = images, answers.uncertainty.epistemic, answers.labels, answers.rivals
        return cls(*arrays, answers.unit).plot(**kwargs)

    def plot(self, ax: Any = None, *, n_images: int = 8, **kwargs: Any) -> Self:
        """Draw a row of the least certain images, and below it one of the most certain ones.

        Parameters
        ----------
        n_images : int
            How many images of each kind to draw; no image is drawn twice.
        **kwargs : dict
            Arguments of ``ax.imshow``, such as ``cmap``.
        """
        if n_images < 1 or len(self.images) < 2:
            raise ValueError("There must be at least two images, and n_images at least 1.")
        number = min(n_images, len(self.images) // 2)
        order = np.argsort(self.uncertainty, kind="stable")
        self.most_certain_, self.least_certain_ = order[:number], order[: -number - 1 : -1]
        drawn = np.concatenate([self.least_certain_, self.most_certain_])
        captions = [self._caption(row) for row in drawn]
        place = self._axes(ax)
        if ax is None:
            longest = max(len(line) for caption in captions for line in caption.split("\n"))
            width = max(1.0, _LETTER * longest + 0.1) * number + 0.4
            n_lines = max(caption.count("\n") for caption in captions)
            self.figure_.set_size_inches(width, 2 * (1.1 + _LINE * n_lines))
        spec = place.get_subplotspec()
        if spec is None:
            raise ValueError("ax is no subplot and cannot be divided; pass one from plt.subplots.")
        place.set_axis_off()
        self.ax_ = spec.subgridspec(2, number).subplots(squeeze=False)
        for panel, row, caption in zip(self.ax_.flat, drawn, captions, strict=True):
            image = _drawable(self.images[row])
            panel.imshow(image, **{"cmap": "gray", "interpolation": "nearest", **kwargs})
            panel.set_title(caption, fontsize=_FONT_SIZE)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
        for panel, kind in zip(self.ax_[:, 0], ("least certain", "most certain"), strict=True):
            panel.set_ylabel(f"{kind}\n({self.unit})", fontsize=_FONT_SIZE)
        return self

    def _caption(self, row: int) -> str:
        """Return prediction, rival and uncertainty of an image."""
        words = []
        if self.labels is not None:
            words.append(_as_text(self.labels[row]))
        if self.rivals is not None and self.rivals[row] is not None:
            words.append(f"{_as_text(self.rivals[row])}?")
        value = f"{self.uncertainty[row]:#.2g}".rstrip(".")
        if self.uncertainty[row] >= INFINITE:
            value = "beyond range"
        joined = ", ".join(words)
        # Short labels fit beside each other.
        return f"{joined}\n{value}" if len(joined) <= 12 else "\n".join([*words, value])


def _as_text(label: Any) -> str:
    """Return a label with long fractions rounded."""
    return f"{label:.3g}" if isinstance(label, float | np.floating) else str(label)


def _as_array(values: Any, name: str) -> np.ndarray:
    """Return anything as an array, unless its rows differ in length."""
    try:
        return np.asarray(from_tensor(values))
    except ValueError as error:
        raise ValueError(f"{name} must have rows of the same length.") from error


def _as_images(values: Any, image_shape: tuple[int, ...] | None) -> np.ndarray:
    """Return images of shape (n, height, width) or (n, height, width, n_channels)."""
    images = _as_array(values, "images")
    if images.ndim < 2 or images.dtype.kind not in "fiub":
        raise ValueError(
            f"Images must be rows of numbers; got an array of {images.dtype} of shape "
            f"{images.shape}."
        )
    if image_shape is None and images.ndim == 2:
        image_shape = (math.isqrt(images.shape[1]),) * 2
    if image_shape is not None:
        try:
            images = images.reshape(len(images), *image_shape)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Images of shape {shown(image_shape)} do not fit rows of shape "
                f"{images.shape[1:]}: pass image_shape, a tuple such as (28, 28)."
            ) from error
    shape = images.shape[1:]
    if images.ndim == 4 and shape[2] not in _CHANNELS:
        images = np.moveaxis(images, 1, 3)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.ndim != 3 and not (images.ndim == 4 and images.shape[3] in _CHANNELS):
        raise ValueError(
            "Images must have a height, a width and at most one axis of 1, 3 or 4 channels; got "
            f"rows of shape {shape}."
        )
    return images


def _drawable(image: np.ndarray) -> np.ndarray:
    """Return colours between 0 and 1, which those of standardised images are not."""
    low, high = float(image.min()), float(image.max())
    if image.ndim == 2 or image.dtype == np.uint8 or (low >= 0 and high <= 1):
        return image
    return (image - low) / ((high - low) or 1.0)
