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

# In the memory of what they are given.
ACTIVATIONS = {"relu": torch.relu_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_}


@dataclass(frozen=True)
class Layer:
    """A linear layer and the function behind it.

    Parameters
    ----------
    weight : Tensor
        Given weight of shape (n_out, n_in), used unless it is searched.
    bias : Tensor or None
        Given bias of shape (n_out,), used unless it is searched.
    activation : {"relu", "tanh", "sigmoid"} or None
        Applied to what the layer returns.
    """

    weight: Tensor
    bias: Tensor | None
    activation: str | None = None


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
        widths = sum(len(layer.weight) for layer in self.layers[:-1])
        return 2 * widths * n_rows * self.layers[0].weight.element_size()


class _ChainFunction(torch.autograd.Function):
    """The chain with its gradient for the searched parameters."""

    @staticmethod
    def forward(
        ctx: Any, chain: Chain, rows: Tensor, row: Tensor, keep: bool, *parameters: Tensor | None
    ) -> Tensor:
        n_layers = len(chain.layers)
        weights, biases = parameters[:n_layers], parameters[n_layers:]
        values: list[Tensor] = []
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
            if layer.activation is not None:
                ACTIVATIONS[layer.activation](out)
            values.append(out)
        chain.memory.uses += keep
        ctx.chain, ctx.rows, ctx.row, ctx.use = chain, rows, row, chain.memory.uses
        ctx.values, ctx.weights = values[:-1], weights
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
            value = ctx.values[index - 1]
            out = memory.tensor(("back", index), tuple(value.shape), gradient)
            torch.matmul(_or(ctx.weights[index], layer.weight).mT, gradient, out=out)
            gradient = through_activation(chain.layers[index - 1].activation, out, value)
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


def through_activation(activation: str | None, gradient: Tensor, value: Tensor) -> Tensor:
    """Multiply the gradient, in place, by the activation's slope, known from what it returned."""
    backward = torch.ops.aten
    if activation == "relu":
        backward.threshold_backward.grad_input(gradient, value, 0, grad_input=gradient)
    elif activation == "tanh":
        backward.tanh_backward.grad_input(gradient, value, grad_input=gradient)
    elif activation == "sigmoid":
        backward.sigmoid_backward.grad_input(gradient, value, grad_input=gradient)
    return gradient
