"""A cut of any network: modules whose output is the same for all models run once.

The network is run with searched parameters that are not a number. A module that returns the same
as before does not depend on them. What it returns are values at the cut; behind the cut the
network's own code runs again, and such modules hand out these values instead.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from ...exceptions import NetworkError
from ..inputs.rows import Inputs
from ..outputs import NetworkErrors
from .layers import is_compiled
from .running import Noted, Pick, UpToCut, copy_sharing, same, with_other_weights

# Switches something on that differs between models; what depends on it is then no number.
Poison = Callable[[], AbstractContextManager]
# The name of a module, and which of its calls is meant.
_Key = tuple[str, int]
_N_TRIALS = 2
_PLAIN = (bool, int, float, str, type(None))
_HOOKS: tuple[str, ...] = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs")
_HOOKS += ("_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")


class NothingToCutError(NetworkError):
    """All of the network depends on what differs between models."""


@dataclass(frozen=True)
class _Kept:
    """What a call of a module returned that is not run again.

    Parameters
    ----------
    key : tuple of str and int
        The call.
    form : object
        Its output, with numbers from zero on in place of tensors and constants.
    parts : tuple
        The axis of the rows of each tensor, or a constant in a tuple.
    needed : tuple of bool
        Whether the numbers in it are needed, or its shape is enough.
    """

    key: _Key
    form: Any
    parts: tuple[Any, ...]
    needed: tuple[bool, ...]


class Replay(nn.Module):
    """Runs a network in which some modules return what is known.

    Parameters
    ----------
    module : torch.nn.Module
        The network, whose parts keep their names.
    kept : tuple of _Kept
        What is known.
    n_inputs : int
        How many inputs the network takes.
    pick : callable
        Returns what counts of the network's output.
    """

    def __init__(
        self, module: nn.Module, kept: tuple[_Kept, ...], n_inputs: int, pick: Pick
    ) -> None:
        super().__init__()
        copied = copy_sharing(module)
        for name in {one.key[0] for one in kept}:
            part = copied.get_submodule(name)
            part.forward = _HandOut(self, name)
            for hooks in _HOOKS:
                setattr(part, hooks, OrderedDict())
        self._network: Any
        self._kept, self._n_inputs, self._pick, self._noted = kept, n_inputs, pick, Noted()
        # Not as a part: that would put another name before those of its parameters.
        object.__setattr__(self, "_network", copied)
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, shared, getattr(copied, shared))
        self.training = False

    def forward(self, *values: Tensor) -> Any:
        """Return what the network makes of its inputs and of what is known."""
        rest = list(values[self._n_inputs :])
        self._noted.outputs = {one.key: _output(one, rest) for one in self._kept}
        self._noted.calls = Counter()
        try:
            return self._pick(self._network(*values[: self._n_inputs]))
        finally:
            self._noted.outputs = None

    def hand_out(self, name: str) -> Any:
        """Return what the next call of a module returned."""
        key = (name, self._noted.calls[name])
        self._noted.calls[name] += 1
        return self._noted.outputs[key]()


class _HandOut:
    """The ``forward`` of a module whose output is known."""

    def __init__(self, replay: Replay, name: str) -> None:
        self.replay, self.name = replay, name

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.replay.hand_out(self.name)


def _output(kept: _Kept, values: list[Tensor]) -> Callable[[], Any]:
    """Return what makes the output of a module; takes its values off the list."""
    parts = []
    for part, needed in zip(kept.parts, kept.needed, strict=True):
        if isinstance(part, tuple):
            parts.append(part[0])
            continue
        value = values.pop(0)
        if not needed:
            value = value.new_zeros(()).expand(value.shape[:-1])
        parts.append(value.movedim(0, part))
    # Copies: what comes behind may write into them.
    return lambda: pytree.tree_unflatten(
        [p.clone() if isinstance(p, Tensor) else p for p in parts],
        pytree.tree_structure(kept.form),
    )


class _Notebook:
    """Notes what modules of a network return, for each thread.

    Parameters
    ----------
    module : torch.nn.Module
        The network, a copy of its own.
    names : iterable of str
        The modules.
    kept : tuple of _Kept
        What is known of them.
    """

    def __init__(
        self, module: nn.Module, names: Iterable[str], kept: tuple[_Kept, ...] = ()
    ) -> None:
        self.kept, self.noted = kept, Noted()
        for name in names:
            module.get_submodule(name).register_forward_hook(partial(self._note, name))

    def __repr__(self) -> str:
        return repr(self.kept)

    def __call__(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> _Watcher:
        return _Watcher(self, inputs)

    def _note(self, name: str, _: nn.Module, __: Any, output: Any) -> None:
        key = (name, self.noted.calls[name])
        self.noted.calls[name] += 1
        # Copies: what comes behind may write into it.
        leaves, spec = pytree.tree_flatten(output)
        clones = [p.clone() if isinstance(p, Tensor) else p for p in leaves]
        self.noted.outputs[key] = clones, spec


class _Watcher:
    """Notes what modules return while a network runs on some inputs."""

    def __init__(self, notebook: _Notebook, inputs: tuple[Tensor, ...]) -> None:
        self._notebook, self._inputs = notebook, tuple(part.clone() for part in inputs)
        # Tensors and constants, and how they belong together.
        self.outputs: dict[_Key, tuple[list[Any], Any]] = {}

    def __enter__(self) -> _Watcher:
        noted = self._notebook.noted
        noted.outputs, noted.calls = self.outputs, Counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._notebook.noted.outputs = None

    def values(self, output: Any) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Return the values at the cut: the inputs, and what modules returned."""
        if {one.key for one in self._notebook.kept} != set(self.outputs):
            raise NetworkError("For some rows the network runs other modules.")
        found = list(self._inputs)
        for one in self._notebook.kept:
            values = self.outputs[one.key][0]
            for part, needed, value in zip(one.parts, one.needed, values, strict=True):
                if not isinstance(part, tuple):
                    rows = value.movedim(part, 0)
                    # No numbers, but the shape.
                    found.append(rows if needed else rows.new_empty((*rows.shape, 0)))
        return tuple(found)


def cut_before_modules(
    module: nn.Module,
    names: tuple[str, ...],
    probe: Inputs,
    pick: Pick,
    poison: Poison = nullcontext,
) -> tuple[UpToCut, Replay]:
    """Cut a network behind the modules that are the same for all models.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    names : tuple of str
        The parameters in which models differ.
    probe : Inputs
        Some rows of input, at least three.
    pick : callable
        Returns what counts of the network's output.
    poison : callable, default=nullcontext
        Returns a context in which what else differs between models is no number.

    Returns
    -------
    tuple of UpToCut and Replay
        The two parts. An error where no module is the same for all models, or the parts do
        something else than the network.
    """
    kept = _same_for_all(module, names, probe, poison)
    if not kept:
        raise NothingToCutError("No module is the same for all models.")
    whole = _cut(module, kept, len(probe.parts), pick)
    found = [whole]
    # Some networks cannot be differentiated.
    with suppress(NetworkError):
        needed = _without_unneeded(kept, *whole, probe)
        found.insert(0, _cut(module, needed, len(probe.parts), pick))
    for frozen, rest in found:
        if _agree(module, names, frozen, rest, probe, pick):
            return frozen, rest
    raise NetworkError("The parts of the network do something else than the whole.")


def _cut(
    module: nn.Module, kept: tuple[_Kept, ...], n_inputs: int, pick: Pick
) -> tuple[UpToCut, Replay]:
    rest = Replay(module, kept, n_inputs, pick)
    names = tuple(dict.fromkeys(one.key[0] for one in kept))
    copied = copy_sharing(module)
    return UpToCut(copied, rest, pick, _Notebook(copied, names, kept)), rest


def _agree(
    module: nn.Module,
    names: tuple[str, ...],
    frozen: UpToCut,
    rest: Replay,
    probe: Inputs,
    pick: Pick,
) -> bool:
    """Tell whether the parts do what the network does, with the given and with other weights."""
    n_trials = _N_TRIALS if names else 0
    trials = [module, *(with_other_weights(module, names, seed) for seed in range(n_trials))]
    for rows in (probe, probe[:-1]):
        try:
            with torch.no_grad(), NetworkErrors():
                values = frozen(*rows.clone().parts)
                for trial in trials:
                    weights: dict[str, Tensor] = {name: trial.get_parameter(name) for name in names}
                    found = functional_call(rest, weights, values, tie_weights=True)
                    if not same(found, pick(trial(*rows.clone().parts))):
                        return False
        except NetworkError:
            return False
    return True


def _same_for_all(
    module: nn.Module, names: tuple[str, ...], probe: Inputs, poison: Poison
) -> tuple[_Kept, ...]:
    """Return the calls of modules that are the same for all models, without those inside them."""
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
    given, fewer = (_run(module, candidates, rows) for rows in (probe, probe[:-1]))
    with poison():
        differing = _run(poisoned, candidates, probe)
    calls = Counter(name for name, _ in given)
    found: dict[str, list[Any]] = {}
    for name in candidates:
        keys = [(name, number) for number in range(calls[name])]
        kept = [_kept(key, given[key], fewer.get(key), differing.get(key)) for key in keys]
        inside = any(name.startswith(f"{other}.") for other in found)
        if kept and not inside and all(kept):
            found[name] = kept
    return tuple(one for several in found.values() for one in several)


def _run(
    module: nn.Module, names: tuple[str, ...], rows: Inputs
) -> dict[_Key, tuple[list[Any], Any]]:
    """Return what calls of modules return, as far as the network runs."""
    copied = copy_sharing(module)
    watcher = _Notebook(copied, names)(copied, ())
    # It may refuse what is no number.
    with suppress(NetworkError), torch.no_grad(), NetworkErrors(), watcher:
        copied(*rows.clone().parts)
    return watcher.outputs


def _kept(key: _Key, given: Any, fewer: Any, differing: Any) -> _Kept | None:
    """Return how a call may be handed out, if it has rows and is the same for all models."""
    if fewer is None or differing is None or not given[1] == fewer[1] == differing[1]:
        return None
    parts: list[Any] = []
    for value, less, other in zip(given[0], fewer[0], differing[0], strict=True):
        if isinstance(value, Tensor):
            axis = _row_axis(value, less)
            if axis is None or not torch.equal(value, other):
                return None
            parts.append(axis)
        elif isinstance(value, _PLAIN) and value == less == other:
            parts.append((value,))
        else:
            return None
    form = pytree.tree_unflatten(range(len(parts)), given[1])
    return _Kept(key, form, tuple(parts), (True,) * len(parts)) if parts else None


def _row_axis(value: Tensor, fewer: Any) -> int | None:
    """Return the axis of a value that is shorter by one with a row less."""
    if not isinstance(fewer, Tensor) or value.ndim != fewer.ndim:
        return None
    changed = [axis for axis in range(value.ndim) if value.shape[axis] != fewer.shape[axis]]
    if len(changed) != 1 or value.shape[changed[0]] != fewer.shape[changed[0]] + 1:
        return None
    return changed[0]


def _without_unneeded(
    kept: tuple[_Kept, ...], frozen: UpToCut, rest: Replay, probe: Inputs
) -> tuple[_Kept, ...]:
    """Return the same, where numbers that have no influence on the output are not needed."""
    n_inputs = len(probe.parts)
    with torch.no_grad(), NetworkErrors():
        values = [value.clone() for value in frozen(*probe.clone().parts)]
    floating = [v.requires_grad_() for v in values[n_inputs:] if v.is_floating_point()]
    with torch.enable_grad(), NetworkErrors():
        outputs = [part for part in pytree.tree_leaves(rest(*values)) if isinstance(part, Tensor)]
        total = torch.stack([part.sum() for part in outputs]).sum()
        gradients = torch.autograd.grad(total, floating, allow_unused=True) if floating else ()
    used = {id(v) for v, gradient in zip(floating, gradients, strict=True) if gradient is not None}
    needed = iter(not v.is_floating_point() or id(v) in used for v in values[n_inputs:])
    return tuple(
        replace(one, needed=tuple(isinstance(p, tuple) or next(needed) for p in one.parts))
        for one in kept
    )
