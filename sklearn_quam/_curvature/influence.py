"""Training samples on which the cost of a change made for one sample is measured.

Such a change moves few training samples: those with similar inputs to the searched layers, seen
through the inverse curvature (leverage). The most influential ones are taken; the others are
represented by a systematic sample with inclusion probabilities in proportion to their influence,
weighted by one over these (Horvitz-Thompson).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._network.limits import accumulation_dtype, rows_within, slices
from .._network.predictions import HoldsTensors

# Training samples that queries are compared with. Of more, these are chosen once, by `fit`.
_POOL, _POOL_SHARE = 2**14, 0.5


@dataclass(frozen=True, eq=False)
class Influence(HoldsTensors):
    """Inputs of the searched layers, for training samples that a change may move."""

    features: tuple[Tensor, ...]  # (n_pool, n_in) for each layer, without the constant of the bias
    # Inverse second moments of these; one longer where there is a constant
    inverses: tuple[Tensor, ...]
    # (n_pool,): cost of an equal change of the outputs of each sample and of those it represents
    sensitivity: Tensor
    # (n_pool,): their numbers, and how many training samples each of them represents
    index: Tensor
    count: Tensor
    start: float  # Where systematic samples begin, between zero and one
    share: float  # That of the samples that represent the others

    def rows_for(self, features: list[Tensor], n_rows: int) -> tuple[Tensor, Tensor]:
        """Return training samples (n_queries, n_rows) for inputs of layers, and their weights."""
        total = len(self.index)
        if n_rows >= total:
            n_queries = len(features[0])
            return self.index.expand(n_queries, -1), self.count.expand(n_queries, -1)
        n_drawn = int(self.share * n_rows)
        # Numbers for every training sample are large, only for some samples at once: a kernel, its
        # share and the sum of shares; or strengths, their sums in the widest type, and a copy in
        # that type on the way to these.
        widest = accumulation_dtype(self.index.device).itemsize
        some = rows_within(total * (3 * self.features[0].element_size() + 2 * widest))
        groups = zip(*(part.split(some) for part in features), strict=True)
        found = [self._rows_for(list(group), n_rows, n_drawn) for group in groups]
        index, count = (torch.cat(parts) for parts in zip(*found, strict=True))
        return index, count

    def _rows_for(self, features: list[Tensor], n_rows: int, n_drawn: int) -> tuple[Tensor, Tensor]:
        """Return training samples, some of them drawn, for a few samples together."""
        strength = self._strength(features)
        top = strength.topk(n_rows - n_drawn, dim=1).indices
        rest = strength.scatter_(1, top, 0.0)
        drawn, count = _systematic_sample(rest, n_drawn, self.start)
        place = torch.cat([top, drawn], dim=1)
        once = torch.ones_like(top, dtype=strength.dtype)
        return self.index[place], torch.cat([once, count], dim=1) * self.count[place]

    def _strength(self, features: list[Tensor]) -> Tensor:
        """Return the approximate cost of a change for each sample on each training sample."""
        strength: Any = 0.0
        for own, others, inverse in zip(features, self.features, self.inverses, strict=True):
            direction = with_constant(own, inverse) @ inverse
            n_in = others.shape[1]
            kernel = direction[:, :n_in] @ others.T
            if direction.shape[1] > n_in:
                kernel += direction[:, n_in:]
            kernel.square_()
            size = kernel @ (self.count / self.count.sum())
            strength = strength + kernel / size.clamp(min=torch.finfo(kernel.dtype).tiny)[:, None]
        return strength * self.sensitivity


def make_influence(
    features: list[Tensor],
    inverses: list[Tensor],
    sensitivity: Tensor | None,
    start: float,
    share: float = 0.25,
) -> Influence:
    """Choose the training samples that a change may move, from all of them.

    By Cauchy-Schwarz, the squared kernel of two samples is at most the product of their leverages.
    Samples with the largest bounds are taken; a systematic sample represents the others.
    """
    total = len(features[0])
    if sensitivity is None:
        sensitivity = features[0].new_ones(total)
    index = torch.arange(total, device=sensitivity.device)
    count = torch.ones_like(sensitivity)
    if total > _POOL:
        bound = sensitivity * _leverage(features, inverses)
        n_drawn = int(_POOL_SHARE * _POOL)
        top = bound.topk(_POOL - n_drawn).indices
        drawn, weight = _systematic_sample(bound.scatter(0, top, 0.0)[None], n_drawn, start)
        index = torch.cat([top, drawn[0]])
        count = torch.cat([count[top], weight[0]])
        sensitivity = sensitivity[index] * count
        features = [part[index] for part in features]
    return Influence(tuple(features), tuple(inverses), sensitivity, index, count, start, share)


def _leverage(features: list[Tensor], inverses: list[Tensor]) -> Tensor:
    """Return the leverage a' A^-1 a of samples, summed over layers."""
    found = features[0].new_zeros(len(features[0]))
    for rows in slices(len(found), _POOL):
        for part, inverse in zip(features, inverses, strict=True):
            own = with_constant(part[rows], inverse)
            found[rows] += ((own @ inverse) * own).sum(dim=-1)
    return found


def with_constant(features: Tensor, inverse: Tensor) -> Tensor:
    """Return features with a constant for the bias, if the inverse has a place for it."""
    if inverse.shape[0] == features.shape[-1]:
        return features
    return torch.cat([features, features.new_ones(*features.shape[:-1], 1)], dim=-1)


def _systematic_sample(sizes: Tensor, n_drawn: int, start: float) -> tuple[Tensor, Tensor]:
    """Return numbers drawn in proportion to sizes, and one over how often each is to be expected.

    Points at equal distances on the line of added-up sizes: what is drawn for a row depends on its
    own sizes only.
    """
    line = sizes.cumsum(dim=1, dtype=accumulation_dtype(sizes.device))
    length = line[:, -1:]
    points = (torch.arange(n_drawn, device=sizes.device) + start) / max(n_drawn, 1) * length
    drawn = torch.searchsorted(line, points).clamp(max=sizes.shape[1] - 1)
    size = sizes.gather(1, drawn).to(line.dtype)
    count = length / (n_drawn * size.clamp(min=torch.finfo(torch.float32).tiny))
    # Nothing is drawn where no other sample moves.
    return drawn, torch.where(size > 0, count, 0.0).to(sizes.dtype)
