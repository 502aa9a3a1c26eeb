"""Scores of a network (logits, or means) as a linear function of its free parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ._batched import ChainExecutor
from ._estimate import accumulation_dtype
from ._free_network import FreeNetwork
from ._likelihood import CategoricalLikelihood, Gaussian, GaussianLikelihood
from ._reference import Likelihood


class Head:
    """A linear last layer: scores are its features times its weights.

    Parameters
    ----------
    network : FreeNetwork
        The network, cut before its last layer.
    weight : Tensor of shape (n_scores, n_features)
        Weights.
    bias : Tensor of shape (n_scores,) or None
        Biases: the weights of one more feature that is constant.
    likelihood : CategoricalLikelihood or GaussianLikelihood
        What the scores mean.
    """

    def __init__(
        self, network: FreeNetwork, weight: Tensor, bias: Tensor | None, likelihood: Likelihood
    ) -> None:
        self._network, self.likelihood = network, likelihood
        self._has_bias = bias is not None
        self._weight = weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)
        self.n_scores, self.n_features = self._weight.shape

    def scores_and_design(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and features of some rows."""
        (features,) = self._network.at_cut(inputs)
        if self._has_bias:
            features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
        dtype = accumulation_dtype(inputs.device)
        features = features.to(dtype)
        return features @ self._weight.to(dtype).T, features

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

    def __init__(self, network: FreeNetwork, n_scores: int) -> None:
        self._network, self.n_scores = network, n_scores
        given = network.executor.likelihood
        self.likelihood: Likelihood
        if isinstance(given, CategoricalLikelihood):
            self.likelihood = CategoricalLikelihood("logits")
        elif given.link == "mean":
            self.likelihood = given
        else:
            self.likelihood = GaussianLikelihood("mean_log_variance")

    def scores(self, prediction: Any) -> Tensor:
        """Return the scores that make a prediction."""
        if not isinstance(prediction, Gaussian):
            return prediction
        if self.likelihood.link == "mean":
            return prediction.mean
        return torch.cat([prediction.mean, prediction.variance.log()], dim=-1)

    def scores_and_design(self, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return scores and their derivatives for some rows, each of them a model of its own."""
        network, dtype = self._network, accumulation_dtype(inputs.device)
        own = network.at_cut(inputs)
        values = {
            name: start.expand(len(inputs), *start.shape).clone().requires_grad_()
            for name, start in network.free.start.items()
        }
        # One row that all see: modules that squeeze their output would lose the axis of a single.
        shared = tuple(part[:1] for part in own)
        with torch.enable_grad():
            predicted = network.executor.predict(network.free.weights(values), shared, own)
            scores = self.scores(predicted)[:, -1]
            columns = [
                # Cloned: the memory of a gradient is used again for the next one. Detached: zeros
                # of unused parameters ask for gradients themselves in torch 2.5.
                [
                    part.detach().clone()
                    for part in torch.autograd.grad(
                        scores[:, index].sum(),
                        list(values.values()),
                        retain_graph=True,
                        # Zero where a parameter is not used.
                        materialize_grads=True,
                    )
                ]
                for index in range(self.n_scores)
            ]
        stacked = [torch.stack(parts, dim=1).to(dtype) for parts in zip(*columns, strict=True)]
        return scores.detach().to(dtype), dict(zip(values, stacked, strict=True))

    def bytes_per_row(self) -> int:
        """Return the memory that the design of a row takes."""
        return 4 * 8 * self.n_scores * self._network.free.size


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
    prefixes, layers, endings = network.executor.steps
    if len(layers) != 1:
        return None
    layer, start = layers[0], network.free.start
    parts = [f"{prefixes[0]}weight"] + [f"{prefixes[0]}bias"] * (layer.bias is not None)
    if set(start) != set(parts):
        return None
    likelihood, kinds = network.executor.likelihood, [type(ending) for ending in endings]
    link = likelihood.link
    if (link, kinds) in (("probabilities", [nn.Softmax]), ("log_probabilities", [nn.LogSoftmax])):
        likelihood = CategoricalLikelihood("logits")
    elif link == "probabilities" and endings == [torch.sigmoid] and len(layer.weight) == 1:
        likelihood = CategoricalLikelihood("binary_logit")
    elif endings or link not in ("logits", "binary_logit", "mean", "mean_log_variance"):
        return None
    return Head(network, start[parts[0]], start[parts[1]] if len(parts) > 1 else None, likelihood)


def fisher_root(fisher: Tensor) -> Tensor:
    """Return R with R R' the Fisher information of each row."""
    values, vectors = torch.linalg.eigh(fisher.to(accumulation_dtype(fisher.device)))
    return vectors * values.clamp(min=0).sqrt()[..., None, :]
