"""Several detectors as one, by how rare their scores are among known rows."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, _fit_context, clone
from sklearn.model_selection import train_test_split
from sklearn.pipeline import _name_estimators
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from .._messages import ShortMessages, shown
from .._network.inputs.layouts import from_tensor
from .._network.inputs.sources import count_rows, open_source, some_rows
from .._typing import RandomState
from ..base._inside import opened
from ._core.fitted import CONTAMINATION, Thresholded, threshold

# Of the known rows: the least normal ones, whose spread is the unit beyond all of them.
_TAIL = 0.1


@dataclass(frozen=True, eq=False)
class _Ranks:
    """Scores of known rows in increasing order, which others are ranked among.

    Parameters
    ----------
    known : ndarray of shape (n_known,)
        The scores.
    unit : float
        How far the lowest of them lie below the others, on average.
    """

    known: np.ndarray
    unit: float

    def log_p_values(self, scores: np.ndarray) -> np.ndarray:
        """Return how rare it is, among known rows, to be as little normal as these."""
        n_lower = np.searchsorted(self.known, scores, side="right")
        rarity = np.log((1 + n_lower) / (1 + len(self.known)))
        # Below all known rows the order is kept: the p-value falls as one over the distance.
        excess = np.maximum(self.known[0] - scores, 0.0)
        return rarity - np.log1p(excess / self.unit)


def _ranks(scores: np.ndarray) -> _Ranks:
    known = np.sort(scores[np.isfinite(scores)])
    if not len(known):
        raise ValueError("A detector has no finite score for any of the known rows.")
    last = known[int(_TAIL * (len(known) - 1))]
    tail = known[known <= last]
    spread = float((last - tail).mean()) or float(np.ptp(known)) or 1.0
    return _Ranks(known, spread)


def _as_rows(X: Any) -> Any:
    """Return rows that can be chosen by their numbers; all else is left to the detectors."""
    if open_source(X) is not None:
        return X
    X = from_tensor(X)
    if issparse(X):
        return X.tocsr()
    if hasattr(X, "iloc"):
        return X
    X = _as_array(X, "X")
    if X.ndim == 1 and X.dtype.kind in "biuf":
        raise ValueError(
            "Expected rows, got a vector. Reshape your data: X.reshape(1, -1) is a single row."
        )
    return X


def _as_array(values: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"The rows of {name} are not of the same length.") from error


class CombinedDetector(ShortMessages, Thresholded, BaseEstimator):
    """Score rows by several detectors together.

    The score of each detector is replaced by its empirical p-value: the share of known rows that
    look no more normal. So the units of the detectors do not matter. The combination is Fisher's,
    the sum of the logarithms, or the smallest p-value.

    Parameters
    ----------
    detectors : list of estimators
        What has ``score_samples``: QUAM and other methods of the package, its detectors, outlier
        detectors of scikit-learn, pipelines that end in one of these. Each is cloned and fitted;
        given networks stay as they are, and ``FrozenEstimator(detector)`` is not fitted again.
    combine : {"fisher", "max"}, default="fisher"
        "fisher" adds what all detectors say; with "max" the one that finds a row the least
        normal decides.
    validation_fraction : float, default=0.2
        Share of the training rows that is held out from the detectors, so that p-values are of rows
        that they have not seen. Not used where `fit` gets ``X_val``.
    max_rows : int, default=1000
        Known rows that p-values are taken from, at most: each detector scores them.
    contamination : float, default=0.05
        Share of known rows that `predict` flags.
    random_state : int, RandomState instance or None, default=None
        Chooses the rows that are held out.

    Attributes
    ----------
    detectors_ : list of estimators
        The fitted detectors.
    offset_ : float
        Score below which a row is an outlier.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import QUAMClassifier
    >>> from sklearn_quam.ood import CombinedDetector, NearestNeighborDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> both = CombinedDetector([QUAMClassifier(net), NearestNeighborDetector(net, layer="input")])
    >>> both.set_params(random_state=0).fit(X, y).predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    _parameter_constraints: ClassVar[dict] = {
        "detectors": [list, tuple],
        "combine": [StrOptions({"fisher", "max"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "max_rows": [Interval(Integral, 1, None, closed="left")],
        "contamination": CONTAMINATION,
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        detectors: Any,
        *,
        combine: str = "fisher",
        validation_fraction: float = 0.2,
        max_rows: int = 1000,
        contamination: float = 0.05,
        random_state: RandomState = None,
    ) -> None:
        self.detectors = detectors
        self.combine = combine
        self.validation_fraction = validation_fraction
        self.max_rows = max_rows
        self.contamination = contamination
        self.random_state = random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments.

        Parameters
        ----------
        deep : bool, default=True
            Whether to include those of the detectors, named like the steps of ``make_pipeline``:
            ``quamclassifier__temperature``.

        Returns
        -------
        dict
            Names and values.
        """
        params = super().get_params(deep=False)
        if deep and isinstance(self.detectors, (list, tuple)):
            for name, detector in _name_estimators(self.detectors):
                if hasattr(detector, "get_params"):
                    own = detector.get_params()
                    params |= {f"{name}__{key}": value for key, value in own.items()}
        return params

    def set_params(self, **params: Any) -> Any:
        """Set constructor arguments.

        Parameters
        ----------
        **params : dict
            Names and values; ``quamclassifier__temperature`` goes to that detector.

        Returns
        -------
        self : object
            The detector itself.
        """
        nested = {name: value for name, value in params.items() if "__" in name}
        super().set_params(**{key: params[key] for key in params.keys() - nested.keys()})
        detectors = dict(_name_estimators(self.detectors)) if nested else {}
        for name, value in nested.items():
            owner, _, own = name.partition("__")
            if owner not in detectors:
                raise ValueError(
                    f"No detector is called {shown(owner)}; there are {sorted(detectors)}."
                )
            detectors[owner].set_params(**{own: value})
        return self

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, *, X_val: Any = None) -> Any:
        """Fit all detectors, and rank known rows by each of them.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data, or whatever else all detectors take: a dict of named inputs, a data set.
        y : array-like of shape (n_samples,), default=None
            Labels, for detectors that want them.
        X_val : array-like of shape (n_val, ...), default=None
            Known rows to take p-values from, best those that no network was trained on. None holds
            out some rows of X, which a given network has seen nevertheless.

        Returns
        -------
        self : object
            The fitted detector.
        """
        if not self.detectors:
            raise ValueError("detectors is empty: there is nothing to combine.")
        for detector in self.detectors:
            opened(detector, "score_samples")
        self.__dict__.pop("detectors_", None)
        X, y = _as_rows(X), from_tensor(y)
        y = y if y is None or hasattr(y, "iloc") else _as_array(y, "y")
        self._check_features(X, reset=True)
        rng = check_random_state(self.random_state)
        if X_val is None:
            X, y, X_val = self._hold_out(X, y, rng)
        X_val = _as_rows(X_val)
        n_known = count_rows(X_val)
        if n_known > self.max_rows:
            X_val = some_rows(X_val, rng.permutation(n_known)[: self.max_rows])
        fitted = [clone(detector).fit(X, y) for detector in self.detectors]
        known = [detector.score_samples(X_val) for detector in fitted]
        self._ranks = [_ranks(scores) for scores in known]
        self.detectors_ = fitted
        self.offset_ = threshold(self._combined(known), self.contamination)
        return self

    def _hold_out(self, X: Any, y: Any, rng: np.random.RandomState) -> tuple[Any, Any, Any]:
        """Return training rows and labels, and rows that are held out."""
        n_rows = count_rows(X)
        if y is not None:
            check_consistent_length(np.empty(n_rows), y)
        if n_rows < 2:
            raise ValueError(
                f"Found array with {n_rows} sample(s): none can be held out. Pass X_val."
            )
        options = {"test_size": self.validation_fraction, "random_state": rng}
        rows = np.arange(n_rows)
        try:
            fit, held_out = train_test_split(rows, stratify=y, **options)
        except (ValueError, TypeError):  # labels that are too rare, or no labels at all
            fit, held_out = train_test_split(rows, **options)
        held_out = np.sort(held_out)
        fit = np.sort(fit)
        return some_rows(X, fit), None if y is None else some_rows(y, fit), some_rows(X, held_out)

    def _check_features(self, X: Any, reset: bool) -> None:
        """Take note of the columns of a table, or compare them; others are left to detectors."""
        if open_source(X) is None:
            validate_data(self, X, reset=reset, skip_check_array=True)

    def _combined(self, scores: list[np.ndarray]) -> np.ndarray:
        """Return one score for what all detectors say."""
        rare = [ranks.log_p_values(own) for ranks, own in zip(self._ranks, scores, strict=True)]
        return np.sum(rare, axis=0) if self.combine == "fisher" else np.min(rare, axis=0)

    def score_samples(self, X: Any) -> np.ndarray:
        """Return how normal each row is: the higher, the more normal.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.

        Returns
        -------
        ndarray of shape (n_samples,)
            The sum of the logarithms of all p-values, or the smallest of them.
        """
        check_is_fitted(self)
        X = _as_rows(X)
        self._check_features(X, reset=False)
        return self._combined([detector.score_samples(X) for detector in self.detectors_])
