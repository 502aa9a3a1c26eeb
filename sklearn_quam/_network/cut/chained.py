"""A cut before linear layers at the end of a network, one after the other.

The functions that the network calls are noted while a few samples run through it. What goes into
the first searched layer are the values at the cut. The layers behind it are matched as a chain with
elementwise functions between them, which is compared with the network for several weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...exceptions import NetworkError
from ..chain import Activation, Layer, read_activation
from ..inputs.rows import Inputs
from ..outputs import NetworkErrors
from ..wrapped import TargetUnits
from .running import Pick, UpToCut, agree, copy_sharing

_LINEAR = {functional.linear, torch.ops.aten.linear.default}


class NotAChainError(NetworkError):
    """The searched parameters are not those of a chain of linear layers at the end."""


class Chained(nn.Module):
    """Linear layers, one after the other; parameters keep the names that are `known`."""

    def __init__(
        self, layers: list[Layer], known: dict[int, str], ending: nn.Module | None
    ) -> None:
        super().__init__()
        self._steps, self._ending = [], ending
        for number, layer in enumerate(layers):
            weight, bias = layer.weight, layer.bias
            part = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
            part.weight = _as_parameter(weight)
            if bias is not None:
                part.bias = _as_parameter(bias)
            names = known.get(id(weight), ""), known.get(id(bias), "")
            path = _path(names, bias is not None) or f"layer_{number}_of_chain"
            self._steps.append((path, names, layer.activation))
            _place(self, path, part)
            for name, parameter in zip(names, (part.weight, part.bias), strict=True):
                if name:
                    _place(self, name, parameter)
        self.eval()

    def forward(self, values: Tensor) -> Tensor:
        """Return the output of the last layer."""
        for path, _, activation in self._steps:
            values = self.get_submodule(path)(values)
            if activation is not None:
                values = activation(values)
        return values if self._ending is None else self._ending(values)

    def read(self) -> tuple[list[tuple[str, str]], list[Layer], list[Callable[[Tensor], Tensor]]]:
        """Return names of weights and biases, the layers, and functions behind the last layer.

        These functions take values of shape (n_models, n_outputs, n_samples).
        """
        names, layers = [], []
        for path, named, activation in self._steps:
            part: Any = self.get_submodule(path)
            names.append(named)
            layers.append(Layer(part.weight, part.bias, activation))
        ending = self._ending
        if ending is None:
            return names, layers, []
        if isinstance(ending, TargetUnits):
            return names, layers, [ending.over_middle]
        return names, layers, [type(ending)(dim=1)]


class UpToChain(UpToCut):
    """Run a network, and return the input of the layer that has the named parameter.

    With `at_position`, the layer runs on sequences, of which the network takes one position.
    """

    def __init__(
        self, module: nn.Module, rest: Chained, pick: Pick, name: str, at_position: bool
    ) -> None:
        super().__init__(module, rest, pick)
        self.name, self.at_position = name, at_position

    def record(self, *inputs: Any) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the output of the network, and the values at the cut."""
        with _InputOf(self.module.get_parameter(self.name)) as layer:
            output = self.pick(self.module(*inputs))
        given = layer.given
        if given is None:
            raise NetworkError("For some rows the network does not run the searched layers.")
        if given.ndim != (3 if self.at_position else 2):
            raise NotAChainError("The first searched layer takes no matrix.")
        if self.at_position:
            given = _at(_positions(self.rest(given), output), given)
        return output, (given,)


def cut_before_chain(
    module: nn.Module, names: tuple[str, ...], probe: Inputs, pick: Pick
) -> tuple[UpToChain | None, Chained, bool]:
    """Cut a network before the first searched layer.

    Return the first part, the chain, and whether the chain begins at the input. The first part is
    None only if the network then runs no code of its own, which could branch or raise errors.
    """
    inputs, searched = probe.clone(), {id(module.get_parameter(name)) for name in names}
    with torch.no_grad(), NetworkErrors(), _Noting() as noting:
        output = pick(module(*inputs.parts))
    calls = [c for c in noting.calls if c.function in _LINEAR and searched & set(map(id, c.layer))]
    if not calls or not isinstance(output, Tensor):
        raise NotAChainError("No linear layer is searched.")
    known = {id(p): name for name, p in module.named_parameters()}
    layers = _chain_from(calls[0], noting.calls)
    first = next(known[id(one)] for one in calls[0].layer if id(one) in known)
    copied = copy_sharing(module)
    units = [part for part in module.modules() if isinstance(part, TargetUnits)]
    endings = [None, *units, nn.Softmax(dim=-1), nn.LogSoftmax(dim=-1)]
    for ending, at_position in [*((one, False) for one in endings), (None, True)]:
        rest = Chained(layers, known, ending)
        for name in names:
            _place(rest, name, module.get_parameter(name))
        frozen = UpToChain(copied, rest, pick, first, at_position)
        if agree(frozen, names, probe):
            is_whole = calls[0].values is inputs.parts[0] and len(inputs.parts) == 1
            return None if is_whole and _is_plain(module) else frozen, rest, is_whole
    raise NotAChainError("The searched parameters are not those of a chain at the end.")


def _is_plain(module: nn.Module) -> bool:
    """Return whether a network consists of modules of torch and of this package alone."""
    homes = {type(part).__module__.partition(".")[0] for part in module.modules()}
    return homes <= {"torch", "sklearn_quam"}


def _positions(values: Tensor, output: Tensor) -> Tensor:
    """Return the position of each sequence of values at which the output was taken."""
    return (values - output[:, None]).abs().amax(dim=-1).argmin(dim=1)


def _at(where: Tensor, values: Tensor) -> Tensor:
    return values[torch.arange(len(values), device=values.device), where]


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of a function and what it returned, which stays alive."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    returned: Any = None

    @property
    def values(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else self.kwargs.get("input")

    @property
    def layer(self) -> tuple[Any, Any]:
        """Weight and bias of a linear layer."""
        weight, bias = (*self.args[1:], None, None)[:2]
        return self.kwargs.get("weight", weight), self.kwargs.get("bias", bias)


class _Noting(TorchFunctionMode):
    """Note the functions that a network calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        self.calls.append(_Call(func, tuple(args), kwargs or {}, returned))
        return returned


class _InputOf(TorchFunctionMode):
    """Note the input of the linear layer that has a certain weight or bias."""

    def __init__(self, parameter: nn.Parameter) -> None:
        super().__init__()
        self.parameter = parameter
        self.given: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = _Call(func, tuple(args), kwargs or {})
        if func in _LINEAR and any(one is self.parameter for one in call.layer):
            # A copy: code behind may write into it. A second call is no chain.
            self.given = call.values.clone() if self.given is None else call.values[:0]
        return func(*args, **call.kwargs)


def _chain_from(first: _Call, calls: list[_Call]) -> list[Layer]:
    """Return the linear layers from a call on, each applied to the output before it."""
    layers: list[Layer] = []
    value = first.values
    for call in calls[calls.index(first) :]:
        if call.values is not value:
            continue
        if call.function in _LINEAR:
            layers.append(Layer(*call.layer))
        else:
            activation = read_activation(call.function, call.args, call.kwargs)
            if activation is None:
                continue
            before = layers[-1].activation
            steps = (before.steps if before else ()) + activation.steps
            layers[-1] = replace(layers[-1], activation=Activation(steps) if steps else None)
        value = call.returned
    return layers


def _as_parameter(tensor: Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)


def _path(names: tuple[str, str], has_bias: bool) -> str:
    """Return the name of the module that has the parameters as its weight and bias."""
    path = names[0].removesuffix(".weight")
    return path if names == (f"{path}.weight", f"{path}.bias" if has_bias else "") else ""


def _place(module: nn.Module, path: str, value: nn.Parameter | nn.Module) -> None:
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
