"""Natural gradients: the cheapest direction that changes a score, by the inverse curvature."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._network.free import Free, FreeNetwork
from .._network.limits import Limits, in_units
from .._network.predictions import HoldsTensors, Prediction
from .._network.reference import TrainingSet
from ..exceptions import CurvatureError
from .layouts import Matrices, Vectors
from .measure import measure_curvature
from .prior import Evidence
from .scores import score_view
from .structures import Block, Kronecker

# Samples on which the curvature is measured, and classes that each of them is differentiated for.
_MAX_ROWS = 20_000
_MAX_COLUMNS = 32


@dataclass(frozen=True, eq=False)
class LayerInverse(HoldsTensors):
    """The inverse curvature of a layer, as a Kronecker product of two inverse factors."""

    layout: Matrices
    inputs: Tensor
    outputs: Tensor

    def __call__(self, values: Free) -> Free:
        """Return the product with parameters, which may have axes in front."""
        return self.layout.parts(self.outputs @ self.layout.joint(values) @ self.inputs)

    def change(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Return how outputs change along the product with gradients of scores.

        Inputs are (n_rows, n_in), gradients and changes (n_rows * n_targets, n_out).
        """
        own = self.layout.inputs(inputs)
        leverage = ((own @ self.inputs.to(own)) * own).sum(dim=-1, keepdim=True)
        leverage = leverage.repeat_interleave(len(gradients) // len(own), dim=0)
        return leverage * (gradients @ self.outputs.to(own))

    def in_double(self) -> LayerInverse:
        """Return the same in double precision."""
        exact = super().in_double()
        inputs, outputs = exact.inputs, exact.outputs
        # Symmetric, which conjugate gradients need; single precision has rounded it.
        return replace(exact, inputs=(inputs + inputs.mT) / 2, outputs=(outputs + outputs.mT) / 2)


@dataclass(frozen=True, eq=False)
class EigenInverse(HoldsTensors):
    """The inverse of a layer's curvature plus a precision, in the bases of its factors."""

    layout: Matrices
    # Bases, a vector in each column
    inputs: Tensor
    outputs: Tensor
    variances: Tensor  # (n_out, n_in): the inverse in these

    def __call__(self, values: Free) -> Free:
        """Return the product with parameters, which may have axes in front."""
        rotated = self.outputs.T @ self.layout.joint(values) @ self.inputs
        return self.layout.parts(self.outputs @ (rotated * self.variances) @ self.inputs.T)

    def change(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Return how outputs change along the product with gradients; see `LayerInverse`."""
        own = self.layout.inputs(inputs)
        leverage = (own @ self.inputs.to(own)).square() @ self.variances.T.to(own)
        leverage = leverage.repeat_interleave(len(gradients) // len(own), dim=0)
        basis = self.outputs.to(own)
        return (leverage * (gradients @ basis)) @ basis.T


@dataclass(frozen=True, eq=False)
class DiagonalInverse(HoldsTensors):
    """The inverse of the diagonal of the curvature of any parameters."""

    layout: Vectors
    values: Tensor

    def __call__(self, values: Free) -> Free:
        """Return the product with parameters, which may have axes in front."""
        return self.layout.unflatten(self.layout.flatten(values) * self.values)


@dataclass(frozen=True, eq=False)
class Preconditioner(HoldsTensors):
    """The inverse curvature of the sum of the training losses, with a prior of some precision."""

    blocks: tuple[LayerInverse | EigenInverse | DiagonalInverse, ...]
    precision: float

    def __call__(self, vectors: Tensor, layout: Vectors) -> Tensor:
        """Return the product with parameters, a row for each model."""
        values = layout.unflatten(vectors)
        parts = [block(values) for block in self.blocks]
        return layout.flatten({name: part for solved in parts for name, part in solved.items()})

    def of_layer(self, weight: str) -> LayerInverse | EigenInverse | None:
        """Return the inverse of the layer that has a weight of this name, if there is one."""
        for block in self.blocks:
            if not isinstance(block, DiagonalInverse) and block.layout.weight == weight:
                return block
        return None


def make_preconditioner(
    network: FreeNetwork,
    training: TrainingSet,
    original: Prediction,
    limits: Limits,
    *,
    precision: float | None,
    n_training_rows: int,
    generator: torch.Generator,
    factored: bool = True,
) -> Preconditioner:
    """Return the inverse curvature of the training loss and a prior, in the type of the network.

    A precision of None takes the one that makes the training data most likely. Factored inverses of
    layers are Kronecker products again, others are exact.
    """
    view = score_view(network, original[:1])
    index = torch.randperm(len(training), generator=generator)[:_MAX_ROWS].sort().values
    structure = "diag" if network.free.updates else "kron"
    _refuse_large_factors(network, structure, limits)
    curvature = measure_curvature(view, training, index, structure, limits, _MAX_COLUMNS)
    if not factored:
        curvature.finish()
    # Each measured sample stands for several.
    share = n_training_rows / len(index)
    like = next(iter(network.free.start.values()))
    if precision is None:
        evidence = Evidence(lambda tau: curvature.log_det(tau / share), network.free.start)
        precision = evidence.best()
    blocks = [_inverse(block, precision, share, like, factored) for block in curvature.blocks]
    return Preconditioner(tuple(blocks), precision)


def _refuse_large_factors(network: FreeNetwork, structure: str, limits: Limits) -> None:
    """Raise an error where the factors of wide layers need more memory than allowed."""
    if structure == "diag":
        return
    sizes = [n for p in network.free.start.values() if p.ndim > 1 for n in (len(p), p[0].numel())]
    squares = [8 * size**2 for size in sizes]
    # All factors, two copies of one while it is inverted, and the inverses in single precision.
    needed = sum(squares) * 3 // 2 + 2 * max(squares, default=0)
    if needed > limits.memory:
        raise CurvatureError(
            f"The curvature of what is searched needs {in_units(needed)}, more than the "
            f"memory_limit of {in_units(limits.memory)}: a searched layer has "
            f"{max(sizes)} inputs or outputs. Pass a larger memory_limit, parameters= without "
            "the widest layer, or search='penalty'."
        )


def _inverse(
    block: Block, precision: float, share: float, like: Tensor, factored: bool
) -> LayerInverse | EigenInverse | DiagonalInverse:
    if isinstance(block, Kronecker) and not factored:
        variances = block.variances(precision / share) / share
        bases = block.input_basis.to(like), block.output_basis.to(like)
        return EigenInverse(block.layout, *bases, variances.to(like))
    if isinstance(block, Kronecker):
        inputs, outputs = block.inverse_factors(precision / share)
        return LayerInverse(block.layout, inputs.to(like), (outputs / share).to(like))
    assert isinstance(block.layout, Vectors)
    return DiagonalInverse(block.layout, (1 / (share * block.eigenvalues + precision)).to(like))
