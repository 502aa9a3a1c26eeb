"""Predictions of sampled models as points of a triangle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils import check_consistent_length

from .._documented import DISPLAY, documented
from .._messages import shown
from ..base._data import one_row
from ..base._inside import method_and_rows
from ..metrics._checked import labels_in, numbers
from ._style import (
    BLUE,
    GIVEN,
    GREY,
    PALETTE,
    axes_or_new,
    category_style,
    check_matplotlib,
    legend_below,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
_FAINTEST = 0.12


@documented(DISPLAY)
class SimplexDisplay:
    """Predictions of found models on the triangle of three probabilities.

    A corner is certainty of its class, the centre knows nothing. Models that spread far from the
    given network mean that its prediction is epistemically uncertain; where they all crowd in the
    centre, the outcome itself is open. Create it with `from_estimator` or `from_predictions`.

    Parameters
    ----------
    proba : ndarray of shape (n_models, 3)
        Probabilities predicted by the models for one row.
    targets : ndarray of shape (n_models,), default=None
        The class that the search which met the model has attacked.
    given : ndarray of shape (3,), default=None
        Prediction of the given network.
    weights : ndarray of shape (n_models,), default=None
        How much each model counts; light ones are drawn faintly.
    classes : sequence of length 3, default=(0, 1, 2)
        Labels of the corners.

    Attributes
    ----------
    ax_
    points_ : list of matplotlib PathCollection
        The models, a collection for each target.
    given_ : matplotlib PathCollection or None
        The mark of the given network.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import PenaltySearch, QUAMClassifier
    >>> from sklearn_quam.display import SimplexDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> net = LogisticRegression().fit(X, y)
    >>> est = QUAMClassifier(net, search=PenaltySearch(n_steps=20), random_state=0).fit(X, y)
    >>> display = SimplexDisplay.from_estimator(est, X[77])
    >>> display.proba.shape    # three searches, with the given network and 20 steps each
    (63, 3)
    """

    def __init__(
        self,
        proba: np.ndarray,
        *,
        targets: np.ndarray | None = None,
        given: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        classes: Any = (0, 1, 2),
    ) -> None:
        self.proba = proba
        self.targets = targets
        self.given = given
        self.weights = weights
        self.classes = classes

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        x: Any,
        *,
        models: str = "visited",
        classes: Any = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Search models for one row.

        Parameters
        ----------
        estimator : QUAMClassifier
            A fitted one, or a pipeline that ends in one.
        x : array-like of shape (n_features,) or (1, ...)
            The row.
        models : {"visited", "best"}, default="visited"
            Every model that the searches met, drawn the fainter the less it explains the training
            rows of the last few steps, or the most divergent feasible one of each search.
        classes : sequence of length 3, default=None
            Classes to show; probabilities are normalised to them, and searches for other classes
            are left out. None shows all, if there are three.

        Returns
        -------
        SimplexDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_estimator")
        if models not in ("visited", "best"):
            raise ValueError(f"models must be 'visited' or 'best'; got {shown(models)}.")
        method, row = method_and_rows(estimator, one_row(x), needs="search_traces")
        columns = _three_columns(method, classes)
        corners = method.classes_[columns]
        found = _visited(method, row) if models == "visited" else _best(method, row)
        proba, targets, weights = found
        wanted = np.array([target is None or target in corners for target in targets])
        return cls.from_predictions(
            proba[wanted][:, columns],
            targets=None if targets[0] is None else targets[wanted],
            given=_given_proba(method, row)[columns],
            weights=weights[wanted],
            classes=corners,
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        proba: Any,
        targets: Any = None,
        given: Any = None,
        *,
        weights: Any = None,
        classes: Any = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw predictions of any set of models for one row.

        Parameters
        ----------
        proba : array-like of shape (n_models, 3)
            Probabilities predicted by the models; rows are normalised.
        targets : array-like of shape (n_models,), default=None
            What to colour the models by, such as the class that a search has attacked.
        classes : sequence of length 3, default=None
            Labels of the corners; None numbers them.

        Returns
        -------
        SimplexDisplay
            The display.
        """
        check_matplotlib(f"{cls.__name__}.from_predictions")
        proba = _normalised(proba, "proba")
        classes = np.arange(3) if classes is None else np.asarray(classes)
        if len(classes) != 3:
            raise ValueError(f"A triangle has three corners; got {len(classes)} classes.")
        if targets is not None:
            targets = labels_in(targets, "targets")
            check_consistent_length(proba, targets)
        if weights is not None:
            weights = numbers(weights, "weights")
            check_consistent_length(proba, weights)
        if given is not None:
            given = _normalised(numbers(given, "given").reshape(1, -1), "given")[0]
        display = cls(proba, targets=targets, given=given, weights=weights, classes=classes)
        return display.plot(ax, **kwargs)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw the triangle and the models.

        Parameters
        ----------
        **kwargs : dict
            Arguments of ``ax.scatter`` for the models, such as ``s``.

        Returns
        -------
        SimplexDisplay
            The display itself.
        """
        check_matplotlib(f"{type(self).__name__}.plot")
        ax = axes_or_new(ax, figsize=(5.0, 4.8))
        self._draw_triangle(ax)
        self.points_ = [
            self._draw_models(ax, rows, style | {"label": label} | kwargs)
            for rows, style, label in self._groups()
        ]
        self.given_ = None
        if self.given is not None:
            across, up = self.given @ _CORNERS
            self.given_ = ax.scatter(
                across,
                up,
                s=190,
                marker="*",
                color=GIVEN,
                edgecolors="white",
                linewidths=0.9,
                zorder=4,
                label="given network",
            )
        title = None if self.targets is None else "attacked class"
        legend = legend_below(ax, *ax.get_legend_handles_labels(), n_lines=2.4, title=title)
        # A faint model must not make its entry in the legend faint.
        for handle in legend.legend_handles:
            if handle is not None:
                handle.set_alpha(1.0)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _groups(self) -> list[tuple[np.ndarray, dict[str, Any], str]]:
        """Return which models belong together, how they look and what they are called."""
        if self.targets is None:
            return [
                (np.ones(len(self.proba), dtype=bool), {"color": BLUE, "marker": "o"}, "models")
            ]
        corners = list(self.classes)
        others = [name for name in dict.fromkeys(self.targets.tolist()) if name not in corners]
        groups = []
        for number, name in enumerate(corners + others):
            rows = self.targets == name
            if rows.any():
                groups.append((rows, category_style(number), str(name)))
        return groups

    def _draw_models(self, ax: Axes, rows: np.ndarray, options: dict[str, Any]) -> Any:
        from matplotlib.colors import to_rgba

        options = {"s": 26, "linewidths": 0, "zorder": 3, **options}
        colours = np.tile(to_rgba(options.pop("color")), (int(rows.sum()), 1))
        colours[:, 3] = options.pop("alpha", 0.75)
        if self.weights is not None:
            share = self.weights[rows] / self.weights.max()
            colours[:, 3] *= _FAINTEST + (1 - _FAINTEST) * share
        across, up = (self.proba[rows] @ _CORNERS).T
        return ax.scatter(across, up, c=colours, **options)

    def _draw_triangle(self, ax: Axes) -> None:
        outline = np.vstack([_CORNERS, _CORNERS[:1]])
        ax.plot(*outline.T, color=GREY, linewidth=1.0, zorder=1, solid_joinstyle="round")
        for level in (0.25, 0.5, 0.75):
            for first in range(3):
                second, third = (first + 1) % 3, (first + 2) % 3
                ends = level * _CORNERS[first] + (1 - level) * _CORNERS[[second, third]]
                ax.plot(*ends.T, color=GREY, linewidth=0.5, alpha=0.35, zorder=0)
        shifts = ((0, -9), (0, -9), (0, 7))
        for corner, name, shift, colour in zip(
            _CORNERS, self.classes, shifts, PALETTE, strict=False
        ):
            ax.annotate(
                str(name),
                corner,
                xytext=shift,
                textcoords="offset points",
                ha="center",
                va="bottom" if shift[1] > 0 else "top",
                color=GIVEN if self.targets is None else colour,
                fontweight="bold",
            )
        ax.set(aspect="equal", xlim=(-0.02, 1.02), ylim=(-0.02, np.sqrt(3) / 2 + 0.02))
        ax.set_axis_off()


def _three_columns(method: Any, classes: Any) -> np.ndarray:
    """Return the columns of the three classes to show."""
    if not is_classifier(method):
        raise ValueError(f"A triangle shows probabilities, but {type(method).__name__} has none.")
    if classes is None:
        if len(method.classes_) != 3:
            raise ValueError(
                f"A triangle shows three classes, but the estimator knows {len(method.classes_)}. "
                "Pass three of them as classes=[...]."
            )
        return np.arange(3)
    known = {name: column for column, name in enumerate(method.classes_.tolist())}
    wanted = np.asarray(classes).tolist()
    if len(set(wanted)) != 3 or not set(wanted) <= set(known):
        raise ValueError(f"classes must be three of {shown(list(known))}; got {shown(wanted)}.")
    return np.array([known[name] for name in wanted])


def _given_proba(method: Any, row: Any) -> np.ndarray:
    """Return the given network's own prediction, which the expected setting does not give."""
    return method._predict_reference(row).expected().cpu().double().numpy()[0]


def _visited(method: Any, row: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the models of all steps of all searches; those that diverged are left out."""
    traces = method.search_traces(row)[0]
    proba = np.concatenate([trace["prediction"] for trace in traces])
    targets = _repeat([t["target"] for t in traces], [len(t["prediction"]) for t in traces])
    increase = np.concatenate([trace["loss_increase"] for trace in traces])
    cost = increase.clip(min=0) * method.n_training_rows_
    weights = np.exp(-cost / method.temperature_)
    fine = np.isfinite(proba).all(axis=1) & np.isfinite(weights)
    return proba[fine], targets[fine], weights[fine]


def _best(method: Any, row: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    models = method.adversarial_models(row)[0]
    proba = np.array([model["prediction"] for model in models])
    targets = _repeat([model["target"] for model in models], [1] * len(models))
    return proba, targets, np.ones(len(models))


def _repeat(names: list, counts: list[int]) -> np.ndarray:
    """Return labels of any kind as an array of objects, each as often as it counts."""
    labels = np.empty(len(names), dtype=object)
    labels[:] = names
    return np.repeat(labels, counts)


def _normalised(proba: Any, name: str) -> np.ndarray:
    proba = numbers(proba, name)
    if proba.ndim != 2 or proba.shape[1] != 3:
        raise ValueError(f"{name} must have three columns; got an array of shape {proba.shape}.")
    if (proba < 0).any() or not (proba.sum(axis=1) > 0).all():
        raise ValueError(f"{name} must hold probabilities: none negative, no row of zeros.")
    return proba / proba.sum(axis=1, keepdims=True)
