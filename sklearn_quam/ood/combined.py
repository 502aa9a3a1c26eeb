"""Several detectors as one, by the p-values of their scores among known samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, _fit_context, clone
from sklearn.model_selection import train_test_split
from sklearn.pipeline import _name_estimators
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import _BaseComposition
from sklearn.utils.validation import check_is_fitted, validate_data

from .._arguments import allowed, arguments
from .._documented import DETECTOR, documented
from .._messages import ShortMessages
from .._network.inputs.rows import from_tensor
from .._network.inputs.sources import count_rows, open_source, some_rows
from ..base._doubt import DoubtScale
from ..base._inside import method_and_rows, opened
from ._core.fitted import Thresholded

# Share of the least normal known samples, whose spread is the unit beyond all of them.
_TAIL = 0.1
# Share of the training samples that p-values are taken from, and how many at most.
_HELD_OUT, _MAX_KNOWN = 0.2, 1000


@dataclass(frozen=True, eq=False)
class _Ranks:
    """Scores of known samples in increasing order, and the mean distance between the lowest."""

    known: np.ndarray
    unit: float

    @classmethod
    def of(cls, scores: np.ndarray) -> Self:
        """Return the ranks among scores of known samples."""
        known = np.sort(scores[np.isfinite(scores)])
        if not len(known):
            raise ValueError("A detector has no finite score for any of the known samples.")
        last = known[int(_TAIL * (len(known) - 1))]
        tail = known[known <= last]
        return cls(known, float((last - tail).mean()) or float(np.ptp(known)) or 1.0)

    def log_p_values(self, scores: np.ndarray) -> np.ndarray:
        """Return logarithms of the share of known samples with scores as low."""
        n_lower = np.searchsorted(self.known, scores, side="right")
        rarity = np.log((1 + n_lower) / (1 + len(self.known)))
        # Below all known samples the order is kept: the p-value falls as one over the distance.
        excess = np.maximum(self.known[0] - scores, 0.0)
        return rarity - np.log1p(excess / self.unit)


def _as_rows(X: Any, name: str = "X") -> Any:
    """Return samples, or labels, that can be indexed; all else is left to the detectors."""
    if open_source(X) is not None:
        return X
    X = from_tensor(X)
    if issparse(X):
        return X.tocsr()
    if hasattr(X, "iloc"):
        return X
    try:
        return np.asarray(X)
    except ValueError as error:
        raise ValueError(f"The rows of {name} are not of the same length.") from error


@documented(DETECTOR._replace(attributes={}))
@arguments
class CombinedDetector(ShortMessages, Thresholded, _BaseComposition):
    """Score samples by several detectors together.

    The score of each detector is replaced by its empirical p-value, the share of known samples that
    look no more normal, so that units do not matter. The combination is Fisher's, the sum of the
    logarithms, or the smallest p-value.

    Parameters
    ----------
    detectors : list of estimators
        Estimators with ``score_samples``: methods and detectors of the package, outlier detectors
        of scikit-learn, pipelines that end in one of these. Each is cloned and fitted; given
        networks stay as they are, and ``FrozenEstimator(detector)`` is not fitted again. Their
        arguments are named like the steps of ``make_pipeline``: ``quamclassifier__temperature``.
    combine : {"fisher", "max"}
        "fisher" adds the logarithms of all p-values; "max" takes the smallest p-value.
    random_state : int, RandomState instance or None
        Chooses the samples that are held out.

    Attributes
    ----------
    detectors_ : list of estimators
        The fitted detectors.
    offset_ : float
        Score below which a sample is an outlier.

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

    detectors: Any = allowed(list, tuple, kw_only=False)
    combine: str = allowed(StrOptions({"fisher", "max"}), default="fisher")

    @property
    def _named(self) -> list[tuple[str, Any]]:
        """The detectors, named like the steps of ``make_pipeline``."""
        known = isinstance(self.detectors, (list, tuple))
        return _name_estimators(self.detectors) if known else []

    @_named.setter
    def _named(self, named: list[tuple[str, Any]]) -> None:
        self.detectors = [detector for _, detector in named]

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: D102
        return self._get_params("_named", deep=deep)

    def set_params(self, **params: Any) -> Any:  # noqa: D102
        return self._set_params("_named", **params)

    get_params.__doc__ = BaseEstimator.get_params.__doc__
    set_params.__doc__ = BaseEstimator.set_params.__doc__

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,  # noqa: ARG002
    ) -> Any:
        """Fit all detectors, and rank known samples by each of them.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data, or whatever else all detectors take: a dict of named inputs, a data set.
        y : array-like of shape (n_samples,)
            Labels, for detectors that need them.
        X_val : array-like of shape (n_val, ...)
            Known samples, up to 1000 of which p-values are taken from, best those that no network
            was trained on. None holds out a fifth of X, which a given network has seen
            nevertheless, so that there is no `predict_doubt`.
        y_val : array-like of shape (n_val,)
            Not used; methods and other detectors have it.
        """
        if not self.detectors:
            raise ValueError("detectors is empty: there is nothing to combine.")
        for detector in self.detectors:
            opened(detector, "score_samples")
        self.__dict__.pop("detectors_", None)
        X, y = _as_rows(X), None if y is None else _as_rows(y, "y")
        self._check_features(X, reset=True)
        rng = check_random_state(self.random_state)
        is_held_out = X_val is not None
        if not is_held_out:
            X, y, X_val = self._hold_out(X, y, rng)
        X_val = _as_rows(X_val)
        n_known = count_rows(X_val)
        if n_known > _MAX_KNOWN:
            X_val = some_rows(X_val, rng.permutation(n_known)[:_MAX_KNOWN])
        fitted = [clone(detector).fit(X, y) for detector in self.detectors]
        known = [detector.score_samples(X_val) for detector in fitted]
        self._ranks = [_Ranks.of(scores) for scores in known]
        self.detectors_ = fitted
        scores = self._combined(known)
        self._set_threshold(scores)
        self._doubt = DoubtScale.fit(self._risk(X_val), -scores) if is_held_out else None
        return self

    def _risk(self, X: Any) -> np.ndarray:
        """Return 1 - max p of the first network among the detectors, zero if there is none."""
        for detector in self.detectors_:
            method, rows = method_and_rows(detector, X, "score_samples")
            if hasattr(method, "_network_prediction"):
                return 1 - method._network_prediction(rows).max(axis=1)
            if hasattr(method, "predict_proba"):
                return 1 - method.predict_proba(rows).max(axis=1)
        return np.zeros(count_rows(X))

    def _fitted_doubt(self) -> DoubtScale | None:
        return self._doubt

    def _risk_and_scores(self, X: Any) -> tuple[Any, np.ndarray]:
        return self._risk(_as_rows(X)), self.score_samples(X)

    def _hold_out(self, X: Any, y: Any, rng: np.random.RandomState) -> tuple[Any, Any, Any]:
        """Return training samples and labels, and held-out samples."""
        n_rows = count_rows(X)
        if y is not None:
            check_consistent_length(np.empty(n_rows), y)
        if n_rows < 2:
            raise ValueError(
                f"Found array with {n_rows} sample(s): none can be held out. Pass X_val."
            )
        options = {"test_size": _HELD_OUT, "random_state": rng}
        rows = np.arange(n_rows)
        try:
            fit, held_out = train_test_split(rows, stratify=y, **options)
        except (ValueError, TypeError):  # labels that are too rare, or no labels at all
            fit, held_out = train_test_split(rows, **options)
        held_out = np.sort(held_out)
        fit = np.sort(fit)
        return some_rows(X, fit), None if y is None else some_rows(y, fit), some_rows(X, held_out)

    def _check_features(self, X: Any, reset: bool) -> None:
        """Check the columns of a table; others are left to detectors."""
        if open_source(X) is None:
            if X.ndim == 1 and X.dtype.kind in "biuf":  # texts may be a vector
                raise ValueError(
                    "Expected rows, got a vector. Reshape your data: X.reshape(1, -1)."
                )
            validate_data(self, X, reset=reset, skip_check_array=True)

    def _combined(self, scores: list[np.ndarray]) -> np.ndarray:
        """Return one score for the scores of all detectors."""
        rare = [ranks.log_p_values(own) for ranks, own in zip(self._ranks, scores, strict=True)]
        return np.sum(rare, axis=0) if self.combine == "fisher" else np.min(rare, axis=0)

    def score_samples(self, X: Any) -> np.ndarray:
        """Return how normal each sample is.

        Returns
        -------
        ndarray of shape (n_samples,)
            The sum of the logarithms of all p-values, or the smallest: the higher, the more normal.
        """
        check_is_fitted(self)
        X = _as_rows(X)
        self._check_features(X, reset=False)
        return self._combined([detector.score_samples(X) for detector in self.detectors_])
