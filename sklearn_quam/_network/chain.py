"""Chains of linear layers with many sets of weights, forward and backward in reused memory.

A search step is a few large matrix products; fresh memory for every result would cost as much as
the products themselves. Values are laid out as (model, feature, row): the first layer of all models
on the shared rows is a single product, and neither a layer nor its gradient has to be transposed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .activations import Activation


@dataclass(frozen=True)
class Layer:
    """A linear layer and the function behind it.

    Parameters
    ----------
    weight : Tensor
        Given weight of shape (n_out, n_in), used unless it is searched.
    bias : Tensor or None
        Given bias of shape (n_out,), used unless it is searched.
    activation : Activation or None
        Applied to what the layer returns.
    """

    weight: Tensor
    bias: Tensor | None
    activation: Activation | None = None

    def activated(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the next layer takes, in the memory of the values if possible.

        Parameters
        ----------
        values : Tensor
            What the layer returns.

        Returns
        -------
        tuple of Tensor
            The same behind the activation, and what `back` needs.
        """
        return (values, values) if self.activation is None else self.activation.apply(values)

    def back(self, gradient: Tensor, kept: Tensor) -> Tensor:
        """Return a gradient, in its memory if possible, times the slope of the activation."""
        return gradient if self.activation is None else self.activation.back(gradient, kept)


class _Memory(threading.local):
    """Tensors that are used again in the next step, for each thread and shape."""

    def __init__(self) -> None:
        self._tensors: dict[Any, Tensor] = {}
        self.uses = 0

    def tensor(self, key: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
        found = self._tensors.get(key)
        if found is None or found.shape != shape or found.dtype != like.dtype:
            found = self._tensors[key] = like.new_empty(shape)
        return found


class Chain:
    """Applies a chain of layers with many sets of weights.

    Parameters
    ----------
    layers : list of Layer
        The layers; the last one has no activation.
    """

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.memory = _Memory()

    def __call__(
        self, weights: list[Tensor | None], biases: list[Tensor | None], rows: Tensor, row: Tensor
    ) -> Tensor:
        """Return what the chain makes of the shared rows and of each model's query row.

        Parameters
        ----------
        weights, biases : list of Tensor of shape (n_models, ...) or None
            The searched parameters of each layer.
        rows : Tensor of shape (n_shared, n_in)
            Rows that every model sees.
        row : Tensor of shape (n_models, n_in)
            One row for each model.

        Returns
        -------
        Tensor of shape (n_models, n_out, n_shared + 1)
            Outputs; the query row comes last.
        """
        return _ChainFunction.apply(self, rows, row, torch.is_grad_enabled(), *weights, *biases)

    def bytes_per_model(self, n_rows: int) -> int:
        """Return the memory that each model's values take, forward and backward."""
        # Values and gradients; most activations need both sides of them, and a copy of a gradient.
        copies = (
            2 if one.activation is None or one.activation.is_in_place else 5 for one in self.layers
        )
        widths = sum(n * len(one.weight) for n, one in zip(copies, self.layers[:-1], strict=False))
        return widths * n_rows * self.layers[0].weight.element_size()


class _ChainFunction(torch.autograd.Function):
    """The chain with its gradient for the searched parameters."""

    @staticmethod
    def forward(
        ctx: Any, chain: Chain, rows: Tensor, row: Tensor, keep: bool, *parameters: Tensor | None
    ) -> Tensor:
        n_layers = len(chain.layers)
        weights, biases = parameters[:n_layers], parameters[n_layers:]
        values: list[Tensor] = []
        kept: list[Tensor] = []
        for index, layer in enumerate(chain.layers):
            shape = (len(row), len(layer.weight), len(rows) + 1)
            if index + 1 < n_layers:
                # Values without a backward pass must not overwrite those that wait for one.
                out = chain.memory.tensor(("value", index, keep), shape, rows)
            else:
                out = rows.new_empty(shape)
            if index == 0:
                _first(weights[0], layer.weight, rows, row, out)
            else:
                torch.matmul(_or(weights[index], layer.weight), values[-1], out=out)
            bias = biases[index] if biases[index] is not None else layer.bias
            if bias is not None:
                out += bias[..., None]
            for found, part in zip((values, kept), layer.activated(out), strict=True):
                found.append(part)
        chain.memory.uses += keep
        ctx.chain, ctx.rows, ctx.row, ctx.use = chain, rows, row, chain.memory.uses
        ctx.values, ctx.kept, ctx.weights = values[:-1], kept[:-1], weights
        return values[-1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        chain, memory = ctx.chain, ctx.chain.memory
        if ctx.use != memory.uses:
            raise RuntimeError("The chain was run again before the gradient was taken.")
        gradient = gradient.contiguous()
        n_layers = len(chain.layers)
        needed = ctx.needs_input_grad[4:]
        weight_gradients: list[Tensor | None] = [None] * n_layers
        bias_gradients: list[Tensor | None] = [None] * n_layers
        for index in reversed(range(n_layers)):
            layer = chain.layers[index]
            if needed[n_layers + index]:
                bias_gradients[index] = gradient.sum(dim=2)
            if needed[index]:
                shape = (len(gradient), *layer.weight.shape)
                out = memory.tensor(("gradient", index), shape, gradient)
                if index == 0:
                    _first_gradient(gradient, ctx.rows, ctx.row, out)
                else:
                    torch.bmm(gradient, ctx.values[index - 1].transpose(1, 2), out=out)
                weight_gradients[index] = out
            if not any((*needed[:index], *needed[n_layers : n_layers + index])):
                break
            kept = ctx.kept[index - 1]
            out = memory.tensor(("back", index), tuple(kept.shape), gradient)
            torch.matmul(_or(ctx.weights[index], layer.weight).mT, gradient, out=out)
            gradient = chain.layers[index - 1].back(out, kept)
        return None, None, None, None, *weight_gradients, *bias_gradients


def _or(searched: Tensor | None, given: Tensor) -> Tensor:
    return given if searched is None else searched


def _first(weight: Tensor | None, given: Tensor, rows: Tensor, row: Tensor, out: Tensor) -> None:
    """Apply the first layer: one product for the shared rows of all models."""
    if weight is None:
        out[..., :-1] = given @ rows.T
        out[..., -1] = row @ given.T
        return
    torch.mm(weight.flatten(0, 1), rows.T, out=out.flatten(0, 1)[:, :-1])
    out[..., -1:] = torch.bmm(weight, row[..., None])


def _first_gradient(gradient: Tensor, rows: Tensor, row: Tensor, out: Tensor) -> None:
    torch.mm(gradient.flatten(0, 1)[:, :-1], rows, out=out.flatten(0, 1))
    out.baddbmm_(gradient[..., -1:], row[:, None, :])
