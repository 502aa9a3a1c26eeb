"""What users get: uncertainties of rows, and how they came about."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


# Stands for an infinite uncertainty: above all others, and yet a number, so that metrics take it,
# and sums and means of it are finite.
INFINITE = 1e300


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


class Uncertainty(NamedTuple):
    """Aleatoric, epistemic and total uncertainty of each row.

    A tuple of three arrays: ``len(u)`` is 3, and ``u[:2]`` are the first two *arrays*. Rows are
    picked from an array, ``u.epistemic[:2]``, or from ``u.to_frame()``.

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

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_quam import Uncertainty
    >>> u = Uncertainty(np.array([0.5]), np.array([0.25]), np.array([0.75]))
    >>> u.to_frame(index=["first"])
           aleatoric  epistemic  total
    first        0.5       0.25   0.75
    """

    aleatoric: np.ndarray
    epistemic: np.ndarray
    total: np.ndarray

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

    def to_frame(self, index: Any = None) -> pd.DataFrame:
        """Return the arrays as columns of a DataFrame.

        Parameters
        ----------
        index : array-like of shape (n_samples,), default=None
            Row labels, such as ``X.index``.

        Returns
        -------
        pandas.DataFrame
            One column for each array.
        """
        import pandas as pd

        return pd.DataFrame(self._asdict(), index=index)


@dataclass(frozen=True, eq=False)
class RowDiagnostics:
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

    def to_frame(self, index: Any = None) -> pd.DataFrame:
        """Return the arrays as columns of a DataFrame.

        Parameters
        ----------
        index : array-like of shape (n_samples,), default=None
            Row labels, such as ``X.index``.

        Returns
        -------
        pandas.DataFrame
            One column for each array.
        """
        import pandas as pd

        return pd.DataFrame(self._columns(), index=index)

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


@dataclass(frozen=True, eq=False)
class Diagnostics(RowDiagnostics):
    """How the estimate of a method that samples models came about, row by row.

    Parameters
    ----------
    effective_sample_size : ndarray of shape (n_samples,)
        How many equally weighted models the sampled ones are worth.
    n_diverged : ndarray of shape (n_samples,), dtype int
        Models (searches of QUAM) that ran into infinite or undefined numbers and were left out from
        then on. At least one where the row is beyond the range that the network can compute with.
    error : ndarray of shape (n_samples,), dtype object
        What the network said where it raised an error for the row, None elsewhere.
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


@dataclass(frozen=True, eq=False)
class SearchDiagnostics(RowDiagnostics):
    """How the estimate of an adversarial search (QUAM) came about, row by row.

    Parameters
    ----------
    effective_sample_size : ndarray of shape (n_samples,)
        How many equally weighted models the sampled ones are worth.
    n_diverged : ndarray of shape (n_samples,), dtype int
        Models (searches of QUAM) that ran into infinite or undefined numbers and were left out from
        then on. At least one where the row is beyond the range that the network can compute with.
    error : ndarray of shape (n_samples,), dtype object
        What the network said where it raised an error for the row, None elsewhere.
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


@dataclass(frozen=True, eq=False)
class ChainDiagnostics(Diagnostics):
    """How the estimate of Markov chains (HMC) came about, row by row.

    Parameters
    ----------
    effective_sample_size : ndarray of shape (n_samples,)
        How many equally weighted models the sampled ones are worth.
    n_diverged : ndarray of shape (n_samples,), dtype int
        Models (searches of QUAM) that ran into infinite or undefined numbers and were left out from
        then on. At least one where the row is beyond the range that the network can compute with.
    error : ndarray of shape (n_samples,), dtype object
        What the network said where it raised an error for the row, None elsewhere.
    standard_error : ndarray of shape (n_samples,)
        Standard error of the epistemic uncertainty, from the spread of the sampled models; NaN in
        the expected setting with more than 64 classes, or 16 outputs.
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
