"""The largest logit."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy.special import logsumexp
from sklearn.metrics import roc_auc_score
from sklearn.utils._param_validation import Interval, StrOptions

from .._documented import DETECTOR, documented
from .._typing import Device, RandomState
from ._core.detector import BaseDetector
from ._core.known import FittedDetector, Known
from ._core.reading import Seen

# What "auto" chooses from.
_NORMS = range(2, 11)


@dataclass(frozen=True)
class _LargestLogit:
    # The norm that centred logits are divided by; None for none.
    norm: float | None = None
    # Whether the log-odds of the best class are meant: the order of its probabilities.
    as_odds: bool = False

    def __call__(self, seen: Seen) -> np.ndarray:
        largest = seen.logits.max(axis=1)
        if self.as_odds:
            return -logsumexp(np.sort(seen.logits, axis=1)[:, :-1] - largest[:, None], axis=1)
        if self.norm is None:
            return largest
        mean = seen.logits.mean(axis=1)
        size = np.linalg.norm(seen.logits - mean[:, None], ord=self.norm, axis=1)
        return (largest - mean) / np.where(size > 0, size, 1.0)


@documented(DETECTOR)
class MaxLogitDetector(BaseDetector):
    """Score rows by their largest logit.

    It costs a forward pass. Unlike the largest probability, it still says how much speaks for the
    best class where a second one is nearly as good. Networks that were trained with smoothed labels
    have the lower logits the surer they should be; with ``normalize`` their mistakes are found
    again, and unknown rows often worse.

    Parameters
    ----------
    normalize : "auto" or float, default=None
        The norm that logits without their mean are divided by, at least 1. "auto" takes that of 2
        to 10 which finds mistakes best among the rows of ``X_val`` and ``y_val``, else among the
        training rows, and the largest probability where none is better than this. Of two classes,
        whose normalised logits are the same for all rows, it is the probability, too. None divides
        by nothing.

    Attributes
    ----------
    norm_ : float or None
        The norm that logits are divided by; None if by none.

    References
    ----------
    Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022;
    Cattelan and Silva, "How to Fix a Broken Confidence Estimator: Evaluating Post-hoc Methods for
    Selective Classification with Deep Neural Networks", UAI 2024.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import MaxLogitDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> detector = MaxLogitDetector(net).fit(X, y)
    >>> detector.predict([X[0], [1, 5, 4, 1]])
    array([ 1, -1])
    """

    _fitted_kind = FittedDetector[_LargestLogit]
    _parameter_constraints: ClassVar[dict] = {
        **BaseDetector._parameter_constraints,
        "normalize": [StrOptions({"auto"}), Interval(Real, 1, None, closed="left"), None],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        normalize: str | float | None = None,
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
        self.normalize = normalize

    def _learn(self, known: Known) -> _LargestLogit:
        score = self._chosen(known)
        self.norm_ = score.norm
        return score

    def _chosen(self, known: Known) -> _LargestLogit:
        if self.normalize is None:
            return _LargestLogit()
        judged, best = known.held_out or known, _LargestLogit(as_odds=True)
        if judged.seen.logits.shape[1] == 2:
            return best
        if self.normalize != "auto":
            return _LargestLogit(float(self.normalize))
        is_right = judged.seen.logits.argmax(axis=1) == judged.target
        if is_right.all() or not is_right.any():
            return best
        candidates = [best, *(_LargestLogit(float(norm)) for norm in _NORMS)]
        # The first of equals: the largest probability, unless a norm is better.
        return max(candidates, key=lambda each: roc_auc_score(is_right, each(judged.seen)))
