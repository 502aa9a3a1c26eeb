"""Many models at once: the part of a network behind the cut, run with many sets of weights.

Three ways give the same numbers: large matrix products for chains of linear layers, `vmap` for
whatever it can handle, and a plain loop for the rest. `choose_executor` takes the first that works.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..exceptions import NetworkError
from .chain import Chain, Layer
from .cut.chained import Chained, NotAChainError
from .cut.running import copy_sharing
from .inputs.rows import Rows
from .likelihood import CategoricalLikelihood, Likelihood
from .outputs import NetworkErrors
from .predictions import Categorical, Prediction

Weights = dict[str, Tensor]


class Executor:
    """Predicts with many models, each on the shared rows and on a query row of its own.

    Parameters
    ----------
    module : torch.nn.Module
        The part of the network behind the cut, in evaluation mode.
    likelihood : CategoricalLikelihood or GaussianLikelihood
        What its outputs mean.
    """

    name = ""

    def __init__(self, module: nn.Module, likelihood: Likelihood) -> None:
        self.module = module
        self.likelihood = likelihood
        self._places = _places(module)
        # While the module runs with other weights, it holds them.
        self._running = threading.Lock()

    def predict(self, weights: Weights, shared: Rows, query: Rows) -> Prediction:
        """Return predictions.

        Parameters
        ----------
        weights : dict of Tensor of shape (n_models, ...)
            Searched parameters, by name.
        shared : tuple of Tensor of shape (n_shared, ...)
            Values at the cut of rows that every model sees.
        query : tuple of Tensor of shape (n_models, ...)
            Values at the cut of one row for each model.

        Returns
        -------
        Prediction
            For (n_models, n_shared + 1) rows; the model's query row comes last.
        """
        raise NotImplementedError

    def predict_each(self, weights: Weights, rows: Rows) -> Prediction:
        """Return predictions of models that have rows of their own.

        Parameters
        ----------
        weights : dict of Tensor of shape (n_models, ...)
            Searched parameters, by name.
        rows : tuple of Tensor of shape (n_models, n_rows, ...)
            Values at the cut, of at least two rows for each model.

        Returns
        -------
        Prediction
            For (n_models, n_rows).
        """
        raise NotImplementedError

    def for_thread(self) -> Executor:
        """Return one with its own module: running a module with other weights changes it."""
        return type(self)(copy_sharing(self.module), self.likelihood)

    def bytes_per_model(self, weights: Weights, shared: Rows, query: Rows) -> int:
        """Return the memory that a forward and a backward pass need for each model's values.

        Parameters
        ----------
        weights : dict of Tensor of shape (n_models, ...)
            Searched parameters of a few models, which require gradients.
        shared, query : tuple of Tensor
            Rows as for `predict`.

        Returns
        -------
        int
            Bytes, besides the parameters and their gradients.
        """
        sizes: dict[int, int] = {}

        def count(tensor: Tensor) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            self.predict(weights, shared, query)
        # What is kept for the backward pass exists once more while it is made or differentiated.
        return 2 * sum(sizes.values()) // len(query[0])

    def _predict_one(self, weights: Weights, shared: Rows, query: Rows) -> tuple[Tensor, ...]:
        rows = [torch.cat([a, b[None]]) for a, b in zip(shared, query, strict=True)]
        return self._run_one(weights, tuple(rows))

    def _run_one(self, weights: Weights, rows: Rows) -> tuple[Tensor, ...]:
        # torch's own tying leaves the module changed where a submodule has two names.
        everywhere = self._everywhere(weights)
        with self._running, NetworkErrors():
            output = functional_call(self.module, everywhere, rows, tie_weights=False)
        return self.likelihood.prediction(output).parts

    def _everywhere(self, weights: Weights) -> Weights:
        """Return weights under the names of all places that share them."""
        return {
            place: weight
            for name, weight in weights.items()
            for place in self._places.get(name, ())
        }


def _places(module: nn.Module) -> dict[str, list[str]]:
    """Return for each parameter, by any of its names, the name of every place that holds it."""
    places: dict[int, list[str]] = {}
    for path, part in module.named_modules():
        for name, p in part.named_parameters(recurse=False, remove_duplicate=False):
            places.setdefault(id(p), []).append(f"{path}.{name}" if path else name)
    named = module.named_parameters(remove_duplicate=False)
    return {name: places[id(p)] for name, p in named}


class _WithoutFusedAttention:
    """Attention layers by plain operations: `vmap` cannot differentiate the fused kernels.

    torch has one switch for the whole process, so that who is inside is counted for the process,
    too: the last one to leave sets the switch back.
    """

    _lock = threading.Lock()
    _inside = 0
    _enabled = True

    def __enter__(self) -> None:
        cls = _WithoutFusedAttention
        with cls._lock:
            if not cls._inside:
                cls._enabled = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            cls._inside += 1

    def __exit__(self, *_: object) -> None:
        cls = _WithoutFusedAttention
        with cls._lock:
            cls._inside -= 1
            if not cls._inside:
                torch.backends.mha.set_fastpath_enabled(cls._enabled)


class LoopExecutor(Executor):
    """One model after the other: works for every module."""

    name = "loop"

    def predict(self, weights: Weights, shared: Rows, query: Rows) -> Prediction:
        """Return predictions; see the base class."""
        return self._loop(lambda w, row: self._predict_one(w, shared, row), weights, query)

    def predict_each(self, weights: Weights, rows: Rows) -> Prediction:
        """Return predictions; see the base class."""
        return self._loop(self._run_one, weights, rows)

    def _loop(
        self, run: Callable[[Weights, Rows], tuple[Tensor, ...]], weights: Weights, rows: Rows
    ) -> Prediction:
        parts = [
            run(
                {name: weight[index] for name, weight in weights.items()},
                tuple(part[index] for part in rows),
            )
            for index in range(len(rows[0]))
        ]
        return self.likelihood.kind(*(torch.stack(part) for part in zip(*parts, strict=True)))


class VmapExecutor(Executor):
    """All models by `torch.vmap`: works for modules without data-dependent control flow."""

    name = "vmap"

    def predict(self, weights: Weights, shared: Rows, query: Rows) -> Prediction:
        """Return predictions; see the base class."""
        return self._vmap(lambda w, row: self._predict_one(w, shared, row), weights, query)

    def predict_each(self, weights: Weights, rows: Rows) -> Prediction:
        """Return predictions; see the base class."""
        return self._vmap(self._run_one, weights, rows)

    def _vmap(
        self, run: Callable[[Weights, Rows], tuple[Tensor, ...]], weights: Weights, rows: Rows
    ) -> Prediction:
        # What torch.vmap cannot do with a network is an error of the network, too.
        with NetworkErrors(), _WithoutFusedAttention(), warnings.catch_warnings():
            # An operation that runs model by model, as in weight normalisation, is no concern.
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            parts = vmap(run)(weights, rows)
        return self.likelihood.kind(*parts)


class ChainExecutor(Executor):
    """A chain of linear layers and common activations, as large matrix products."""

    name = "matmul"

    def __init__(self, module: nn.Module, likelihood: Likelihood) -> None:
        super().__init__(module, likelihood)
        # The names of the layers' weights and biases, the layers, and what is behind the last one.
        self.steps = _read_chain(module)
        self._names, layers, self._endings = self.steps
        self.chain = Chain(layers)

    def for_thread(self) -> Executor:
        """Return itself: every thread has memory of its own, and the module is left alone."""
        return self

    def predict(self, weights: Weights, shared: Rows, query: Rows) -> Prediction:
        """Return predictions; see the base class."""
        (rows,), (row,) = shared, query
        values = self.chain(
            [weights.get(weight) for weight, _ in self._names],
            [weights.get(bias) for _, bias in self._names],
            rows,
            row,
        )
        return self.interpret(values)

    def predict_each(self, weights: Weights, rows: Rows) -> Prediction:
        """Return predictions; see the base class."""
        values = rows[0].mT
        for (weight, bias), layer in zip(self._names, self.chain.layers, strict=True):
            values = weights.get(weight, layer.weight) @ values
            shift = weights.get(bias, layer.bias)
            if shift is not None:
                values = values + shift[..., None]
            if layer.activation is not None:
                values = layer.activation(values)
        return self.interpret(values)

    def bytes_per_model(self, weights: Weights, shared: Rows, query: Rows) -> int:  # noqa: ARG002
        """Return the memory for each model's values; see the base class."""
        values = self.chain.bytes_per_model(len(shared[0]) + 1)
        outputs = self.chain.layers[-1].weight.shape[0] * (len(shared[0]) + 1)
        # The last layer's values are differentiated by autograd, with a copy for every operation.
        return values + 10 * outputs * shared[0].element_size()

    def interpret(self, values: Tensor) -> Prediction:
        """Return what values (n_models, n_out, n_rows) of the last layer mean."""
        for ending in self._endings:
            values = ending(values)
        if isinstance(self.likelihood, CategoricalLikelihood):
            # A softmax over the middle axis is far faster than over the last one, transposed.
            return Categorical(self.likelihood.log_proba(values, dim=1).transpose(1, 2))
        return self.likelihood.prediction(values.transpose(1, 2))


def _read_chain(
    module: nn.Module,
) -> tuple[list[tuple[str, str]], list[Layer], list[Callable[[Tensor], Tensor]]]:
    """Return the names of the layers' parameters, the layers, and what comes behind the last."""
    if not isinstance(module, Chained):
        raise NotAChainError("Not a chain of linear layers.")
    names, layers, endings = module.read()
    last = layers[-1].activation
    if last is not None:
        # The chain's own backward pass begins at a linear layer.
        layers[-1] = replace(layers[-1], activation=None)
        endings.insert(0, last)
    return names, layers, endings


EXECUTORS: dict[str, type[Executor]] = {
    kind.name: kind for kind in (ChainExecutor, VmapExecutor, LoopExecutor)
}


def choose_executor(
    module: nn.Module, likelihood: Likelihood, weights: Weights, rows: Rows
) -> Executor:
    """Return the fastest way to run many models that agrees with a plain loop.

    Parameters
    ----------
    module : torch.nn.Module
        The part of the network behind the cut.
    likelihood : CategoricalLikelihood or GaussianLikelihood
        What its outputs mean.
    weights : dict of Tensor
        Searched parameters of the given network.
    rows : tuple of Tensor of shape (n_rows, ...)
        Values at the cut of some rows.

    Returns
    -------
    Executor
        Its `name` is "matmul", "vmap" or "loop".
    """
    loop = LoopExecutor(module, likelihood)
    pair = _two_models(weights)
    shared, query = tuple(part[:-1] for part in rows), tuple(part[[0, -1]] for part in rows)
    expected = _with_gradients(loop, pair, shared, query)
    # A matrix of rows is what chains are made for.
    is_matrix = len(rows) == 1 and rows[0].ndim == 2
    for kind in (ChainExecutor, VmapExecutor) if is_matrix else (VmapExecutor,):
        try:
            executor = kind(module, likelihood)
            got = _with_gradients(executor, pair, shared, query)
        except (NotAChainError, NetworkError):
            # What a module may do is open-ended; a way that fails is not taken.
            continue
        if all(map(_close, got, expected)):
            return executor
    return loop


def _two_models(weights: Weights) -> Weights:
    """Return weights of two models that differ, so that mixing them up would show.

    They differ by a small part of the weights' own size: the outputs of deep networks would
    overflow otherwise.
    """
    generator = torch.Generator().manual_seed(0)
    pair = {}
    for name, weight in weights.items():
        size = weight.square().mean().sqrt()
        noise = torch.randn(weight.shape, generator=generator).to(weight)
        pair[name] = torch.stack([weight, weight + 0.05 * torch.where(size > 0, size, 1) * noise])
    return pair


def _with_gradients(
    executor: Executor, weights: Weights, shared: Rows, query: Rows
) -> tuple[Tensor, ...]:
    """Return what the models predict and the gradients of it, each as one vector."""
    if torch.is_inference_mode_enabled():
        # There are no gradients in this mode.
        return executor.predict(weights, shared, query).parts
    weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    values = list(weights.values())
    with torch.enable_grad():
        parts = executor.predict(weights, shared, query).parts
        predicted = torch.cat([part.flatten() for part in parts])
        total = predicted.square().sum() + sum(0 * value.sum() for value in values)
        with NetworkErrors():
            gradients = torch.autograd.grad(total, values)
    return predicted.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def _close(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape:
        return False
    # Some gradients are zero but for rounding, which depends on the size of the others.
    size = float(second.abs().amax())
    return torch.allclose(first, second, rtol=1e-3, atol=1e-4 * size)
