"""A network that takes its inputs by name, as one that takes them in order."""

from __future__ import annotations

from typing import Any

from torch import nn


class TakesNamed(nn.Module):
    """Runs a network with inputs that it takes by name.

    It holds the very parameters and parts of the network, by the same names.

    Parameters
    ----------
    network : torch.nn.Module
        The network.
    names : tuple of str
        The names, in the order in which inputs come.
    """

    def __init__(self, network: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self._named_inputs = names
        self._network_itself: Any
        # Not as a part: that would put another name before those of its parameters.
        object.__setattr__(self, "_network_itself", network)
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, shared, getattr(network, shared))
        self.training = network.training

    def forward(self, *inputs: Any) -> Any:
        """Return what the network returns for inputs in their order."""
        named = dict(zip(self._named_inputs, inputs, strict=True))
        return self._network_itself(**named)

    def __repr__(self) -> str:
        return repr(self._network_itself)
