"""A cut where the steps of a network cannot be recorded.

Networks that decide by their data, pack sequences or return objects of their own still tell, by
hooks, what goes into their layers and what comes out. Where the searched layers are the last ones,
one after the other, what goes into the first of them is where the network is cut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...exceptions import NetworkError
from ..inputs.rows import Inputs
from ..outputs import NetworkErrors
from .layers import is_compiled
from .steps import Result, Step, Steps
from .tracing import copy_sharing

Pick = Callable[[Any], Any]


# What networks do between layers without a module that could be seen.
_FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    functional.gelu,
    functional.silu,
    functional.elu,
    functional.leaky_relu,
    functional.softplus,
)
# What they do behind the last layer, with its arguments.
_ENDINGS: tuple[tuple[Callable[..., Tensor], int], ...] = (
    (torch.softmax, -1),
    (torch.log_softmax, -1),
    (torch.squeeze, -1),
)
# How far two ways to compute the same may be apart, in parts of the largest number.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class _Call:
    """A module that was run on one tensor and returned one."""

    name: str
    given: Tensor
    returned: Tensor


class UpToLayer(nn.Module):
    """Runs a network and returns what one of its layers gets.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    layer : str
        The layer's name.
    at_position : bool
        Whether the layer is run on sequences of which the network takes one position.
    rest : Steps
        What the network does from there on: the same for all rows, which is checked each time.
    pick : callable
        Returns what counts of the network's output.
    """

    def __init__(
        self, module: nn.Module, layer: str, at_position: bool, rest: Steps, pick: Pick
    ) -> None:
        super().__init__()
        self.module, self.rest, self.pick = copy_sharing(module), rest, pick
        self.layer, self.at_position = layer, at_position
        self._caught = _Caught()
        self.module.get_submodule(layer).register_forward_pre_hook(self._caught)
        self.eval()

    def forward(self, *inputs: Any) -> tuple[Tensor]:
        """Return values at the cut, with a row for each row."""
        output = self.pick(self.module(*inputs))
        values = self._caught.take()
        if self.at_position and values is not None:
            found = self.rest(values)
            values = values[torch.arange(len(values)), positions(found, output)]
        if values is None or not _same(self.rest(values), output):
            raise NetworkError(
                "For some rows the network takes another way behind the layer "
                f"{self.layer!r} than for those that it was tried on. Pass a network that treats "
                "all rows alike, or the part of it that does, with its inputs as X."
            )
        return (values,)


class _Caught:
    """Keeps what a layer gets, for each thread."""

    def __init__(self) -> None:
        self._local = threading.local()

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        self._local.values = args[0]

    def take(self) -> Tensor | None:
        return vars(self._local).pop("values", None)

    def __reduce__(self) -> tuple[type, tuple]:
        return _Caught, ()


def cut_by_hooks(
    module: nn.Module, names: tuple[str, ...], probe: Inputs, pick: Pick
) -> tuple[UpToLayer, Steps]:
    """Cut a network before the first searched layer.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    names : tuple of str
        The searched parameters.
    probe : Inputs
        Some rows of input.
    pick : callable
        Returns what counts of the network's output.

    Returns
    -------
    tuple of UpToLayer and Steps
        The two parts. An error where the searched layers are not the last ones, one after the
        other.
    """
    trials = [module, *(_with_other_weights(module, names, seed) for seed in range(3))]
    runs = [_run(trial, probe, pick) for trial in trials]
    searched = {id(module.get_parameter(name)) for name in names}
    calls = runs[0].calls
    names_run = [c.name for c in calls if _has(module.get_submodule(c.name), searched)]
    if not names_run:
        raise NetworkError("Nobody can see what goes into the searched layers.")
    first = names_run[0]
    steps, at_position = _way_to_output(first, runs)
    modules = {step.target for step in steps if step.op == "call_module"}
    rest = Steps(
        {name: module.get_submodule(name) for name in modules}, 1, steps, Result(len(steps))
    )
    return UpToLayer(module, first, at_position, rest, pick), rest


def _has(module: nn.Module, searched: set[int]) -> bool:
    return any(id(p) in searched for p in module.parameters())


def _with_other_weights(module: nn.Module, names: tuple[str, ...], seed: int) -> nn.Module:
    """Return the network with searched weights that have little to do with the given ones."""
    other = copy_sharing(module, but=names)
    generator = torch.Generator().manual_seed(seed)
    for name in names:
        parameter = other.get_parameter(name)
        size = parameter.detach().abs().mean().clamp(min=1e-3)
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        # With the sign turned, whatever is positive by chance is negative.
        parameter.data = (1 - 2 * (seed % 2)) * parameter.data + size * noise
    return other


@dataclass(frozen=True)
class _Run:
    """What layers got and returned, in the order in which they ran, and what the network did."""

    calls: list[_Call]
    output: Tensor

    def named(self, name: str) -> _Call:
        """Return the one call of a layer."""
        found = [call for call in self.calls if call.name == name]
        if len(found) != 1:
            raise NetworkError(f"The layer {name!r} does not run once, whatever its weights.")
        return found[0]


@torch.no_grad()
def _run(module: nn.Module, probe: Inputs, pick: Pick) -> _Run:
    """Run a network and note the calls of its layers."""
    calls: list[_Call] = []

    def note(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], returned: Any) -> None:
            if len(args) == 1 and isinstance(args[0], Tensor) and isinstance(returned, Tensor):
                # Copies: what comes behind may write into them.
                calls.append(_Call(name, args[0].clone(), returned.clone()))

        return hook

    handles = [
        part.register_forward_hook(note(name))
        for name, part in module.named_modules()
        if name
        and _is_layer(part)
        and "parametrizations" not in name.split(".")
        and not is_compiled(part)
    ]
    try:
        with NetworkErrors():
            output = pick(module(*probe.clone().parts))
    finally:
        for handle in handles:
            handle.remove()
    return _Run(calls, output)


def _is_layer(part: nn.Module) -> bool:
    """Tell whether a module is a single step: one of torch's own, or one without parts."""
    own = type(part).__module__.startswith("torch.nn") and not isinstance(part, nn.Sequential)
    return own or not list(part.children())


def _way_to_output(first: str, runs: list[_Run]) -> tuple[list[Step], bool]:
    """Return the steps from a layer to the output, if they are one after the other.

    A step is taken if it leads where the network has gone with the given and with other weights.

    Returns
    -------
    tuple of list of Step and bool
        The steps, and whether the network takes one position of what the last one returns.
    """
    n_rows = len(runs[0].output)
    start = [run.named(first).given for run in runs]
    if len(start[0]) != n_rows or not all(_same(given, start[0]) for given in start):
        raise NetworkError("What the layer gets depends on what is searched, or is no row.")
    steps = [_module_step(first, 0)]
    values = [run.named(first).returned for run in runs]
    seen = {first}
    while True:
        outputs = [run.output for run in runs]
        if _all_same(values, outputs):
            return steps, False
        for function, dim in _ENDINGS:
            if _all_same([function(value, dim) for value in values], outputs):
                last = Step("call_function", function, (Result(len(steps)), dim), {})
                return [*steps, last], False
        if values[0].ndim == 3 and values[0][:, 0].shape == outputs[0].shape:
            pairs = list(zip(values, outputs, strict=True))
            taken = [v[torch.arange(n_rows), positions(v, out)] for v, out in pairs]
            if _all_same(taken, outputs):
                return steps, True
        between, name = _next_layer(values, runs, seen)
        if between is not None:
            steps.append(Step("call_function", between, (Result(len(steps)),), {}))
        steps.append(_module_step(name, len(steps)))
        values = [run.named(name).returned for run in runs]
        seen.add(name)


def _module_step(name: str, number: int) -> Step:
    return Step("call_module", name, (Result(number),), {})


def _next_layer(
    values: list[Tensor], runs: list[_Run], seen: set[str]
) -> tuple[Callable[[Tensor], Tensor] | None, str]:
    """Return the layer that gets the values, or a function of them, and this function."""
    for function in (None, *_FUNCTIONS):
        wanted = values if function is None else [function(value) for value in values]
        for call in runs[0].calls:
            if call.name not in seen and _same(wanted[0], call.given):
                given = [run.named(call.name).given for run in runs]
                if _all_same(wanted, given):
                    return function, call.name
    raise NetworkError("No layer gets what the one before has returned.")


def positions(values: Tensor, output: Tensor) -> Tensor:
    """Return the position of each sequence of values at which the output was taken."""
    return (values - output[:, None]).abs().amax(dim=-1).argmin(dim=1)


def _all_same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(map(_same, first, second))


def _same(first: Tensor, second: Tensor) -> bool:
    """Tell whether two tensors are the same but for rounding, where they are finite."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    finite = torch.isfinite(second)
    size = second[finite].abs().amax() if bool(finite.any()) else 0
    return bool(((first - second)[finite].abs() <= _TOLERANCE * size).all())
