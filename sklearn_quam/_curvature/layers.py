"""Inputs of the layers of a network, and gradients at their outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._network.inputs.rows import Rows, at_least_two
from .._network.outputs import NetworkErrors


def has_kronecker_factors(layer: nn.Module) -> bool:
    """Return whether the curvature of a layer can be written as a Kronecker product here."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        if type(layer) not in (nn.Conv1d, nn.Conv2d):
            return False
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str)
    return type(layer) is nn.Linear


def inputs_of(layer: nn.Module, values: Tensor) -> Tensor:
    """Return the factors of a layer's weight, (n_rows, n_places, n_in)."""
    if isinstance(layer, nn.Linear):
        return values.reshape(len(values), -1, values.shape[-1])
    options: dict[str, Any] = {
        name: getattr(layer, name) for name in ("kernel_size", "dilation", "padding", "stride")
    }
    if isinstance(layer, nn.Conv1d):
        values = values[:, :, None]
        fill = {"kernel_size": 1, "dilation": 1, "padding": 0, "stride": 1}
        options = {name: (fill[name], *option) for name, option in options.items()}
    return nn.functional.unfold(values, **options).mT


def _outputs_of(layer: nn.Module, values: Tensor) -> Tensor:
    """Return a layer's outputs, or their gradients, as (n_rows, n_places, n_out)."""
    if isinstance(layer, nn.Linear):
        return values.reshape(len(values), -1, values.shape[-1])
    return values.flatten(2).mT


@dataclass
class Recorder:
    """Notes inputs and outputs of layers in a forward pass."""

    layers: dict[str, nn.Module]

    def __enter__(self) -> Recorder:
        self.calls: list[tuple[str, Tensor, Tensor]] = []
        self._handles = [
            layer.register_forward_hook(self._hook(name)) for name, layer in self.layers.items()
        ]
        return self

    def _hook(self, name: str) -> Callable[..., Tensor]:
        # Other threads may run the same module: their calls are not noted here.
        thread = threading.get_ident()

        def hook(_: nn.Module, args: tuple, output: Any) -> Any:
            if threading.get_ident() != thread:
                return output
            if not isinstance(output, Tensor):
                # Attention returns its weights, too; only its inputs are used.
                self.calls.append((name, args[0].detach(), args[0]))
                return output
            if not output.requires_grad:
                output.requires_grad_()
            self.calls.append((name, args[0].detach(), output))
            # A copy: the next module may write into it.
            return output.clone()

        return hook

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def gradients(self, scores: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield inputs and gradients of each layer; several calls count as more places."""
        outputs = [output for _, _, output in self.calls]
        with NetworkErrors():
            by_score = [
                torch.autograd.grad(score.sum(), outputs, retain_graph=True, materialize_grads=True)
                for score in scores.unbind(dim=1)
            ]
        for name, layer in self.layers.items():
            calls = [i for i, (called, _, _) in enumerate(self.calls) if called == name]
            inputs = [inputs_of(layer, self.calls[i][1]) for i in calls]
            gradients = [
                torch.stack([_outputs_of(layer, parts[i]) for parts in by_score], dim=1)
                for i in calls
            ]
            # Zeros of a layer that changes nothing ask for gradients themselves in torch 2.5.
            yield name, torch.cat(inputs, dim=1), torch.cat(gradients, dim=2).detach()


def rows_first(layers: dict[str, nn.Module], module: nn.Module, probe: Rows) -> set[str]:
    """Return the names of layers whose first axis are the samples, or that never run."""
    found = set(layers)
    for rows in (probe, tuple(part[:-1] for part in probe)):
        with Recorder(layers) as recorder, torch.no_grad(), NetworkErrors():
            module(*rows)
        found -= {name for name, values, _ in recorder.calls if len(values) != len(rows[0])}
    return found


def features_of_layers(module: nn.Module, names: Iterable[str], rows: Rows) -> list[Tensor]:
    """Return the inputs of each layer that runs, (n_rows, n_features), as means over places.

    Where a layer takes indices they are its outputs.
    """
    layers = {name: module.get_submodule(name) for name in names}
    n_rows, rows = len(rows[0]), at_least_two(rows)
    with Recorder(layers) as recorder, torch.no_grad(), NetworkErrors():
        module(*rows)
    found, order = [], list(layers)
    for name, values, output in sorted(recorder.calls, key=lambda call: order.index(call[0])):
        if has_kronecker_factors(layers[name]) and values.ndim > 1:
            vectors = inputs_of(layers[name], values).mean(dim=1)
        else:
            values = values if values.is_floating_point() else output
            vectors = values.flatten(2).mean(dim=2) if values.ndim > 2 else values
        if len(vectors) == len(rows[0]):
            found.append(vectors.detach()[:n_rows].reshape(n_rows, -1))
    return found
