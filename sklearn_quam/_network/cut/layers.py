"""The layers of a network in the order in which they run, as far as they reach its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..outputs import NetworkErrors


@dataclass(frozen=True)
class RunLayer:
    """A layer that has run: the name of a module, and its parameters.

    A `bare` layer is only parameters that the module uses behind the layers that it contains.
    """

    name: str
    parameters: tuple[nn.Parameter, ...]
    bare: bool = False


def execution_order(module: nn.Module, run: Callable[[], Any]) -> list[str]:
    """Return the names of submodules in the order in which they finish; the last call counts."""
    return list(_outputs(module, run)[1])


def layers_in_order(module: nn.Module, run: Callable[[], Any]) -> list[RunLayer]:
    """Return the layers with parameters that reach the output of `run`, in their order.

    Where gradients show nothing, these are all layers that run. A `bare` layer comes last.
    """
    floating = [p for p in module.parameters() if p.is_floating_point()]
    needed = [p.requires_grad for p in floating]
    try:
        for p in floating:
            p.requires_grad_()
        with torch.enable_grad():
            reached, sources = _outputs(module, run, _sources)
    except RuntimeError:
        # A network that writes into its parameters, say, does not run with gradients.
        with torch.no_grad():
            reached, sources = _outputs(module, run, _sources)
    finally:
        for p, before in zip(floating, needed, strict=True):
            p.requires_grad_(before)
    layers = [
        RunLayer(name, tuple(module.get_submodule(name).parameters()))
        for name in _innermost(module, sources)
    ]
    if not reached:
        return layers
    layers = [one for one in layers if any(id(p) in reached for p in one.parameters)]
    return _with_bare(module, layers, sources, reached)


def last_layers(layers: list[RunLayer], count: int) -> list[RunLayer]:
    """Return the last layers, so many of them."""
    if not 1 <= count <= len(layers):
        raise ValueError(
            f"parameters={count} asks for the last {count} layers, but the network has "
            f"{len(layers)} layers with parameters."
        )
    return layers[-count:]


def last_module(module: nn.Module, layers: list[RunLayer]) -> str:
    """Return the name of the last layer, whose input can be seen."""
    (last,) = last_layers(layers, 1)
    if last.bare:
        kind = type(module.get_submodule(last.name)).__name__
        raise ValueError(
            f"The last layer of the network is only a parameter of {kind}, so that nobody can see "
            "what goes into it. Put it into a module of its own."
        )
    return last.name


def is_compiled(part: nn.Module) -> bool:
    """Return whether a module is of torch.jit, and cannot run with other weights."""
    return isinstance(part, torch.jit.ScriptModule)


def _outputs(
    module: nn.Module, run: Callable[[], Any], read: Callable[[Any], Any] = id
) -> tuple[Any, dict[str, Any]]:
    """Return what is read of the output of `run`, and of each submodule in order of execution."""
    found: dict[str, Any] = {}

    def note(name: str, *call: Any) -> None:
        # Where a module is used twice, the last call counts.
        found.pop(name, None)
        found[name] = read(call[-1])

    handles = [
        part.register_forward_hook(partial(note, name))
        for name, part in module.named_modules()
        if not is_compiled(part)
    ]
    try:
        with NetworkErrors():
            return read(run()), found
    finally:
        for handle in handles:
            handle.remove()


def _sources(output: Any) -> set[int]:
    """Return the ids of the parameters that an output depends on."""
    found: set[int] = set()
    seen: set[Any] = set()
    waiting = [part.grad_fn for part in pytree.tree_leaves(output) if isinstance(part, Tensor)]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        waiting += [following for following, _ in node.next_functions]
    return found


def _innermost(module: nn.Module, order: Iterable[str]) -> list[str]:
    """Return the layers with parameters: modules without others that ran and have parameters."""
    parts = dict(module.named_modules())
    # A module that computes a layer's weight (weight normalisation) is a part of the layer.
    finished = [
        name
        for name in order
        if any(p.is_floating_point() for p in parts[name].parameters())
        and "parametrizations" not in name.split(".")
    ]
    return [
        name
        for name in finished
        if not any(other != name and other.startswith(name and f"{name}.") for other in finished)
    ]


def _with_bare(
    module: nn.Module, layers: list[RunLayer], sources: dict[str, set[int]], reached: set[int]
) -> list[RunLayer]:
    """Append parameters of a module that no layer depends on, if one is a matrix."""
    known = {id(p) for layer in layers for p in layer.parameters}
    late = reached - known.union(*(sources[layer.name] for layer in layers))
    for name in sources:
        own = module.get_submodule(name).parameters(recurse=False)
        parameters = tuple(p for p in own if id(p) in late)
        # A single scale is not a layer.
        if any(p.ndim > 1 for p in parameters):
            layers = [*layers, RunLayer(name, parameters, bare=True)]
    return layers
