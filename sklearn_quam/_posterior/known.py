"""How far the numbers of the training data go, and which rows are beyond."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._network.inputs.rows import Inputs
from .._network.limits import accumulation_dtype, batches
from .._network.predictions import Categorical, Gaussian, Prediction
from .._network.reference import TrainingSet

# Log-odds, or values in the scale of the targets, that no network has for a reason.
_ABSURD = 1e6
# Doubt about an absurd value that is none: in nats, or in squares of that scale.
_AGREED = 1e-6


@dataclass(frozen=True)
class KnownRange:
    """What the training data look like to somebody who has no network.

    Parameters
    ----------
    largest : tuple of float
        Largest absolute value of each input; infinite for whole numbers, which do not round.
    constant : Prediction
        Class frequencies, or mean and variance of the targets: one row.
    surest : float
        Largest log-odds of one class against another that the network has given a training row.
    rows : str
        What is the same for the same training rows only.
    """

    largest: tuple[float, ...]
    constant: Categorical | Gaussian
    surest: float = 0.0
    rows: str = ""

    def beyond(self, inputs: Inputs, prediction: Any) -> Tensor:
        """Tell which rows hold values next to which those of the training data vanish in rounding.

        A layer adds up what it takes. Next to a value that much larger than any of the training
        data, all others, and the biases, are gone: whatever comes out was never learnt. Means that
        much larger than the targets have no digits left for what was.
        """
        lost = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
        for part, largest in zip(inputs.parts, self.largest, strict=True):
            if part.is_floating_point():
                size = part.reshape(len(part), -1).abs().amax(dim=1)
                lost |= ~(size * torch.finfo(part.dtype).eps <= largest)
        if isinstance(self.constant, Gaussian):
            rounding = torch.finfo(prediction.mean.dtype).eps * prediction.mean.abs()
            lost = lost | ~(rounding <= self._scale_of_targets().to(rounding)).all(dim=-1)
        return lost

    def _scale_of_targets(self) -> Tensor:
        assert isinstance(self.constant, Gaussian)
        return self.constant.mean.abs() + self.constant.variance.sqrt()

    def looks_safe(
        self, prediction: Any, results: Any, agree: np.ndarray, setting: str, measure: str
    ) -> Tensor:
        """Tell for which rows models agree only because no number tells them apart.

        A classifier is then so sure that the other classes have no probability, or, where
        models are compared with their average, that these are lost next to one. A network may be
        that sure about its training data, too: then it takes ten times as much, or what no network
        should be. A regressor predicts what has nothing to do with the targets.
        """
        if isinstance(prediction, Gaussian):
            epistemic = torch.as_tensor(results.uncertainty.epistemic, device=prediction.device)
            scale = self._scale_of_targets()
            absurd = (prediction.mean.abs() > _ABSURD * scale).any(dim=-1)
            unit = float((scale**2).sum()) if measure == "variance" else 1.0
            return absurd & (epistemic < _AGREED * unit)
        number = torch.finfo(accumulation_dtype(prediction.device))
        smallest = -math.log(number.tiny if setting == "given" else number.eps)
        margin = _margin(prediction)
        absurd = (margin > max(smallest, 10 * self.surest)) | (margin > _ABSURD)
        return absurd & torch.as_tensor(agree, device=prediction.device)

    def in_place_of_infinite(self, prediction: Prediction) -> tuple[Any, Tensor]:
        """Return a prediction with the constant one where it is not finite, and where that is."""
        infinite = ~prediction.is_defined()
        if not bool(infinite.any()):
            return prediction, infinite

        def replaced(part: Tensor, constant: Tensor) -> Tensor:
            return torch.where(infinite[:, None], constant.to(part), part)

        return prediction.map(replaced, self.constant), infinite


def _margin(prediction: Categorical) -> Tensor:
    """Return the log-odds of the most likely class against the next."""
    first, second = prediction.log_proba.topk(2, dim=-1).values.unbind(dim=-1)
    return first - second


def known_range(training: TrainingSet, original: Prediction) -> KnownRange:
    """Return what the training data look like to somebody who has no network.

    Parameters
    ----------
    training : TrainingSet
        The training data, as the network takes them.
    original : Prediction
        What the network predicts for them.

    Returns
    -------
    KnownRange
        Their largest value, and the best prediction that is the same for all rows.
    """
    stored = training.inputs
    largest = [0.0 if dtype.is_floating_point else math.inf for dtype in stored.dtypes]
    # However many are read at a time.
    digests = [hashlib.blake2b(str(dtype).encode(), digest_size=16) for dtype in stored.dtypes]
    for rows in batches(stored):
        parts = stored[rows].parts
        largest = list(map(max, largest, (float(part.abs().max()) for part in parts)))
        for digest, part in zip(digests, parts, strict=True):
            digest.update(str(part.shape[1:]).encode() if rows.start == 0 else b"")
            digest.update(part.cpu().numpy().tobytes())
    surest = float(_margin(original).max()) if isinstance(original, Categorical) else 0.0
    # Rows of zeros only say nothing about the scale of others.
    sizes = tuple(size or 1.0 for size in largest)
    rows_told = "".join(digest.hexdigest() for digest in digests)
    return KnownRange(sizes, _constant(training, original), surest, rows_told)


def _constant(training: TrainingSet, original: Prediction) -> Categorical | Gaussian:
    target, dtype = training.target, accumulation_dtype(training.target.device)
    weight = torch.ones(len(target), dtype=dtype, device=target.device)
    if training.weight is not None:
        weight = training.weight.to(dtype)
    share = weight / weight.sum()
    if isinstance(original, Categorical):
        frequency = share.new_zeros(original.n_outputs).index_add_(0, target, share)
        return Categorical(frequency.clamp(min=torch.finfo(dtype).tiny).log()[None])
    target = target.to(dtype)
    mean = share @ target
    variance = share @ (target - mean) ** 2
    # Where all targets are zero, they say nothing about the scale of others.
    variance = torch.where((variance == 0) & (mean == 0), 1.0, variance)
    return Gaussian(mean[None], variance.clamp(min=torch.finfo(dtype).tiny)[None])
