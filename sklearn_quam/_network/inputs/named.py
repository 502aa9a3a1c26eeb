"""A network that takes its inputs by name, as one that takes them in order."""

from __future__ import annotations

from typing import Any

from torch import nn


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
