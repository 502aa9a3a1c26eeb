"""What both cuts of a network share: copies, other weights, and a first part that is checked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ...exceptions import NetworkError

# Returns what counts of a network's output.
Pick = Callable[[Any], Any]
# Largest difference of two ways to compute the same, relative to the largest number.
_TOLERANCE = 1e-5


class UpToCut(nn.Module):
    """Run a network, and return the values at a cut; `rest` is checked for every sample."""

    def __init__(self, module: nn.Module, rest: nn.Module, pick: Pick) -> None:
        super().__init__()
        self.module, self.rest, self.pick = module, rest, pick
        self.eval()

    def record(self, *inputs: Any) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the output of the network, and the values at the cut."""
        raise NotImplementedError

    def forward(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Return the values at the cut."""
        output, values = self.record(*inputs)
        if not same(self.rest(*values), output):
            raise NetworkError(
                "For some rows the network does something else behind the cut than for those "
                "that it was tried on. Pass a network that treats all rows alike, or the part of "
                "it that does, with its inputs as X."
            )
        return values


def copy_sharing(module: nn.Module, but: Iterable[str] = ()) -> nn.Module:
    """Return a copy that has the same tensors, except for the named parameters."""
    own = {id(module.get_parameter(name)) for name in but}
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(t): t for t in tensors if id(t) not in own})


def with_other_weights(module: nn.Module, names: tuple[str, ...], seed: int) -> nn.Module:
    """Return a copy whose searched weights have little to do with the given ones."""
    other = copy_sharing(module, but=names)
    generator = torch.Generator().manual_seed(seed)
    for name in names:
        parameter = other.get_parameter(name)
        size = parameter.detach().abs().mean().clamp(min=1e-3)
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        # With the sign turned, outputs that are positive by chance are negative.
        parameter.data = (1 - 2 * (seed % 2)) * parameter.data + size * noise
    return other


def same(first: Any, second: Any) -> bool:
    """Return whether two outputs agree where they are finite; a column may be a vector."""
    if isinstance(second, (tuple, list)):
        pairs = isinstance(first, (tuple, list)) and len(first) == len(second)
        return pairs and all(map(same, first, second))
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    if second.ndim == 1 and first.shape == (len(second), 1):
        first = first[:, 0]
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    finite = torch.isfinite(second)
    size = second[finite].abs().amax() if bool(finite.any()) else 0
    return bool(((first - second)[finite].abs() <= _TOLERANCE * size).all())
