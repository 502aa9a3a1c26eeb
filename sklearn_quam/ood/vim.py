"""A virtual logit for unknown samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from scipy.special import logsumexp
from sklearn.utils._param_validation import Interval

from .._documented import DETECTOR, documented
from ._core.detector import BaseDetector
from ._core.fitted import FittedDetector, Known, Score, cross_fitted
from ._core.reading import PENULTIMATE, Seen

# Features do not vary in directions whose eigenvalue is a smaller share of the largest one.
_NO_EXTENT = 1e-6


@dataclass(frozen=True, eq=False)
class _VirtualLogit:
    origin: np.ndarray
    residual_space: np.ndarray
    scale: float

    def residual(self, seen: Seen) -> np.ndarray:
        return np.linalg.norm((seen.features - self.origin) @ self.residual_space, axis=1)

    def __call__(self, seen: Seen) -> np.ndarray:
        return logsumexp(seen.logits, axis=1) - self.scale * self.residual(seen)


def _extent(values: np.ndarray) -> int:
    """Return in how many directions features have extent, by their eigenvalues."""
    return int((values > _NO_EXTENT * values.max()).sum())


def _virtual_logit(known: Known, n_principal: Callable[[np.ndarray], int]) -> _VirtualLogit:
    """Return the virtual logit; eigenvalues of the features choose the principal dimension."""
    seen, reader = known.seen, known.reader
    if reader.layers == (PENULTIMATE,):
        # Where the logits of the last layer are as close to zero as possible.
        head = reader.head()
        origin = -np.linalg.pinv(head.weight) @ head.bias
    else:
        origin = seen.features.mean(axis=0)
    centred = seen.features - origin
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    n_residual = len(values) - n_principal(values)
    score = _VirtualLogit(origin, vectors[:, :n_residual], 1.0)
    scale = seen.logits.max(axis=1).mean() / score.residual(seen).mean()
    return _VirtualLogit(origin, score.residual_space, float(scale))


@documented(DETECTOR)
@dataclass(eq=False, repr=False, kw_only=True)
class ViMDetector(BaseDetector):
    """Score samples by the log-sum-exp of their logits, minus a virtual logit.

    The virtual logit is the length of the features outside of the principal space of the training
    features, scaled so that it is as large as the largest logit on average.

    Parameters
    ----------
    n_components : int
        Dimension of the principal space; None takes half of the directions in which the training
        features have extent.

    References
    ----------
    Wang, Li, Feng and Zhang, "ViM: Out-Of-Distribution with Virtual-logit Matching", CVPR 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_quam.ood import ViMDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> ViMDetector(random_state=0).fit(X, y).predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    layer: str | list[str] = "penultimate"
    n_components: int | None = None

    _fitted_kind = FittedDetector[_VirtualLogit]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "layer": [str, list, tuple],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
    }

    def _learn(self, known: Known) -> Score:
        return _virtual_logit(known, self._n_principal)

    def _score_left_out(self, score: Any, known: Known) -> np.ndarray:
        n_principal = known.seen.features.shape[1] - score.residual_space.shape[1]

        def of_others(values: np.ndarray) -> int:
            # Fewer samples may have extent in fewer directions.
            return max(0, min(n_principal, _extent(values) - 1))

        return cross_fitted(lambda some: _virtual_logit(some, of_others), known)

    def _n_principal(self, values: np.ndarray) -> int:
        """Return the dimension of the principal space, by the eigenvalues of the features."""
        extent = _extent(values)
        wanted = max(1, extent // 2) if self.n_components is None else self.n_components
        if wanted >= extent:
            raise ValueError(
                f"The training features have extent in {extent} directions: a principal space of "
                f"{wanted} leaves nothing outside. Choose fewer n_components or another layer."
            )
        return wanted
