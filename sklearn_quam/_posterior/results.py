"""What users get: uncertainties of rows, and how they came about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from .._documented import documented
from .tables import INFINITE, RowTable

if TYPE_CHECKING:
    import pandas as pd

# What can be asked of an `Uncertainty`.
COMPONENTS = ("aleatoric", "epistemic", "total", "doubt")


class Answers(tuple):
    """Predictions and how uncertain they are, a plain pair but for the words of an error."""

    def __getattr__(self, name: str) -> Any:
        if name == "ndim":
            raise AttributeError(
                "predict with return_uncertainty=True or return_std=True returns a pair, but what "
                "is wrapped around it takes a single array. Wrap it the other way round: "
                "QUAMRegressor(TransformedTargetRegressor(...)), say."
            )
        raise AttributeError(f"A pair of answers has no attribute {name!r}.")


@dataclass(frozen=True, eq=False, repr=False)
class Uncertainty(RowTable):
    """Aleatoric, epistemic and total uncertainty of each row.

    ``len(u)`` is the number of rows; ``u[:5]`` and ``u[u.epistemic > 1]`` are some of them. Three
    arrays come out of it, too: ``aleatoric, epistemic, total = u``.

    Parameters
    ----------
    aleatoric : ndarray of shape (n_samples,)
        Uncertainty of the outcome itself, which no better model removes. An entropy (in nats) of a
        regressor may be negative; a variance (in squared units of the target) is not.
    epistemic : ndarray of shape (n_samples,)
        Uncertainty about the model: how far plausible models disagree. Never negative; 1e300,
        which stands for infinite, for rows that are `beyond_range`.
    total : ndarray of shape (n_samples,)
        Sum of the two.
    doubt : ndarray of shape (n_samples,), default=None
        Share of known rows that are less doubtful, from 0 to 1: what ``predict_doubt`` returns. It
        is known where ``fit`` has got ``X_val``, unless ``setting`` or ``measure`` changed since.

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

    def _columns(self) -> dict[str, np.ndarray]:
        columns = {name: getattr(self, name) for name in COMPONENTS}
        return {name: column for name, column in columns.items() if column is not None}

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
        """Tell which rows are beyond the range of the training data.

        A value is more than a hundred times as far from the middle of the training rows' values as
        these are apart, or a whole row is more than ten times as far (root mean square over its
        features; images and sequences have one range for all their values, whole numbers none).
        Or the network's numbers overflow, saturate or lose all their digits. Odd rows within the
        range, such as an image that is all white, are not meant.

        Returns
        -------
        ndarray of shape (n_samples,), dtype bool
            Rows whose epistemic and total uncertainty is 1e300.
        """
        return self.epistemic >= INFINITE

    def per_row(self, how: str = "mean", *, quantile: float = 0.9) -> Uncertainty:
        """Return one number a row, where rows have one for each label, pixel or token.

        Parameters
        ----------
        how : {"mean", "sum", "max", "quantile"}, default="mean"
            What is taken of the numbers of a row. Those that are NaN, such as masked tokens, are
            left out. Means and sums of the total are those of both parts; other numbers are not.
        quantile : float, default=0.9
            Which quantile.

        Returns
        -------
        Uncertainty
            Three arrays of shape (n_samples,). A mean or sum of which a part is infinite is
            infinite, 1e300.

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

    def to_frame(self, index: Any = None) -> pd.DataFrame:
        """Return the arrays as columns of a DataFrame.

        Parameters
        ----------
        index : array-like of shape (n_samples,), default=None
            Row labels; None takes those of the X that was asked about, if it is a frame.

        Returns
        -------
        pandas.DataFrame
            One column for each array.
        """
        if np.ndim(self.epistemic) > 1:
            raise ValueError(
                f"Rows have several numbers, {np.shape(self.epistemic)[1:]}: make a frame of "
                "u.per_row('mean'), or of one label, Uncertainty(*(part[:, 0] for part in u))."
            )
        return super().to_frame(index)

    def _printed(self) -> list[list[str]]:
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


@documented()
@dataclass(frozen=True, eq=False, repr=False)
class RowDiagnostics(RowTable):
    """How an uncertainty estimate came about, row by row: what every method can tell.

    Parameters
    ----------
    effective_sample_size : ndarray of shape (n_samples,)
        How many equally weighted models the sampled ones are worth.
    n_diverged : ndarray of shape (n_samples,), dtype int
        Models (searches of QUAM) that ran into infinite or undefined numbers and were left out from
        then on. At least one where the row is beyond the range that the network can compute with.
    error : ndarray of shape (n_samples,), dtype object
        What the network said where it raised an error for the row, None elsewhere.
    """

    effective_sample_size: np.ndarray
    n_diverged: np.ndarray
    error: np.ndarray
    # What is said about rows beyond the range of the training data.
    _lost: ClassVar[dict[str, Any]] = {
        "effective_sample_size": 1.0,
        "n_diverged": 1,
        "error": None,
    }

    @property
    def _failed(self) -> np.ndarray:
        """Rows for which the network has raised an error."""
        return np.array([error is not None for error in self.error], dtype=bool)

    def _columns(self) -> dict[str, np.ndarray]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def _join(cls, parts: list[Self]) -> Self:
        columns = zip(*(part._columns().values() for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))

    @classmethod
    def _of_lost_rows(cls, n_rows: int) -> Self:
        """Return what is said about rows beyond the range of the training data."""
        return cls(**{name: np.full(n_rows, value) for name, value in cls._lost.items()})


@documented(also=(RowDiagnostics,))
@dataclass(frozen=True, eq=False, repr=False)
class Diagnostics(RowDiagnostics):
    """How the estimate of a method that samples models came about, row by row.

    Parameters
    ----------
    standard_error : ndarray of shape (n_samples,)
        Standard error of the epistemic uncertainty, from the spread of the sampled models; NaN in
        the expected setting with more than 64 classes, or 16 outputs.

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

    standard_error: np.ndarray
    _lost: ClassVar[dict[str, Any]] = {**RowDiagnostics._lost, "standard_error": INFINITE}


@documented(also=(RowDiagnostics,))
@dataclass(frozen=True, eq=False, repr=False)
class SearchDiagnostics(RowDiagnostics):
    """How the estimate of an adversarial search (QUAM) came about, row by row.

    Parameters
    ----------
    rival : ndarray of shape (n_samples,), dtype object
        The cheapest other answer: a class, or "up" or "down". None where no search came that far.
    rival_cost : ndarray of shape (n_samples,)
        What it costs, in nats of the whole training set: to make another class more likely than
        not, or to move the mean by a standard deviation, with the cheapest model met on the path
        of the search. Infinite where no search came that far. ``rival_costs`` of the estimator
        refines models and finds cheaper ones.
    feasible : ndarray of shape (n_samples,), dtype bool
        Whether ``rival_cost`` is no more than ``slack_``.
    n_steps : ndarray of shape (n_samples,), dtype int
        Search steps spent on the row, all targets together.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_quam import QUAMClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> est = QUAMClassifier(random_state=0).fit(X, y)
    >>> u, diagnostics = est.predict_uncertainty(X[:2], return_diagnostics=True)
    >>> diagnostics.n_diverged
    array([0, 0])
    """

    rival: np.ndarray
    rival_cost: np.ndarray
    feasible: np.ndarray
    n_steps: np.ndarray
    _lost: ClassVar[dict[str, Any]] = {
        **RowDiagnostics._lost,
        "rival": None,
        # Any other answer is as good as this one.
        "rival_cost": 0.0,
        "feasible": True,
        "n_steps": 0,
    }


@documented(also=(Diagnostics,))
@dataclass(frozen=True, eq=False, repr=False)
class ChainDiagnostics(Diagnostics):
    """How the estimate of Markov chains (HMC) came about, row by row.

    Parameters
    ----------
    r_hat : ndarray of shape (n_samples,)
        How much the chains disagree about the prediction (split R-hat, the largest of all
        outputs): close to 1 once they have converged.

    Examples
    --------
    >>> from sklearn.linear_model import LinearRegression
    >>> from sklearn_quam import HMCRegressor
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.2, 1.9, 3.1]
    >>> net = LinearRegression().fit(X, y)
    >>> est = HMCRegressor(net, n_leapfrog=10, random_state=0).fit(X, y)
    >>> u, diagnostics = est.predict_uncertainty([[1.5]], return_diagnostics=True)
    >>> bool(diagnostics.r_hat[0] < 1.1)
    True
    """

    r_hat: np.ndarray
    _lost: ClassVar[dict[str, Any]] = {**Diagnostics._lost, "r_hat": INFINITE}


# All kinds there are, as stored results declare them.
AnyDiagnostics = Diagnostics | SearchDiagnostics | ChainDiagnostics
KindOfDiagnostics = type[Diagnostics] | type[SearchDiagnostics] | type[ChainDiagnostics]


class RowResults(NamedTuple):
    """Everything that was found out about some rows.

    Parameters
    ----------
    prediction : ndarray of shape (n_samples, n_outputs)
        Probabilities, or means.
    uncertainty : Uncertainty
        The measures.
    diagnostics : RowDiagnostics
        How they came about.
    variance : ndarray of shape (n_samples, n_outputs)
        Total variance of each output of a regressor; a classifier has none, and no columns.
    predictive : ndarray, default=None
        What all plausible models predict together, of shape (n_samples, n_classes): probabilities;
        or (n_samples, n_outputs, n_components, 3): weight, mean and standard deviation of the
        components of each output's mixture. None where it was not asked for.
    """

    prediction: np.ndarray
    uncertainty: Uncertainty
    diagnostics: AnyDiagnostics
    variance: np.ndarray
    predictive: np.ndarray | None = None


def join(parts: list[RowResults]) -> RowResults:
    """Return the results of consecutive rows as one."""
    prediction, uncertainty, diagnostics, variance, predictive = zip(*parts, strict=True)
    return RowResults(
        np.concatenate(prediction),
        Uncertainty(*map(np.concatenate, zip(*uncertainty, strict=True))),
        diagnostics[0]._join(diagnostics),
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


def merge(asked: RowResults, kept: np.ndarray, lost: RowResults, where: np.ndarray) -> RowResults:
    """Return results in which some rows are replaced.

    Parameters
    ----------
    asked : RowResults
        Results of rows that models were asked about.
    kept : ndarray of bool
        Which of these count.
    lost : RowResults
        Results of the rows that are replaced.
    where : ndarray of shape (n_rows,), dtype bool
        Where those belong; the kept ones fill the other places.

    Returns
    -------
    RowResults
        Of all rows.
    """

    def merged(own: np.ndarray, other: np.ndarray) -> np.ndarray:
        whole = np.empty((len(where), *own.shape[1:]), own.dtype)
        whole[~where], whole[where] = own[kept], other
        return whole

    columns = zip(
        asked.diagnostics._columns().items(), lost.diagnostics._columns().values(), strict=True
    )
    diagnostics = {name: merged(own, other) for (name, own), other in columns}
    predictive = None
    if asked.predictive is not None:
        predictive = merged(*_of_one_size(asked.predictive, lost.predictive))
    return RowResults(
        merged(asked.prediction, lost.prediction),
        Uncertainty(*map(merged, asked.uncertainty, lost.uncertainty)),
        type(asked.diagnostics)(**diagnostics),
        merged(asked.variance, lost.variance),
        predictive,
    )
