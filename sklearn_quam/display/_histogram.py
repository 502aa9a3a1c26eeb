"""Histograms of the uncertainty of known and of unknown samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.metrics import roc_auc_score

from .._documented import DISPLAY, documented
from .._posterior.results import INFINITE
from ._asking import ask, axis_label, check_component, check_vector, threshold_of
from ._base import BLUE, RED, _Display, check_matplotlib, within_range

# Values below the largest one by more than this factor share the first bar of a log axis.
_MAX_RATIO = 1e9


@documented(DISPLAY)
@dataclass(eq=False, repr=False)
class UncertaintyHistogramDisplay(_Display):
    """Histograms of the uncertainty of known and of unknown samples.

    Create it with `from_estimator` or `from_predictions`.

    Parameters
    ----------
    uncertainty_id : ndarray of shape (n_id,)
        Uncertainty of samples like the training data (in distribution), or any score that is low
        for them.
    uncertainty_ood : ndarray of shape (n_ood,)
        Uncertainty of other samples (out of distribution).
    xlabel : str
        What is shown, and its unit.
    threshold : float
        A value to be marked by a line, such as ``est.threshold(0.95, component="epistemic")``.

    Attributes
    ----------
    auroc : float
        Area under the ROC curve: how well the uncertainty separates the two.
    ax_
    bins_ : ndarray of shape (n_bins + 1,)
        Edges of the bars.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import QUAMClassifier
    >>> from sklearn_quam.display import UncertaintyHistogramDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y)).fit(X, y)
    >>> display = UncertaintyHistogramDisplay.from_estimator(est, X[::5], -X[::5], log=True)
    >>> display.ax_.get_xlabel()
    'epistemic uncertainty (nats)'
    """

    uncertainty_id: np.ndarray
    uncertainty_ood: np.ndarray
    xlabel: str = "uncertainty"
    threshold: float | None = None

    def __post_init__(self) -> None:
        """Check the arrays, and measure how well they are separated."""
        self.uncertainty_id = check_vector(self.uncertainty_id, "uncertainty_id")
        self.uncertainty_ood = check_vector(self.uncertainty_ood, "uncertainty_ood")
        both = self.uncertainty_id, self.uncertainty_ood
        is_unknown = np.repeat([False, True], [len(values) for values in both])
        self.auroc = float(roc_auc_score(is_unknown, np.concatenate(both)))

    @classmethod
    def from_estimator(
        cls, estimator: Any, X_id: Any, X_ood: Any, *, component: str = "epistemic", **kwargs: Any
    ) -> Self:
        """Ask a fitted estimator about known and unknown samples.

        The line is the threshold that 95 % of the held-out samples of `fit` do not exceed.

        Parameters
        ----------
        X_id : array-like of shape (n_id, ...)
            Samples like the training data, but not from it.
        X_ood : array-like of shape (n_ood, ...)
            Other samples.
        """
        check_matplotlib(cls)
        check_component(component)
        known, unknown = ask(estimator, X_id), ask(estimator, X_ood)
        options = {
            "xlabel": axis_label(component, known.unit),
            "threshold": threshold_of(known.method, component),
        }
        parts = [answers.uncertainty._part(component) for answers in (known, unknown)]
        return cls.from_predictions(*parts, **{**options, **kwargs})

    def plot(self, ax: Any = None, *, bins: Any = 30, log: bool = False, **kwargs: Any) -> Self:
        """Draw both histograms; bars are shares, so that sets of different size compare.

        Parameters
        ----------
        bins : int or array-like of shape (n_bins + 1,)
            Number of bars, or their edges.
        log : bool
            Whether the axis is logarithmic. Zeros are in the first bar.
        **kwargs : dict
            Arguments of ``ax.hist``, such as ``alpha``.
        """
        ax = self._axes(ax)
        both, _ = within_range(np.concatenate([self.uncertainty_id, self.uncertainty_ood]))
        if log and not np.ndim(bins):
            if both.min() < 0 or both.max() <= 0:
                raise ValueError(
                    "log=True needs uncertainties that are positive somewhere and negative "
                    f"nowhere; these lie between {both.min():.3g} and {both.max():.3g}."
                )
            low = max(both[both > 0].min(), both.max() / _MAX_RATIO)
            self.bins_ = 10 ** np.histogram_bin_edges(np.log10(both.clip(low)), bins)
        else:
            self.bins_ = np.histogram_bin_edges(both, bins)
        for values, name, colour in (
            (self.uncertainty_id, "in distribution", BLUE),
            (self.uncertainty_ood, "out of distribution", RED),
        ):
            beyond = values >= INFINITE
            count = f"{len(values)} samples"
            if beyond.any():
                count += f", {beyond.sum()} beyond range"
            options = {
                "histtype": "stepfilled",
                "alpha": 0.55,
                "facecolor": colour,
                "edgecolor": colour,
                "linewidth": 1.2,
                "label": f"{name} ({count})",
                **kwargs,
            }
            # Samples beyond the range are in the last bar.
            values = np.where(beyond, self.bins_[-1], values)
            values = values.clip(self.bins_[0]) if log else values
            shares = np.full(len(values), 1 / len(values))
            ax.hist(values, self.bins_.tolist(), weights=shares, **options)
        if self.threshold is not None and self.bins_[0] <= self.threshold <= self.bins_[-1]:
            style: Any = {"color": "black", "linestyle": "--", "linewidth": 1.0}
            ax.axvline(self.threshold, label=f"threshold {self.threshold:.3g}", **style)
        ax.set_xscale("log" if log else "linear")
        self._finish(self.xlabel, "share of samples")
        self._legend(title=f"AUROC = {self.auroc:.3f}")
        return self
