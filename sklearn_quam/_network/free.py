"""The network as a function of its free parameters, for many models at once.

Whatever changes weights starts here: the network is cut where its free parameters begin, and the
part behind the cut is run with many sets of weights together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..exceptions import UnreadableFileError
from .adapters import is_quantised
from .cut.layers import is_compiled, layers_in_order
from .cut.split import SplitModule, split_module
from .executors import Executor, choose_executor
from .inputs.rows import Inputs, Rows, StoredRows
from .likelihood import Likelihood
from .limits import batches, peak_bytes
from .parameters import FreeParameters, choose_parameters
from .predictions import Prediction
from .reference import ReferenceModel, TrainingSet

Free = dict[str, Tensor]

_PROBE_ROWS = 4
_COMPILED = (
    "The layers to be searched are in a torch.jit module, which cannot be run with other weights. "
    "Pass the nn.Module that it was made from, or parameters= of layers that are not compiled."
)


@dataclass(frozen=True)
class FreeNetwork:
    """A network cut where its free parameters begin.

    Stored and sent to workers with its cut, so that no network is cut twice.
    """

    # The whole network, and what may change
    module: nn.Module
    free: FreeParameters
    # Its two parts, and what runs the second one with many sets of weights
    split: SplitModule
    executor: Executor
    # A few samples to trace the module with
    probe: Inputs
    # Which of several outputs of the whole network counts
    output: str | int | None = None
    # In a file; the cut and its executor are found again.
    _stored: ClassVar[dict[str, Any]] = {
        "module": nn.Module,
        "free": FreeParameters,
        "likelihood": Likelihood,
        "probe": Inputs,
    }

    def _to_store(self) -> dict[str, Any]:
        likelihood = replace(self.executor.likelihood, output=self.output)
        return {**vars(self), "likelihood": likelihood}

    @classmethod
    def _from_store(
        cls, module: nn.Module, free: FreeParameters, likelihood: Likelihood, probe: Inputs
    ) -> FreeNetwork:
        own = dict(module.named_parameters())
        shapes = {name: free.start[name].shape for name in free.start if name not in free.updates}
        changing = {name: own[name].shape for name in free.names}
        if not free.updates and shapes != changing:
            raise UnreadableFileError("what may change is no part of the network that was passed")
        return _cut(module, free, likelihood, probe)

    def for_thread(self) -> FreeNetwork:
        """Return one that may run beside this one, with its own copy of what notes values."""
        split = replace(self.split, rest=copy.deepcopy(self.split.rest))
        return replace(self, split=split, executor=self.executor.for_thread())

    def at_cut(self, inputs: Inputs | StoredRows) -> Rows:
        """Return the values at the cut, computed in batches."""
        return self._in_batches(inputs, self.split.at_cut)

    def given(self, inputs: Inputs | StoredRows) -> tuple[Inputs, Prediction]:
        """Return the values at the cut, and what the given network predicts, by one pass."""
        likelihood = self.executor.likelihood
        predictions: list[Any] = []

        def run(some: Inputs) -> Rows:
            values, prediction = self.split.given(some, likelihood)
            predictions.append(prediction)
            return values

        rows = Inputs(self._in_batches(inputs, run), inputs.bytes_per_row)
        return rows, likelihood.kind.cat(predictions)

    def _in_batches(self, inputs: Inputs | StoredRows, run: Callable[[Inputs], Rows]) -> Rows:
        whole: list[Tensor] = []
        for rows in batches(inputs):
            values = run(inputs[rows])
            if len(values[0]) == len(inputs):
                return values
            # Written where they belong: to put parts together would take their memory twice.
            whole = whole or [part.new_empty(len(inputs), *part.shape[1:]) for part in values]
            for part, value in zip(whole, values, strict=True):
                if part.shape[1:] != value.shape[1:]:
                    raise ValueError(
                        f"Some rows have the shape {tuple(part.shape[1:])} in the network, others "
                        f"{tuple(value.shape[1:])}. Pad all rows of X to the same length."
                    )
                part[rows] = value
        return tuple(whole)

    def with_likelihood(self, likelihood: Likelihood) -> FreeNetwork:
        """Return the same network with another noise variance."""
        executor = self.executor
        likelihood = replace(likelihood, output=executor.likelihood.output)
        return replace(self, executor=type(executor)(executor.module, likelihood))

    def predict(self, values: Free, rows: Rows) -> Prediction:
        """Return predictions (n_models, n_rows) of many models for the same rows."""
        n_rows = len(rows[0])
        n_models = len(next(iter(values.values())))
        # The last row is everybody's query. A single row is run twice: modules that squeeze their
        # output would lose its axis.
        shared = tuple(part if n_rows == 1 else part[:-1] for part in rows)
        query = tuple(part[-1:].expand(n_models, *part.shape[1:]) for part in rows)
        return self.executor.predict(self.free.weights(values), shared, query)[:, -n_rows:]

    def losses(self, values: Free, training: TrainingSet, index: Tensor | slice) -> Tensor:
        """Return weighted losses (n_models, n_rows) of training samples."""
        prediction: Any = self.predict(values, training.rows_at(index))
        likelihood = self.executor.likelihood
        losses = likelihood.negative_log_likelihood(prediction, training.target[index])
        return training.weighted(losses, index)

    def bytes_per_row(self) -> int:
        """Return the memory for one row of one model, forward and backward, measured on a few."""
        rows = self.at_cut(self.probe)
        values = {name: value[None].requires_grad_() for name, value in self.free.start.items()}
        weights, query = self.free.weights(values), tuple(part[:1] for part in rows)
        forward = peak_bytes(lambda: self.executor.predict(weights, rows, query))
        # What is kept for the backward pass exists once more while it is differentiated.
        return max(1, 2 * forward // (len(rows[0]) + 1))


def free_network(
    reference: ReferenceModel, parameters: Any, inputs: Inputs | StoredRows, seed: int
) -> FreeNetwork:
    """Return the given network as a function of the parameters that a user names."""
    module, probe = reference.module, probe_rows(inputs)
    likelihood = reference.likelihood
    if is_compiled(module):
        raise ValueError(_COMPILED)
    layers = layers_in_order(module, lambda: likelihood.pick(module(*probe.parts)))
    free = choose_parameters(module, parameters, layers, seed)
    compiled = [p for part in module.modules() if is_compiled(part) for p in part.parameters()]
    if not {id(module.get_parameter(name)) for name in free.names}.isdisjoint(map(id, compiled)):
        raise ValueError(_COMPILED)
    return _cut(module, free, likelihood, probe)


def _cut(
    module: nn.Module, free: FreeParameters, likelihood: Likelihood, probe: Inputs
) -> FreeNetwork:
    """Cut a network where its free parameters begin."""
    output = likelihood.output
    split = split_module(module, free.names, probe, pick=likelihood.pick)
    if any(map(is_quantised, split.rest.modules())):
        raise ValueError(
            "The layers to be searched are quantised, or there are quantised layers behind them: "
            "they have no weights that could change a little. Pass the network as it was before "
            "quantisation, or one whose last layer was left out of it."
        )
    if split.rest is not module:
        likelihood = replace(likelihood, output=None)  # the rest returns what was picked
    executor = choose_executor(
        split.rest, likelihood, free.weights(free.start), split.at_cut(probe)
    )
    # With a module of its own: the given network predicts meanwhile, in other threads.
    return FreeNetwork(module, free, split, executor.for_thread(), probe, output)


def probe_rows(inputs: Inputs | StoredRows) -> Inputs:
    """Return a few rows to try a network on, some of them twice if there are not enough."""
    # Copies: they must not keep all rows alive.
    few = [part.clone() for part in inputs[:_PROBE_ROWS].parts]
    missing = -(-_PROBE_ROWS // len(few[0]))
    repeated = (part.repeat(missing, *[1] * (part.ndim - 1)) for part in few)
    return Inputs(tuple(part[:_PROBE_ROWS] for part in repeated), inputs.bytes_per_row)


def draw_batches(
    n_rows: int, batch_size: int, n_batches: int, generator: torch.Generator
) -> Tensor:
    """Return numbers (n_batches, batch_size): one shuffled pass over the data after another."""
    size = min(batch_size, n_rows)
    passes = -(-n_batches // (n_rows // size))
    shuffled = [torch.randperm(n_rows, generator=generator) for _ in range(passes)]
    whole = [order[: n_rows // size * size] for order in shuffled]
    return torch.cat(whole)[: n_batches * size].reshape(n_batches, size)
