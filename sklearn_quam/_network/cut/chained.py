"""A cut before linear layers at the end of a network, one after the other.

What the network does is noted while a few rows run through it. What goes into the first searched
layer are the values at the cut. The layers behind it are matched as a chain, with elementwise
functions between them, and the chain is compared with the network for several weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...exceptions import NetworkError
from ..adapters import TargetUnits
from ..chain import Activation, Layer, read_activation
from ..inputs.rows import Inputs
from ..outputs import NetworkErrors
from .running import Pick, UpToCut, copy_sharing, place, same, with_other_weights

_LINEAR = {functional.linear, torch.ops.aten.linear.default}
_N_TRIALS = 3


class NotAChainError(NetworkError):
    """What is searched is no chain of linear layers at the end."""


@dataclass(frozen=True)
class ChainedLayer:
    """A linear layer of a chain.

    Parameters
    ----------
    path : str
        Where the chain has it.
    weight, bias : str or None
        Names of its parameters in the network; None for what is no parameter.
    activation : Activation or None
        What comes behind it.
    """

    path: str
    weight: str | None
    bias: str | None
    activation: Activation | None


class Chained(nn.Module):
    """Linear layers, one after the other; searched parameters keep their names.

    Parameters
    ----------
    layers : list of ChainedLayer
        What is told of the layers.
    parts : list of torch.nn.Linear
        The layers.
    ending : torch.nn.Module or None
        What comes behind the last one.
    """

    def __init__(
        self, layers: list[ChainedLayer], parts: list[nn.Linear], ending: nn.Module | None
    ) -> None:
        super().__init__()
        # Nothing that could be a name in the network.
        self._told, self._ending = layers, ending
        for layer, part in zip(layers, parts, strict=True):
            place(self, layer.path, part)
            for name, parameter in ((layer.weight, "weight"), (layer.bias, "bias")):
                if name is not None:
                    place(self, name, part.get_parameter(parameter))
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        """Return what the layers make of the values."""
        for layer in self._told:
            values = self.get_submodule(layer.path)(values)
            if layer.activation is not None:
                values = layer.activation(values)
        return values if self._ending is None else self._ending(values)

    def read(self) -> tuple[list[tuple[str, str]], list[Layer], list[Callable[[Tensor], Tensor]]]:
        """Return the names of weights and biases, the layers, and what comes behind the last one.

        The classes of a row are the last axis of a matrix, but the middle one where there are many
        models.
        """
        layers = []
        for one in self._told:
            part: Any = self.get_submodule(one.path)
            layers.append(Layer(part.weight, part.bias, one.activation))
        ending, names = self._ending, [(one.weight or "", one.bias or "") for one in self._told]
        if ending is None:
            return names, layers, []
        if isinstance(ending, TargetUnits):
            return names, layers, [ending.over_middle]
        return names, layers, [type(ending)(dim=1)]

    def extra_repr(self) -> str:
        """Return what the layers are, in words."""
        return repr(self._told)


def cut_before_chain(
    module: nn.Module, names: tuple[str, ...], probe: Inputs, pick: Pick
) -> tuple[UpToCut | None, Chained, bool]:
    """Cut a network before the first searched layer.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    names : tuple of str
        The searched parameters.
    probe : Inputs
        Some rows of input.
    pick : callable
        Returns what counts of the network's output.

    Returns
    -------
    frozen : UpToCut or None
        What comes before the cut; None where the network runs no code of its own. Else it runs
        once for each row, so that errors and branches of its own are noticed.
    rest : Chained
        The chain. An error where the searched parameters are not those of one.
    is_whole : bool
        Whether the chain begins at the input.
    """
    inputs, searched = probe.clone(), {id(module.get_parameter(name)) for name in names}
    with torch.no_grad(), NetworkErrors(), _Noting() as noting:
        output = pick(module(*inputs.parts))
    calls = [c for c in noting.calls if c.function in _LINEAR and not searched.isdisjoint(c.used)]
    if not calls or not isinstance(output, Tensor):
        raise NotAChainError("What is searched is no linear layer.")
    known = {id(p): name for name, p in module.named_parameters()}
    first = next((known[one] for one in calls[0].used if one in known), "")
    chains = _chains(calls[0], noting.calls, known, module)
    trials = [with_other_weights(module, names, seed) for seed in range(_N_TRIALS)]
    for rest, at_position in chains:
        watch = partial(_UpToLayer, name=first, rest=rest, at_position=at_position)
        if _agree(rest, watch, [module, *trials], names, probe, pick):
            is_whole = calls[0].values is inputs.parts[0] and len(inputs.parts) == 1
            if is_whole and _is_plain(module):
                return None, rest, True
            return UpToCut(copy_sharing(module), rest, pick, watch), rest, is_whole
    raise NotAChainError("What is searched is no chain of linear layers at the end.")


def _is_plain(module: nn.Module) -> bool:
    """Tell whether a network is made of modules of torch and of this package alone."""
    homes = {type(part).__module__.partition(".")[0] for part in module.modules()}
    return homes <= {"torch", "sklearn_quam"}


def _agree(
    rest: Chained,
    watch: Callable[..., _UpToLayer],
    trials: list[nn.Module],
    names: tuple[str, ...],
    probe: Inputs,
    pick: Pick,
) -> bool:
    """Tell whether the chain does what the network does, whatever the searched weights are."""
    expected = None
    for trial in trials:
        with torch.no_grad(), NetworkErrors():
            with watch(trial, ()) as watcher:
                output = pick(trial(*probe.clone().parts))
            given = watcher.given
            if given is None or len(given) != len(probe):
                return False
            used: dict[str, Tensor] = {
                name: trial.get_parameter(name) for name in names if _has(rest, name)
            }
            found = functional_call(rest, used, (given,))
        expected = given if expected is None else expected
        if watcher.at_position:
            if found.ndim != 3 or found[:, 0].shape != output.shape:
                return False
            found = at_positions(found, positions(found, output))
        if not same(given, expected) or not same(found, output):
            return False
    return expected is not None and expected.ndim == (3 if watcher.at_position else 2)


def _has(module: nn.Module, name: str) -> bool:
    try:
        module.get_parameter(name)
    except AttributeError:
        return False
    return True


@dataclass(frozen=True)
class _Call:
    """A call of a function: its first argument, tensors among the others, and what it returns."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    returned: Any

    @property
    def values(self) -> Any:
        """What the function is applied to."""
        return self.args[0] if self.args else self.kwargs.get("input")

    @property
    def used(self) -> list[int]:
        """Weight and bias of a linear layer, by their ids."""
        return [id(one) for one in self.layer if one is not None]

    @property
    def layer(self) -> tuple[Any, Any]:
        """Weight and bias of a linear layer."""
        weight, bias = (*self.args[1:], None, None)[:2]
        return self.kwargs.get("weight", weight), self.kwargs.get("bias", bias)


class _Noting(TorchFunctionMode):
    """Notes the functions that a network calls; what it has returned stays alive."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        self.calls.append(_Call(func, tuple(args), kwargs or {}, returned))
        return returned


class _UpToLayer(TorchFunctionMode):
    """Notes what goes into the layer that has a certain weight or bias.

    Parameters
    ----------
    module : torch.nn.Module
        The network that runs.
    inputs : tuple
        What it takes.
    name : str
        The name of the parameter.
    rest : Chained
        What comes behind.
    at_position : bool
        Whether the layer is run on sequences of which the network takes one position.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: tuple,  # noqa: ARG002
        name: str,
        rest: Chained,
        at_position: bool,
    ) -> None:
        super().__init__()
        self._parameter, self._rest = module.get_parameter(name), rest
        self.at_position = at_position
        self.given: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LINEAR:
            call = _Call(func, tuple(args), kwargs or {}, None)
            if id(self._parameter) in call.used:
                # A copy: what comes behind may write into it. Twice is once too often.
                self.given = call.values.clone() if self.given is None else call.values[:0]
        return func(*args, **(kwargs or {}))

    def values(self, output: Any) -> tuple[Tensor, ...]:
        """Return the values at the cut."""
        given = self.given
        if given is None:
            raise NetworkError("For some rows the network does not run the searched layers.")
        if self.at_position:
            given = at_positions(given, positions(self._rest(given), output))
        return (given,)


def positions(values: Tensor, output: Tensor) -> Tensor:
    """Return the position of each sequence of values at which the output was taken."""
    return (values - output[:, None]).abs().amax(dim=-1).argmin(dim=1)


def at_positions(values: Tensor, where: Tensor) -> Tensor:
    """Return the values of each sequence at its position."""
    return values[torch.arange(len(values), device=values.device), where]


def _chains(
    first: _Call, calls: list[_Call], known: dict[int, str], module: nn.Module
) -> list[tuple[Chained, bool]]:
    """Return the chains that the network may be from a layer on, and whether at a position."""
    calls = calls[next(i for i, call in enumerate(calls) if call is first) :]
    layers: list[tuple[_Call, list[Activation]]] = []
    value = first.values
    for call in calls:
        if call.values is not value:
            continue
        if call.function in _LINEAR:
            layers.append((call, []))
        else:
            activation = read_activation(call.function, call.args, call.kwargs)
            if activation is None:
                continue
            layers[-1][1].append(activation)
        value = call.returned
    units = [part for part in module.modules() if isinstance(part, TargetUnits)]
    endings = [None, *units, nn.Softmax(dim=-1), nn.LogSoftmax(dim=-1)]
    found = [(_made(layers, ending, known), False) for ending in endings]
    return [*found, (_made(layers, None, known), True)]


def _made(
    layers: list[tuple[_Call, list[Activation]]], ending: nn.Module | None, known: dict[int, str]
) -> Chained:
    told, parts = [], []
    for number, (call, activations) in enumerate(layers):
        weight, bias = call.layer
        part = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
        part.weight = _as_parameter(weight)
        if bias is not None:
            part.bias = _as_parameter(bias)
        names = known.get(id(weight)), known.get(id(bias))
        steps = tuple(step for one in activations for step in one.steps)
        path = _path(names, bias is not None) or f"layer_{number}_of_chain"
        told.append(ChainedLayer(path, *names, Activation(steps) if steps else None))
        parts.append(part)
    return Chained(told, parts, ending)


def _as_parameter(tensor: Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)


def _path(names: tuple[str | None, str | None], has_bias: bool) -> str:
    """Return the name of the module that has the parameters as its weight and bias."""
    path = (names[0] or "").removesuffix(".weight")
    fits = names[0] == f"{path}.weight" and names[1] == (f"{path}.bias" if has_bias else None)
    return path if fits else ""
