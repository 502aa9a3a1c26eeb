"""Scores of a network (logits, or means) as a linear function of its free parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from .._network.cut.chain import SIGMOID
from .._network.executors import ChainExecutor
from .._network.free import Free, FreeNetwork
from .._network.inputs.rows import at_least_two
from .._network.likelihood import CategoricalLikelihood, GaussianLikelihood, Likelihood
from .._network.limits import accumulation_dtype
from .._network.outputs import NetworkErrors
from .._network.predictions import Gaussian, Prediction
from .._network.reference import Rows
from .layers import Recorder
from .layouts import Matrices


@dataclass(frozen=True, eq=False)
class Fisher:
    """The Fisher information of the scores of some samples, times their weights."""

    likelihood: Likelihood
    # (n_samples, n_scores)
    scores: Tensor
    weight: Tensor | None = None

    def matrices(self) -> Tensor:
        """Return a matrix for each sample, (n_samples, n_scores, n_scores)."""
        root = self._root(self.scores)
        matrices = root @ root.mT
        return matrices if self.weight is None else matrices * self.weight[:, None, None]

    def total(self) -> Tensor:
        """Return the sum over the samples, (n_scores, n_scores), without their matrices."""
        if not self.likelihood.scores_are_logits:
            return torch.diag(self.diagonal().sum(dim=0))
        proba = torch.softmax(self.scores, dim=-1)
        weighted = proba if self.weight is None else proba * self.weight[:, None]
        return torch.diag(weighted.sum(dim=0)) - weighted.T @ proba

    def diagonal(self) -> Tensor:
        """Return the diagonal of each sample's matrix, (n_samples, n_scores)."""
        diagonal = self.likelihood.fisher_diagonal(self.scores)
        return diagonal if self.weight is None else diagonal * self.weight[:, None]

    def root(
        self, n_columns: int | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return R with R R' the matrix of each sample; on average if it has few drawn columns."""
        scores = self.scores.to(accumulation_dtype(self.scores.device))
        if n_columns is None or generator is None:
            root = self._root(scores)
        else:
            root = self._drawn_root(scores, n_columns, generator)
        return root if self.weight is None else root * self.weight.sqrt()[:, None, None]

    def _root(self, scores: Tensor) -> Tensor:
        """Return R without weights, with a column for each class or output."""
        if not self.likelihood.scores_are_logits:
            return torch.diag_embed(self.likelihood.fisher_diagonal(scores).sqrt())
        proba = torch.softmax(scores, dim=-1)
        one = torch.eye(proba.shape[-1]).to(proba)
        return (one - proba[..., None]) * proba.sqrt()[..., None, :]

    def _drawn_root(self, scores: Tensor, n_columns: int, generator: torch.Generator) -> Tensor:
        """Return R without weights, with at most so many columns, of drawn classes."""
        if not self.likelihood.scores_are_logits or scores.shape[-1] <= n_columns:
            return self._root(scores)
        proba = torch.softmax(scores, dim=-1)
        drawn = torch.multinomial(proba.cpu(), n_columns, True, generator=generator)
        drawn = one_hot(drawn.to(proba.device), proba.shape[-1]).to(proba)
        return ((drawn - proba[:, None]) / math.sqrt(n_columns)).mT


@dataclass(frozen=True, eq=False)
class Features:
    """Scores of a linear last layer: its parameters times features, (n_samples, n_features)."""

    values: Tensor


@dataclass(frozen=True, eq=False)
class Jacobians:
    """Derivatives of scores: written out by parameters, or as factors by layers.

    The derivative by a layer's weight is the sum over places of gradient times input.
    """

    values: Free  # (n_samples, n_scores, ...)
    # For each layer its inputs (n_samples, n_places, n_in), and the derivatives of the scores by
    # its outputs (n_samples, n_scores, n_places, n_out)
    places: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


Design = Features | Jacobians


@dataclass(frozen=True, eq=False)
class Head:
    """A linear last layer: scores are its features times its weights, and biases if any."""

    network: FreeNetwork
    layout: Matrices
    likelihood: Likelihood

    @property
    def weight(self) -> Tensor:
        """Weights and biases, (n_scores, n_features)."""
        return self.layout.joint(self.network.free.start)

    @property
    def n_scores(self) -> int:
        """Number of scores of a sample."""
        return len(self.weight)

    def scores_and_design(self, rows: Rows) -> tuple[Tensor, Features]:
        """Return scores and features of samples, given by their values at the cut."""
        (features,) = rows
        features = self.layout.inputs(features).to(accumulation_dtype(features.device))
        return features @ self.weight.to(features.dtype).T, Features(features)

    def bytes_per_row(self) -> int:
        """Return the memory that the design of a sample takes."""
        return 8 * sum(self.weight.shape)


@dataclass(frozen=True, eq=False)
class WholeNetwork:
    """Any free parameters: scores are log-probabilities, or means (and log variances)."""

    network: FreeNetwork
    n_scores: int
    # Layers whose derivatives are kept as factors, and the numbers of these for a sample. All free
    # parameters are theirs; without any, derivatives are written out.
    layers: tuple[str, ...] = ()
    n_numbers: int = 0

    @property
    def likelihood(self) -> Likelihood:
        """How the scores make a prediction."""
        given = self.network.executor.likelihood
        if isinstance(given, CategoricalLikelihood):
            return CategoricalLikelihood("logits")
        if given.link == "mean":
            return GaussianLikelihood("mean", given.noise_variance)
        return GaussianLikelihood("mean_log_variance")

    def scores(self, prediction: Prediction) -> Tensor:
        """Return the scores that make a prediction."""
        if not isinstance(prediction, Gaussian):
            (log_proba,) = prediction.parts
            return log_proba
        if self.likelihood.link == "mean":
            return prediction.mean
        return torch.cat([prediction.mean, prediction.variance.log()], dim=-1)

    def scores_and_design(self, rows: Rows) -> tuple[Tensor, Jacobians]:
        """Return scores of samples, given by their values at the cut, and their derivatives."""
        dtype = accumulation_dtype(rows[0].device)
        scores, design = self._by_layers(rows) if self.layers else self._by_parameters(rows)
        return scores.detach().to(dtype), design

    def _by_parameters(self, rows: Rows) -> tuple[Tensor, Jacobians]:
        """Return scores and derivatives, each sample with a copy of the parameters."""
        network, dtype = self.network, accumulation_dtype(rows[0].device)
        values = {
            name: start.expand(len(rows[0]), *start.shape).clone().requires_grad_()
            for name, start in network.free.start.items()
        }
        # One sample for all models: modules that squeeze outputs would lose a single axis.
        shared = tuple(part[:1] for part in rows)
        with torch.enable_grad():
            predicted = network.executor.predict(network.free.weights(values), shared, rows)
            scores = self.scores(predicted)[:, -1]
            columns = [
                # Cloned: the memory of a gradient is used again for the next one. Detached: zeros
                # of unused parameters ask for gradients themselves in torch 2.5.
                [part.detach().clone() for part in _gradients(score, values)]
                for score in scores.unbind(dim=1)
            ]
        stacked = [torch.stack(parts, dim=1).to(dtype) for parts in zip(*columns, strict=True)]
        return scores, Jacobians(dict(zip(values, stacked, strict=True)))

    def _by_layers(self, rows: Rows) -> tuple[Tensor, Jacobians]:
        """Return scores and derivatives, by a backward pass for each score of all samples."""
        n_rows, dtype = len(rows[0]), accumulation_dtype(rows[0].device)
        module = self.network.split.rest
        layers = {name: module.get_submodule(name) for name in self.layers}
        with Recorder(layers) as recorder, torch.enable_grad():
            with NetworkErrors():
                output = module(*at_least_two(rows))
            scores = self.scores(self.network.executor.likelihood.prediction(output))
        places = {
            name: (inputs[:n_rows].to(dtype), gradients[:n_rows].to(dtype))
            for name, inputs, gradients in recorder.gradients(scores)
        }
        return scores[:n_rows], Jacobians({}, places)

    def bytes_per_row(self) -> int:
        """Return the memory that the design of a sample takes, and the work on it."""
        if self.layers:
            return 8 * (4 * self.n_numbers + 2 * self.n_scores * self.network.free.size)
        return 4 * 8 * self.n_scores * self.network.free.size


def _gradients(score: Tensor, values: Free) -> tuple[Tensor, ...]:
    """Return the derivatives of a score by parameters, zero where one is not used."""
    with NetworkErrors():
        return torch.autograd.grad(
            score.sum(), list(values.values()), retain_graph=True, materialize_grads=True
        )


View = Head | WholeNetwork


def find_head(network: FreeNetwork) -> Head | None:
    """Return the linear last layer, if only that is free and its scores are logits or means."""
    if not isinstance(network.executor, ChainExecutor) or network.free.updates:
        return None
    names, layers, endings = network.executor.steps
    parts = [name for name in names[0] if name]
    if len(layers) != 1 or set(network.free.start) != set(parts):
        return None
    likelihood, kinds = network.executor.likelihood, [type(ending) for ending in endings]
    if getattr(likelihood, "units", None) is not None:
        return None
    link = likelihood.link
    if (link, kinds) in (("probabilities", [nn.Softmax]), ("log_probabilities", [nn.LogSoftmax])):
        likelihood = CategoricalLikelihood("logits")
    elif link == "probability" and endings == [SIGMOID] and len(layers[0].weight) == 1:
        likelihood = CategoricalLikelihood("binary_logit")
    elif endings or link not in ("logits", "binary_logit", "mean", "mean_log_variance"):
        return None
    shapes = {name: value.shape for name, value in network.free.start.items()}
    weight, bias = (*parts, None)[:2]
    return Head(network, Matrices(weight, bias, shapes), likelihood)


def score_view(network: FreeNetwork, original: Prediction) -> View:
    """Return how scores depend on the free parameters, given predictions for some samples."""
    n_scores = WholeNetwork(network, 0).scores(original).shape[-1]
    return find_head(network) or WholeNetwork(network, n_scores)
