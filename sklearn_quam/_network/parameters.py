"""Which parameters a search may change.

`choose_parameters` turns what a user says ("last_layer", "bias", a glob, LoRA(...), ...) into the
free tensors, their starting values, and a function from those to weights of the module.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from .._messages import shown
from .cut.layers import RunLayer, last_layers

_NORMALISATION = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
_LOW_RANK = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class LoRA:
    """Low-rank updates of linear and convolutional layers.

    The weight matrix W of a layer becomes W + alpha / rank * B A; only the factors B and A are
    searched. A starts at random numbers and B at zero, so that the search starts at the given
    network. Pass it as ``parameters`` of a method.

    Parameters
    ----------
    rank : int, default=4
        Rank of the update of each layer.
    alpha : float, default=None
        Scale of the update; None takes the rank, a scale of one.
    layers : str or list of str, default="*"
        Names of the layers to update, or patterns such as "head*".

    Examples
    --------
    >>> from sklearn_quam import LoRA
    >>> LoRA(rank=2, layers="head*")
    LoRA(rank=2, alpha=None, layers='head*')
    """

    rank: int = 4
    alpha: float | None = None
    layers: str | list[str] = "*"


@dataclass(frozen=True)
class FreeParameters:
    """The tensors a search may change."""

    # Parameters of the module that change with them
    names: tuple[str, ...]
    # The free tensors at the given network
    start: dict[str, Tensor]
    # How many inputs each free tensor combines for an output of its layer
    n_inputs: dict[str, int]
    # For low-rank updates: the weight to add the product of two free tensors to, and a scale
    updates: dict[str, tuple[Tensor, float]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of values that are searched."""
        return sum(tensor.numel() for tensor in self.start.values())

    def weights(self, free: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return parameters of the module by name, for free tensors with any axes in front."""
        if not self.updates:
            return free
        weights = {}
        for name, (given, scale) in self.updates.items():
            change = free[f"{name}.B"] @ free[f"{name}.A"]
            weights[name] = given + scale * change.unflatten(-1, given.shape[1:])
        return weights


def choose_parameters(
    module: nn.Module, parameters: Any, layers: list[RunLayer], seed: int = 0
) -> FreeParameters:
    """Return the free parameters a user asks for; layers come from `layers_in_order`."""
    if parameters == "lora":
        parameters = LoRA()
    if isinstance(parameters, LoRA):
        return _low_rank(module, parameters, seed)
    named = {name: p for name, p in module.named_parameters() if p.is_floating_point()}
    if not named:
        raise ValueError(
            "The network has no parameters that could be searched. If it was quantised, pass it as "
            "it was before."
        )
    names = _names(module, parameters, named, layers)
    if not names:
        raise ValueError(
            f"parameters={shown(parameters)} selects none of the network's parameters."
        )
    start = {name: named[name].detach() for name in names}
    return FreeParameters(tuple(names), start, {name: _n_inputs(name, named) for name in names})


def _names(
    module: nn.Module, parameters: Any, named: dict[str, nn.Parameter], layers: list[RunLayer]
) -> list[str]:
    """Return the selected names, in the module's order; tied parameters are one."""
    if isinstance(parameters, bool) or parameters is None:
        raise TypeError(f"parameters={shown(parameters)} is not understood.")
    if parameters == "all":
        return list(named)
    if parameters == "auto":
        parameters = _n_linear_at_the_end(module, layers)
        if not parameters:
            return list(named)
    if parameters == "last_layer":
        parameters = 1
    aliases = dict(module.named_parameters(remove_duplicate=False))
    if isinstance(parameters, Integral):
        found = [p for layer in last_layers(layers, int(parameters)) for p in layer.parameters]
    elif parameters == "bias":
        found = [p for name, p in aliases.items() if _is_bias(name.split(".")[-1])]
    elif parameters == "norm":
        norms = [part for part in module.modules() if isinstance(part, _NORMALISATION)]
        found = [p for part in norms for p in part.parameters(recurse=False)]
    elif callable(parameters):
        found = [p for name, p in named.items() if parameters(name, p)]
    else:
        found = _matching(parameters, aliases)
    chosen = set(map(id, found))
    return [name for name, p in named.items() if id(p) in chosen]


def _n_inputs(name: str, named: dict[str, nn.Parameter]) -> int:
    """Return how many inputs a parameter combines; a bias has those of the weight beside it."""
    parameter, layer = named[name], name.rpartition(".")[0]
    if parameter.ndim < 2:
        beside = (p for other, p in named.items() if other.rpartition(".")[0] == layer)
        parameter = next((p for p in beside if p.ndim >= 2), parameter)
    rows = len(parameter) if parameter.ndim >= 2 else 1
    return max(1, parameter.numel() // max(1, rows))


def _is_bias(name: str) -> bool:
    # Attention and recurrent layers have several: in_proj_bias, bias_ih_l0.
    return name == "bias" or name.endswith("_bias") or name.startswith("bias_")


def _matching(patterns: str | list[str], named: dict[str, Any]) -> list[Any]:
    """Return what names and globs refer to, or refuse one with the nearest names."""
    found = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        names = [name for name in named if fnmatchcase(name, pattern)]
        if not names:
            near = difflib.get_close_matches(pattern, named, n=3, cutoff=0.3) or list(named)[:3]
            raise ValueError(
                f"No parameter or layer is called {shown(pattern)}; the nearest are {near}. "
                "Besides names and globs, parameters= takes 'auto', 'all', 'last_layer', a number "
                "of layers, 'bias', 'norm', 'lora', a LoRA(...) or a function of (name, parameter)."
            )
        found += [named[name] for name in names]
    return found


def _n_linear_at_the_end(module: nn.Module, layers: list[RunLayer]) -> int:
    """Return how many linear layers there are behind the last layer of another kind.

    A last layer that is only a parameter counts as one.
    """
    if layers and layers[-1].bare:
        return 1
    kinds = [
        not one.bare and isinstance(module.get_submodule(one.name), nn.Linear) for one in layers
    ]
    return kinds[::-1].index(False) if False in kinds else len(kinds)


def _low_rank(module: nn.Module, lora: LoRA, seed: int) -> FreeParameters:
    """Return factors for every layer that a low-rank update fits."""
    if lora.rank < 1:
        raise ValueError(f"LoRA(rank={lora.rank}): the rank must be at least one.")
    canonical = {id(p): name for name, p in module.named_parameters() if p.is_floating_point()}
    # The weight of a layer under weight normalisation is computed, not a parameter.
    layers = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, _LOW_RANK) and id(part.weight) in canonical
    }
    if not layers:
        raise ValueError("LoRA needs linear or convolutional layers; the network has none.")
    chosen = set(map(id, _matching(lora.layers, layers)))
    if not chosen:
        raise ValueError(f"{lora} selects none of the network's layers.")
    generator = torch.Generator().manual_seed(seed)
    start: dict[str, Tensor] = {}
    updates: dict[str, tuple[Tensor, float]] = {}
    scale = (lora.rank if lora.alpha is None else lora.alpha) / lora.rank
    for layer in layers.values():
        name = canonical[id(layer.weight)]
        if id(layer) not in chosen or name in updates:
            continue
        weight = layer.weight.detach()
        rows, columns = weight.shape[0], weight[0].numel()
        draw = torch.randn(lora.rank, columns, generator=generator) / math.sqrt(columns)
        start[f"{name}.A"] = draw.to(weight)
        start[f"{name}.B"] = weight.new_zeros(rows, lora.rank)
        updates[name] = (weight, scale)
    n_inputs = {name: factor.shape[1] for name, factor in start.items()}
    return FreeParameters(tuple(updates), start, n_inputs, updates)
