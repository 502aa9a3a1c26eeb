"""Detectors that need nothing but the logits of any network."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import numpy as np
from scipy.special import log_softmax, logsumexp
from sklearn.metrics import roc_auc_score
from sklearn.utils._param_validation import Interval, StrOptions

from .._arguments import allowed, arguments, integer, real
from .._documented import DETECTOR, documented
from ._core.detector import BaseDetector
from ._core.fitted import FittedDetector, Known, Score
from ._core.reading import Seen

# Norms that MaxLogitDetector chooses from.
_NORMS = range(2, 11)


@dataclass(frozen=True)
class _Energy:
    temperature: float

    def __call__(self, seen: Seen) -> np.ndarray:
        return self.temperature * logsumexp(seen.logits / self.temperature, axis=1)


@documented(DETECTOR)
@arguments
class EnergyDetector(BaseDetector):
    """Score samples by the log-sum-exp of their logits, minus their free energy.

    Training pushes up the logits of known samples; those of unknown ones are often low. Logits that
    grow with distance, as those of ReLU networks do, mislead it.

    Parameters
    ----------
    temperature : float
        What the logits are divided by, and the result multiplied with.

    References
    ----------
    Liu, Wang, Owens and Li, "Energy-based Out-of-distribution Detection", NeurIPS 2020.
    """

    temperature: float = real(default=1.0)

    _fitted_kind = FittedDetector[_Energy]

    def _learn(self, known: Known) -> Score:  # noqa: ARG002
        return _Energy(self.temperature)


@dataclass(frozen=True)
class _LargestLogit:
    # The norm that centred logits are divided by; None for none.
    norm: float | None = None
    # Whether to score by the log-odds of the best class, which are ordered as its probabilities.
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
@arguments
class MaxLogitDetector(BaseDetector):
    """Score samples by their largest logit.

    Unlike the largest probability, it stays high where two classes are nearly as good. Networks
    trained with smoothed labels have lower logits the surer they should be: ``normalize`` repairs
    how mistakes are found, while unknown samples are often found worse.

    Parameters
    ----------
    normalize : "auto" or float
        The norm that logits without their mean are divided by, at least 1; None divides by nothing.
        "auto" takes that of 2 to 10 which finds mistakes best in ``X_val`` and ``y_val``, else in
        the training data, and the largest probability where none is better. Two classes always
        have the largest probability, since their normalised logits do not differ.

    Attributes
    ----------
    norm_ : float or None
        The norm that logits are divided by; None if by none.

    References
    ----------
    Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022;
    Cattelan and Silva, "How to Fix a Broken Confidence Estimator: Evaluating Post-hoc Methods for
    Selective Classification with Deep Neural Networks", UAI 2024.
    """

    normalize: str | float | None = allowed(
        StrOptions({"auto"}), Interval(Real, 1, None, closed="left"), None, default=None
    )

    _fitted_kind = FittedDetector[_LargestLogit]

    def _learn(self, known: Known) -> _LargestLogit:
        score = self._chosen(known)
        self.norm_ = score.norm
        return score

    def _chosen(self, known: Known) -> _LargestLogit:
        if self.normalize is None:
            return _LargestLogit()
        judged, odds = known.held_out or known, _LargestLogit(as_odds=True)
        if judged.seen.logits.shape[1] == 2:
            return odds
        if self.normalize != "auto":
            return _LargestLogit(float(self.normalize))
        is_right = judged.seen.logits.argmax(axis=1) == judged.target
        if is_right.all() or not is_right.any():
            return odds
        # `max` takes the first of equals: the probability, unless a norm is better.
        candidates = [odds, *(_LargestLogit(float(norm)) for norm in _NORMS)]
        return max(candidates, key=lambda each: roc_auc_score(is_right, each(judged.seen)))


@dataclass(frozen=True)
class _GeneralizedEntropy:
    gamma: float
    n_largest: int

    def __call__(self, seen: Seen) -> np.ndarray:
        log_proba = np.sort(log_softmax(seen.logits, axis=1), axis=1)[:, -self.n_largest :]
        with np.errstate(divide="ignore"):
            log_rest = np.log(-np.expm1(log_proba))
        return -np.exp(self.gamma * (log_proba + log_rest)).sum(axis=1)


@documented(DETECTOR)
@arguments
class GENDetector(BaseDetector):
    """Score samples by minus the generalised entropy of their largest probabilities.

    That is the sum of ``p**gamma * (1 - p)**gamma``: with a small exponent, probabilities that are
    small but not quite zero count much.

    Parameters
    ----------
    gamma : float
        The exponent.
    n_largest : int
        How many of the largest probabilities count.

    References
    ----------
    Liu, Lochman and Zach, "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection",
    CVPR 2023.
    """

    gamma: float = real(default=0.1)
    n_largest: int = integer(default=100)

    _fitted_kind = FittedDetector[_GeneralizedEntropy]

    def _learn(self, known: Known) -> Score:  # noqa: ARG002
        return _GeneralizedEntropy(self.gamma, self.n_largest)
