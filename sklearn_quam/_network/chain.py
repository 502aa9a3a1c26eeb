"""Chains of linear layers with elementwise functions between them, run with many sets of weights.

Values are laid out as (model, feature, row): the first layer of all models on the shared rows is a
single product, and neither a layer nor its gradient has to be transposed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

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
    def is_in_place(self) -> bool:
        """Whether the slope follows from what is returned."""
        return len(self.steps) == 1 and self.steps[0][0] in _IN_PLACE

    def __call__(self, values: Tensor) -> Tensor:
        """Return the function of some values, which are left as they are."""
        for name, args, kwargs in self.steps:
            function = getattr(torch, name, None) if name in _IN_PLACE else None
            function = function or getattr(functional, name, None) or getattr(torch, name)
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
        if self.activation.is_in_place:
            values = _IN_PLACE[self.activation.steps[0][0]](values)
            return values, values
        return self.activation(values), values

    def back(self, gradient: Tensor, kept: Tensor) -> Tensor:
        """Return a gradient, in its memory if possible, times the slope of the activation."""
        if self.activation is None:
            return gradient
        if self.activation.is_in_place:
            backward = _BACKWARD[self.activation.steps[0][0]]
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
