"""What is kept of the curvature of the training loss: all of it, a Kronecker product, the diagonal.

The curvature is the generalised Gauss-Newton matrix: the sum over training samples of J' F J, with
J the derivative of a sample's scores (logits, or means) by the free parameters and F the Fisher
information of the scores. Each structure keeps eigenvalues in some basis, so that a prior precision
can be added without another decomposition.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from .._network.free import Free
from ..exceptions import CurvatureError
from .layouts import Layout, Matrices
from .scores import Design, Features, Fisher, Jacobians

AnyLayout = TypeVar("AnyLayout", bound=Layout)


class ScoreSpread(NamedTuple):
    """Gaussian deviations of the scores of samples: basis times independent numbers."""

    # (n_scores, n_scores), (n_samples, n_scores, n_scores), or None for the scores themselves
    basis: Tensor | None
    scale: Tensor  # (n_samples, n_scores): standard deviation along each direction

    def deviations(self, normal: Tensor) -> Tensor:
        """Return deviations (n_models, n_samples, n_scores) of normal numbers for each model."""
        if self.basis is None:
            return normal[:, None] * self.scale
        # The symmetric root does not depend on signs and order of the directions.
        if self.basis.ndim == 2:
            return ((normal @ self.basis)[:, None] * self.scale) @ self.basis.T
        steps = torch.einsum("nkr,mk->mnr", self.basis, normal) * self.scale
        return torch.einsum("nkr,mnr->mnk", self.basis, steps)

    def covariance(self) -> Tensor:
        """Return the covariance of the scores of each sample, (n_samples, n_scores, n_scores)."""
        if self.basis is None:
            return torch.diag_embed(self.scale**2)
        scaled = self.basis * self.scale[:, None, :]
        return scaled @ scaled.mT


def _spread_of(covariance: Tensor) -> ScoreSpread:
    # Samples whose numbers overflow have an undefined spread, and leave the others theirs.
    finite = covariance.isfinite().flatten(1).all(dim=1)
    values, vectors = torch.linalg.eigh(torch.where(finite[:, None, None], covariance, 0.0))
    scale = torch.where(finite[:, None], values.clamp(min=0).sqrt(), math.nan)
    return ScoreSpread(vectors, scale)


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, which rounding must not make negative, and eigenvectors."""
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError as error:
        raise CurvatureError(
            f"The curvature of the training loss has no eigenvalues ({error}). Check the weights "
            "of the network, and whether X is scaled as it was for training."
        ) from error
    return values.clamp(min=0), vectors


def damped_inverse(matrix: Tensor, damping: float) -> Tensor:
    """Return the inverse of a positive semidefinite matrix plus damping times the identity."""
    shifted = matrix.clone()
    shifted.diagonal().add_(damping)
    root, failed = torch.linalg.cholesky_ex(shifted)
    if not failed:
        return torch.cholesky_inverse(root)
    values, basis = _eigen(matrix)
    return (basis / (values + damping)) @ basis.T


# -- structures ----------------------------------------------------------------------------


class Structure(Generic[AnyLayout]):
    """The curvature of some parameters: add samples, finish, and ask."""

    eigenvalues: Tensor
    _stored: ClassVar[dict[str, Any]]  # In a file, once it is finished.

    def __init__(self, layout: AnyLayout) -> None:
        self.layout = layout

    @classmethod
    def _from_store(cls, layout: AnyLayout, **tensors: Tensor) -> Self:
        structure = cls(layout)
        vars(structure).update(tensors)
        return structure

    def finish(self) -> None:
        """Decompose what was added."""

    def rotate(self, values: Free) -> Tensor:
        """Return parameters, which may have axes in front, in the basis of the eigenvalues."""
        return self.layout.flatten(values)

    def log_det(self, precision: float) -> Tensor:
        """Return the log-determinant of (curvature + precision), minus that of the precision."""
        return torch.log1p(self.eigenvalues / precision).sum()

    def covariance(self, design: Jacobians, precision: float) -> Tensor:
        """Return the covariance of scores under (curvature + precision)^-1."""
        rotated = self.rotate(design.values)
        return (rotated / (self.eigenvalues + precision)) @ rotated.mT

    def bytes_per_row(self, n_scores: int) -> int:  # noqa: ARG002
        """Return the memory that a spread takes for a sample besides its design."""
        return 0


class Full(Structure[Layout]):
    """The whole curvature of some parameters."""

    _stored: ClassVar[dict[str, Any]] = {
        "layout": Layout,
        "eigenvalues": Tensor,
        "_vectors": Tensor,
    }

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._matrix: Any = 0.0

    def add(self, design: Design, fisher: Fisher) -> None:
        """Add training samples."""
        if isinstance(design, Jacobians):
            scaled = (fisher.root().mT @ self.layout.flatten(design.values)).flatten(0, 1)
            self._matrix = self._matrix + scaled.T @ scaled
            return
        features, matrices = design.values, fisher.matrices()
        width, n_scores = features.shape[1], matrices.shape[1]
        total = features.new_zeros(n_scores, width, n_scores, width)
        for first in range(n_scores):
            for second in range(first + 1):
                block = (features * matrices[:, first, second, None]).T @ features
                total[first, :, second] = total[second, :, first] = block
        self._matrix = self._matrix + total.reshape(n_scores * width, -1)

    def finish(self) -> None:
        """Decompose what was added."""
        self.eigenvalues, self._vectors = _eigen(self._matrix)
        del self._matrix

    def rotate(self, values: Free) -> Tensor:
        """Return parameters in the basis of the eigenvalues."""
        return self.layout.flatten(values) @ self._vectors

    def spread_of_features(self, features: Tensor, precision: float) -> ScoreSpread:
        """Return how the scores of a linear last layer spread."""
        vectors = self._vectors.unflatten(0, (-1, features.shape[1]))
        rotated = torch.einsum("ni,kip->nkp", features, vectors)
        return _spread_of((rotated / (self.eigenvalues + precision)) @ rotated.mT)

    def bytes_per_row(self, n_scores: int) -> int:
        """Return the memory that a spread takes for a sample besides its design."""
        return 3 * 8 * n_scores * len(self.eigenvalues)

    @staticmethod
    def bytes_needed(n_parameters: int) -> int:
        """Return the memory of the matrix, its eigenvectors and the decomposition."""
        return 4 * n_parameters**2 * 8


class Diagonal(Structure[Layout]):
    """The diagonal of the curvature of some parameters."""

    _stored: ClassVar[dict[str, Any]] = {"layout": Layout, "eigenvalues": Tensor}

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.eigenvalues: Any = 0.0

    def add(self, design: Design, fisher: Fisher) -> None:
        """Add training samples."""
        if isinstance(design, Features):
            squares = (fisher.diagonal().T @ design.values**2).flatten()
        else:
            scaled = fisher.root().mT @ self.layout.flatten(design.values)
            squares = (scaled**2).sum(dim=(0, 1))
        self.eigenvalues = self.eigenvalues + squares

    def spread_of_features(self, features: Tensor, precision: float) -> ScoreSpread:
        """Return how the scores of a linear last layer spread."""
        variances = 1 / (self.eigenvalues.reshape(-1, features.shape[1]) + precision)
        return ScoreSpread(None, (features**2 @ variances.T).sqrt())


class Kronecker(Structure[Matrices]):
    """The curvature of a linear or convolutional layer as a Kronecker product (K-FAC).

    One factor is the second moment of the layer's inputs, the other that of the gradients at its
    outputs. Weight and bias are taken together.
    """

    _stored: ClassVar[dict[str, Any]] = {
        "layout": Matrices,
        "_inputs": Tensor,
        "input_basis": Tensor,
        "_outputs": Tensor,
        "output_basis": Tensor,
    }

    def __init__(self, layout: Matrices) -> None:
        super().__init__(layout)
        self._inputs: Any = 0.0
        self._outputs: Any = 0.0
        self._total = 0.0

    def add(self, design: Design, fisher: Fisher) -> None:
        """Add training samples of a linear last layer."""
        assert isinstance(design, Features)
        inputs, weight = design.values, fisher.weight
        weighted = inputs if weight is None else inputs * weight[:, None]
        self._inputs = self._inputs + weighted.T @ inputs
        self._outputs = self._outputs + fisher.total()
        self._total += len(inputs) if weight is None else float(weight.sum())

    def add_moments(self, inputs: Tensor, gradients: Tensor, weight: Tensor) -> None:
        """Add training samples by inputs and gradients as in `Jacobians.places`, and weights.

        The gradients are times a root of the Fisher information of the scores.
        """
        inputs = self.layout.inputs(inputs)
        weighted = inputs * weight[:, None, None]
        self._inputs = self._inputs + torch.einsum("nti,ntj->ij", weighted, inputs)
        moment = torch.einsum("nkta,nktb->ab", gradients, gradients)
        self._outputs = self._outputs + moment / inputs.shape[1]
        self._total += float(weight.sum())

    def finish(self) -> None:
        """Decompose what was added."""
        self._inputs, self.input_basis = _eigen(self._inputs / (self._total or 1.0))
        self._outputs, self.output_basis = _eigen(self._outputs)

    def inverse_factors(self, precision: float) -> tuple[Tensor, Tensor]:
        """Return inverses of both factors, of inputs and outputs, with factored damping.

        The product of the dampings is the precision, and each is in proportion to the mean
        eigenvalue of its factor. The factors must not be decomposed yet, and are used up.
        """
        factors = self._inputs / (self._total or 1.0), self._outputs
        self._inputs = self._outputs = None
        means = [max(float(factor.diagonal().mean()), 1e-30) for factor in factors]
        ratio = math.sqrt(means[0] / means[1])
        root = math.sqrt(precision)
        return damped_inverse(factors[0], root * ratio), damped_inverse(factors[1], root / ratio)

    @property
    def eigenvalues(self) -> Tensor:  # type: ignore[override]
        """Eigenvalues of the product, in any order."""
        return (self._outputs[:, None] * self._inputs).flatten()

    def variances(self, precision: float) -> Tensor:
        """Return the inverse of (curvature + precision) in the bases of the factors."""
        return 1 / (self._outputs[:, None] * self._inputs + precision)

    def rotate(self, values: Free) -> Tensor:
        """Return parameters in the basis of the eigenvalues."""
        joint = self.layout.joint(values)
        return (self.output_basis.T @ joint @ self.input_basis).flatten(-2)

    def covariance(self, design: Jacobians, precision: float) -> Tensor:
        """Return the covariance of scores under (curvature + precision)^-1."""
        if self.layout.layer not in design.places:
            return super().covariance(design, precision)
        inputs, gradients = design.places[self.layout.layer]
        inputs = self.layout.inputs(inputs) @ self.input_basis
        gradients = gradients @ self.output_basis
        if inputs.shape[1] == 1:
            # A product of two vectors: its square is one of squares.
            weights = (inputs[:, 0] ** 2 @ self.variances(precision).T)[:, None]
            return (gradients[:, :, 0] * weights) @ gradients[:, :, 0].mT
        rotated = torch.einsum("nkto,nti->nkoi", gradients, inputs).flatten(2)
        return (rotated / (self.eigenvalues + precision)) @ rotated.mT

    def spread_of_features(self, features: Tensor, precision: float) -> ScoreSpread:
        """Return how the scores of a linear last layer spread."""
        variances = (features @ self.input_basis) ** 2 @ self.variances(precision).T
        return ScoreSpread(self.output_basis, variances.sqrt())


Block = Full | Diagonal | Kronecker


class Curvature:
    """A curvature of independent blocks."""

    _stored: ClassVar[dict[str, Any]] = {"blocks": list[Block]}

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks

    def finish(self) -> None:
        """Decompose what was added."""
        for block in self.blocks:
            block.finish()

    def log_det(self, precision: float) -> Tensor:
        """Return the log-determinant of (curvature + precision), minus that of the precision."""
        return torch.stack([block.log_det(precision) for block in self.blocks]).sum()

    def spread(self, design: Design, precision: float) -> ScoreSpread:
        """Return how the scores of samples spread under (curvature + precision)^-1."""
        if isinstance(design, Features):
            (head,) = self.blocks
            return head.spread_of_features(design.values, precision)
        parts = [block.covariance(design, precision) for block in self.blocks]
        return _spread_of(torch.stack(parts).sum(dim=0))

    def bytes_per_row(self, n_scores: int) -> int:
        """Return the memory that a spread takes for a sample besides its design."""
        return max(block.bytes_per_row(n_scores) for block in self.blocks)
