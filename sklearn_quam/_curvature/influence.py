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

from .._network.limits import accumulation_dtype, rows_within
from .._network.predictions import from_arrays, to_arrays

# The share of the rows that represent the others.
_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Influence:
    """Inputs of the searched layers, for all training samples."""

    # (n_rows, n_in) for each layer, without the constant of the bias
    features: tuple[Tensor, ...]
    # Inverse second moments of these; one longer where there is a constant
    inverses: tuple[Tensor, ...]
    # (n_rows,): cost of an equal change of the outputs of each sample; None where all are the same
    sensitivity: Tensor | None
    # Where the systematic sample begins, between zero and one
    start: float

    def rows_for(
        self, features: list[Tensor], n_rows: int, *, drawn: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return training samples (n_queries, n_rows) for some samples, and their weights.

        The features are the inputs of each layer for the queries. If `drawn`, a part represents all
        other samples.
        """
        total = len(self.features[0])
        if n_rows >= total:
            index = torch.arange(total, device=features[0].device).expand(len(features[0]), -1)
            return index, torch.ones_like(index, dtype=self.features[0].dtype)
        n_drawn = int(_SHARE * n_rows) if drawn else 0
        # Numbers for every training row are large: only for so many rows at once.
        some = rows_within(total * self._bytes_of_a_pair())
        groups = zip(*(part.split(some) for part in features), strict=True)
        found = [self._rows_for(list(group), n_rows, n_drawn) for group in groups]
        index, count = (torch.cat(parts) for parts in zip(*found, strict=True))
        return index, count

    def _bytes_of_a_pair(self) -> int:
        """Return what a row that is asked about takes for each training row."""
        # A kernel, its share and the sum of shares; or strengths, their sums in the widest type,
        # and a copy in that type on the way to these.
        own = self.features[0]
        return 3 * own.element_size() + 2 * accumulation_dtype(own.device).itemsize

    def _rows_for(self, features: list[Tensor], n_rows: int, n_drawn: int) -> tuple[Tensor, Tensor]:
        """Return training rows, some of them drawn, for rows that are worked on together."""
        strength = self._strength(features)
        top = strength.topk(n_rows - n_drawn, dim=1).indices
        rest = strength.scatter_(1, top, 0.0)
        drawn, count = _systematic_sample(rest, n_drawn, self.start)
        once = torch.ones_like(top, dtype=strength.dtype)
        return torch.cat([top, drawn], dim=1), torch.cat([once, count], dim=1)

    def _strength(self, features: list[Tensor]) -> Tensor:
        """Return about what a change for each row costs on each training row."""
        strength: Any = 0.0
        for own, others, inverse in zip(features, self.features, self.inverses, strict=True):
            direction = with_constant(own, inverse) @ inverse
            n_in = others.shape[1]
            kernel = direction[:, :n_in] @ others.T
            if direction.shape[1] > n_in:
                kernel += direction[:, n_in:]
            kernel.square_()
            size = kernel.mean(dim=1, keepdim=True).clamp(min=torch.finfo(kernel.dtype).tiny)
            strength = strength + kernel / size
        return strength if self.sensitivity is None else strength * self.sensitivity

    def __getstate__(self) -> dict[str, Any]:
        arrays = to_arrays((*self.features, *self.inverses, self.sensitivity))
        return {**arrays, "n_layers": len(self.features), "start": self.start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        *tensors, sensitivity = from_arrays(state)
        n_layers = state["n_layers"]
        self.__dict__.update(
            features=tuple(tensors[:n_layers]),
            inverses=tuple(tensors[n_layers:]),
            sensitivity=sensitivity,
            start=state["start"],
        )


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
    # Nothing is left to be drawn where no other row is moved at all.
    return drawn, torch.where(size > 0, count, 0.0).to(sizes.dtype)
