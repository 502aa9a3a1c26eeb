"""Chains of linear layers with elementwise functions between them, at the end of a network.

The functions that the network calls are noted while a few samples run through it. What goes into
the first searched layer are the values at the cut. The layers behind it are matched as a chain,
which is compared with the network for several weights.

Many models run with values laid out as (model, feature, row): the first layer of all models on the
shared rows is a single product, and neither a layer nor its gradient has to be transposed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...exceptions import NetworkError
from ..inputs.rows import Inputs
from ..outputs import NetworkErrors
from .running import Pick, UpToCut, agree, copy_sharing

# Every elementwise function behind a module of torch.nn, and a few more.
_NAMES = (
    ("relu", "tanh", "sigmoid", "gelu", "silu", "elu", "selu", "celu", "leaky_relu", "relu6")
    + ("hardtanh", "hardswish", "hardsigmoid", "hardshrink", "mish", "softplus", "softsign")
    + ("softshrink", "tanhshrink", "logsigmoid", "rrelu", "threshold", "exp", "sin")
)
# Functions that can overwrite their argument, because the slope follows from what they return.
_IN_PLACE = {"relu": torch.relu_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_}
_BACKWARD: dict[str, Callable[..., Tensor]] = {
    "relu": partial(torch.ops.aten.threshold_backward.grad_input, threshold=0),
    "tanh": torch.ops.aten.tanh_backward.grad_input,
    "sigmoid": torch.ops.aten.sigmoid_backward.grad_input,
}


def _spellings(*names: str) -> dict[Any, str]:
    """Return what a network may call for these: of torch or of a tensor, in place or not."""
    found: dict[Any, str] = {}
    for name in names:
        for spelling in (name, f"{name}_", f"_{name}"):
            operator = getattr(torch.ops.aten, spelling, None)
            found[getattr(operator, "default", None)] = name
            for owner in (torch, functional, torch.Tensor):
                found[getattr(owner, spelling, None)] = name
    found.pop(None, None)
    return found


_NAME_OF = _spellings(*_NAMES)
# Functions that do nothing where nothing is trained.
_IDENTITIES = {
    *_spellings("dropout", "dropout1d", "dropout2d", "alpha_dropout", "feature_dropout"),
    *(torch.Tensor.contiguous, torch.Tensor.float, torch.Tensor.to, torch.Tensor.type_as),
}


@dataclass(frozen=True)
class Activation:
    """Elementwise functions, one after the other."""

    # The name of each function, and its other arguments by position and by name
    steps: tuple[tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]], ...]

    @property
    def in_place(self) -> str | None:
        """The name of the only function, if its slope follows from what it returns."""
        name = self.steps[0][0]
        return name if len(self.steps) == 1 and name in _IN_PLACE else None

    def __call__(self, values: Tensor) -> Tensor:
        """Return the function of some values, which are left as they are."""
        for name, args, kwargs in self.steps:
            # functional.tanh and functional.sigmoid warn that they are deprecated.
            owner = torch if name in _IN_PLACE or not hasattr(functional, name) else functional
            function = getattr(owner, name)
            values = function(values, *args, **dict(kwargs))
        return values


SIGMOID = Activation((("sigmoid", (), ()),))


def read_activation(function: Any, args: tuple, kwargs: dict[str, Any]) -> Activation | None:
    """Return what a call of an elementwise function does, None for other functions."""
    others, named = _other_arguments(function, args, kwargs)
    if function in _IDENTITIES:
        does_nothing = not (named.get("training") or any(one is True for one in others))
        return Activation(()) if does_nothing else None
    if function in (torch.prelu, functional.prelu) and others and others[0].numel() == 1:
        return Activation((("leaky_relu", (float(others[0]),), ()),))
    plain = (bool, int, float, str, type(None))
    if function not in _NAME_OF or not all(
        isinstance(one, plain) for one in (*others, *named.values())
    ):
        return None
    return Activation(((_NAME_OF[function], others, tuple(named.items())),))


def _other_arguments(
    function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Return all arguments but the first, and but whether the function writes into it."""
    try:
        named = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        # Functions that are not written in Python have no signature.
        return args[1:], {name: value for name, value in kwargs.items() if name != "input"}
    named.pop(next(iter(named)))
    named.pop("inplace", None)
    return (), named


@dataclass(frozen=True)
class Layer:
    """A linear layer with its given weight (n_out, n_in) and bias, and the function behind it."""

    weight: Tensor
    bias: Tensor | None
    activation: Activation | None = None

    def activated(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the activation of values, in their memory if possible, and what `back` needs."""
        if self.activation is None:
            return values, values
        if self.activation.in_place:
            values = _IN_PLACE[self.activation.in_place](values)
            return values, values
        return self.activation(values), values

    def back(self, gradient: Tensor, kept: Tensor) -> Tensor:
        """Return a gradient, in its memory if possible, times the slope of the activation."""
        if self.activation is None:
            return gradient
        if self.activation.in_place:
            backward = _BACKWARD[self.activation.in_place]
            return backward(gradient, kept, grad_input=gradient)
        with torch.enable_grad():
            values = kept.detach().requires_grad_()
            return torch.autograd.grad(self.activation(values), values, gradient)[0]


class Memory(threading.local):
    """Tensors that are used again in the next step, for each thread and shape.

    Fresh memory for large results would cost as much as the matrix products themselves.
    """

    def __init__(self) -> None:
        self._tensors: dict[Any, Tensor] = {}

    def tensor(self, key: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor of some shape, with any numbers in it."""
        found = self._tensors.get(key)
        if found is None or found.shape != shape or found.dtype != like.dtype:
            found = self._tensors[key] = like.new_empty(shape)
        return found


class Chain:
    """Layers, one after the other; the last one has no activation.

    Searched weights and biases, (n_models, ...), are passed in a list each, None for given ones.
    """

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.memory = Memory()

    def __call__(
        self, weights: list[Tensor | None], biases: list[Tensor | None], rows: Tensor, row: Tensor
    ) -> Tensor:
        """Return outputs (n_models, n_out, n_shared + 1) for shared rows, then each model's row."""
        weight, given = weights[0], self.layers[0].weight
        if weight is None:
            shared, own = (given @ rows.T).expand(len(row), -1, -1), (row @ given.T)[..., None]
        else:
            # A single product for the shared rows of all models.
            shared = (weight.flatten(0, 1) @ rows.T).unflatten(0, weight.shape[:2])
            own = weight @ row[..., None]
        return self._behind(torch.cat([shared, own], dim=-1), weights, biases)

    def each(
        self, weights: list[Tensor | None], biases: list[Tensor | None], rows: Tensor
    ) -> Tensor:
        """Return outputs (n_models, n_out, n_rows) for rows (n_models, n_rows, n_in)."""
        first = weights[0] if weights[0] is not None else self.layers[0].weight
        return self._behind(first @ rows.mT, weights, biases)

    def _behind(
        self, values: Tensor, weights: list[Tensor | None], biases: list[Tensor | None]
    ) -> Tensor:
        """Return outputs for the products of the first layer's weights, which are overwritten."""
        for number, layer in enumerate(self.layers):
            weight, bias = weights[number], biases[number]
            if number:
                values = (layer.weight if weight is None else weight) @ values
            bias = layer.bias if bias is None else bias
            if bias is not None:
                values += bias[..., None]
            values = layer.activated(values)[0]
        return values


_LINEAR = {functional.linear, torch.ops.aten.linear.default}


class Chained(nn.Module):
    """Linear layers, one after the other; parameters keep the names that are `known`."""

    def __init__(
        self, layers: list[Layer], known: dict[int, str], ending: nn.Module | None
    ) -> None:
        super().__init__()
        self._steps, self._ending = [], ending
        for number, layer in enumerate(layers):
            (n_out, n_in), has_bias = layer.weight.shape, layer.bias is not None
            part: Any = nn.Linear(n_in, n_out, has_bias, device="meta")
            for name, value in (("weight", layer.weight), ("bias", layer.bias)):
                if value is not None and not isinstance(value, nn.Parameter):
                    value = nn.Parameter(value, requires_grad=False)
                setattr(part, name, value)
            names = known.get(id(layer.weight), ""), known.get(id(layer.bias), "")
            path = names[0].removesuffix(".weight")
            if names != (f"{path}.weight", f"{path}.bias" if has_bias else ""):
                path = f"layer_{number}_of_chain"
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

    def read(self) -> tuple[list[tuple[str, str]], list[Layer], list[Any]]:
        """Return names of weights and biases, the layers, and functions behind the last layer.

        These functions take values of shape (n_models, n_outputs, n_samples).
        """
        names, layers = [], []
        for path, named, activation in self._steps:
            part: Any = self.get_submodule(path)
            names.append(named)
            layers.append(Layer(part.weight, part.bias, activation))
        endings = [] if self._ending is None else [type(self._ending)(dim=1)]
        return names, layers, endings


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
            raise NetworkError("The first searched layer takes no matrix.")
        if self.at_position:
            differences = (self.rest(given) - output[:, None]).abs().amax(dim=-1)
            taken = differences.argmin(dim=1)
            given = given[torch.arange(len(given), device=given.device), taken]
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
        raise NetworkError("No linear layer is searched.")
    known = {id(p): name for name, p in module.named_parameters()}
    layers = _chain_from(calls[0], noting.calls)
    first = next(known[id(one)] for one in calls[0].layer if id(one) in known)
    copied = copy_sharing(module)
    endings = [None, nn.Softmax(dim=-1), nn.LogSoftmax(dim=-1)]
    for ending, at_position in [*((one, False) for one in endings), (None, True)]:
        rest = Chained(layers, known, ending)
        for name in names:
            _place(rest, name, module.get_parameter(name))
        frozen = UpToChain(copied, rest, pick, first, at_position)
        if agree(frozen, names, probe):
            is_whole = calls[0].values is inputs.parts[0] and len(inputs.parts) == 1
            homes = {type(part).__module__.partition(".")[0] for part in module.modules()}
            runs_own_code = not homes <= {"torch", "sklearn_quam"}
            return frozen if runs_own_code or not is_whole else None, rest, is_whole
    raise NetworkError("The searched parameters are not those of a chain at the end.")


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
