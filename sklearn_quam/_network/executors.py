"""Many models at once: the part of a network behind the cut, run with many sets of weights.

Three executors give the same numbers: large matrix products for chains of linear layers, `vmap` for
whatever it can handle, and a loop for the rest. `choose_executor` takes the first that works.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import BaseTorchFunctionMode

from ..exceptions import NetworkError
from .cut.chain import Chain, Chained
from .cut.running import copy_sharing
from .inputs.rows import Rows
from .likelihood import CategoricalLikelihood, Likelihood
from .outputs import NetworkErrors
from .predictions import Categorical, Prediction

Weights = dict[str, Tensor]


class Executor:
    """Predicts with many models; a subclass fills in `predict_each`."""

    name = ""

    def __init__(self, module: nn.Module, likelihood: Likelihood) -> None:
        self.module = module
        self.likelihood = likelihood
        self._places = _places(module)
        # While the module runs with other weights, it holds them.
        self._running = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.module, self.likelihood)

    def predict(self, weights: Weights, shared: Rows, query: Rows) -> Prediction:
        """Return predictions (n_models, n_shared + 1) for shared rows, then a query row each."""
        pairs = zip(shared, query, strict=True)
        rows = (
            torch.cat([some.expand(len(own), *some.shape), own[:, None]], dim=1)
            for some, own in pairs
        )
        return self.predict_each(weights, tuple(rows))

    def predict_each(self, weights: Weights, rows: Rows) -> Prediction:
        """Return predictions (n_models, n_rows) for at least two rows (n_models, n_rows, ...)."""
        raise NotImplementedError

    def for_thread(self) -> Executor:
        """Return one with its own module: running a module with other weights changes it."""
        return type(self)(copy_sharing(self.module), self.likelihood)

    def _run_one(self, weights: Weights, rows: Rows) -> tuple[Tensor, ...]:
        """Return the parts of the prediction of one model."""
        # torch's own tying leaves the module changed where a submodule has two names.
        everywhere = {
            place: weight
            for name, weight in weights.items()
            for place in self._places.get(name, ())
        }
        with self._running, NetworkErrors():
            output = functional_call(self.module, everywhere, rows, tie_weights=False)
        return self.likelihood.prediction(output).parts


def _places(module: nn.Module) -> dict[str, list[str]]:
    """Return for each parameter, by any of its names, the name of every place that holds it."""
    places: dict[int, list[str]] = {}
    for path, part in module.named_modules():
        for name, p in part.named_parameters(path, recurse=False, remove_duplicate=False):
            places.setdefault(id(p), []).append(name)
    named = module.named_parameters(remove_duplicate=False)
    return {name: places[id(p)] for name, p in named}


class LoopExecutor(Executor):
    """One model after the other: works for every module."""

    name = "loop"

    def predict_each(self, weights: Weights, rows: Rows) -> Prediction:
        """Return predictions; see the base class."""
        found: list[Any] = []
        for i in range(len(rows[0])):
            own = {name: weight[i] for name, weight in weights.items()}
            found.append(self.likelihood.kind(*self._run_one(own, tuple(part[i] for part in rows))))
        return self.likelihood.kind.stack(found)


class VmapExecutor(Executor):
    """All models by `torch.vmap`: works for modules without data-dependent control flow."""

    name = "vmap"

    def predict_each(self, weights: Weights, rows: Rows) -> Prediction:
        """Return predictions; see the base class."""
        # What torch.vmap cannot do with a network is an error of the network, too.
        # While a function mode is active, attention takes no fused path, unknown to vmap.
        with NetworkErrors(), BaseTorchFunctionMode(), warnings.catch_warnings():
            # An operation that runs model by model, as in weight normalisation, is no concern.
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            return self.likelihood.kind(*vmap(self._run_one)(weights, rows))


class ChainExecutor(Executor):
    """A chain of linear layers and common activations, as large matrix products."""

    name = "matmul"

    def __init__(self, module: Chained, likelihood: Likelihood) -> None:
        super().__init__(module, likelihood)
        names, layers, endings = module.read()
        last = layers[-1].activation
        if last is not None:
            # The chain's own backward pass begins at a linear layer.
            layers[-1] = replace(layers[-1], activation=None)
            endings.insert(0, last)
        # The names of the layers' weights and biases, the layers, and what is behind the last one.
        self.steps = names, layers, endings
        self.chain = Chain(layers)

    def for_thread(self) -> Executor:
        """Return itself: every thread has memory of its own, and the module is left alone."""
        return self

    def predict(self, weights: Weights, shared: Rows, query: Rows) -> Prediction:
        """Return predictions; see the base class."""
        return self.interpret(self.chain(*self._lists(weights), *shared, *query))

    def predict_each(self, weights: Weights, rows: Rows) -> Prediction:
        """Return predictions; see the base class."""
        return self.interpret(self.chain.each(*self._lists(weights), *rows))

    def _lists(self, weights: Weights) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Return the searched weights and biases of all layers."""
        names, biases = zip(*self.steps[0], strict=True)
        return [weights.get(name) for name in names], [weights.get(name) for name in biases]

    def interpret(self, values: Tensor) -> Prediction:
        """Return what values (n_models, n_out, n_rows) of the last layer mean."""
        for ending in self.steps[2]:
            values = ending(values)
        if isinstance(self.likelihood, CategoricalLikelihood):
            # A softmax over the middle axis is far faster than over the last one, transposed.
            return Categorical(self.likelihood.log_proba(values, dim=1).transpose(1, 2))
        return self.likelihood.prediction(values.transpose(1, 2))


def choose_executor(
    module: nn.Module, likelihood: Likelihood, weights: Weights, rows: Rows
) -> Executor:
    """Return the fastest way to run many models; `vmap` has to agree with a loop on some rows."""
    if isinstance(module, Chained):
        return ChainExecutor(module, likelihood)
    loop, vmapped = LoopExecutor(module, likelihood), VmapExecutor(module, likelihood)
    pair = _two_models(weights)
    shared, query = tuple(part[:-1] for part in rows), tuple(part[[0, -1]] for part in rows)
    expected = _with_gradients(loop, pair, shared, query)
    try:
        found = _with_gradients(vmapped, pair, shared, query)
    except NetworkError:
        return loop
    # Some gradients are zero up to rounding, which depends on the size of the others.
    agree = all(
        one.shape == other.shape
        and torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().amax()))
        for one, other in zip(found, expected, strict=True)
    )
    return vmapped if agree else loop


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
