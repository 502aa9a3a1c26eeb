"""From what a network returns to a prediction and the likelihood of the targets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .outputs import InvalidOutputError, first, picked
from .predictions import Categorical, Gaussian

CLASSIFIER_LINKS = ("logits", "log_probabilities", "probabilities", "binary_logit", "probability")
REGRESSOR_LINKS = ("mean", "mean_variance", "mean_log_variance")

# How far probabilities may be from summing to one: rounding in half precision stays below.
_NORMALISATION_TOLERANCE = 1e-2

# What a network returns; further parts of a tuple are not looked at.
Output = Tensor | tuple[Tensor, ...] | list[Tensor]


@dataclass(frozen=True)
class CategoricalLikelihood:
    """Class probabilities out of a network's output."""

    # One of CLASSIFIER_LINKS
    link: str
    # Which of several outputs; see `picked`
    output: str | int | None = None
    kind: ClassVar = Categorical

    def pick(self, output: Any) -> Any:
        """Return what counts of all that the network returns."""
        return first(picked(output, self.output))

    def prediction(self, output: Output) -> Categorical:
        """Return what an output of the network means."""
        return Categorical(self.log_proba(as_columns(self.pick(output)), dim=-1))

    def log_proba(self, scores: Tensor, dim: int) -> Tensor:
        """Return log-probabilities of scores whose classes are along any axis."""
        if self.link == "binary_logit":
            return torch.cat([logsigmoid(-scores), logsigmoid(scores)], dim=dim)
        if self.link == "probability":
            scores = torch.cat([1 - scores, scores], dim=dim)
        if self.link in ("probability", "probabilities"):
            # A probability that underflowed to zero is no more than the smallest normal number.
            scores = scores.clamp(min=torch.finfo(scores.dtype).tiny).log()
        return torch.log_softmax(scores, dim=dim)

    @property
    def scores_are_logits(self) -> bool:
        """Whether scores are the logits of all classes, which depend on each other."""
        return self.link != "binary_logit"

    def fisher_diagonal(self, scores: Tensor) -> Tensor:
        """Return the diagonals of the Fisher information of scores (n_rows, n_scores)."""
        if not self.scores_are_logits:
            return torch.sigmoid(scores) * torch.sigmoid(-scores)
        proba = torch.softmax(scores, dim=-1)
        return proba * (1 - proba)

    def negative_log_likelihood(self, prediction: Categorical, target: Tensor) -> Tensor:
        """Return the loss of each row, (..., n_rows), for class indices (n_rows,)."""
        log_proba = prediction.log_proba
        index = target.expand(log_proba.shape[:-1]).unsqueeze(-1)
        return -log_proba.gather(-1, index).squeeze(-1)

    def check(self, output: Output) -> None:
        """Refuse output for training rows that the link cannot be applied to."""
        scores = _checked_columns(self.pick(output))
        width = scores.shape[-1]
        is_single = self.link in ("binary_logit", "probability")
        if is_single and width != 1:
            raise InvalidOutputError(
                f"The network returns {width} columns, but link='{self.link}' means one. "
                "Pass link='logits' if the columns are class scores, or 'probabilities'."
            )
        if not is_single and width == 1:
            right = "probability" if _in_unit_range(scores) else "binary_logit"
            raise InvalidOutputError(
                f"The network returns a single column, but link='{self.link}' needs one column "
                f"for each class. Pass link='{right}' if it is the "
                f"{right.replace('binary_', '')} of the second class."
            )
        if self.link == "probability" and not _in_unit_range(scores):
            raise InvalidOutputError(
                "The network's outputs are not between 0 and 1, which link='probability' means. "
                "Pass link='binary_logit' for scores without a sigmoid behind them."
            )
        if self.link == "probabilities" and not _sums_to_one(scores):
            raise InvalidOutputError(
                "The network's outputs are not probabilities (not between 0 and 1, or not summing "
                "to 1), which link='probabilities' means; in skorch the default NLLLoss means it, "
                "too. Pass link='logits' for unnormalised scores (in skorch with "
                "criterion=nn.CrossEntropyLoss), or link='log_probabilities' behind a log-softmax."
            )
        if self.link == "log_probabilities" and not _sums_to_one(scores.exp()):
            raise InvalidOutputError(
                "The network's outputs are not log-probabilities (their exponentials do not sum "
                "to 1), which link='log_probabilities' means. Pass link='logits' for unnormalised "
                "scores, or link='probabilities' behind a softmax."
            )

    def n_outputs(self, output: Output) -> int:
        """Return the number of classes the network knows."""
        return max(as_columns(self.pick(output)).shape[-1], 2)


@dataclass(frozen=True)
class GaussianLikelihood:
    """Means and variances out of a network's output."""

    # One of REGRESSOR_LINKS; two parts are a tuple, or the two halves of the columns
    link: str
    # Of each output, for networks that return the mean only
    noise_variance: Tensor | None = None
    output: str | int | None = None
    # Factors and shifts from the means that the network returns to the target. They are not put
    # into the weights of the last layer, so that the prior of these stays the same.
    units: tuple[Tensor, Tensor] | None = None
    kind: ClassVar = Gaussian
    scores_are_logits: ClassVar = False

    def pick(self, output: Any) -> Any:
        """Return what counts of all that the network returns: a tensor, or mean and variance."""
        found = picked(output, self.output)
        return first(found) if self.link == "mean" else found

    def prediction(self, output: Output) -> Gaussian:
        """Return means and variances of shape (..., n_outputs)."""
        output = self.pick(output)
        if self.link == "mean":
            mean = as_columns(output)
            if self.units is not None:
                scale, shift = self.units
                mean = mean * scale.to(mean) + shift.to(mean)
            noise = self.noise_variance
            variance = torch.ones_like(mean) if noise is None else noise.to(mean).expand_as(mean)
            return Gaussian(mean, variance)
        mean, variance = _two_parts(output)
        return Gaussian(mean, variance.exp() if self.link == "mean_log_variance" else variance)

    def fisher_diagonal(self, scores: Tensor) -> Tensor:
        """Return the diagonals, of means and then of any logarithms of variances."""
        precision = 1 / self.prediction(scores).variance
        if self.link != "mean":
            precision = torch.cat([precision, torch.full_like(precision, 0.5)], dim=-1)
        return precision

    def negative_log_likelihood(self, prediction: Gaussian, target: Tensor) -> Tensor:
        """Return the loss of each row, (..., n_rows), for targets (n_rows, n_outputs)."""
        squares = (prediction.mean - target) ** 2 / prediction.variance
        return 0.5 * (squares + (2 * math.pi * prediction.variance).log()).sum(dim=-1)

    def check(self, output: Output) -> None:
        """Refuse output for training rows that the link cannot be applied to."""
        output = picked(output, self.output)
        if self.link == "mean":
            if isinstance(output, (tuple, list)) and len(output) > 1:
                raise InvalidOutputError(
                    f"The network returns {len(output)} outputs, but link='mean' means one. Pass "
                    "link='mean_variance' if they are mean and variance, 'mean_log_variance' if "
                    "they are mean and log variance."
                )
            _checked_columns(output)
            return
        for part in output[:2] if isinstance(output, (tuple, list)) else (output,):
            _checked_columns(part)
        mean, variance = _two_parts(output)
        if mean.shape != variance.shape:
            raise InvalidOutputError(
                f"The network returns means of shape {tuple(mean.shape)} and variances of shape "
                f"{tuple(variance.shape)}; they must have the same shape."
            )
        if self.link == "mean_variance" and bool((variance <= 0).any()):
            raise InvalidOutputError(
                "The network returns variances that are not positive. Put a softplus or an "
                "exponential behind them, or pass link='mean_log_variance' if it returns their "
                "logarithms."
            )

    def n_outputs(self, output: Output) -> int:
        """Return the number of real values the network predicts."""
        found = self.pick(output)
        mean = found if self.link == "mean" else _two_parts(found)[0]
        return as_columns(mean).shape[-1]


Likelihood = CategoricalLikelihood | GaussianLikelihood


def as_columns(output: Output) -> Tensor:
    """Return the network's (first) output as a matrix with a row for each sample."""
    columns = first(output)
    return columns.unsqueeze(-1) if columns.ndim == 1 else columns


def _two_parts(output: Output) -> tuple[Tensor, Tensor]:
    if isinstance(output, (tuple, list)):
        if len(output) < 2:
            raise InvalidOutputError(
                "The network returns one output, but its link means mean and variance."
            )
        return as_columns(output[0]), as_columns(output[1])
    columns = as_columns(output)
    if columns.shape[-1] % 2:
        raise InvalidOutputError(
            f"The network returns {columns.shape[-1]} columns, which cannot be halved into means "
            "and variances. Return a tuple (mean, variance), or pass link='mean'. Of quantiles, "
            "return the median alone."
        )
    mean, variance = columns.chunk(2, dim=-1)
    return mean, variance


def _checked_columns(output: Output) -> Tensor:
    scores = first(output)
    if not isinstance(scores, Tensor):
        raise InvalidOutputError(
            f"The network returns a {type(scores).__name__}; it must return a tensor (or a tuple "
            "that begins with one). Wrap it in a module whose forward picks the tensor."
        )
    if scores.ndim not in (1, 2):
        raise InvalidOutputError(
            f"The network returns a tensor of shape {tuple(scores.shape)}; it must be "
            "(n_samples, n_outputs). Flatten or pool the further axes in the network. If they are "
            "classes of pixels or tokens, wrap this estimator: DenseClassifier(...). Of a causal "
            "language model, pass the head alone: X are hidden states, y the tokens that follow."
        )
    if not scores.is_floating_point():
        raise InvalidOutputError(
            f"The network returns {scores.dtype}; it must return floating point scores, not labels."
        )
    if not bool(torch.isfinite(scores).all()):
        raise InvalidOutputError(
            "The network returns NaN or infinite values for rows of the training data. Check its "
            "weights (did the training diverge?) and whether X is scaled as it was for training."
        )
    return as_columns(scores)


def _in_unit_range(proba: Tensor) -> bool:
    return bool(((proba >= 0) & (proba <= 1 + _NORMALISATION_TOLERANCE)).all())


def _sums_to_one(proba: Tensor, tolerance: float = _NORMALISATION_TOLERANCE) -> bool:
    close = (proba.sum(dim=-1) - 1).abs() < tolerance
    return _in_unit_range(proba) and bool(close.all())


def looks_like_probabilities(output: Output) -> bool:
    """Return whether scores are never negative and sum to one; a single column need not."""
    scores = as_columns(output)
    if scores.shape[-1] == 1:
        return _in_unit_range(scores)
    return _sums_to_one(scores, tolerance=1e-4)


def infer_link(output: Output, task: str) -> str:
    """Return the link of a network whose estimator does not say it, from its output."""
    if task == "regressor":
        parts = len(output) if isinstance(output, (tuple, list)) else 1
        return "mean_variance" if parts > 1 else "mean"
    scores = _checked_columns(output)
    if scores.shape[-1] > 1 and _sums_to_one(scores):
        return "probabilities"
    if scores.shape[-1] > 1 and _sums_to_one(scores.exp()):
        return "log_probabilities"
    raise InvalidOutputError(
        "The net's loss does not show what its module returns. Pass link=, one of "
        f"{CLASSIFIER_LINKS}."
    )
