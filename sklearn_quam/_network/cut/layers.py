"""The layers of a network in the order in which they run, as far as they reach its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..outputs import NetworkErrors


@dataclass(frozen=True)
class RunLayer:
    """A layer that has run.

    Parameters
    ----------
    name : str
        The module's name.
    parameters : tuple of nn.Parameter
        Those of the layer.
    bare : bool
        Whether these are used by the module itself, behind the layers that it contains.
    """

    name: str
    parameters: tuple[nn.Parameter, ...]
    bare: bool = False


def execution_order(module: nn.Module, run: Callable[[], Any]) -> list[str]:
    """Return the names of submodules in the order in which a forward pass finishes them.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    run : callable
        Runs a forward pass.

    Returns
    -------
    list of str
        Names; the last call counts where a submodule is used twice.
    """
    finished: dict[str, None] = {}

    def note(name: str, _: Any) -> None:
        finished.pop(name, None)
        finished[name] = None

    _watch(module, run, note)
    return list(finished)


def layers_in_order(module: nn.Module, run: Callable[[], Any]) -> list[RunLayer]:
    """Return the layers with parameters that reach the output, in the order in which they run.

    Parameters
    ----------
    module : torch.nn.Module
        The network, whose parameters may need gradients for a while.
    run : callable
        Runs a forward pass and returns what counts of its output.

    Returns
    -------
    list of RunLayer
        The innermost modules that ran, and behind them parameters that are used by a module that
        contains others. Where nothing is known about gradients, all that ran.
    """
    sources: dict[str, set[int]] = {}

    def note(name: str, output: Any) -> None:
        # Where a module is used twice, the last call counts.
        sources.pop(name, None)
        sources[name] = _sources(output)

    floating = [p for p in module.parameters() if p.is_floating_point()]
    needed = [p.requires_grad for p in floating]
    try:
        for p in floating:
            p.requires_grad_()
        with torch.enable_grad():
            reached = _sources(_watch(module, run, note))
    except RuntimeError:
        # What writes into its parameters, say, does not run so.
        sources.clear()
        with torch.no_grad():
            reached = _sources(_watch(module, run, note))
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
    """Return the last layers.

    Parameters
    ----------
    layers : list of RunLayer
        All of them; see `layers_in_order`.
    count : int
        How many.

    Returns
    -------
    list of RunLayer
        The last ones.
    """
    if not 1 <= count <= len(layers):
        raise ValueError(
            f"parameters={count} asks for the last {count} layers, but the network has "
            f"{len(layers)} layers with parameters."
        )
    return layers[-count:]


def last_module(module: nn.Module, layers: list[RunLayer]) -> str:
    """Return the name of the last layer, for whoever wants to know what goes into it.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    layers : list of RunLayer
        Its layers.

    Returns
    -------
    str
        Name of a submodule.
    """
    (last,) = last_layers(layers, 1)
    if last.bare:
        kind = type(module.get_submodule(last.name)).__name__
        raise ValueError(
            f"The last layer of the network is only a parameter of {kind}, so that nobody can see "
            "what goes into it. Put it into a module of its own."
        )
    return last.name


def is_compiled(part: nn.Module) -> bool:
    """Tell whether a module is torch.jit's: nobody can look into it, or change its weights."""
    return isinstance(part, torch.jit.ScriptModule)


def _watch(module: nn.Module, run: Callable[[], Any], note: Callable[[str, Any], None]) -> Any:
    """Run a network, and note what each module returns."""

    def hook(name: str) -> Callable[..., None]:
        return lambda *call: note(name, call[-1])

    handles = [
        part.register_forward_hook(hook(name))
        for name, part in module.named_modules()
        if not is_compiled(part)
    ]
    try:
        with NetworkErrors():
            return run()
    finally:
        for handle in handles:
            handle.remove()


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        yield from _tensors(list(output.values()))
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _tensors(part)


def _sources(output: Any) -> set[int]:
    """Return the ids of the parameters that an output depends on."""
    found: set[int] = set()
    seen: set[Any] = set()
    waiting = [tensor.grad_fn for tensor in _tensors(output)]
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
    """Return the layers with parameters, in the order in which they ran."""
    parts = dict(module.named_modules())
    # What computes a layer's weight (weight normalisation) is a part of the layer.
    finished = [
        name
        for name in order
        if any(p.is_floating_point() for p in parts[name].parameters())
        and "parametrizations" not in name.split(".")
    ]
    # A layer is the innermost part that ran; what only contains such parts is none.
    return [
        name
        for name in finished
        if not any(other != name and other.startswith(name and f"{name}.") for other in finished)
    ]


def _with_bare(
    module: nn.Module, layers: list[RunLayer], sources: dict[str, set[int]], reached: set[int]
) -> list[RunLayer]:
    """Return the layers with a last one that is only parameters of a module that contains others.

    No layer depends on them, and there is a matrix among them: a single scale is no layer.
    """
    known = {id(p) for layer in layers for p in layer.parameters}
    late = reached - known.union(*(sources[layer.name] for layer in layers))
    found = []
    for name in sources:
        own = module.get_submodule(name).parameters(recurse=False)
        parameters = tuple(p for p in own if id(p) in late)
        if any(p.ndim > 1 for p in parameters):
            found.append(RunLayer(name, parameters, bare=True))
    return [*layers, *found]
