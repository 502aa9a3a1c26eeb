"""Networks that run as another: with inputs by name, or in their own precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .outputs import NetworkErrors


class SameNames(nn.Module):
    """Wrap a network, and hold its very parameters and parts by the same names."""

    _network: Any

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        # Not as a part: that would put another name before those of its parameters.
        object.__setattr__(self, "_network", network)
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, shared, getattr(network, shared))
        self.training = network.training


class TakesNamed(SameNames):
    """Run a network with inputs that it takes by name, given in the order of the names."""

    def __init__(self, network: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__(network)
        self._named_inputs = names

    def forward(self, *inputs: Any) -> Any:
        """Return the output for inputs in their order."""
        return self._network(**dict(zip(self._named_inputs, inputs, strict=True)))

    def __repr__(self) -> str:
        return repr(self._network)


def returned(module: nn.Module, *inputs: Any) -> Any:
    """Return what a private copy of a network returns, without `torch.autocast` from now on.

    What models cost are small differences, which half precision would not show.
    """
    with NetworkErrors(), _WithoutAutocast() as mode:
        output = module(*inputs)
    if mode.was_needed:
        module.forward = InOwnPrecision(module)
    return output


class _WithoutAutocast(TorchFunctionMode):
    """Computes everything without `torch.autocast`, in this thread."""

    was_needed = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.was_needed = self.was_needed or torch._C._is_any_autocast_enabled()
        with torch._C._DisableAutocast():
            return func(*args, **(kwargs or {}))


class InOwnPrecision:
    """The ``forward`` of a network, without `torch.autocast`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __repr__(self) -> str:
        return "InOwnPrecision()"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network."""
        with _WithoutAutocast():
            return type(self.module).forward(self.module, *args, **kwargs)
