"""Free parameters as vectors, or as the matrix of a layer. Values may have axes in front."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._network.free import Free


@dataclass(frozen=True)
class Vectors:
    """Some free parameters as one vector, tensor after tensor."""

    shapes: dict[str, torch.Size]

    def flatten(self, values: Free) -> Tensor:
        """Return values as vectors, (..., n_parameters)."""
        parts = []
        for name, shape in self.shapes.items():
            value = values[name]
            parts.append(value.reshape(*value.shape[: value.ndim - len(shape)], -1))
        return torch.cat(parts, dim=-1)

    def unflatten(self, vectors: Tensor) -> Free:
        """Return vectors as values by name."""
        parts = vectors.split([shape.numel() for shape in self.shapes.values()], dim=-1)
        return {
            name: part.reshape(*part.shape[:-1], *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


@dataclass(frozen=True)
class Matrices:
    """Weight and bias of a layer as one matrix: the bias is the weight of a constant input."""

    # Names of the free parameters of the layer, at least one of them
    weight: str | None
    bias: str | None
    shapes: dict[str, torch.Size]
    layer: str = ""  # Name of the layer

    def joint(self, values: Free) -> Tensor:
        """Return values as matrices, (..., n_out, n_in)."""
        parts = []
        if self.weight is not None:
            parts.append(values[self.weight].flatten(1 - len(self.shapes[self.weight])))
        if self.bias is not None:
            parts.append(values[self.bias][..., None])
        return torch.cat(parts, dim=-1)

    def inputs(self, inputs: Tensor) -> Tensor:
        """Return the factor of the matrix for inputs of the layer, (..., n_in)."""
        parts = [inputs] * (self.weight is not None)
        if self.bias is not None:
            parts.append(inputs.new_ones(*inputs.shape[:-1], 1))
        return torch.cat(parts, dim=-1)

    def parts(self, joint: Tensor) -> Free:
        """Return matrices as values by name."""
        values = {}
        if self.weight is not None:
            shape = self.shapes[self.weight]
            values[self.weight] = joint[..., : shape[1:].numel()].unflatten(-1, shape[1:])
        if self.bias is not None:
            values[self.bias] = joint[..., -1]
        return values

    def flatten(self, values: Free) -> Tensor:
        """Return values as vectors, (..., n_parameters)."""
        return self.joint(values).flatten(-2)


Layout = Vectors | Matrices
