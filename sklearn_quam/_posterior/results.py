"""Results that users get: uncertainties of samples, and their diagnostics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from .tables import INFINITE, RowTable

if TYPE_CHECKING:
    import pandas as pd

# Columns of an `Uncertainty`.
COMPONENTS = ("aleatoric", "epistemic", "total", "doubt")


@dataclass(frozen=True, eq=False, repr=False)
class Uncertainty(RowTable):
    """Aleatoric, epistemic and total uncertainty of each sample.

    ``len(u)`` is the number of samples; ``u[:5]`` and ``u[u.epistemic > 1]`` are some of them. It
    unpacks as three arrays: ``aleatoric, epistemic, total = u``.

    Parameters
    ----------
    aleatoric : ndarray of shape (n_samples,)
        Uncertainty of the outcome itself, which no better model removes. An entropy (in nats) of a
        regressor may be negative; a variance (in squared units of the target) is not.
    epistemic : ndarray of shape (n_samples,)
        Uncertainty about the model: how far plausible models disagree. Never negative; 1e300,
        which stands for infinite, for samples that are `beyond_range`.
    total : ndarray of shape (n_samples,)
        Sum of the two.
    doubt : ndarray of shape (n_samples,), default=None
        Share of known samples that are less doubtful, from 0 to 1, as ``predict_doubt`` returns it.
        None unless ``fit`` got ``X_val``, or if ``setting`` or ``measure`` changed since.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_quam import Uncertainty
    >>> u = Uncertainty(np.array([0.5, 0.1]), np.array([0.25, 0.0]), np.array([0.75, 0.1]))
    >>> u
    Uncertainty of 2 rows
       aleatoric  epistemic  total
    0        0.5       0.25   0.75
    1        0.1          0    0.1
    >>> u[:1].to_frame(index=["first"])
           aleatoric  epistemic  total
    first        0.5       0.25   0.75
    """

    aleatoric: np.ndarray
    epistemic: np.ndarray
    total: np.ndarray
    doubt: np.ndarray | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.aleatoric, self.epistemic, self.total))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return an array of shape (n_samples, 3)."""
        return np.column_stack(list(self)).astype(dtype or float)

    def _part(self, component: str) -> np.ndarray:
        """Return one of the columns."""
        part = getattr(self, component)
        if part is None:
            raise ValueError(
                "doubt is not known: it takes held-out rows. Pass X_val and y_val to fit, and "
                "leave setting and measure as they were."
            )
        return part

    @property
    def beyond_range(self) -> np.ndarray:
        """Return which samples are beyond the range of the training data.

        A value is more than a hundred times as far from the middle of the training values as these
        are apart, or a whole sample more than ten times (root mean square over its features; images
        and sequences have one range for all values, whole numbers none). Or the network's numbers
        overflow or saturate. Odd samples within the range, such as a white image, are not meant.

        Returns
        -------
        ndarray of shape (n_samples,), dtype bool
            Samples whose epistemic and total uncertainty is 1e300.
        """
        return self.epistemic >= INFINITE

    def per_row(self, how: str = "mean", *, quantile: float = 0.9) -> Uncertainty:
        """Return one number a sample, where it has one for each label, pixel or token.

        Parameters
        ----------
        how : {"mean", "sum", "max", "quantile"}, default="mean"
            What is taken of the numbers of a sample. NaN, as of masked tokens, is left out. Means
            and sums of the total are those of both parts; other numbers are not.
        quantile : float, default=0.9
            Which quantile.

        Returns
        -------
        Uncertainty
            Three arrays of shape (n_samples,); 1e300 for a mean or sum with an infinite part.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_quam import Uncertainty
        >>> maps = np.array([[[0.1, 0.2], [0.3, np.nan]]])
        >>> Uncertainty(maps, maps, 2 * maps).per_row("max").epistemic
        array([0.3])
        """
        if how not in ("mean", "sum", "max", "quantile"):
            raise ValueError(f"how={how!r} is none of 'mean', 'sum', 'max' and 'quantile'.")
        if not 0 <= quantile <= 1:
            raise ValueError(f"quantile={quantile} is not between 0 and 1.")
        return Uncertainty(*(_per_row(part, how, quantile) for part in self))

    def _printed(self) -> pd.DataFrame:
        return super()._printed() if np.ndim(self.epistemic) < 2 else self.per_row()._printed()

    def _title(self) -> str:
        shape = np.shape(self.epistemic)[1:]
        return super()._title() + (f"; means over {shape}" if shape else "")


def _per_row(values: np.ndarray, how: str, quantile: float) -> np.ndarray:
    values = np.asarray(values, dtype=float).reshape(len(values), -1)
    found = np.full(len(values), np.nan)
    some = ~np.isnan(values).all(axis=1)
    if how == "quantile":
        # One of the numbers: between a finite and an infinite one there is nothing.
        found[some] = np.nanquantile(values[some], quantile, axis=1, method="higher")
        return found
    reduce: Any = {"mean": np.nanmean, "sum": np.nansum, "max": np.nanmax}[how]
    found[some] = reduce(values[some], axis=1)
    return np.where((values >= INFINITE).any(axis=1), INFINITE, found)


# What the columns of diagnostics are for samples beyond the range of the training data.
_IF_BEYOND: dict[str, Any] = {
    "effective_sample_size": 1.0,
    "n_diverged": 1,
    "error": None,
    "standard_error": INFINITE,
    "r_hat": INFINITE,
    "rival": None,
    # Any other answer is as good as this one.
    "rival_cost": 0.0,
    "feasible": True,
    "n_steps": 0,
}


@dataclass(frozen=True, eq=False, repr=False)
class Diagnostics(RowTable):
    """How an uncertainty estimate came about, sample by sample.

    Columns that a method does not have are None.

    Parameters
    ----------
    effective_sample_size : ndarray of shape (n_samples,)
        Number of equally weighted models that the sampled ones are worth.
    n_diverged : ndarray of shape (n_samples,), dtype int
        Models (searches of QUAM) that met infinite or undefined numbers and were left out from then
        on. At least one where the sample is beyond the range of the training data.
    error : ndarray of shape (n_samples,), dtype object
        The error that the network raised for the sample, None elsewhere.
    standard_error : ndarray of shape (n_samples,), default=None
        All methods but QUAM: standard error of the epistemic uncertainty, from the spread of the
        sampled models; NaN in the expected setting with more than 64 classes, or 16 outputs.
    r_hat : ndarray of shape (n_samples,), default=None
        HMC: split R-hat of the prediction, the largest of all outputs: close to 1 once the chains
        have converged.
    rival : ndarray of shape (n_samples,), dtype object, default=None
        QUAM: the cheapest other answer: a class, or "up" or "down". None where no search reached
        one.
    rival_cost : ndarray of shape (n_samples,), default=None
        QUAM: its cost, in nats of the whole training set: to make another class more likely than
        not, or to move the mean by a standard deviation, with the cheapest model that a search has
        met. Infinite where no search reached one. ``rival_costs`` of the estimator refines models
        and finds cheaper ones.
    feasible : ndarray of shape (n_samples,), dtype bool, default=None
        QUAM: whether ``rival_cost`` is no more than ``slack_``.
    n_steps : ndarray of shape (n_samples,), dtype int, default=None
        QUAM: search steps, over all targets.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_quam import ReferenceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> est = ReferenceClassifier(random_state=0).fit(X, y)
    >>> u, diagnostics = est.predict_uncertainty(X[:2], return_diagnostics=True)
    >>> diagnostics.effective_sample_size
    array([1., 1.])
    """

    effective_sample_size: np.ndarray
    n_diverged: np.ndarray
    error: np.ndarray
    standard_error: np.ndarray | None = None
    r_hat: np.ndarray | None = None
    rival: np.ndarray | None = None
    rival_cost: np.ndarray | None = None
    feasible: np.ndarray | None = None
    n_steps: np.ndarray | None = None

    @classmethod
    def _beyond_range(cls, n_rows: int, more: tuple[str, ...]) -> Self:
        names = ("effective_sample_size", "n_diverged", "error", *more)
        return cls(**{name: np.full(n_rows, _IF_BEYOND[name]) for name in names})

    @property
    def _failed(self) -> np.ndarray:
        """Samples for which the network has raised an error."""
        return np.array([error is not None for error in self.error], dtype=bool)


class RowResults(NamedTuple):
    """Everything that is found out about some samples."""

    # Probabilities, or means: (n_samples, n_outputs)
    prediction: np.ndarray
    uncertainty: Uncertainty
    diagnostics: Diagnostics
    # Of each output of a regressor; a classifier has no columns
    variance: np.ndarray
    # What all plausible models predict together, if it was asked for: probabilities, or weight,
    # mean and standard deviation of mixtures, (n_samples, n_outputs, n_components, 3)
    predictive: np.ndarray | None = None

    def some(self, rows: np.ndarray) -> RowResults:
        """Return the results of some of the samples."""
        parts: Any = (None if part is None else part[rows] for part in self)
        return RowResults(*parts)


def join(parts: list[RowResults]) -> RowResults:
    """Return the results of consecutive samples as one."""
    prediction, uncertainty, diagnostics, variance, predictive = zip(*parts, strict=True)
    columns = [one._columns() for one in diagnostics]
    joined = {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}
    return RowResults(
        np.concatenate(prediction),
        Uncertainty(*map(np.concatenate, zip(*uncertainty, strict=True))),
        Diagnostics(**joined),
        np.concatenate(variance),
        None if predictive[0] is None else np.concatenate(_of_one_size(*predictive)),
    )


def _of_one_size(*mixtures: Any) -> list[np.ndarray]:
    """Return mixtures of equally many components; those that are added have no weight."""
    if mixtures[0].ndim == 2:
        return list(mixtures)  # probabilities
    size = max(mixture.shape[2] for mixture in mixtures)
    grown = []
    for mixture in mixtures:
        more = np.ones((*mixture.shape[:2], size - mixture.shape[2], 3))
        more[..., 0] = 0.0
        grown.append(np.concatenate([mixture, more], axis=2))
    return grown
