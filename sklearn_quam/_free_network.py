"""The network as a function of its free parameters, for many models at once.

Whatever changes weights starts here: the network is cut where its free parameters begin, and the
part behind the cut is run with many sets of weights together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval
from torch import Tensor

from ._batched import Executor, choose_executor
from ._cache import Rows, SplitModule, split_module
from ._likelihood import map_prediction
from ._memory import memory_in_bytes
from ._parameters import FreeParameters, LoRA, choose_parameters, execution_order
from ._reference import ReferenceModel, batches, rows_at_once, slices
from .base import BaseUncertaintyEstimator

Free = dict[str, Tensor]

_PROBE_ROWS = 4
# Results of one pass that are larger than this leave the caches of a CPU.
_MAX_BYTES_ON_CPU = 2**26


@dataclass(frozen=True)
class TrainingSet:
    """The training data as models with other weights see it.

    Parameters
    ----------
    rows : tuple of Tensor of shape (n_rows, ...)
        Values at the cut.
    target : Tensor of shape (n_rows, ...)
        Class indices or real targets.
    weight : Tensor of shape (n_rows,) or None
        Sample weights with mean one.
    losses : Tensor of shape (n_rows,)
        What each row costs the given network.
    """

    rows: Rows
    target: Tensor
    weight: Tensor | None
    losses: Tensor

    def mean_loss(self, losses: Tensor, index: Tensor) -> Tensor:
        """Return the weighted mean over rows (the last axis) that are given by their numbers."""
        return self.weighted(losses, index).mean(dim=-1)

    def weighted(self, losses: Tensor, index: Tensor | slice) -> Tensor:
        """Return the losses of rows (the last axis) times their sample weights."""
        return losses if self.weight is None else losses * self.weight[index]


@dataclass(frozen=True)
class FreeNetwork:
    """A network cut where its free parameters begin.

    Parameters
    ----------
    free : FreeParameters
        What may change.
    split : SplitModule
        The two parts.
    executor : Executor
        Runs the second part with many sets of weights.
    """

    free: FreeParameters
    split: SplitModule
    executor: Executor

    def at_cut(self, inputs: Tensor) -> Rows:
        """Return the values at the cut, computed in batches.

        Parameters
        ----------
        inputs : Tensor of shape (n_rows, ...)
            Rows as the network takes them.

        Returns
        -------
        tuple of Tensor of shape (n_rows, ...)
            What the frozen part makes of them.
        """
        parts = [self.split.at_cut(inputs[rows]) for rows in batches(inputs)]
        return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))

    def predict(self, values: Free, rows: Rows) -> Any:
        """Return what each of many models predicts for each of some rows.

        Parameters
        ----------
        values : dict of Tensor of shape (n_models, ...)
            Free parameters.
        rows : tuple of Tensor of shape (n_rows, ...)
            Values at the cut.

        Returns
        -------
        Tensor of shape (n_models, n_rows, n_classes) or Gaussian
            Predictions.
        """
        n_rows = len(rows[0])
        n_models = len(next(iter(values.values())))
        # The last row is everybody's own. A single row is run twice: modules that squeeze their
        # output would lose its axis.
        shared = tuple(part if n_rows == 1 else part[:-1] for part in rows)
        own = tuple(part[-1:].expand(n_models, *part.shape[1:]) for part in rows)
        prediction = self.executor.predict(self.free.weights(values), shared, own)
        return map_prediction(lambda part: part[:, -n_rows:], prediction)

    def losses(self, values: Free, training: TrainingSet, index: Tensor | slice) -> Tensor:
        """Return what training rows cost each model, times their sample weights.

        Parameters
        ----------
        values : dict of Tensor of shape (n_models, ...)
            Free parameters.
        training : TrainingSet
            The training data.
        index : Tensor or slice
            Which of its rows.

        Returns
        -------
        Tensor of shape (n_models, n_rows)
            Negative log-likelihoods.
        """
        prediction = self.predict(values, tuple(part[index] for part in training.rows))
        likelihood = self.executor.likelihood
        losses = likelihood.negative_log_likelihood(prediction, training.target[index])
        return training.weighted(losses, index)

    def bytes_per_row(self, rows: Rows) -> int:
        """Return the memory that one model needs for one row, measured on a few.

        Parameters
        ----------
        rows : tuple of Tensor of shape (n_rows, ...)
            Values at the cut of a few rows.

        Returns
        -------
        int
            Bytes.
        """
        values = {name: value[None].requires_grad_() for name, value in self.free.start.items()}
        own = tuple(part[:1] for part in rows)
        needed = self.executor.bytes_per_model(self.free.weights(values), rows, own)
        return max(1, needed // (len(rows[0]) + 1))


def free_network(
    reference: ReferenceModel, parameters: Any, inputs: Tensor, seed: int
) -> FreeNetwork:
    """Return the given network as a function of some of its parameters.

    Parameters
    ----------
    reference : ReferenceModel
        The given network.
    parameters : object
        What the user says may change.
    inputs : Tensor of shape (n_rows, ...)
        Rows to try it on.
    seed : int
        Seeds the factors of low-rank updates.

    Returns
    -------
    FreeNetwork
        The cut network.
    """
    module, probe = reference.module, probe_rows(inputs)
    with torch.no_grad():
        order = execution_order(module, lambda: module(probe))
    free = choose_parameters(module, parameters, order, seed)
    split = split_module(module, free.names, probe)
    executor = choose_executor(
        split.rest, reference.likelihood, free.weights(free.start), split.at_cut(probe)
    )
    # With a module of its own: the given network predicts meanwhile, in other threads.
    return FreeNetwork(free, split, executor.for_thread())


def probe_rows(inputs: Tensor) -> Tensor:
    """Return a few rows to try a network on, some of them twice if there are not enough."""
    probe = inputs[:_PROBE_ROWS]
    if len(probe) < _PROBE_ROWS:
        probe = probe.repeat(_PROBE_ROWS, *[1] * (probe.ndim - 1))[:_PROBE_ROWS]
    return probe


class WeightChanging(BaseUncertaintyEstimator):
    """Shared by the methods that look at the network with other weights."""

    _made_again: ClassVar[tuple[str, ...]] = ("_free_network_",)
    _weight_constraints: ClassVar[dict] = {
        "parameters": [str, Interval(Integral, 1, None, closed="left"), list, callable, LoRA],
        "memory_limit": [Interval(Real, 0, None, closed="neither"), str, None],
    }

    parameters: Any
    memory_limit: Any

    def _network(self) -> FreeNetwork:
        """Return the network as a function of its free parameters; made once."""
        if not hasattr(self, "_free_network_"):
            self._free_network_ = self._make_network()
        return self._free_network_

    def _make_network(self) -> FreeNetwork:
        return free_network(self._reference, self.parameters, self._inputs, self._seed)

    def _note_parameters(self) -> None:
        """Prepare the network anew and set the fitted attributes that say what changes."""
        memory_in_bytes(self.memory_limit, self._reference.device)
        self._free_network_ = self._make_network()
        free = self._free_network_.free
        self.parameter_names_ = list(free.names)
        self.n_parameters_searched_ = free.size

    def _training_set(self) -> TrainingSet:
        rows = self._network().at_cut(self._inputs)
        return TrainingSet(rows, self._target, self._sample_weight, self._given_losses)

    def _groups(self, n_models: int, bytes_per_model: int) -> Iterator[slice]:
        """Yield the models that fit the memory limit together."""
        return slices(n_models, self._number_that_fits(bytes_per_model))

    def _row_chunks(self, inputs: Tensor, bytes_per_row: int) -> Iterator[slice]:
        """Yield the rows that fit the memory limit, and one forward pass, together."""
        size = min(rows_at_once(inputs), self._number_that_fits(bytes_per_row))
        return slices(len(inputs), size)

    def _number_that_fits(self, bytes_each: int) -> int:
        limit = memory_in_bytes(self.memory_limit, self._reference.device)
        if self._reference.device.type == "cpu":
            limit = min(limit, _MAX_BYTES_ON_CPU)
        return max(1, limit // max(1, bytes_each))


def draw_batches(
    n_rows: int, batch_size: int, n_batches: int, generator: torch.Generator
) -> Tensor:
    """Return mini-batches: one shuffled pass over the data after another.

    Parameters
    ----------
    n_rows : int
        Rows of the training data.
    batch_size : int
        Rows of a mini-batch; never more than there are.
    n_batches : int
        How many.
    generator : torch.Generator
        Shuffles.

    Returns
    -------
    Tensor of shape (n_batches, batch_size)
        Row numbers.
    """
    size = min(batch_size, n_rows)
    passes = -(-n_batches // (n_rows // size))
    shuffled = [torch.randperm(n_rows, generator=generator) for _ in range(passes)]
    whole = [order[: n_rows // size * size] for order in shuffled]
    return torch.cat(whole)[: n_batches * size].reshape(n_batches, size)
