"""How the loss on the training data bends around the given weights.

The curvature is the generalised Gauss-Newton matrix: the sum over training rows of J' F J, with J
the derivative of a row's scores (logits, or means) by the free parameters and F the Fisher
information of the scores. Each structure keeps it as eigenvalues in some basis, so that a prior
precision can be added without decomposing it again, and answers one question: how do the scores of
new rows spread under the Gaussian with the inverse of (curvature + prior precision) as covariance?

For a linear last layer J is known, the features of a row, and never written out; otherwise it is
computed row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ._estimate import accumulation_dtype

# Rows whose activations and gradients are held together.
_ROWS_AT_ONCE = 256


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
    values, vectors = torch.linalg.eigh(covariance)
    return ScoreSpread(vectors, values.clamp(min=0).sqrt())


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, which rounding must not make negative, and eigenvectors."""
    values, vectors = torch.linalg.eigh(matrix)
    return values.clamp(min=0), vectors


# -- a linear last layer -------------------------------------------------------------------


class FullHead:
    """The whole curvature of a linear last layer.

    Parameters
    ----------
    features : Tensor of shape (n_rows, n_features)
        What the layer takes, a constant for the bias among it.
    fisher : Tensor of shape (n_rows, n_scores, n_scores)
        Fisher information of the scores, times the sample weights.
    """

    def __init__(self, features: Tensor, fisher: Tensor) -> None:
        width, scores = features.shape[1], fisher.shape[1]
        matrix = features.new_zeros(width, scores, width, scores)
        for first in range(scores):
            for second in range(first + 1):
                block = (features * fisher[:, first, second, None]).T @ features
                matrix[:, first, :, second] = matrix[:, second, :, first] = block
        self.eigenvalues, vectors = _eigen(matrix.reshape(width * scores, -1))
        self._vectors = vectors.reshape(width, scores, -1)

    @staticmethod
    def bytes_needed(n_features: int, n_scores: int) -> int:
        """Return the memory of the matrix, its eigenvectors and what the decomposition takes."""
        return 4 * (n_features * n_scores) ** 2 * 8

    def bytes_per_row(self) -> int:
        """Return the memory that `spread` takes for a row."""
        _, n_scores, size = self._vectors.shape
        return 3 * 8 * n_scores * size

    def spread(self, features: Tensor, precision: float) -> ScoreSpread:
        """Return how the scores of rows spread; see `KroneckerHead.spread`."""
        projected = torch.einsum("ni,ikp->nkp", features, self._vectors)
        return _spread_of((projected / (self.eigenvalues + precision)) @ projected.mT)


class KroneckerHead:
    """The curvature of a linear last layer as a Kronecker product.

    Parameters
    ----------
    features : Tensor of shape (n_rows, n_features)
        What the layer takes, a constant for the bias among it.
    fisher : Tensor of shape (n_scores, n_scores)
        Fisher information of the scores, times the sample weights, summed over the rows.
    weight : Tensor of shape (n_rows,) or None
        Sample weights.
    """

    def __init__(self, features: Tensor, fisher: Tensor, weight: Tensor | None) -> None:
        weighted = features if weight is None else features * weight[:, None]
        total = len(features) if weight is None else float(weight.sum())
        self._inputs, self._input_basis = _eigen(weighted.T @ features / (total or 1.0))
        self._outputs, self._output_basis = _eigen(fisher)

    @property
    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the curvature, in any order."""
        return (self._inputs[:, None] * self._outputs).flatten()

    def spread(self, features: Tensor, precision: float) -> ScoreSpread:
        """Return how the scores of rows spread.

        Parameters
        ----------
        features : Tensor of shape (n_rows, n_features)
            What the layer takes.
        precision : float
            Prior precision.

        Returns
        -------
        ScoreSpread
            Deviations of the scores.
        """
        variances = 1 / (self._inputs[:, None] * self._outputs + precision)
        projected = features @ self._input_basis
        return ScoreSpread(self._output_basis, (projected**2 @ variances).sqrt())


class DiagonalHead:
    """The diagonal of the curvature of a linear last layer.

    Parameters
    ----------
    features : Tensor of shape (n_rows, n_features)
        What the layer takes, a constant for the bias among it.
    fisher : Tensor of shape (n_rows, n_scores)
        Diagonals of the Fisher information of the scores, times the sample weights.
    """

    def __init__(self, features: Tensor, fisher: Tensor) -> None:
        self._diagonal = (features**2).T @ fisher

    @property
    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the curvature, in any order."""
        return self._diagonal.flatten()

    def spread(self, features: Tensor, precision: float) -> ScoreSpread:
        """Return how the scores of rows spread; see `KroneckerHead.spread`."""
        return ScoreSpread(None, (features**2 @ (1 / (self._diagonal + precision))).sqrt())


# -- any parameters ------------------------------------------------------------------------

# Derivatives of scores by parameters: name -> (n_rows, n_scores, ...).
Jacobians = dict[str, Tensor]


def _flat(jacobians: Jacobians, names: list[str]) -> Tensor:
    return torch.cat([jacobians[name].flatten(2) for name in names], dim=2)


class FullBlock:
    """The whole curvature of some parameters.

    Parameters
    ----------
    names : list of str
        The parameters.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._matrix: Any = 0.0

    def add(self, jacobians: Jacobians, root: Tensor) -> None:
        """Add training rows, with roots of the Fisher information of their scores."""
        scaled = root.mT @ _flat(jacobians, self._names)
        self._matrix = self._matrix + torch.einsum("nkp,nkq->pq", scaled, scaled)

    def finish(self) -> None:
        """Decompose what was added."""
        self.eigenvalues, self._vectors = _eigen(self._matrix)
        del self._matrix

    def covariance(self, jacobians: Jacobians, precision: float) -> Tensor:
        """Return what the block contributes to the covariance of the scores."""
        projected = _flat(jacobians, self._names) @ self._vectors
        return (projected / (self.eigenvalues + precision)) @ projected.mT


class DiagonalBlock:
    """The diagonal of the curvature of some parameters; see `FullBlock`.

    Parameters
    ----------
    names : list of str
        The parameters.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self.eigenvalues: Any = 0.0

    def add(self, jacobians: Jacobians, root: Tensor) -> None:
        """Add training rows."""
        scaled = root.mT @ _flat(jacobians, self._names)
        self.eigenvalues = self.eigenvalues + (scaled**2).sum(dim=(0, 1))

    def finish(self) -> None:
        """Nothing is left to do."""

    def covariance(self, jacobians: Jacobians, precision: float) -> Tensor:
        """Return what the block contributes to the covariance of the scores."""
        flat = _flat(jacobians, self._names)
        return (flat / (self.eigenvalues + precision)) @ flat.mT


class KroneckerBlock:
    """The curvature of a linear or convolutional layer as a Kronecker product (K-FAC).

    One factor is the second moment of the layer's inputs, the other that of the gradients at its
    outputs. Weight and bias are taken together: the bias is the weight of a constant input.

    Parameters
    ----------
    weight, bias : str or None
        Names of the free parameters of the layer, at least one of them.
    """

    def __init__(self, weight: str | None, bias: str | None) -> None:
        self._weight, self._bias = weight, bias
        self._inputs: Any = 0.0
        self._outputs: Any = 0.0
        self._total = 0.0

    def add_moments(self, inputs: Tensor, gradients: Tensor, weight: Tensor) -> None:
        """Add training rows.

        Parameters
        ----------
        inputs : Tensor of shape (n_rows, n_places, n_in)
            What the layer takes, at each of the places where its weight is used.
        gradients : Tensor of shape (n_rows, n_scores, n_places, n_out)
            Derivatives of the scores by what it returns, times a root of their Fisher information.
        weight : Tensor of shape (n_rows,)
            Sample weights.
        """
        ones = inputs.new_ones(*inputs.shape[:2], 1)
        parts = [inputs] * (self._weight is not None) + [ones] * (self._bias is not None)
        inputs = torch.cat(parts, dim=2)
        weighted = inputs * weight[:, None, None]
        self._inputs = self._inputs + torch.einsum("nti,ntj->ij", weighted, inputs)
        moment = torch.einsum("nkta,nktb->ab", gradients, gradients)
        self._outputs = self._outputs + moment / inputs.shape[1]
        self._total += float(weight.sum())

    def finish(self) -> None:
        """Decompose what was added."""
        self._inputs, self._input_basis = _eigen(self._inputs / (self._total or 1.0))
        self._outputs, self._output_basis = _eigen(self._outputs)

    @property
    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the block, in any order."""
        return (self._outputs[:, None] * self._inputs).flatten()

    def covariance(self, jacobians: Jacobians, precision: float) -> Tensor:
        """Return what the block contributes to the covariance of the scores."""
        parts = []
        if self._weight is not None:
            parts.append(jacobians[self._weight].flatten(3))
        if self._bias is not None:
            parts.append(jacobians[self._bias][..., None])
        joint = torch.cat(parts, dim=3)
        rotated = (self._output_basis.T @ joint @ self._input_basis).flatten(2)
        return (rotated / (self.eigenvalues + precision)) @ rotated.mT


class Blocks:
    """A curvature of independent blocks.

    Parameters
    ----------
    blocks : list of FullBlock, DiagonalBlock or KroneckerBlock
        The blocks, finished.
    """

    def __init__(self, blocks: list[Any]) -> None:
        self._blocks = blocks

    @property
    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the curvature, in any order."""
        return torch.cat([block.eigenvalues for block in self._blocks])

    def spread(self, jacobians: Jacobians, precision: float) -> ScoreSpread:
        """Return how the scores of rows spread; see `KroneckerHead.spread`."""
        parts = [block.covariance(jacobians, precision) for block in self._blocks]
        return _spread_of(torch.stack(parts).sum(dim=0))


# -- Kronecker factors of the layers of a network ------------------------------------------


def has_kronecker_factors(layer: nn.Module) -> bool:
    """Tell whether the curvature of a layer can be written as a Kronecker product here."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        if type(layer) not in (nn.Conv1d, nn.Conv2d):
            return False
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str)
    return type(layer) is nn.Linear


def _inputs_of(layer: nn.Module, values: Tensor) -> Tensor:
    """Return what a layer's weight is multiplied with, (n_rows, n_places, n_in)."""
    if isinstance(layer, nn.Linear):
        return values.reshape(len(values), -1, values.shape[-1])
    options: dict[str, Any] = {
        name: getattr(layer, name) for name in ("kernel_size", "dilation", "padding", "stride")
    }
    if isinstance(layer, nn.Conv1d):
        values = values[:, :, None]
        fill = {"kernel_size": 1, "dilation": 1, "padding": 0, "stride": 1}
        options = {name: (fill[name], *option) for name, option in options.items()}
    return nn.functional.unfold(values, **options).mT


def _outputs_of(layer: nn.Module, values: Tensor) -> Tensor:
    """Return a layer's outputs, or their gradients, as (n_rows, n_places, n_out)."""
    if isinstance(layer, nn.Linear):
        return values.reshape(len(values), -1, values.shape[-1])
    return values.flatten(2).mT


@dataclass
class _Recorder:
    """Notes what goes through some layers in a forward pass."""

    layers: dict[str, nn.Module]

    def __enter__(self) -> _Recorder:
        self.calls: list[tuple[str, Tensor, Tensor]] = []
        self._handles = [
            layer.register_forward_hook(self._hook(name)) for name, layer in self.layers.items()
        ]
        return self

    def _hook(self, name: str) -> Callable[..., Tensor]:
        def hook(_: nn.Module, args: tuple, output: Tensor) -> Tensor:
            if not output.requires_grad:
                output.requires_grad_()
            self.calls.append((name, args[0].detach(), output))
            # A copy: what comes next may write into it.
            return output.clone()

        return hook

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def rows_first(layers: dict[str, nn.Module], module: nn.Module, probe: Tensor) -> set[str]:
    """Return the layers that get the rows on their first axis, and nothing else on it.

    Parameters
    ----------
    layers : dict of torch.nn.Module
        Layers, by their names.
    module : torch.nn.Module
        The network.
    probe : Tensor of shape (n_rows, ...)
        A few rows.

    Returns
    -------
    set of str
        Names, of layers that never run as well.
    """
    found = set(layers)
    for rows in (probe, probe[:-1]):
        with _Recorder(layers) as recorder, torch.no_grad():
            module(rows)
        found -= {name for name, values, _ in recorder.calls if len(values) != len(rows)}
    return found


def add_kronecker_moments(
    blocks: dict[str, KroneckerBlock],
    module: nn.Module,
    inputs: Tensor,
    weight: Tensor,
    scores_and_root: Callable[[Any], tuple[Tensor, Tensor]],
) -> None:
    """Add training rows to the Kronecker factors of layers.

    Parameters
    ----------
    blocks : dict of KroneckerBlock
        Where to add them, by the name of the layer.
    module : torch.nn.Module
        The network.
    inputs : Tensor of shape (n_rows, ...)
        Training rows.
    weight : Tensor of shape (n_rows,)
        Sample weights.
    scores_and_root : callable
        Returns, for an output of the network, the scores (n_rows, n_scores) and a root of their
        Fisher information.
    """
    layers = {name: module.get_submodule(name) for name in blocks}
    dtype = accumulation_dtype(inputs.device)
    for start in range(0, len(inputs), _ROWS_AT_ONCE):
        part = inputs[start : start + _ROWS_AT_ONCE]
        scale = weight[start : start + _ROWS_AT_ONCE].to(dtype)
        if len(part) == 1:
            # Run twice: modules that squeeze their output would lose the axis of a single row.
            part, scale = part.repeat_interleave(2, dim=0), scale.repeat(2) / 2
        with _Recorder(layers) as recorder, torch.enable_grad():
            scores, root = scores_and_root(module(part))
        outputs = [output for _, _, output in recorder.calls]
        scaled = (root.mT.to(scores.dtype) @ scores[..., None])[..., 0]
        by_score = [
            torch.autograd.grad(
                scaled[:, index].sum(), outputs, retain_graph=True, materialize_grads=True
            )
            for index in range(scaled.shape[1])
        ]
        for name, inputs_, gradients in _by_layer(recorder, layers, by_score):
            root_scale = scale.sqrt()[:, None, None, None]
            blocks[name].add_moments(inputs_.to(dtype), gradients.to(dtype) * root_scale, scale)


def _by_layer(
    recorder: _Recorder, layers: dict[str, nn.Module], by_score: list[tuple[Tensor, ...]]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield inputs and gradients of each layer; where it runs twice it has the more places."""
    for name, layer in layers.items():
        calls = [i for i, (called, _, _) in enumerate(recorder.calls) if called == name]
        inputs = [_inputs_of(layer, recorder.calls[i][1]) for i in calls]
        gradients = [
            torch.stack([_outputs_of(layer, parts[i]) for parts in by_score], dim=1) for i in calls
        ]
        # Zeros of a layer that changes nothing ask for gradients themselves in torch 2.5.
        yield name, torch.cat(inputs, dim=1), torch.cat(gradients, dim=2).detach()
