"""What methods share whose plausible models are a set of weights, drawn once by fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._contexts import computing
from .._free_network import Free, FreeNetwork, TrainingSet, WeightChanging, probe_rows


class SampledWeights(WeightChanging):
    """Draws weights when it is fitted; both settings then use the same models."""

    @computing()
    def _finish_fit(self) -> None:
        self._note_parameters()
        network = self._network()
        self._bytes_per_row = network.bytes_per_row(network.at_cut(probe_rows(self._inputs)))
        self._weights = self._draw_weights(network, self._training_set())

    def _draw_weights(self, network: FreeNetwork, training: TrainingSet) -> Free:
        """Return the free parameters of all plausible models: the hook a method fills in.

        Parameters
        ----------
        network : FreeNetwork
            The network as a function of its free parameters.
        training : TrainingSet
            The training data.

        Returns
        -------
        dict of Tensor of shape (n_models, ...)
            Free parameters.
        """
        raise NotImplementedError

    def _chunks(self, inputs: Tensor) -> Iterator[slice]:
        return self._row_chunks(inputs, self._bytes_per_row)

    def _sample_models(
        self,
        inputs: Tensor,
        given: Any,  # noqa: ARG002
        posterior: Any,
    ) -> dict[str, np.ndarray]:
        for prediction in self._predictions(inputs):
            posterior.update(prediction)
        return {"cached": np.full(len(inputs), self._network().split.cached)}

    @torch.no_grad()
    def _predictions(self, inputs: Tensor) -> Iterator[Any]:
        """Yield what the models predict, as many at once as fit the memory limit."""
        network = self._network()
        rows = network.at_cut(inputs)
        n_models = len(next(iter(self._weights.values())))
        for models in self._groups(n_models, len(inputs) * self._bytes_per_row):
            group = {name: value[models] for name, value in self._weights.items()}
            yield network.predict(group, rows)


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
