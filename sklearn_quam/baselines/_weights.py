"""Methods whose plausible models are a set of weights, drawn once by fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .._network.free import Free, FreeNetwork
from .._network.inputs.rows import Inputs, Rows, StoredRows
from .._network.limits import Limits, rows_at_once, slices
from .._network.predictions import Prediction
from .._network.reference import TrainingSet
from .._posterior.accumulate import Posterior
from .._posterior.fitted import FittedMethod, Question
from ..base._data import FitData
from ..base._estimator import BaseUncertaintyEstimator
from ._method import WeightArguments


@dataclass(frozen=True)
class WeightSamples:
    """Plausible models as sets of weights, the same for all samples."""

    network: FreeNetwork
    weights: Free  # free parameters, each (n_models, ...)
    bytes_per_row: int  # memory that one model needs for one sample

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:
        """Return how many samples are worked on together."""
        return min(rows_at_once(inputs), limits.number_that_fits(self.bytes_per_row))

    def given(self, inputs: Inputs) -> tuple[Inputs, Prediction]:
        """Return the values of samples at the cut, and the given network's prediction."""
        return self.network.given(inputs)

    def sample(
        self,
        inputs: Inputs,
        original: Prediction,  # noqa: ARG002
        posterior: Posterior,
        question: Question,
    ) -> dict[str, np.ndarray]:
        """Add the models' predictions to the accumulator; see `Models`."""
        for prediction in self.predictions(inputs.parts, question.limits):
            posterior.update(prediction)
        return {}

    @torch.no_grad()
    def predictions(self, rows: Rows, limits: Limits) -> Iterator[Prediction]:
        """Yield the models' predictions, of as many models at once as fit the memory limit."""
        n_models = len(next(iter(self.weights.values())))
        size = limits.number_that_fits(len(rows[0]) * self.bytes_per_row)
        for models in slices(n_models, size):
            group = {name: value[models] for name, value in self.weights.items()}
            yield self.network.predict(group, rows)


@dataclass(frozen=True)
class TrainingLoss:
    """The loss on the training data as a function of positions: parameters, a row a model."""

    network: FreeNetwork
    training: TrainingSet  # at the cut of the network

    @property
    def start(self) -> Tensor:
        """The given parameters, (1, n_parameters)."""
        return torch.cat([value.flatten() for value in self.network.free.start.values()])[None]

    def parameters(self, position: Tensor) -> Free:
        """Return the parameters by name, each (n_models, ...)."""
        like = self.network.free.start
        parts = position.split([value.numel() for value in like.values()], dim=1)
        return {
            name: part.unflatten(1, value.shape) if value.ndim else part[:, 0]
            for (name, value), part in zip(like.items(), parts, strict=True)
        }

    def losses(self, position: Tensor, index: Tensor | slice) -> Tensor:
        """Return the loss of each model on some training samples, (n_models, n_rows)."""
        return self.network.losses(self.parameters(position), self.training, index)

    def sum_and_gradient(self, position: Tensor, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the sum of each model's losses on some training samples, and its gradient."""
        leaf = position.detach().requires_grad_()
        value = self.losses(leaf, index).sum(dim=1)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), gradient


class SampledWeights(WeightArguments, BaseUncertaintyEstimator):
    """Draws weights by fit; both settings then use the same models."""

    _trains_again = True
    _changes_weights = True
    _fitted_kind: ClassVar[Any] = FittedMethod[WeightSamples]

    def _fit_models(self, fit: FitData) -> WeightSamples:
        network = fit.network
        bytes_per_row = network.bytes_per_row()
        loss = TrainingLoss(network, fit.training.behind_cut())
        position = self._draw(loss, fit.seed, self._limits(fit))
        return WeightSamples(network, loss.parameters(position), bytes_per_row)

    def _draw(self, loss: TrainingLoss, seed: int, limits: Limits) -> Tensor:
        """Return the parameters of all models, (n_models, n_parameters): the hook to fill in."""
        raise NotImplementedError
