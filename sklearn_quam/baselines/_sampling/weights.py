"""What methods share whose plausible models are a set of weights, drawn once by fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..._network.free import Free, FreeNetwork
from ..._network.inputs.rows import Inputs, Rows, StoredRows
from ..._network.limits import Limits, rows_at_once, slices
from ..._network.predictions import Prediction
from ..._network.reference import TrainingSet
from ..._posterior.accumulate import Posterior
from ..._posterior.fitted import FittedMethod, Question
from ...base._data import FitData
from ...base._weights import WeightChanging


@dataclass(frozen=True)
class WeightSamples:
    """Plausible models as sets of weights, the same for all rows.

    Parameters
    ----------
    network : FreeNetwork
        The network as a function of its free parameters.
    weights : dict of Tensor of shape (n_models, ...)
        Free parameters of all models.
    bytes_per_row : int
        Memory that one model needs for one row.
    """

    network: FreeNetwork
    weights: Free
    bytes_per_row: int

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:
        """Return how many rows are worked on together."""
        return min(rows_at_once(inputs), limits.number_that_fits(self.bytes_per_row))

    def given(self, inputs: Inputs) -> tuple[Inputs, Prediction]:
        """Return the values of rows at the cut, and what the given network predicts for them."""
        return self.network.given(inputs)

    def sample(
        self,
        inputs: Inputs,
        original: Prediction,  # noqa: ARG002
        posterior: Posterior,
        question: Question,
    ) -> dict[str, np.ndarray]:
        """Hand the models' predictions to the accumulator; see `Models`."""
        for prediction in self.predictions(inputs.parts, question.limits):
            posterior.update(prediction)
        return {}

    @torch.no_grad()
    def predictions(self, rows: Rows, limits: Limits) -> Iterator[Prediction]:
        """Yield what the models predict, as many at once as fit the memory limit."""
        n_models = len(next(iter(self.weights.values())))
        size = limits.number_that_fits(len(rows[0]) * self.bytes_per_row)
        for models in slices(n_models, size):
            group = {name: value[models] for name, value in self.weights.items()}
            yield self.network.predict(group, rows)


class SampledWeights(WeightChanging):
    """Draws weights when it is fitted; both settings then use the same models."""

    _trains_again = True
    _fitted_kind: ClassVar[Any] = FittedMethod[WeightSamples]

    def _fit_models(self, fit: FitData) -> WeightSamples:
        limits, network = self._limits(fit), self._free_network(fit)
        bytes_per_row = network.bytes_per_row()
        training = network.training_at_cut(fit.training)
        weights = self._draw_weights(network, training, fit.seed, limits)
        return WeightSamples(network, weights, bytes_per_row)

    def _draw_weights(
        self, network: FreeNetwork, training: TrainingSet, seed: int, limits: Limits
    ) -> Free:
        """Return the free parameters of all plausible models: the hook a method fills in.

        Parameters
        ----------
        network : FreeNetwork
            The network as a function of its free parameters.
        training : TrainingSet
            The training data, at the cut of the network.
        seed : int
            Seeds the draws.
        limits : Limits
            What may be used.

        Returns
        -------
        dict of Tensor of shape (n_models, ...)
            Free parameters.
        """
        raise NotImplementedError


def flatten(values: Free) -> Tensor:
    """Return the free parameters of each model as one row.

    Parameters
    ----------
    values : dict of Tensor of shape (n_models, ...)
        Free parameters.

    Returns
    -------
    Tensor of shape (n_models, n_parameters)
        The same numbers.
    """
    return torch.cat([value.flatten(1) for value in values.values()], dim=1)


def unflatten(flat: Tensor, like: Free) -> Free:
    """Return rows of free parameters as tensors by name.

    Parameters
    ----------
    flat : Tensor of shape (n_models, n_parameters)
        What `flatten` returned.
    like : dict of Tensor
        The free parameters of one model.

    Returns
    -------
    dict of Tensor of shape (n_models, ...)
        Views of the same numbers.
    """
    parts = flat.split([value.numel() for value in like.values()], dim=1)
    return {
        name: part.unflatten(1, value.shape) if value.ndim else part[:, 0]
        for (name, value), part in zip(like.items(), parts, strict=True)
    }
