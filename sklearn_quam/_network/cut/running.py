"""What both cuts of a network have in common: copies, other weights, what runs once."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ...exceptions import NetworkError

# Returns what counts of a network's output.
Pick = Callable[[Any], Any]
# How far two ways to compute the same may be apart, in parts of the largest number.
_TOLERANCE = 1e-5


class Watcher(AbstractContextManager, Protocol):
    """Notes values of one run of a network."""

    def values(self, output: Any) -> tuple[Tensor, ...]:
        """Return the values at the cut, with a row for each row of the output."""


class UpToCut(nn.Module):
    """Runs a network, and returns the values at a cut.

    Parameters
    ----------
    module : torch.nn.Module
        The network, a copy of its own.
    rest : torch.nn.Module
        What the network makes of the values. This is checked for every row.
    pick : callable
        Returns what counts of the network's output.
    watch : callable
        Returns what notes the values while a network runs on some inputs.
    """

    def __init__(
        self,
        module: nn.Module,
        rest: nn.Module,
        pick: Pick,
        watch: Callable[[nn.Module, tuple[Any, ...]], Watcher],
    ) -> None:
        super().__init__()
        self.module, self.rest, self.pick, self.watch = module, rest, pick, watch
        self.eval()

    def forward(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Return values at the cut, with a row for each row."""
        with self.watch(self.module, inputs) as watcher:
            output = self.pick(self.module(*inputs))
        values = watcher.values(output)
        if not same(self.rest(*values), output):
            raise NetworkError(
                "For some rows the network does something else behind the cut than for those "
                "that it was tried on. Pass a network that treats all rows alike, or the part of "
                "it that does, with its inputs as X."
            )
        return values


class Noted(threading.local):
    """What was noted in this thread; a copy has nothing."""

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), ()


def copy_sharing(module: nn.Module, but: Iterable[str] = ()) -> nn.Module:
    """Return a copy of a network that has the same tensors, except for some parameters.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    but : iterable of str
        Parameters that are copied.

    Returns
    -------
    torch.nn.Module
        The copy.
    """
    own = {id(module.get_parameter(name)) for name in but}
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(t): t for t in tensors if id(t) not in own})


def with_other_weights(module: nn.Module, names: tuple[str, ...], seed: int) -> nn.Module:
    """Return the network with searched weights that have little to do with the given ones.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    names : tuple of str
        The searched parameters.
    seed : int
        Decides the weights.

    Returns
    -------
    torch.nn.Module
        A copy that shares all other tensors.
    """
    other = copy_sharing(module, but=names)
    generator = torch.Generator().manual_seed(seed)
    for name in names:
        parameter = other.get_parameter(name)
        size = parameter.detach().abs().mean().clamp(min=1e-3)
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        # With the sign turned, what is positive by chance is negative.
        parameter.data = (1 - 2 * (seed % 2)) * parameter.data + size * noise
    return other


def place(module: nn.Module, path: str, value: nn.Parameter | nn.Module) -> None:
    """Put a parameter or module where a path of attributes leads to, unless something is there."""
    *owners, last = path.split(".")
    for name in owners:
        if not hasattr(module, name):
            module.add_module(name, nn.Module())
        module = getattr(module, name)
    if hasattr(module, last):
        return
    if isinstance(value, nn.Parameter):
        module.register_parameter(last, value)
    else:
        module.add_module(last, value)


def same(first: Any, second: Any) -> bool:
    """Tell whether two outputs are the same except for rounding, where they are finite.

    Parameters
    ----------
    first, second : Tensor or sequence of Tensor
        The outputs. A column may be a vector.

    Returns
    -------
    bool
        Whether they are.
    """
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
