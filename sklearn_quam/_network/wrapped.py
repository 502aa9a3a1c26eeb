"""Networks that run as another: inputs by name, in their own precision, in the target's units."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .outputs import NetworkErrors, first, picked


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
    with NetworkErrors(), _NotingAutocast() as noting:
        output = module(*inputs)
    if not noting.seen:
        return output
    module.forward = InOwnPrecision(module)
    with NetworkErrors():
        return module(*inputs)


class _NotingAutocast(TorchFunctionMode):
    """Notes whether anything is computed under `torch.autocast`."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch._C._is_any_autocast_enabled()
        return func(*args, **(kwargs or {}))


class _WithoutAutocast(TorchFunctionMode):
    """Computes everything without `torch.autocast`, in this thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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


class TargetUnits(nn.Module):
    """Convert predictions to the units of the target.

    This is not done in the weights of the last layer, so that their prior stays the same.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: np.ndarray, shift: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale), persistent=False)
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Return values of shape (..., n_outputs) in the units of the target."""
        return values * self.scale + self.shift

    def over_middle(self, values: Tensor) -> Tensor:
        """Return the same for values whose outputs are the last axis but one."""
        return values * self.scale[:, None] + self.shift[:, None]


class _InTargetUnits:
    """A network's ``forward`` in the units of the target."""

    def __init__(self, module: nn.Module, output: str | int | None) -> None:
        self.module, self.output = module, output

    def __repr__(self) -> str:
        return "InTargetUnits()"

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        output = type(self.module).forward(self.module, *args, **kwargs)
        output = first(picked(output, self.output))
        units: Any = self.module.target_units
        return units(output if output.ndim == 2 else output[:, None])


def in_target_units(
    module: nn.Module, scale: np.ndarray, shift: np.ndarray, output: str | int | None
) -> None:
    """Let a network return the target in its own units."""
    like = next(module.parameters())
    units = TargetUnits(scale, shift).to(like.device, like.dtype)
    if type(module) is nn.Sequential:
        module.append(units)
        return
    module.add_module("target_units", units)
    module.forward = _InTargetUnits(module, output)
