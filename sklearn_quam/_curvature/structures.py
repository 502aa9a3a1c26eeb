"""What is kept of the curvature of the training loss: all of it, a Kronecker product, the diagonal.

The curvature is the generalised Gauss-Newton matrix: the sum over training rows of J' F J, with J
the derivative of a row's scores (logits, or means) by the free parameters and F the Fisher
information of the scores. The structures share one protocol: ``add`` rows, ``finish``, and then ask
for eigenvalues, ``solve``, ``draw``, ``log_det`` and the ``spread`` of scores. Each keeps
eigenvalues in some basis, so that a prior precision can be added without decomposing it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from .._network.free import Free
from ..exceptions import CurvatureError
from .layouts import Layout, Matrices
from .scores import Design, Features, Fisher, Places

AnyLayout = TypeVar("AnyLayout", bound=Layout)


class ScoreSpread(NamedTuple):
    """Gaussian deviations of the scores of some rows: basis times independent numbers.

    Parameters
    ----------
    basis : Tensor of shape (n_scores, n_scores), (n_rows, n_scores, n_scores) or None
        Columns are the directions of the deviations; None are the scores themselves.
    scale : Tensor of shape (n_rows, n_scores)
        Standard deviation along each of them.
    """

    basis: Tensor | None
    scale: Tensor

    def of_rows(self, rows: slice) -> ScoreSpread:
        """Return the deviations of some of the rows."""
        basis = self.basis
        if basis is not None and basis.ndim == 3:
            basis = basis[rows]
        return ScoreSpread(basis, self.scale[rows])

    def deviations(self, normal: Tensor) -> Tensor:
        """Return deviations (n_models, n_rows, n_scores).

        Parameters
        ----------
        normal : Tensor of shape (n_models, n_scores)
            Normal numbers to make them of.

        Returns
        -------
        Tensor of shape (n_models, n_rows, n_scores)
            Deviations.
        """
        if self.basis is None:
            return normal[:, None] * self.scale
        # The symmetric root: it does not depend on signs and order of the directions, nor on
        # which ones are taken where several are equally wide.
        if self.basis.ndim == 2:
            return ((normal @ self.basis)[:, None] * self.scale) @ self.basis.T
        steps = torch.einsum("nkr,mk->mnr", self.basis, normal) * self.scale
        return torch.einsum("nkr,mnr->mnk", self.basis, steps)

    def variance(self) -> Tensor:
        """Return the variance of each score, (n_rows, n_scores)."""
        if self.basis is None:
            return self.scale**2
        if self.basis.ndim == 2:
            return self.scale**2 @ (self.basis**2).T
        return torch.einsum("nkr,nr->nk", self.basis**2, self.scale**2)

    def covariance(self) -> Tensor:
        """Return the covariance of the scores of each row, (n_rows, n_scores, n_scores)."""
        if self.basis is None:
            return torch.diag_embed(self.scale**2)
        scaled = self.basis * self.scale[:, None, :]
        return scaled @ scaled.mT


def _spread_of(covariance: Tensor) -> ScoreSpread:
    # Rows whose numbers overflow have an undefined spread, and leave the others theirs.
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


def _inverse(matrix: Tensor, share: float) -> Tensor:
    """Return the inverse of a matrix of squares, to whose diagonal some is added."""
    shifted = matrix.clone()
    shifted.diagonal().add_(share)
    root, failed = torch.linalg.cholesky_ex(shifted)
    if not failed:
        return torch.cholesky_inverse(root)
    values, basis = _eigen(matrix)
    return (basis / (values + share)) @ basis.T


# -- structures ----------------------------------------------------------------------------


class Structure(Generic[AnyLayout]):
    """The curvature of some parameters.

    Parameters
    ----------
    layout : Vectors or Matrices
        How the parameters are laid out.
    """

    eigenvalues: Tensor
    # In a file, once it is finished.
    _stored: ClassVar[dict[str, Any]]

    def __init__(self, layout: AnyLayout) -> None:
        self.layout = layout

    @classmethod
    def _from_store(cls, layout: AnyLayout, **tensors: Tensor) -> Self:
        structure = cls(layout)
        vars(structure).update(tensors)
        return structure

    def add(self, design: Design, fisher: Fisher) -> None:
        """Add training rows."""
        raise NotImplementedError

    def finish(self) -> None:
        """Decompose what was added."""

    def solve(self, values: Free, precision: float) -> Free:
        """Return (curvature + precision)^-1 times parameters, which may have axes in front."""
        return self._scale(values, lambda eigenvalues: 1 / (eigenvalues + precision))

    def draw(self, normal: Free, precision: float) -> Free:
        """Return draws with covariance (curvature + precision)^-1, of standard normal numbers."""
        return self._scale(normal, lambda eigenvalues: (eigenvalues + precision) ** -0.5)

    def _scale(self, values: Free, scale: Callable[[Tensor], Tensor]) -> Free:
        """Multiply parameters by a function of the curvature."""
        raise NotImplementedError

    def log_det(self, precision: float) -> Tensor:
        """Return the log-determinant of (curvature + precision), minus that of the precision."""
        return torch.log1p(self.eigenvalues / precision).sum()

    def covariance(self, design: Design | Places, precision: float) -> Tensor:
        """Return the covariance of scores, (n_rows, n_scores, n_scores)."""
        raise NotImplementedError

    def spread(self, design: Design | Places, precision: float) -> ScoreSpread:
        """Return how the scores of rows spread under (curvature + precision)^-1.

        Parameters
        ----------
        design : Features, Jacobians or Places
            How the scores depend on the parameters.
        precision : float
            Prior precision.

        Returns
        -------
        ScoreSpread
            Deviations of the scores.
        """
        return _spread_of(self.covariance(design, precision))

    def bytes_per_row(self, n_scores: int) -> int:  # noqa: ARG002
        """Return the memory that `spread` takes for a row besides its design."""
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
        """Add training rows."""
        self._matrix = self._matrix + design.curvature(fisher, self.layout)

    def finish(self) -> None:
        """Decompose what was added."""
        self.eigenvalues, self._vectors = _eigen(self._matrix)
        del self._matrix

    def _scale(self, values: Free, scale: Callable[[Tensor], Tensor]) -> Free:
        rotated = self.layout.flatten(values) @ self._vectors
        return self.layout.unflatten((rotated * scale(self.eigenvalues)) @ self._vectors.T)

    def covariance(self, design: Design | Places, precision: float) -> Tensor:
        """Return the covariance of scores, (n_rows, n_scores, n_scores)."""
        assert not isinstance(design, Places)
        projected = design.times(self._vectors, self.layout)
        return (projected / (self.eigenvalues + precision)) @ projected.mT

    def bytes_per_row(self, n_scores: int) -> int:
        """Return the memory that `spread` takes for a row besides its design."""
        return 3 * 8 * n_scores * len(self.eigenvalues)

    @staticmethod
    def bytes_needed(n_parameters: int) -> int:
        """Return the memory of the matrix, its eigenvectors and what the decomposition takes."""
        return 4 * n_parameters**2 * 8


class Diagonal(Structure[Layout]):
    """The diagonal of the curvature of some parameters."""

    _stored: ClassVar[dict[str, Any]] = {"layout": Layout, "eigenvalues": Tensor}

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.eigenvalues: Any = 0.0

    def add(self, design: Design, fisher: Fisher) -> None:
        """Add training rows."""
        self.eigenvalues = self.eigenvalues + design.diagonal(fisher, self.layout)

    def _scale(self, values: Free, scale: Callable[[Tensor], Tensor]) -> Free:
        return self.layout.unflatten(self.layout.flatten(values) * scale(self.eigenvalues))

    def covariance(self, design: Design | Places, precision: float) -> Tensor:
        """Return the covariance of scores, (n_rows, n_scores, n_scores)."""
        assert not isinstance(design, Places)
        flat = design.dense(self.layout)
        return (flat / (self.eigenvalues + precision)) @ flat.mT

    def spread(self, design: Design | Places, precision: float) -> ScoreSpread:
        """Return how the scores of rows spread; see the base class."""
        if not isinstance(design, Features):
            return super().spread(design, precision)
        variances = 1 / (self.eigenvalues.reshape(-1, design.values.shape[1]) + precision)
        return ScoreSpread(None, (design.values**2 @ variances.T).sqrt())


class Kronecker(Structure[Matrices]):
    """The curvature of a linear or convolutional layer as a Kronecker product (K-FAC).

    One factor is the second moment of the layer's inputs, the other that of the gradients at its
    outputs. Weight and bias are taken together.

    Parameters
    ----------
    layout : Matrices
        The layer's parameters.
    """

    _stored: ClassVar[dict[str, Any]] = {
        "layout": Matrices,
        "_inputs": Tensor,
        "_input_basis": Tensor,
        "_outputs": Tensor,
        "_output_basis": Tensor,
    }

    def __init__(self, layout: Matrices) -> None:
        super().__init__(layout)
        self._inputs: Any = 0.0
        self._outputs: Any = 0.0
        self._total = 0.0

    def add(self, design: Design, fisher: Fisher) -> None:
        """Add training rows whose scores are the layer's own outputs."""
        assert isinstance(design, Features)
        inputs = design.values
        weighted = inputs if fisher.weight is None else inputs * fisher.weight[:, None]
        self._inputs = self._inputs + weighted.T @ inputs
        self._outputs = self._outputs + fisher.total()
        self._total += len(inputs) if fisher.weight is None else float(fisher.weight.sum())

    def add_moments(self, inputs: Tensor, gradients: Tensor, weight: Tensor) -> None:
        """Add training rows that go through the layer on their way.

        Parameters
        ----------
        inputs : Tensor of shape (n_rows, n_places, n_in)
            What the layer takes, at each of the places where its weight is used.
        gradients : Tensor of shape (n_rows, n_scores, n_places, n_out)
            Derivatives of the scores by what it returns, times a root of their Fisher information.
        weight : Tensor of shape (n_rows,)
            Sample weights.
        """
        inputs = self.layout.inputs(inputs)
        weighted = inputs * weight[:, None, None]
        self._inputs = self._inputs + torch.einsum("nti,ntj->ij", weighted, inputs)
        moment = torch.einsum("nkta,nktb->ab", gradients, gradients)
        self._outputs = self._outputs + moment / inputs.shape[1]
        self._total += float(weight.sum())

    def finish(self) -> None:
        """Decompose what was added."""
        self._inputs, self._input_basis = _eigen(self._inputs / (self._total or 1.0))
        self._outputs, self._output_basis = _eigen(self._outputs)

    def inverse_factors(self, precision: float) -> tuple[Tensor, Tensor]:
        """Return inverses of both factors, of inputs and outputs, with a share of a precision each.

        The product of the shares is the precision, and each is in proportion to the mean eigenvalue
        of its factor: the inverse stays a Kronecker product, which that of the sum is not. The
        factors must not be decomposed yet, and are used up.
        """
        factors = self._inputs / (self._total or 1.0), self._outputs
        self._inputs = self._outputs = None
        means = [max(float(factor.diagonal().mean()), 1e-30) for factor in factors]
        ratio = math.sqrt(means[0] / means[1])
        root = math.sqrt(precision)
        return _inverse(factors[0], root * ratio), _inverse(factors[1], root / ratio)

    def inverse_in_basis(self, precision: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return bases of inputs and outputs, and the inverse of the sum with a precision there.

        Unlike `inverse_factors` it is that of the sum itself: (n_out, n_in) numbers, a diagonal in
        the bases. The factors must be decomposed.
        """
        variances = 1 / (self._outputs[:, None] * self._inputs + precision)
        return self._input_basis, self._output_basis, variances

    @property
    def eigenvalues(self) -> Tensor:  # type: ignore[override]
        """Eigenvalues of the product, in any order."""
        return (self._outputs[:, None] * self._inputs).flatten()

    def _scale(self, values: Free, scale: Callable[[Tensor], Tensor]) -> Free:
        rotated = self._output_basis.T @ self.layout.joint(values) @ self._input_basis
        scaled = rotated * scale(self._outputs[:, None] * self._inputs)
        return self.layout.parts(self._output_basis @ scaled @ self._input_basis.T)

    def covariance(self, design: Design | Places, precision: float) -> Tensor:
        """Return the covariance of scores, (n_rows, n_scores, n_scores)."""
        if isinstance(design, Features):
            return self.spread(design, precision).covariance()
        if isinstance(design, Places):
            inputs, gradients = design.values[self.layout.layer]
            inputs = self.layout.inputs(inputs) @ self._input_basis
            gradients = gradients @ self._output_basis
            if inputs.shape[1] == 1:
                # A product of two vectors: its square is one of squares.
                variances = 1 / (self._inputs[:, None] * self._outputs + precision)
                weights = (inputs[:, 0] ** 2 @ variances)[:, None]
                return (gradients[:, :, 0] * weights) @ gradients[:, :, 0].mT
            rotated = torch.einsum("nkto,nti->nkoi", gradients, inputs).flatten(2)
        else:
            joint = self.layout.joint(design.values)
            rotated = (self._output_basis.T @ joint @ self._input_basis).flatten(2)
        return (rotated / (self.eigenvalues + precision)) @ rotated.mT

    def spread(self, design: Design | Places, precision: float) -> ScoreSpread:
        """Return how the scores of rows spread; see the base class."""
        if not isinstance(design, Features):
            return super().spread(design, precision)
        variances = 1 / (self._inputs[:, None] * self._outputs + precision)
        projected = design.values @ self._input_basis
        return ScoreSpread(self._output_basis, (projected**2 @ variances).sqrt())


class Curvature:
    """A curvature of independent blocks.

    Parameters
    ----------
    blocks : list of Structure
        The blocks, finished.
    """

    _stored: ClassVar[dict[str, Any]] = {"blocks": list[Full | Diagonal | Kronecker]}

    def __init__(self, blocks: list[Structure]) -> None:
        self.blocks = blocks

    @property
    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the curvature, in any order."""
        return torch.cat([block.eigenvalues for block in self.blocks])

    def solve(self, values: Free, precision: float) -> Free:
        """Return (curvature + precision)^-1 times parameters, which may have axes in front."""
        parts = [block.solve(values, precision) for block in self.blocks]
        return {name: part for solved in parts for name, part in solved.items()}

    def draw(self, normal: Free, precision: float) -> Free:
        """Return draws with covariance (curvature + precision)^-1, of standard normal numbers."""
        parts = [block.draw(normal, precision) for block in self.blocks]
        return {name: part for drawn in parts for name, part in drawn.items()}

    def log_det(self, precision: float) -> Tensor:
        """Return the log-determinant of (curvature + precision), minus that of the precision."""
        return torch.stack([block.log_det(precision) for block in self.blocks]).sum()

    def spread(self, design: Design | Places, precision: float) -> ScoreSpread:
        """Return how the scores of rows spread; see `Structure.spread`."""
        if len(self.blocks) == 1:
            return self.blocks[0].spread(design, precision)
        parts = [block.covariance(design, precision) for block in self.blocks]
        return _spread_of(torch.stack(parts).sum(dim=0))

    def bytes_per_row(self, n_scores: int) -> int:
        """Return the memory that `spread` takes for a row besides its design."""
        return max(block.bytes_per_row(n_scores) for block in self.blocks)
