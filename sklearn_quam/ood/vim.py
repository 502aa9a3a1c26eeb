"""A virtual logit beside the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from scipy.special import logsumexp
from sklearn.utils._param_validation import Interval

from .._documented import DETECTOR, documented
from .._typing import Device, RandomState
from ._core.detector import BaseDetector
from ._core.known import FittedDetector, Known, Score
from ._core.reading import PENULTIMATE, Seen
from ._core.thresholds import cross_fitted

# Of the largest eigenvalue: below, features do not vary.
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
    """Return the virtual logit of some training rows.

    Parameters
    ----------
    known : Known
        The rows.
    n_principal : callable
        Returns the dimension of the principal space, by the eigenvalues of the features.

    Returns
    -------
    _VirtualLogit
        What scores rows.
    """
    seen, reader = known.seen, known.reader
    if reader.layers == (PENULTIMATE,):
        # Where all logits of the last layer would be zero, as far as that can be.
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
class ViMDetector(BaseDetector):
    """Score rows by how little a virtual logit of the unknown stands out.

    The virtual logit is the length of the features outside of the principal space of the training
    features, scaled so that it is as large as the largest logit on average. The score is the
    log-sum-exp of the logits minus the virtual one: it looks at features and logits together.

    Parameters
    ----------
    n_components : int, default=None
        Dimension of the principal space; None takes half of the directions in which the training
        features have extent, which is half of all features unless the network has few inputs.

    References
    ----------
    Wang, Li, Feng and Zhang, "ViM: Out-Of-Distribution with Virtual-logit Matching", CVPR 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import ViMDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> detector = ViMDetector(net).fit(X, y)
    >>> detector.predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    _fitted_kind = FittedDetector[_VirtualLogit]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "layer": [str, list, tuple],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        layer: str | list[str] = "penultimate",
        n_components: int | None = None,
        contamination: float = 0.05,
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        random_state: RandomState = None,
    ) -> None:
        super().__init__(
            estimator,
            contamination=contamination,
            link=link,
            output=output,
            device=device,
            random_state=random_state,
        )
        self.layer = layer
        self.n_components = n_components

    def _learn(self, known: Known) -> Score:
        return _virtual_logit(known, self._n_principal)

    def _score_left_out(self, score: Any, known: Known) -> np.ndarray:
        n_principal = known.seen.features.shape[1] - score.residual_space.shape[1]

        def of_others(values: np.ndarray) -> int:
            # Fewer rows may have extent in fewer directions.
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
