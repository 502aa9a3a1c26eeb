"""A cut of any network: modules whose output is the same for all models run once.

The network runs with searched parameters that are not a number. A module that returns the same as
before does not depend on them. Such outputs are the values at the cut. Behind the cut the network's
own code runs again, and these modules return the recorded values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...exceptions import NetworkError
from ..inputs.rows import Inputs
from ..outputs import NetworkErrors
from ..wrapped import SameNames
from .layers import is_compiled
from .running import Pick, UpToCut, agree, copy_sharing

# Switches on what else differs between models; what depends on it is then not a number.
Poison = Callable[[], AbstractContextManager]
_PLAIN = (bool, int, float, str, type(None))
_HOOKS: tuple[str, ...] = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs")
_HOOKS += ("_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")


class NothingToCutError(NetworkError):
    """All of the network depends on the parameters in which models differ."""


@dataclass(frozen=True)
class _Part:
    """A tensor in the output of a module, with the axis of its samples, or a constant."""

    axis: int | None
    constant: Any = None
    # Whether the numbers have an influence on the network's output, or only the shape.
    needed: bool = True

    def take(self, values: Iterator[Tensor]) -> Any:
        """Return the part, as it was in the output."""
        if self.axis is None:
            return self.constant
        value = next(values)
        if not self.needed:
            value = value.new_zeros(()).expand(value.shape[:-1])
        return value.movedim(0, self.axis)


# What modules returned, call by call. Of modules that are not run again, a `_Part` is in place of
# each part of an output.
_Outputs = dict[str, list[Any]]
_OUTPUTS: ContextVar[_Outputs | None] = ContextVar("outputs", default=None)


@contextmanager
def _during(outputs: _Outputs) -> Iterator[None]:
    """Record outputs of modules, or hand them out, while a network runs in this thread."""
    token = _OUTPUTS.set(outputs)
    try:
        yield
    finally:
        _OUTPUTS.reset(token)


def _copied(output: Any) -> Any:
    """Return a copy of an output: code behind the module may write into it."""
    return pytree.tree_map(lambda part: part.clone() if isinstance(part, Tensor) else part, output)


def _record(name: str, _: nn.Module, __: Any, output: Any) -> None:
    outputs = _OUTPUTS.get()
    if outputs is not None:
        outputs.setdefault(name, []).append(_copied(output))


def _hand_out(name: str, *_: Any, **__: Any) -> Any:
    outputs: Any = _OUTPUTS.get()
    return _copied(outputs[name].pop(0))


class Replay(SameNames):
    """Run a network in which the modules in `kept` return the values at the cut."""

    def __init__(self, module: nn.Module, kept: _Outputs, n_inputs: int, pick: Pick) -> None:
        copied = copy_sharing(module)
        for name in kept:
            part = copied.get_submodule(name)
            part.forward = partial(_hand_out, name)
            for hooks in _HOOKS:
                setattr(part, hooks, OrderedDict())
        super().__init__(copied)
        self._kept, self._n_inputs, self._pick = kept, n_inputs, pick
        self.training = False

    def forward(self, *values: Tensor) -> Any:
        """Return the output of the network."""
        rest = iter(values[self._n_inputs :])
        outputs = pytree.tree_map(lambda part: part.take(rest), self._kept)
        with _during(outputs):
            return self._pick(self._network(*values[: self._n_inputs]))


class UpToModules(UpToCut):
    """Run a network, and return its inputs and what the modules in `kept` return."""

    def __init__(self, module: nn.Module, kept: _Outputs, n_inputs: int, pick: Pick) -> None:
        rest = Replay(module, kept, n_inputs, pick)
        super().__init__(copy_sharing(module), rest, pick)
        self.kept = kept
        _record_calls(self.module, kept)

    def record(self, *inputs: Any) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the output of the network, and the values at the cut."""
        values = [part.clone() for part in inputs]
        outputs: _Outputs = {}
        with _during(outputs):
            output = self.pick(self.module(*inputs))
        kept, found = ({k: len(v) for k, v in one.items()} for one in (self.kept, outputs))
        if kept != found:
            raise NetworkError("For some rows the network runs other modules.")
        ordered = {key: outputs[key] for key in self.kept}
        leaves = map(pytree.tree_leaves, (self.kept, ordered))
        for part, value in zip(*leaves, strict=True):
            if part.axis is not None:
                rows = value.movedim(part.axis, 0)
                # Where no numbers are needed, an empty tensor holds the shape.
                values.append(rows if part.needed else rows.new_empty((*rows.shape, 0)))
        return output, tuple(values)


def cut_before_modules(
    module: nn.Module,
    names: tuple[str, ...],
    probe: Inputs,
    pick: Pick,
    poison: Poison = nullcontext,
) -> UpToModules:
    """Cut a network behind the modules that are the same for all models."""
    kept = _same_for_all(module, names, probe, poison)
    if not kept:
        raise NothingToCutError("No module is the same for all models.")
    cuts = [UpToModules(module, kept, len(probe.parts), pick)]
    # Some networks cannot be differentiated.
    with suppress(NetworkError):
        needed = _without_unneeded(cuts[0], probe)
        cuts.insert(0, UpToModules(module, needed, len(probe.parts), pick))
    for frozen in cuts:
        if agree(frozen, names, probe):
            return frozen
    raise NetworkError("The parts of the network do something else than the whole.")


def _same_for_all(
    module: nn.Module, names: tuple[str, ...], probe: Inputs, poison: Poison
) -> _Outputs:
    """Return outputs of modules that are the same for all models, without those inside them."""
    searched = {id(module.get_parameter(name)) for name in names}
    candidates = tuple(
        name
        for name, part in module.named_modules()
        if name
        and not is_compiled(part)
        and searched.isdisjoint(map(id, part.parameters()))
        and "parametrizations" not in name.split(".")
    )
    poisoned = copy_sharing(module, but=names)
    for name in names:
        poisoned.get_parameter(name).data.fill_(torch.nan)
    given, fewer = (_outputs(module, candidates, rows) for rows in (probe, probe[:-1]))
    with poison():
        differing = _outputs(poisoned, candidates, probe)
    found: _Outputs = {}
    for name in candidates:
        calls = [outputs.get(name, []) for outputs in (given, fewer, differing)]
        forms = [_form(*call) for call in zip_longest(*calls)]
        inside = any(name.startswith(f"{other}.") for other in found)
        if forms and not inside and None not in forms:
            found[name] = forms
    return found


def _record_calls(module: nn.Module, names: Iterable[str]) -> None:
    for name in names:
        module.get_submodule(name).register_forward_hook(partial(_record, name))


def _outputs(module: nn.Module, names: Iterable[str], rows: Inputs) -> _Outputs:
    """Return the outputs of modules, up to the first error of the network."""
    copied, outputs = copy_sharing(module), _Outputs()
    _record_calls(copied, names)
    with suppress(NetworkError), torch.no_grad(), NetworkErrors(), _during(outputs):
        copied(*rows.clone().parts)
    return outputs


def _form(given: Any, fewer: Any, differing: Any) -> Any | None:
    """Return an output in parts, if it has samples and is the same for all models."""
    leaves, spec = zip(*map(pytree.tree_flatten, (given, fewer, differing)), strict=True)
    if not leaves[0] or not spec[0] == spec[1] == spec[2]:
        return None
    parts = [_part(*values) for values in zip(*leaves, strict=True)]
    return None if None in parts else pytree.tree_unflatten(parts, spec[0])


def _part(value: Any, fewer: Any, other: Any) -> _Part | None:
    """Return a part of an output; `fewer` is the same with one sample less."""
    if not isinstance(value, Tensor):
        same_for_all = isinstance(value, _PLAIN) and value == fewer == other
        return _Part(None, value) if same_for_all else None
    if not isinstance(fewer, Tensor) or not isinstance(other, Tensor) or value.ndim != fewer.ndim:
        return None
    changed = [axis for axis in range(value.ndim) if value.shape[axis] != fewer.shape[axis]]
    one_less = len(changed) == 1 and value.shape[changed[0]] == fewer.shape[changed[0]] + 1
    return _Part(changed[0]) if one_less and torch.equal(value, other) else None


def _without_unneeded(frozen: UpToModules, probe: Inputs) -> _Outputs:
    """Return the kept outputs, with only the shape of what has no influence on the output."""
    n_inputs = len(probe.parts)
    with torch.no_grad(), NetworkErrors():
        values = [value.clone() for value in frozen(*probe.clone().parts)]
    floating = [v.requires_grad_() for v in values[n_inputs:] if v.is_floating_point()]
    with torch.enable_grad(), NetworkErrors():
        outputs = [
            part for part in pytree.tree_leaves(frozen.rest(*values)) if isinstance(part, Tensor)
        ]
        total = torch.stack([part.sum() for part in outputs]).sum()
        gradients = torch.autograd.grad(total, floating, allow_unused=True) if floating else ()
    used = {id(v) for v, gradient in zip(floating, gradients, strict=True) if gradient is not None}
    needed = iter(not v.is_floating_point() or id(v) in used for v in values[n_inputs:])

    def marked(part: _Part) -> _Part:
        return part if part.axis is None else replace(part, needed=next(needed))

    return pytree.tree_map(marked, frozen.kept)
