"""How far the numbers of the training data go, and which rows are beyond."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._network.inputs.rows import Inputs, StoredRows
from .._network.limits import accumulation_dtype, batches
from .._network.predictions import Categorical, Gaussian, Prediction
from .._network.reference import TrainingSet

# A value this many times the width of a feature away from its middle, or a row that is so far away
# in the root mean square over its features, is like no row of the training data. Chosen by
# benchmarks/beyond_range.py, such that known rows are within, heavy tails and all.
FACTOR_OF_VALUE = 100.0
FACTOR_OF_ROW = 10.0
# Log-odds, or values in the scale of the targets, that no network has for a reason.
_ABSURD = 1e6
# Doubt about an absurd value that is none: in nats, or in squares of that scale.
_AGREED = 1e-6


@dataclass(frozen=True)
class InputRange:
    """Where the values of the training rows lie.

    Each of several inputs has its own arrays. Those of vectors have an entry for each feature,
    others, such as images and sequences, a single one; those of whole numbers, which may be
    indices, are empty.

    Parameters
    ----------
    centre : tuple of ndarray of shape (n_features,) or (1,)
        The middle between the smallest and the largest value.
    width : tuple of ndarray of shape (n_features,) or (1,)
        How far these are apart; never zero.
    """

    centre: tuple[np.ndarray, ...]
    width: tuple[np.ndarray, ...]

    def beyond(
        self,
        inputs: Inputs,
        of_value: float = FACTOR_OF_VALUE,
        of_row: float = FACTOR_OF_ROW,
    ) -> Tensor:
        """Tell which rows are far outside of where all training rows lie.

        Training rows are never more than half a width away from the middle.

        Parameters
        ----------
        inputs : Inputs
            Rows as the network takes them.
        of_value, of_row : float
            How many widths a value, or a row in the root mean square, may be away.

        Returns
        -------
        Tensor of shape (n_rows,)
            Of bools; True where a value is not a number.
        """
        lost = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
        for part, centre, width in zip(inputs.parts, self.centre, self.width, strict=True):
            if len(centre) and part.numel():
                dtype = accumulation_dtype(part.device)
                middle, scale = (torch.as_tensor(v).to(part.device, dtype) for v in (centre, width))
                distance = ((part.reshape(len(part), -1).to(dtype) - middle) / scale).abs_()
                lost |= ~(distance.amax(dim=1) <= of_value)
                lost |= ~(distance.square_().mean(dim=1) <= of_row**2)
        return lost

    def joined(self, other: InputRange) -> InputRange:
        """Return where the values of both sets of rows lie.

        Parameters
        ----------
        other : InputRange
            Where those of further rows lie.

        Returns
        -------
        InputRange
            From the smallest to the largest value of both.
        """
        pairs = [
            (np.minimum(a - v / 2, b - w / 2), np.maximum(a + v / 2, b + w / 2))
            for a, v, b, w in zip(self.centre, self.width, other.centre, other.width, strict=True)
        ]
        centres = tuple((low + high) / 2 for low, high in pairs)
        return InputRange(centres, tuple(high - low for low, high in pairs))


def input_range(stored: Inputs | StoredRows) -> InputRange:
    """Return where the values of training rows lie.

    Parameters
    ----------
    stored : Inputs or StoredRows
        The training rows, as the network takes them.

    Returns
    -------
    InputRange
        Features that are the same in all training rows may be rare: they are given the width of
        the widest, those that hardly differ that of most.
    """
    extremes: list[Any] = []
    for rows in batches(stored):
        found = [_extremes(part) for part in stored[rows].parts]
        if extremes:
            pairs = zip(extremes, found, strict=True)
            found = [(np.minimum(a[0], b[0]), np.maximum(a[1], b[1])) for a, b in pairs]
        extremes = found
    centres = tuple((low + high) / 2 for low, high in extremes)
    return InputRange(centres, tuple(_width(high - low, low) for low, high in extremes))


def _extremes(part: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest value of each feature, or of all of them."""
    if not part.is_floating_point() or not part.numel():
        return np.empty(0), np.empty(0)
    flat = part if part.ndim == 2 else part.reshape(-1, 1)
    low, high = flat.aminmax(dim=0)
    return low.cpu().double().numpy(), high.cpu().double().numpy()


def _width(width: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return widths, with something to go by where there is none."""
    if not width.any():
        # All rows are alike: only the size of their values is known.
        return np.full_like(width, np.abs(value).max(initial=0.0) or 1.0)
    usual = np.median(width[width > 0])
    return np.where(width > 0, np.maximum(width, usual), width.max())


@dataclass(frozen=True)
class KnownRange:
    """What the training data look like to somebody who has no network.

    Parameters
    ----------
    largest : tuple of float
        Largest absolute value of each input; infinite for whole numbers, which do not round.
    inputs : InputRange
        Where these values lie.
    constant : Prediction
        Class frequencies, or mean and variance of the targets: one row.
    surest : float
        Largest log-odds of one class against another that the network has given a training row.
    rows : str
        What is the same for the same training rows only.
    """

    largest: tuple[float, ...]
    inputs: InputRange
    constant: Categorical | Gaussian
    surest: float = 0.0
    rows: str = ""

    def beyond(self, inputs: Inputs, prediction: Any) -> Tensor:
        """Tell which rows are far outside of where the training rows lie, or of what is learnt.

        A layer adds up what it takes. Next to a value that much larger than any of the training
        data, all others, and the biases, are gone: whatever comes out was never learnt. Means that
        much larger than the targets have no digits left for what was.
        """
        lost = self.inputs.beyond(inputs)
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
    constant = _constant(training, original)
    return KnownRange(sizes, input_range(stored), constant, surest, rows_told)


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
