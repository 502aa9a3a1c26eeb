"""Samples beyond the range of the training data: which these are, and what is answered for them.

Their uncertainty is infinite: nothing that a network returns for them was learnt.
"""

from __future__ import annotations

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
from ..exceptions import BeyondRangeWarning, warn
from .accumulate import make_posterior
from .results import INFINITE, Diagnostics, RowResults, Uncertainty

# A value so many widths of a feature away from its middle is beyond the range, and a sample whose
# root mean square over its features is. Chosen by benchmarks/beyond_range.py, such that known
# samples are within, heavy tails and all.
FACTOR_OF_VALUE = 100.0
FACTOR_OF_ROW = 10.0
# Log-odds, or values in the scale of the targets, that can only be numerical overflow.
_ABSURD = 1e6
# Epistemic uncertainty of such a value that counts as none, in nats or squares of that scale.
_AGREED = 1e-6
_WHY = (
    "values are far outside of the range of all training rows, or so large that the numbers of the "
    "network overflow, saturate or lose all their digits."
)
_WHAT_TO_DO = (
    "Look for fill values such as 1e20, and for features that are not scaled as they were for "
    "training."
)
_ANSWER = "Their epistemic and total uncertainty is 1e300, which stands for infinite."


@dataclass(frozen=True)
class InputRange:
    """Middle and width of the training samples' values, for each input of the network.

    Vectors have an entry for each feature, images and sequences a single one, whole numbers, which
    may be indices, none.
    """

    centre: tuple[np.ndarray, ...]
    # Never zero
    width: tuple[np.ndarray, ...]

    def beyond(
        self,
        inputs: Inputs,
        of_value: float = FACTOR_OF_VALUE,
        of_row: float = FACTOR_OF_ROW,
    ) -> Tensor:
        """Return which samples are more widths away than a value or a sample may be; or are NaN."""
        found = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
        for part, centre, width in zip(inputs.parts, self.centre, self.width, strict=True):
            if len(centre) and part.numel():
                dtype = accumulation_dtype(part.device)
                middle, scale = (torch.as_tensor(v).to(part.device, dtype) for v in (centre, width))
                distance = ((part.reshape(len(part), -1).to(dtype) - middle) / scale).abs_()
                found |= ~(distance.amax(dim=1) <= of_value)
                found |= ~(distance.square_().mean(dim=1) <= of_row**2)
        return found

    def joined(self, other: InputRange) -> InputRange:
        """Return the range of both sets of samples."""
        pairs = [
            (np.minimum(a - v / 2, b - w / 2), np.maximum(a + v / 2, b + w / 2))
            for a, v, b, w in zip(self.centre, self.width, other.centre, other.width, strict=True)
        ]
        centres = tuple((low + high) / 2 for low, high in pairs)
        return InputRange(centres, tuple(high - low for low, high in pairs))


def input_range(stored: Inputs | StoredRows) -> InputRange:
    """Return the range of training samples."""
    extremes: list[Any] = []
    for rows in batches(stored):
        found = [_extremes(part) for part in stored[rows].parts]
        if extremes:
            pairs = zip(extremes, found, strict=True)
            found = [(np.minimum(a[0], b[0]), np.maximum(a[1], b[1])) for a, b in pairs]
        extremes = found
        if not any(len(low) for low, _ in found):
            break  # whole numbers have no range: other rows need not be read
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
    """Return widths that are not zero: of constant features the widest, of others the median."""
    if not width.any():
        # All samples are equal: only the size of their values is known.
        return np.full_like(width, np.abs(value).max(initial=0.0) or 1.0)
    usual = np.median(width[width > 0])
    return np.where(width > 0, np.maximum(width, usual), width.max())


@dataclass(frozen=True)
class TrainingRange:
    """The range of the training data, and the best prediction that is the same for all samples."""

    inputs: InputRange
    # Class frequencies, or mean and variance of the targets: one row
    constant: Categorical | Gaussian
    # Largest log-odds of one class against another that the network gives a training sample
    surest: float = 0.0

    def checked(self, inputs: Inputs, prediction: Prediction) -> tuple[Any, np.ndarray]:
        """Return a prediction without infinite numbers, and which samples are beyond the range."""
        infinite = ~prediction.is_defined()
        if bool(infinite.any()):

            def replaced(part: Tensor, constant: Tensor) -> Tensor:
                return torch.where(infinite[:, None], constant.to(part), part)

            prediction = prediction.map(replaced, self.constant)
        beyond = self.inputs.beyond(inputs) | infinite
        if isinstance(prediction, Gaussian):
            # Means that much larger than the targets have no digits left.
            rounding = torch.finfo(prediction.mean.dtype).eps * prediction.mean.abs()
            beyond |= ~(rounding <= self._scale_of_targets().to(rounding)).all(dim=-1)
        return prediction, beyond.cpu().numpy()

    def saturated(
        self, results: RowResults, agree: np.ndarray, original: Any, setting: str, measure: str
    ) -> np.ndarray:
        """Return for which samples numbers overflow, or are too coarse to separate models.

        ``agree`` says for which samples no model differs from the others.
        """
        numbers = [*results.uncertainty, *results.prediction.T, results.variance.sum(axis=1)]
        finite = (np.abs(numbers) < INFINITE).all(axis=0)
        all_left_out = (results.diagnostics.n_diverged > 0) & agree
        if isinstance(original, Gaussian):
            scale = self._scale_of_targets()
            absurd = (original.mean.abs() > _ABSURD * scale).any(dim=-1).cpu().numpy()
            unit = float((scale**2).sum()) if measure == "variance" else 1.0
            coarse = absurd & (results.uncertainty.epistemic < _AGREED * unit)
        else:
            # The other classes have no probability, or it is lost in the sum with the first. The
            # network may be as sure about its training data: then it takes ten times as much.
            number = torch.finfo(accumulation_dtype(original.device))
            smallest = -math.log(number.tiny if setting == "given" else number.eps)
            margin = _margin(original).cpu().numpy()
            absurd = (margin > max(smallest, 10 * self.surest)) | (margin > _ABSURD)
            coarse = absurd & agree
        return ~finite | all_left_out | coarse

    def _scale_of_targets(self) -> Tensor:
        assert isinstance(self.constant, Gaussian)
        return self.constant.mean.abs() + self.constant.variance.sqrt()


def _margin(prediction: Categorical) -> Tensor:
    """Return the log-odds of the most likely class against the next."""
    first, second = prediction.log_proba.topk(2, dim=-1).values.unbind(dim=-1)
    return first - second


def training_range(training: TrainingSet, original: Prediction) -> TrainingRange:
    """Return the range of training data and of what the network predicts for them."""
    surest = float(_margin(original).max()) if isinstance(original, Categorical) else 0.0
    return TrainingRange(input_range(training.inputs), _constant(training, original), surest)


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
    # Targets that are all zero have no scale.
    variance = torch.where((variance == 0) & (mean == 0), 1.0, variance)
    return Gaussian(mean[None], variance.clamp(min=torch.finfo(dtype).tiny)[None])


def results_beyond_range(
    prediction: Prediction, question: Any, diagnostics: tuple[str, ...]
) -> RowResults:
    """Return an infinite uncertainty around a prediction that is finite."""
    posterior = make_posterior(prediction, "given", question.measure, standard_error=False)
    posterior.update(prediction[None])
    aleatoric = posterior.uncertainty().aleatoric.clip(-INFINITE, INFINITE)
    infinite = np.full_like(aleatoric, INFINITE)
    return RowResults(
        prediction.to_array(),
        Uncertainty(aleatoric, infinite, infinite.copy()),
        Diagnostics._beyond_range(len(aleatoric), diagnostics),
        np.full_like(posterior.variance(), INFINITE),
        _widest(prediction) if question.predictive else None,
    )


def _widest(prediction: Prediction) -> np.ndarray:
    """Return a predictive distribution that leaves everything possible, around a prediction."""
    mean = prediction.to_array()
    if isinstance(prediction, Categorical):
        return np.full_like(mean, 1 / mean.shape[1])
    # Next to a mean that is absurd itself, a standard deviation must not be lost in rounding.
    one_component = (np.ones_like(mean), mean, math.sqrt(INFINITE) + np.abs(mean))
    return np.stack(one_component, axis=-1)[:, :, None]


def warn_beyond_range(beyond: np.ndarray, answer: str = _ANSWER) -> None:
    """Warn about samples beyond the range, and say what is answered for them."""
    if beyond.any():
        warn(
            f"{int(beyond.sum())} of {len(beyond)} rows (the first is row {int(beyond.argmax())}) "
            f"are beyond the range of the training data: {_WHY} {answer} {_WHAT_TO_DO}",
            BeyondRangeWarning,
        )


def refuse_beyond_range(beyond: np.ndarray) -> None:
    """Raise an error for a sample beyond the range, where there is no answer for it."""
    if beyond.any():
        raise ValueError(
            f"Row {int(beyond.argmax())} is beyond the range of the training data: {_WHY} "
            f"{_WHAT_TO_DO}"
        )
