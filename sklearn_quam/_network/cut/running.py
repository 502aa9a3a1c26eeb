"""A first part of a network that is checked, copies, and comparisons."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...exceptions import NetworkError
from ..inputs.rows import Inputs
from ..outputs import NetworkErrors

# Returns what counts of a network's output.
Pick = Callable[[Any], Any]
# Largest difference of two ways to compute the same, relative to the largest number.
_TOLERANCE = 1e-5
_N_TRIALS = 3


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
                "For some samples the network does something else behind the cut than for those "
                "that it was tried on. Pass a network that does the same for all samples, or the "
                "part of it that does, with its inputs as X."
            )
        return values


def agree(frozen: UpToCut, names: tuple[str, ...], probe: Inputs) -> bool:
    """Return whether both parts do the same as the network, with the given and other weights."""
    seeds = range(_N_TRIALS if names else 0)
    others = [_with_other_weights(frozen.module, names, seed) for seed in seeds]
    for rows in (probe, probe[:-1]):
        try:
            with torch.no_grad(), NetworkErrors():
                values = frozen(*rows.clone().parts)
                for other in [frozen.module, *others]:
                    weights: dict[str, Tensor] = {name: other.get_parameter(name) for name in names}
                    found = functional_call(frozen.rest, weights, values, tie_weights=True)
                    if not same(found, frozen.pick(other(*rows.clone().parts))):
                        return False
        except NetworkError:
            return False
        if any(len(value) != len(rows) for value in values):
            return False
    return True


def copy_sharing(module: nn.Module, but: Iterable[str] = ()) -> nn.Module:
    """Return a copy that has the same tensors, except for the named parameters."""
    own = {id(module.get_parameter(name)) for name in but}
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(t): t for t in tensors if id(t) not in own})


def _with_other_weights(module: nn.Module, names: tuple[str, ...], seed: int) -> nn.Module:
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
