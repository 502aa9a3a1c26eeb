"""Networks that choose half precision by themselves compute in their own precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .outputs import NetworkErrors


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
