"""Scores of a network (logits, or means) as a linear function of its free parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .._network.activations import SIGMOID
from .._network.executors import ChainExecutor
from .._network.free import Free, FreeNetwork
from .._network.likelihood import CategoricalLikelihood, GaussianLikelihood, Likelihood
from .._network.limits import accumulation_dtype
from .._network.outputs import NetworkErrors
from .._network.predictions import Gaussian, Prediction
from .._network.reference import Rows
from .layouts import Layout, Matrices


@dataclass(frozen=True, eq=False)
class Fisher:
    """The Fisher information of the scores of some rows, times their sample weights.

    Parameters
    ----------
    likelihood : CategoricalLikelihood or GaussianLikelihood
        What the scores mean.
    scores : Tensor of shape (n_rows, n_scores)
        The scores.
    weight : Tensor of shape (n_rows,) or None
        Sample weights.
    """

    likelihood: Likelihood
    scores: Tensor
    weight: Tensor | None = None

    def matrices(self) -> Tensor:
        """Return a matrix for each row, (n_rows, n_scores, n_scores)."""
        matrices = self.likelihood.fisher(self.scores)
        return matrices if self.weight is None else matrices * self.weight[:, None, None]

    def total(self) -> Tensor:
        """Return the sum over the rows, (n_scores, n_scores), without making their matrices."""
        return self.likelihood.total_fisher(self.scores, self.weight)

    def diagonal(self) -> Tensor:
        """Return the diagonal of each row's matrix, (n_rows, n_scores)."""
        diagonal = self.likelihood.fisher_diagonal(self.scores)
        return diagonal if self.weight is None else diagonal * self.weight[:, None]

    def root(self) -> Tensor:
        """Return R with R R' the matrix of each row."""
        root = self.likelihood.fisher_root(self.scores.to(accumulation_dtype(self.scores.device)))
        return root if self.weight is None else root * self.weight.sqrt()[:, None, None]

    def drawn_root(self, n_columns: int, generator: torch.Generator) -> Tensor:
        """Return R with at most so many columns, whose R R' is the matrix of a row on average."""
        scores = self.scores.to(accumulation_dtype(self.scores.device))
        return self.likelihood.sampled_fisher_root(scores, n_columns, generator)


@dataclass(frozen=True, eq=False)
class Features:
    """Scores that are a matrix of parameters times features: a linear last layer.

    Parameters
    ----------
    values : Tensor of shape (n_rows, n_features)
        What the layer takes, a constant for the bias among it.
    """

    values: Tensor

    def curvature(self, fisher: Fisher, layout: Layout) -> Tensor:  # noqa: ARG002
        """Return the sum of J' F J over the rows, (n_parameters, n_parameters)."""
        features, matrices = self.values, fisher.matrices()
        width, scores = features.shape[1], matrices.shape[1]
        total = features.new_zeros(scores, width, scores, width)
        for first in range(scores):
            for second in range(first + 1):
                block = (features * matrices[:, first, second, None]).T @ features
                total[first, :, second] = total[second, :, first] = block
        return total.reshape(scores * width, -1)

    def diagonal(self, fisher: Fisher, layout: Layout) -> Tensor:  # noqa: ARG002
        """Return the diagonal of that sum, (n_parameters,)."""
        return (fisher.diagonal().T @ self.values**2).flatten()

    def times(self, vectors: Tensor, layout: Layout) -> Tensor:  # noqa: ARG002
        """Return J times some vectors, (n_rows, n_scores, n_vectors)."""
        width = self.values.shape[1]
        return torch.einsum("ni,kip->nkp", self.values, vectors.unflatten(0, (-1, width)))

    def dense(self, layout: Layout) -> Tensor:
        """Return J, (n_rows, n_scores, n_parameters)."""
        n_parameters = sum(shape.numel() for shape in layout.shapes.values())
        return self.times(torch.eye(n_parameters).to(self.values), layout)


@dataclass(frozen=True, eq=False)
class Jacobians:
    """Derivatives of scores by any parameters.

    Parameters
    ----------
    values : dict of Tensor of shape (n_rows, n_scores, ...)
        Derivatives by the name of the parameter.
    """

    values: Free

    def curvature(self, fisher: Fisher, layout: Layout) -> Tensor:
        """Return the sum of J' F J over the rows, (n_parameters, n_parameters)."""
        scaled = fisher.root().mT @ self.dense(layout)
        return torch.einsum("nkp,nkq->pq", scaled, scaled)

    def diagonal(self, fisher: Fisher, layout: Layout) -> Tensor:
        """Return the diagonal of that sum, (n_parameters,)."""
        return ((fisher.root().mT @ self.dense(layout)) ** 2).sum(dim=(0, 1))

    def times(self, vectors: Tensor, layout: Layout) -> Tensor:
        """Return J times some vectors, (n_rows, n_scores, n_vectors)."""
        return self.dense(layout) @ vectors

    def dense(self, layout: Layout) -> Tensor:
        """Return J, (n_rows, n_scores, n_parameters)."""
        return layout.flatten(self.values)


@dataclass(frozen=True, eq=False)
class Places:
    """Derivatives of scores by the parameters of layers, as what goes in and what comes back.

    The derivative by a layer's weight is the sum over places of gradient times input.

    Parameters
    ----------
    values : dict of tuple of Tensor
        For each layer, by its name, its inputs (n_rows, n_places, n_in) and the derivatives of the
        scores by its outputs (n_rows, n_scores, n_places, n_out).
    """

    values: dict[str, tuple[Tensor, Tensor]]


Design = Features | Jacobians


class Head:
    """A linear last layer: scores are its features times its weights.

    Parameters
    ----------
    network : FreeNetwork
        The network, cut before its last layer.
    weight : str
        Name of the weights, (n_scores, n_features).
    bias : str or None
        Name of the biases: the weights of one more feature that is constant.
    likelihood : CategoricalLikelihood or GaussianLikelihood
        What the scores mean.
    """

    _stored: ClassVar[dict[str, Any]] = {
        "network": FreeNetwork,
        "weight": str,
        "bias": str | None,
        "likelihood": Likelihood,
    }

    def __init__(
        self, network: FreeNetwork, weight: str, bias: str | None, likelihood: Likelihood
    ) -> None:
        start = network.free.start
        self.network, self.likelihood = network, likelihood
        self.layout = Matrices(weight, bias, {name: value.shape for name, value in start.items()})
        self._has_bias, self._weight = bias is not None, self.layout.joint(start)
        self.n_scores, self.n_features = self._weight.shape

    def _to_store(self) -> dict[str, Any]:
        names = {"weight": self.layout.weight, "bias": self.layout.bias}
        return {"network": self.network, **names, "likelihood": self.likelihood}

    def scores_and_design(self, rows: Rows) -> tuple[Tensor, Features]:
        """Return scores and features of some rows, given by their values at the cut."""
        (features,) = rows
        if self._has_bias:
            features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
        dtype = accumulation_dtype(features.device)
        features = features.to(dtype)
        return features @ self._weight.to(dtype).T, Features(features)

    def bytes_per_row(self) -> int:
        """Return the memory that the design of a row takes."""
        return 8 * (self.n_features + self.n_scores)


class WholeNetwork:
    """Any free parameters: derivatives of the scores are computed row by row.

    Scores are log-probabilities, or means (and logarithms of variances).

    Parameters
    ----------
    network : FreeNetwork
        The network, cut where its free parameters begin.
    n_scores : int
        Number of scores.
    """

    _stored: ClassVar[dict[str, Any]] = {"network": FreeNetwork, "n_scores": int}

    def __init__(self, network: FreeNetwork, n_scores: int) -> None:
        self.network, self.n_scores = network, n_scores
        given = network.executor.likelihood
        self.likelihood: Likelihood
        if isinstance(given, CategoricalLikelihood):
            self.likelihood = CategoricalLikelihood("logits")
        elif given.link == "mean":
            self.likelihood = given
        else:
            self.likelihood = GaussianLikelihood("mean_log_variance")

    def scores(self, prediction: Prediction) -> Tensor:
        """Return the scores that make a prediction."""
        if not isinstance(prediction, Gaussian):
            (log_proba,) = prediction.parts
            return log_proba
        if self.likelihood.link == "mean":
            return prediction.mean
        return torch.cat([prediction.mean, prediction.variance.log()], dim=-1)

    def scores_and_design(self, rows: Rows) -> tuple[Tensor, Jacobians]:
        """Return scores and their derivatives for some rows, each of them a model of its own.

        Rows are given by their values at the cut.
        """
        network, query = self.network, rows
        dtype = accumulation_dtype(query[0].device)
        values = {
            name: start.expand(len(query[0]), *start.shape).clone().requires_grad_()
            for name, start in network.free.start.items()
        }
        # One row that all see: modules that squeeze their output would lose the axis of a single.
        shared = tuple(part[:1] for part in query)
        with torch.enable_grad():
            predicted = network.executor.predict(network.free.weights(values), shared, query)
            scores = self.scores(predicted)[:, -1]
            columns = [
                # Cloned: the memory of a gradient is used again for the next one. Detached: zeros
                # of unused parameters ask for gradients themselves in torch 2.5.
                [part.detach().clone() for part in _gradients(score, values)]
                for score in scores.unbind(dim=1)
            ]
        stacked = [torch.stack(parts, dim=1).to(dtype) for parts in zip(*columns, strict=True)]
        jacobians = Jacobians(dict(zip(values, stacked, strict=True)))
        return scores.detach().to(dtype), jacobians

    def bytes_per_row(self) -> int:
        """Return the memory that the design of a row takes."""
        return 4 * 8 * self.n_scores * self.network.free.size


def _gradients(score: Tensor, values: Free) -> tuple[Tensor, ...]:
    """Return the derivatives of a score by parameters, zero where one is not used."""
    with NetworkErrors():
        return torch.autograd.grad(
            score.sum(), list(values.values()), retain_graph=True, materialize_grads=True
        )


def find_head(network: FreeNetwork) -> Head | None:
    """Return the linear last layer, if that is all that is free and its scores can be told.

    Parameters
    ----------
    network : FreeNetwork
        The network.

    Returns
    -------
    Head or None
        The last layer.
    """
    if not isinstance(network.executor, ChainExecutor) or network.free.updates:
        return None
    names, layers, endings = network.executor.steps
    if len(layers) != 1:
        return None
    layer, start = layers[0], network.free.start
    parts = [name for name in names[0] if name]
    if set(start) != set(parts):
        return None
    likelihood, kinds = network.executor.likelihood, [type(ending) for ending in endings]
    link = likelihood.link
    if (link, kinds) in (("probabilities", [nn.Softmax]), ("log_probabilities", [nn.LogSoftmax])):
        likelihood = CategoricalLikelihood("logits")
    elif link == "probability" and endings == [SIGMOID] and len(layer.weight) == 1:
        likelihood = CategoricalLikelihood("binary_logit")
    elif endings or link not in ("logits", "binary_logit", "mean", "mean_log_variance"):
        return None
    return Head(network, parts[0], parts[1] if len(parts) > 1 else None, likelihood)


View = Head | WholeNetwork


def score_view(network: FreeNetwork, original: Prediction) -> View:
    """Return how the scores of a network depend on its free parameters.

    Parameters
    ----------
    network : FreeNetwork
        The network.
    original : Prediction
        What it predicts for some rows.

    Returns
    -------
    Head or WholeNetwork
        A linear last layer if that is all that is free.
    """
    head = find_head(network)
    if head is not None:
        return head
    n_scores = WholeNetwork(network, 0).scores(original).shape[-1]
    return WholeNetwork(network, n_scores)
