"""The common part of all searches: the network, its training data, the targets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .._curvature.layouts import Vectors
from .._network.free import Free, FreeNetwork
from .._network.limits import slices
from .._network.predictions import Categorical, Gaussian, Prediction
from .._network.reference import Rows, TrainingSet
from .searches import Searches
from .targets import Targets

# Precision of the prior around the given network: for classes, and where the marginal likelihood
# of a regression is not known.
_PRECISION_OF_CLASSES, DEFAULT_PRECISION = 3e-4, 0.1
# Of more parameters than this for each training sample nothing is known.
_MAX_PER_SAMPLE = 10.0
# Training samples of one pass over many.
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class Problem:
    """Models are wanted that explain the training data but predict something else at a query."""

    network: FreeNetwork
    # At the cut of the network
    training: TrainingSet
    targets: Targets
    # The given network's predictions for the training samples
    original_on_training: Categorical | Gaussian
    # Samples that the network was trained on, of which those at hand may be a part
    n_training_rows: int
    # Training samples that go through a model together, where memory is short
    rows_at_once: int = sys.maxsize

    @property
    def is_classification(self) -> bool:
        """Whether classes are predicted."""
        return self.network.executor.likelihood.kind is Categorical

    def default_precision(self) -> float | None:
        """Return the precision of the prior; None for the one of the largest likelihood."""
        if not self.is_classification:
            return None
        per_sample = min(self.network.free.size / self.n_training_rows, _MAX_PER_SAMPLE)
        return _PRECISION_OF_CLASSES * self.targets.n_answers**1.5 * per_sample

    def for_thread(self) -> Problem:
        """Return one that may be worked on beside this one."""
        return replace(self, network=self.network.for_thread())

    @property
    def layout(self) -> Vectors:
        """How the free parameters of models are rows of a matrix."""
        start = self.network.free.start
        return Vectors({name: value.shape for name, value in start.items()})

    def given_models(self, number: int) -> Tensor:
        """Return the free parameters of the given network, once for each of some models."""
        return self.layout.flatten(self.network.free.start).expand(number, -1)

    def predict_at(self, models: Tensor, query: Rows) -> Any:
        """Return predictions of models, rows of free parameters, for the query of each."""
        weights = self.network.free.weights(self.layout.unflatten(models))
        # Every sample twice: modules that squeeze their output would lose the axis of a single one.
        twice = tuple(part[:, None].expand(-1, 2, *part.shape[1:]) for part in query)
        prediction: Any = self.network.executor.predict_each(weights, twice)
        return prediction[:, 0]

    def score(self, prediction: Any, searches: Searches) -> Tensor:
        """Return the score of the target of each search."""
        targets: Any = self.targets
        return targets.score(prediction, searches.original, searches.target)

    def predict(self, free: Free, index: Tensor, query: Rows) -> tuple[Any, Any]:
        """Return predictions of models for training samples, and for the query of each."""
        weights, executor = self.network.free.weights(free), self.network.executor
        found: list[Any] = self._in_pieces(
            lambda piece: executor.predict(weights, self.training.rows_at(index[piece]), query),
            len(index),
        )
        return _joined([prediction[:, :-1] for prediction in found]), found[0][:, -1]

    def predict_each(self, free: Free, index: Tensor) -> Any:
        """Return predictions of each model for training samples of its own."""
        weights, executor = self.network.free.weights(free), self.network.executor

        def run(piece: slice) -> Any:
            numbers = index[:, piece]
            if numbers.shape[1] == 1:
                # Modules that squeeze their output would lose the axis of a single sample.
                numbers = numbers.expand(-1, 2)
            predicted = executor.predict_each(weights, self.training.rows_at(numbers))
            return predicted[:, : len(index[0, piece])]

        return _joined(self._in_pieces(run, index.shape[1]))

    def _in_pieces(self, run: Callable[[slice], Any], n_rows: int) -> list[Any]:
        """Run a function for some training samples at a time."""
        pieces = list(slices(n_rows, self.rows_at_once))
        if len(pieces) == 1 or not torch.is_grad_enabled():
            return [run(piece) for piece in pieces]
        # Gradients compute a piece once more instead of keeping its activations.
        return [
            checkpoint(run, piece, use_reentrant=False, preserve_rng_state=False)
            for piece in pieces
        ]

    def losses(self, on_training: Any, index: Tensor) -> Tensor:
        """Return losses of predictions for training samples, (n_models, n_rows)."""
        likelihood = self.network.executor.likelihood
        return likelihood.negative_log_likelihood(on_training, self.training.target[index])

    @torch.no_grad()
    def expected_increase(self, on_training: Prediction, index: Tensor) -> Tensor:
        """Return the mean divergence from the given network on training samples, (n_models,).

        It is the loss increase to be expected if the given network is right, without the linear
        part that makes increases on mini-batches noisy.
        """
        original: Any = self.original_on_training
        divergence = original[index].kl(on_training)
        return self.training.mean_loss(divergence, index)

    @torch.no_grad()
    def at_query_and_increase(self, free: Free, query: Rows, index: Tensor) -> tuple[Any, Tensor]:
        """Return predictions of models for their queries, and their mean loss increase."""
        total = self.training.losses.new_zeros(len(query[0]))
        for part in index.split(min(_ROWS_AT_ONCE, self.rows_at_once)):
            on_training, at_query = self.predict(free, part, query)
            change = self.losses(on_training, part) - self.training.losses[part]
            total = total + self.training.mean_loss(change, part) * len(part)
        return at_query, total / len(index)


def _joined(pieces: list[Any]) -> Any:
    """Return the predictions of all pieces; a single one is not copied."""
    return pieces[0] if len(pieces) == 1 else pieces[0].cat(pieces, dim=1)
