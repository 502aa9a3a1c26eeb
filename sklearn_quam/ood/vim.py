"""A virtual logit beside the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from scipy.special import logsumexp
from sklearn.utils._param_validation import Interval

from .._typing import Device, RandomState
from ._detector import BaseDetector, FittedDetector, Score, cross_fitted
from ._reading import PENULTIMATE, Reader, Seen

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


def _virtual_logit(
    seen: Seen, reader: Reader, n_principal: Callable[[np.ndarray], int]
) -> _VirtualLogit:
    """Return the virtual logit of some training rows.

    Parameters
    ----------
    seen : Seen
        What the network shows of them.
    reader : Reader
        The network.
    n_principal : callable
        Returns the dimension of the principal space, by the eigenvalues of the features.

    Returns
    -------
    _VirtualLogit
        What scores rows.
    """
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


class ViMDetector(BaseDetector):
    """Score rows by how little a virtual logit of the unknown stands out.

    The virtual logit is the length of the features outside of the principal space of the training
    features, scaled so that it is as large as the largest logit on average. The score is the
    log-sum-exp of the logits minus the virtual one: it looks at features and logits together.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        The network: a fitted one is taken as it is, an unfitted one is trained by `fit`. None
        trains a small default network on scaled inputs.
    layer : str or list of str, default="penultimate"
        Where the features are taken: "penultimate" is what the last layer takes, "input" what
        the network takes, and a name of a submodule means what that returns, averaged over
        places or tokens. Features of several layers are put side by side.
    n_components : int, default=None
        Dimension of the principal space; None takes half of the directions in which the training
        features have extent, which is half of all features unless the network has few inputs.
    contamination : float, default=0.05
        Share of known rows that `predict` flags.
    link : str, default=None
        What the network returns, as for `QUAMClassifier`.
    output : str or int, default=None
        Which output is meant, by its name or number, if the network returns several. None takes
        ``logits``, or what comes first.
    device : str or torch.device, default=None
        Where to run; None stays where the network is.
    random_state : int, RandomState instance or None, default=None
        Seeds the training, if the network is trained.

    Attributes
    ----------
    offset_ : float
        Score below which a row is an outlier.
    classes_ : ndarray of shape (n_classes,)
        The labels.
    estimator_ : estimator or torch.nn.Module
        The network that was used.

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
        self.estimator = estimator
        self.layer = layer
        self.n_components = n_components
        self.contamination = contamination
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state

    def _learn(self, seen: Seen, target: np.ndarray, reader: Reader) -> Score:  # noqa: ARG002
        return _virtual_logit(seen, reader, self._n_principal)

    def _score_left_out(
        self, score: Any, seen: Seen, target: np.ndarray, reader: Reader
    ) -> np.ndarray:
        n_principal = seen.features.shape[1] - score.residual_space.shape[1]

        def of_others(values: np.ndarray) -> int:
            # Fewer rows may have extent in fewer directions.
            return max(0, min(n_principal, _extent(values) - 1))

        return cross_fitted(lambda some, _: _virtual_logit(some, reader, of_others), seen, target)

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
