"""Detectors that need the network's last layer to be linear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, softmax

from .._arguments import allowed, arguments, real
from .._documented import DETECTOR, documented
from ..exceptions import warn
from ._core.detector import BaseDetector
from ._core.fitted import FittedDetector, Known, Score
from ._core.moments import (
    MomentDetector,
    Moments,
    moments_of,
    root_of_inverse,
    squared_length,
    unit_length,
)
from ._core.reading import AnyReader, Seen

_TINY = np.finfo(float).tiny


@dataclass(frozen=True, eq=False)
class _BoundaryDistance:
    moments: Moments
    # Between the weights of two classes; infinite where these are the same.
    apart: np.ndarray

    def __call__(self, seen: Seen) -> np.ndarray:
        gaps = seen.logits.max(axis=1, keepdims=True) - seen.logits
        distances = gaps / self.apart[seen.logits.argmax(axis=1)]
        away = np.linalg.norm(seen.features - self.moments.means[0], axis=1)
        return distances.sum(axis=1) / (len(self.apart) - 1) / np.maximum(away, _TINY)


@documented(DETECTOR)
@arguments
class FDBDetector(MomentDetector):
    """Score samples by the distance of their features from the boundaries of their class.

    The score (fDBD) is the mean distance from the boundaries to all other classes, divided by the
    distance from the mean of the training features. It has nothing to tune.

    References
    ----------
    Liu and Qin, "Fast Decision Boundary based Out-of-Distribution Detector", ICML 2024.
    """

    _fitted_kind = FittedDetector[_BoundaryDistance]

    def _moments(self, known: Known) -> Moments:
        return moments_of(known.seen.features, with_scatter=False)

    def _score_of(self, moments: Moments, reader: AnyReader) -> _BoundaryDistance:
        weight = reader.head().weight
        apart = cdist(weight, weight)
        return _BoundaryDistance(moments, np.where(apart > 0, apart, np.inf))


@dataclass(frozen=True, eq=False)
class _Nearness:
    moments: Moments
    # In units of their mean length.
    weight: np.ndarray
    alpha: float

    def __call__(self, seen: Seen) -> np.ndarray:
        mean, size = self.moments.means[0, :-1], self.moments.means[0, -1]
        centred = seen.features - mean
        along = (self.weight[seen.logits.argmax(axis=1)] * centred).sum(axis=1)
        away = np.maximum(np.linalg.norm(centred, axis=1), _TINY)
        sizes = np.abs(seen.features).sum(axis=1) / (size or 1.0)
        return along / away + self.alpha * sizes


@documented(DETECTOR)
@arguments
class NCIDetector(MomentDetector):
    """Score samples by how close their features are to the weight of the predicted class.

    In a network that was trained to the end, features of a class lie along its weight, seen from
    the mean of all (neural collapse). The score is the part of the weight along the centred
    features, plus a share of the length of the features, which are often short for unknown samples.

    Parameters
    ----------
    alpha : float
        Weight of the length of the features: the sum of their magnitudes, relative to its mean over
        the training samples.

    References
    ----------
    Liu and Qin, "Detecting Out-of-Distribution Through the Lens of Neural Collapse", CVPR 2025.
    """

    alpha: float = real(default=0.1, closed="left")

    _fitted_kind = FittedDetector[_Nearness]

    def _moments(self, known: Known) -> Moments:
        features = known.seen.features
        sizes = np.abs(features).sum(axis=1)
        return moments_of(np.column_stack([features, sizes]), with_scatter=False)

    def _score_of(self, moments: Moments, reader: AnyReader) -> _Nearness:
        weight = reader.head().weight
        length = np.linalg.norm(weight, axis=1).mean()
        return _Nearness(moments, weight / (length or 1.0), self.alpha)


@dataclass(frozen=True)
class _GradientNorm:
    temperature: float

    def __call__(self, seen: Seen) -> np.ndarray:
        # The gradient is the outer product of these two.
        proba = softmax(seen.logits / self.temperature, axis=1)
        by_logit = np.abs(proba - 1 / proba.shape[1]).sum(axis=1) / self.temperature
        return by_logit * np.abs(seen.features).sum(axis=1)


@documented(DETECTOR)
@arguments
class GradientNormDetector(BaseDetector):
    """Score samples by the length of their features times how sure the network is.

    The product is the norm of a gradient, by the weights of the last layer, of the cross-entropy
    between the uniform distribution and the prediction (GradNorm). It has the worst mean rank of
    all methods and detectors of the package: take another one.

    Parameters
    ----------
    temperature : float
        What the logits are divided by.

    References
    ----------
    Huang, Geng and Li, "On the Importance of Gradients for Detecting Distributional Shifts in the
    Wild", NeurIPS 2021.
    """

    temperature: float = real(default=1.0)

    _fitted_kind = FittedDetector[_GradientNorm]

    def _learn(self, known: Known) -> Score:
        known.reader.head()
        return _GradientNorm(self.temperature)


@dataclass(frozen=True, eq=False)
class _Regret:
    moments: Moments
    root: np.ndarray
    normalize: bool

    def __call__(self, seen: Seen) -> np.ndarray:
        leverage = self._leverage(seen)
        return -_regret(seen.logits, leverage / (1 + leverage))

    def left_out(self, seen: Seen) -> np.ndarray:
        """Return scores of training samples; without the sample, leverage h becomes h / (1 - h)."""
        return -_regret(seen.logits, np.minimum(self._leverage(seen), 1.0))

    def _leverage(self, seen: Seen) -> np.ndarray:
        return squared_length(_directions(seen.features, self.normalize) @ self.root)


def _regret(logits: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Return the regret in nats; the exponent is l / (1 + l), where l is the leverage."""
    log_proba = log_softmax(logits, axis=1)
    exponent = exponent[:, None]
    # q = p / (p + p^a (1 - p)), whose sum is the exponential of the regret, without dividing
    # by zero. As probabilities add up to one, the sum is 1 + sum of (q - p), which is
    # q (1 - p) (1 - p^a): accurate to the last digit however small it is.
    rest = -np.expm1(log_proba)
    with np.errstate(over="ignore"):
        q = 1 / (1 + np.exp(-log_proba * (1 - exponent)) * rest)
    return np.log1p((q * rest * -np.expm1(exponent * log_proba)).sum(axis=1))


def _directions(features: np.ndarray, normalize: bool) -> np.ndarray:
    """Return features of length one, or features and a constant for the bias."""
    if normalize:
        return unit_length(features)
    return np.column_stack([features, np.ones(len(features))])


@documented(DETECTOR)
@arguments
class PNMLDetector(MomentDetector):
    """Score samples by minus the regret of predictive normalised maximum likelihood.

    For each class, the last layer is trained to convergence on the training data and the sample
    with that label; the regret is the logarithm of the sum of the probabilities these layers give
    their class. It has a closed form, and is large where features lie in a direction that the
    training data leave open. It needs more training samples than the last layer has inputs, better
    many more.

    Parameters
    ----------
    normalize : bool
        Whether features have length one, as published, else a constant for the bias is added.

    References
    ----------
    Bibas, Feder and Hassner, "Single Layer Predictive Normalized Maximum Likelihood for
    Out-of-Distribution Detection", NeurIPS 2021.
    """

    normalize: bool = allowed("boolean", default=False)

    _fitted_kind = FittedDetector[_Regret]

    def _moments(self, known: Known) -> Moments:
        known.reader.head()
        return moments_of(_directions(known.seen.features, self.normalize))

    def _score_of(self, moments: Moments, reader: AnyReader) -> _Regret:  # noqa: ARG002
        (n_samples,), (mean,), scatter = moments.counts, moments.means, moments.scatter
        if n_samples <= len(mean):
            warn(
                f"{n_samples:.0f} training samples leave some of the {len(mean)} directions of the "
                "last layer open: nearly every new sample lies in one of these, and regrets say "
                "little. Choose another detector.",
                UserWarning,
            )
        root = root_of_inverse(scatter + n_samples * np.outer(mean, mean))
        return _Regret(moments, root, self.normalize)

    def _score_left_out(self, score: Any, known: Known) -> np.ndarray:
        return score.left_out(known.seen)
