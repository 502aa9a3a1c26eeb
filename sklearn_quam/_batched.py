"""Many models at once: the part of a network behind the cut, run with many sets of weights.

Three ways give the same numbers: large matrix products for chains of linear layers, `vmap` for
whatever it can handle, and a plain loop for the rest. `choose_executor` takes the first that works.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap

from ._cache import Rows
from ._likelihood import Gaussian
from ._reference import Likelihood

Weights = dict[str, Tensor]

_ELEMENTWISE_MODULES = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Softplus,
    nn.Tanh,
    nn.Sigmoid,
    nn.Identity,
    nn.Dropout,
)
_ELEMENTWISE_FUNCTIONS = (
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.nn.functional.relu,
    torch.nn.functional.leaky_relu,
    torch.nn.functional.elu,
    torch.nn.functional.gelu,
    torch.nn.functional.silu,
    torch.nn.functional.tanh,
    torch.nn.functional.sigmoid,
)
_ELEMENTWISE_METHODS = ("relu", "tanh", "sigmoid")
_OVER_CLASSES = (nn.Softmax, nn.LogSoftmax)

Step = str | Callable[[Tensor], Tensor]


class Executor:
    """Predicts with many models, each on the shared rows and on one row of its own.

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

    def predict(self, weights: Weights, shared: Rows, own: Rows) -> Any:
        """Return predictions.

        Parameters
        ----------
        weights : dict of Tensor of shape (n_models, ...)
            Searched parameters, by name.
        shared : tuple of Tensor of shape (n_shared, ...)
            Values at the cut of rows that every model sees.
        own : tuple of Tensor of shape (n_models, ...)
            Values at the cut of one row for each model.

        Returns
        -------
        Tensor of shape (n_models, n_shared + 1, n_classes) or Gaussian
            The own row comes last.
        """
        raise NotImplementedError

    def _predict_one(self, weights: Weights, shared: Rows, own: Rows) -> Any:
        rows = [torch.cat([a, b[None]]) for a, b in zip(shared, own, strict=True)]
        prediction = self.likelihood.prediction(functional_call(self.module, weights, tuple(rows)))
        return tuple(prediction) if isinstance(prediction, Gaussian) else prediction


class LoopExecutor(Executor):
    """One model after the other: works for every module."""

    name = "loop"

    def predict(self, weights: Weights, shared: Rows, own: Rows) -> Any:
        """Return predictions; see the base class."""
        parts = [
            self._predict_one(
                {name: weight[index] for name, weight in weights.items()},
                shared,
                tuple(rows[index] for rows in own),
            )
            for index in range(len(own[0]))
        ]
        if isinstance(parts[0], tuple):
            return Gaussian(*(torch.stack(part) for part in zip(*parts, strict=True)))
        return torch.stack(parts)


class VmapExecutor(Executor):
    """All models by `torch.vmap`: works for modules without data-dependent control flow."""

    name = "vmap"

    def predict(self, weights: Weights, shared: Rows, own: Rows) -> Any:
        """Return predictions; see the base class."""
        result = vmap(lambda w, rows: self._predict_one(w, shared, rows))(weights, own)
        return Gaussian(*result) if isinstance(result, tuple) else result


class ChainExecutor(Executor):
    """A chain of linear layers and elementwise functions, as large matrix products.

    Values are laid out as (model, feature, row): the first layer of all models on the shared rows
    is a single product, and neither a layer nor its gradient has to be transposed.
    """

    name = "matmul"

    def __init__(self, module: nn.Module, likelihood: Likelihood) -> None:
        super().__init__(module, likelihood)
        self._steps = _read_chain(module)

    def predict(self, weights: Weights, shared: Rows, own: Rows) -> Any:
        """Return predictions; see the base class."""
        (rows,), (row,) = shared, own
        values: Tensor | None = None
        for step in self._steps:
            if not isinstance(step, str):
                if values is None:
                    values = torch.cat([rows.T.expand(len(row), -1, -1), row[..., None]], dim=2)
                values = step(values)
                continue
            linear = cast(nn.Linear, self.module.get_submodule(step[:-1]))
            weight, bias = weights.get(f"{step}weight"), weights.get(f"{step}bias")
            if values is None:
                values = _first_layer(weight, linear.weight, rows, row)
            else:
                values = linear.weight @ values if weight is None else torch.bmm(weight, values)
            if bias is not None:
                values = values + bias[..., None]
            elif linear.bias is not None:
                values = values + linear.bias[:, None]
        assert values is not None
        return self.likelihood.prediction(values.transpose(1, 2))


def _first_layer(weight: Tensor | None, given: Tensor, rows: Tensor, row: Tensor) -> Tensor:
    """Apply the first layer of all models to the shared rows and to the own row of each."""
    n_models = len(row)
    if weight is None:
        on_shared = (given @ rows.T).expand(n_models, -1, -1)
        return torch.cat([on_shared, (row @ given.T)[..., None]], dim=2)
    on_shared = (weight.flatten(0, 1) @ rows.T).unflatten(0, (n_models, -1))
    return torch.cat([on_shared, torch.bmm(weight, row[..., None])], dim=2)


def _read_chain(module: nn.Module) -> list[Step]:
    """Return the steps of a chain: the prefix of a linear layer's names, or a function.

    Raises ValueError for anything but a chain of linear layers and elementwise functions.
    """
    if type(module) is nn.Linear:
        return [""]
    graph = module.graph if isinstance(module, fx.GraphModule) else fx.Tracer().trace(module)
    steps: list[Step] = []
    previous = None
    for node in graph.nodes:
        if node.op == "placeholder" and previous is None:
            previous = node
            continue
        if node.op == "output":
            if node.args[0] is previous and steps:
                return steps
            break
        if node.all_input_nodes != [previous] or node.args[:1] != (previous,):
            break
        steps.append(_read_step(module, node))
        previous = node
    raise ValueError("Not a chain of linear layers.")


def _read_step(module: nn.Module, node: fx.Node) -> Step:
    if node.op == "call_module":
        part = module.get_submodule(str(node.target))
        if type(part) is nn.Linear:
            return f"{node.target}."
        if type(part) in _ELEMENTWISE_MODULES:
            return part
        # The classes of a row are the last axis of a matrix, but the middle one of the layout.
        if type(part) in _OVER_CLASSES and part.dim in (1, -1):
            return type(part)(dim=1)
    if node.op == "call_function" and node.target in _ELEMENTWISE_FUNCTIONS:
        options = {name: value for name, value in node.kwargs.items() if name != "inplace"}
        return partial(_call, node.target, node.args[1:], options)
    if node.op == "call_method" and node.target in _ELEMENTWISE_METHODS:
        return partial(_call, getattr(Tensor, str(node.target)), (), {})
    raise ValueError("Not a chain of linear layers.")


def _call(function: Any, arguments: tuple, options: dict, values: Tensor) -> Tensor:
    return function(values, *arguments, **options)


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
    # Two models that differ, so that mixing them up would show.
    pair = {name: torch.stack([w, w * 1.01 + 0.01]) for name, w in weights.items()}
    shared, own = tuple(part[:-1] for part in rows), tuple(part[[0, -1]] for part in rows)
    with torch.no_grad():
        expected = loop.predict(pair, shared, own)
    for kind in (ChainExecutor, VmapExecutor):
        try:
            executor = kind(module, likelihood)
            with torch.no_grad():
                got = executor.predict(pair, shared, own)
        except Exception:
            # What a module may do is open-ended; a way that fails is not taken.
            continue
        if _close(got, expected):
            return executor
    return loop


def _close(first: Any, second: Any) -> bool:
    if isinstance(first, Gaussian):
        return all(_close(a, b) for a, b in zip(first, second, strict=True))
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-3, atol=1e-4)
