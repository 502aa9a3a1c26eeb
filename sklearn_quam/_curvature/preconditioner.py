"""The cheapest way to change a score: gradients times the inverse of the curvature.

A step of natural search moves along these directions. Everything about them is computed once, when
an estimator is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._network.free import Free, FreeNetwork
from .._network.limits import Limits, in_units, slices
from .._network.predictions import Prediction, from_arrays, to_arrays
from .._network.reference import TrainingSet
from ..exceptions import CurvatureError
from .layouts import Matrices, Vectors
from .measure import measure_curvature
from .prior import Evidence
from .scores import score_view
from .structures import Curvature, Kronecker, Structure

# Rows that the curvature is measured on, and classes that each of them is differentiated for.
_MAX_ROWS = 20_000
_MAX_COLUMNS = 32


@dataclass(frozen=True, eq=False)
class LayerInverse:
    """The inverse curvature of a layer, as a Kronecker product.

    Parameters
    ----------
    layout : Matrices
        The layer's parameters.
    inputs, outputs : Tensor
        Inverse factors.
    """

    layout: Matrices
    inputs: Tensor
    outputs: Tensor

    def __call__(self, values: Free) -> Free:
        """Return the product with parameters, which may have axes in front."""
        return self.layout.parts(self.outputs @ self.layout.joint(values) @ self.inputs)

    def change(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Return how outputs change along the product with gradients of scores.

        Parameters
        ----------
        inputs : Tensor of shape (n_rows, n_in)
            What the layer takes.
        gradients : Tensor of shape (n_rows * n_targets, n_out)
            Derivatives of the scores by what it returns, those of a row side by side.

        Returns
        -------
        Tensor of shape (n_rows * n_targets, n_out)
            Changes for a unit of the way.
        """
        own = self.layout.inputs(inputs)
        leverage = ((own @ self.inputs.to(own)) * own).sum(dim=-1, keepdim=True)
        leverage = leverage.repeat_interleave(len(gradients) // len(own), dim=0)
        return leverage * (gradients @ self.outputs.to(own))

    def __getstate__(self) -> dict:
        return {"layout": self.layout, **to_arrays((self.inputs, self.outputs))}

    def __setstate__(self, state: dict) -> None:
        inputs, outputs = from_arrays(state)
        self.__dict__.update(layout=state["layout"], inputs=inputs, outputs=outputs)


@dataclass(frozen=True, eq=False)
class EigenInverse:
    """The inverse of the sum of a layer's curvature and a precision, in the bases of its factors.

    Parameters
    ----------
    layout : Matrices
        The layer's parameters.
    inputs, outputs : Tensor
        Bases, a vector in each column.
    variances : Tensor of shape (n_out, n_in)
        The inverse in these.
    """

    layout: Matrices
    inputs: Tensor
    outputs: Tensor
    variances: Tensor

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

    def __getstate__(self) -> dict:
        arrays = to_arrays((self.inputs, self.outputs, self.variances))
        return {"layout": self.layout, **arrays}

    def __setstate__(self, state: dict) -> None:
        inputs, outputs, variances = from_arrays(state)
        self.__dict__.update(
            layout=state["layout"], inputs=inputs, outputs=outputs, variances=variances
        )


@dataclass(frozen=True, eq=False)
class DiagonalInverse:
    """The inverse of the diagonal of the curvature of any parameters.

    Parameters
    ----------
    layout : Vectors
        The parameters.
    values : Tensor of shape (n_parameters,)
        The inverse diagonal.
    """

    layout: Vectors
    values: Tensor

    def __call__(self, values: Free) -> Free:
        """Return the product with parameters, which may have axes in front."""
        return self.layout.unflatten(self.layout.flatten(values) * self.values)


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """The inverse curvature of the sum of the training losses.

    Parameters
    ----------
    blocks : tuple
        Inverses of independent parts.
    precision : float
        The precision of the prior that is part of the curvature.
    """

    blocks: tuple[LayerInverse | EigenInverse | DiagonalInverse, ...]
    precision: float

    def __call__(self, values: Free) -> Free:
        """Return the product with parameters, which may have axes in front."""
        parts = [block(values) for block in self.blocks]
        return {name: part for solved in parts for name, part in solved.items()}

    def of_layer(self, weight: str) -> LayerInverse | EigenInverse:
        """Return the inverse of the layer that has a weight of this name."""
        for block in self.blocks:
            if not isinstance(block, DiagonalInverse) and block.layout.weight == weight:
                return block
        raise KeyError(weight)


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
    """Measure the curvature of the training loss, and invert it.

    Parameters
    ----------
    network : FreeNetwork
        The network as a function of what may change.
    training : TrainingSet
        The training data at the cut.
    original : Prediction
        What the given network predicts for some of them.
    limits : Limits
        How much may be held together.
    precision : float or None
        What is added to the curvature of all training rows, the precision of a prior; None takes
        the one that makes the training data most likely.
    n_training_rows : int
        How many rows the network was trained on.
    generator : torch.Generator
        Draws the rows that are looked at, where there are many.
    factored : bool, default=True
        Whether the inverse of a layer is to be a Kronecker product again, or exact.

    Returns
    -------
    Preconditioner
        The inverse, in the type of the network.
    """
    view = score_view(network, original[:1])
    index = torch.randperm(len(training), generator=generator)[:_MAX_ROWS].sort().values
    groups = slices(len(index), limits.number_that_fits(view.bytes_per_row()))
    structure = "diag" if network.free.updates else "kron"
    _refuse_large_factors(network, structure, limits)
    curvature = measure_curvature(
        view, training, index, structure, groups, n_columns=_MAX_COLUMNS, decomposed=not factored
    )
    # Each of the rows that were looked at stands for several.
    share = n_training_rows / len(index)
    like = next(iter(network.free.start.values()))
    if precision is None:
        precision = _likeliest(curvature, network.free.start, share)
    return Preconditioner(
        tuple(_inverse(block, precision, share, like, factored) for block in curvature.blocks),
        precision,
    )


def _likeliest(curvature: Curvature, start: Free, share: float) -> float:
    """Return the prior precision of the largest marginal likelihood."""
    squared_norm = sum(float(value.double().square().sum()) for value in start.values())

    def log_det(precision: float) -> float:
        return float(curvature.log_det(precision / share))

    # What the given network loses does not depend on the prior.
    return Evidence(log_det, squared_norm, 0.0).best()


def _refuse_large_factors(network: FreeNetwork, structure: str, limits: Limits) -> None:
    """Raise an error where the factors of wide layers are larger than what may be used."""
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
    block: Structure, precision: float, share: float, like: Tensor, factored: bool
) -> LayerInverse | EigenInverse | DiagonalInverse:
    if isinstance(block, Kronecker) and not factored:
        *bases, variances = block.inverse_in_basis(precision / share)
        tensors = [tensor.to(like) for tensor in (*bases, variances / share)]
        return EigenInverse(block.layout, *tensors)
    if isinstance(block, Kronecker):
        inputs, outputs = block.inverse_factors(precision / share)
        return LayerInverse(block.layout, inputs.to(like), (outputs / share).to(like))
    assert isinstance(block.layout, Vectors)
    return DiagonalInverse(block.layout, (1 / (share * block.eigenvalues + precision)).to(like))
