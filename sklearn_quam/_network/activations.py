"""Functions between layers that act on each number by itself, with their slopes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
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
# Written into the memory of what they are given; their slope is known from what they return.
_IN_PLACE = {"relu": torch.relu_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_}
_PLAIN = (bool, int, float, str, type(None))


def _spellings(name: str) -> list[Any]:
    """Return what a network may call for a function: of torch, of a tensor, in place or not."""
    names = (name, f"{name}_", f"_{name}")
    owners = (torch, functional, torch.Tensor)
    found = [getattr(owner, one, None) for owner in owners for one in names]
    operators = [getattr(torch.ops.aten, one, None) for one in names[:2]]
    return [*found, *(getattr(operator, "default", None) for operator in operators)]


_NAME_OF = {spelling: name for name in _NAMES for spelling in _spellings(name) if spelling}
# Do nothing where nothing is trained.
_IDENTITIES = {
    spelling
    for name in ("dropout", "dropout1d", "dropout2d", "alpha_dropout", "feature_dropout")
    for spelling in _spellings(name)
    if spelling
} | {torch.Tensor.contiguous, torch.Tensor.float, torch.Tensor.to, torch.Tensor.type_as}


@dataclass(frozen=True)
class Activation:
    """Elementwise functions, one after the other.

    Parameters
    ----------
    steps : tuple of tuple
        The name of each function, and its other arguments by position and by name.
    """

    steps: tuple[tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]], ...]

    @property
    def is_in_place(self) -> bool:
        """Whether the slope is known from what is returned, so that nothing else is kept."""
        return len(self.steps) == 1 and self.steps[0][0] in _IN_PLACE

    def __call__(self, values: Tensor) -> Tensor:
        """Return the function of some values, which are left as they are."""
        for name, args, kwargs in self.steps:
            function = getattr(torch, name, None) if name in _IN_PLACE else None
            function = function or getattr(functional, name, None) or getattr(torch, name)
            values = function(values, *args, **dict(kwargs))
        return values

    def apply(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the function of some values, in their memory if possible, and what `back` needs.

        Parameters
        ----------
        values : Tensor
            What a layer returns.

        Returns
        -------
        tuple of Tensor
            What the next layer takes, and what the slope is known from.
        """
        if self.is_in_place:
            values = _IN_PLACE[self.steps[0][0]](values)
            return values, values
        return self(values), values

    def back(self, gradient: Tensor, kept: Tensor) -> Tensor:
        """Return a gradient times the slope, in the memory of the gradient if possible.

        Parameters
        ----------
        gradient : Tensor
            Derivatives by what `apply` has returned.
        kept : Tensor
            What it has returned beside.

        Returns
        -------
        Tensor
            Derivatives by what it was given.
        """
        name, aten = self.steps[0][0], torch.ops.aten
        if not self.is_in_place:
            with torch.enable_grad():
                values = kept.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(self(values), values, gradient)
        elif name == "relu":
            aten.threshold_backward.grad_input(gradient, kept, 0, grad_input=gradient)
        elif name == "tanh":
            aten.tanh_backward.grad_input(gradient, kept, grad_input=gradient)
        else:
            aten.sigmoid_backward.grad_input(gradient, kept, grad_input=gradient)
        return gradient


SIGMOID = Activation((("sigmoid", (), ()),))


def read_activation(function: Any, args: tuple, kwargs: dict[str, Any]) -> Activation | None:
    """Return what a call of a function does, if it is elementwise.

    Parameters
    ----------
    function : callable
        The function.
    args, kwargs : tuple and dict
        Its arguments; the first one is what it is applied to.

    Returns
    -------
    Activation or None
        Without steps if the function does nothing; None if it is not known to be elementwise.
    """
    others, named = _other_arguments(function, args, kwargs)
    if function in _IDENTITIES:
        does_nothing = not (named.get("training") or any(one is True for one in others))
        return Activation(()) if does_nothing else None
    if function in (torch.prelu, functional.prelu) and others and others[0].numel() == 1:
        return Activation((("leaky_relu", (float(others[0]),), ()),))
    plain = all(isinstance(one, _PLAIN) for one in (*others, *named.values()))
    if function not in _NAME_OF or not plain:
        return None
    return Activation(((_NAME_OF[function], others, tuple(named.items())),))


def _other_arguments(
    function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Return all arguments but the first, and but whether the function writes into it."""
    try:
        named = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        # Functions that are not written in Python do not tell.
        own = {name: value for name, value in kwargs.items() if name != "input"}
        return (args[1:] if args else ()), own
    named.pop(next(iter(named)))
    named.pop("inplace", None)
    return (), named
