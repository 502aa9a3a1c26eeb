"""A network cut in two, so that what is the same for all models is run once.

What comes before the cut is computed once for each row, what comes after is run for each model.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...exceptions import NetworkError
from ..inputs.rows import Inputs, Rows
from ..likelihood import Likelihood
from ..outputs import NetworkErrors
from ..predictions import Prediction
from ..reference import cannot_process, predict_batch
from .chained import cut_before_chain
from .remembered import RememberedRows, bytes_of, module_digest
from .replayed import NothingToCutError, Poison, cut_before_modules
from .running import Pick, place


@dataclass(frozen=True)
class SplitModule:
    """A network cut in two.

    Parameters
    ----------
    frozen : torch.nn.Module or None
        From the input to the values at the cut; None where the cut is at the input.
    rest : torch.nn.Module
        From the values at the cut to the output; its parameters keep their names.
    place : {"inside", "at_input", "failed"}
        Where the cut is; "at_input" where all of the network depends on what is searched, "failed"
        where it does not but cannot be cut, so that all of it runs for every model.
    digest : bytes
        What is the same for the same frozen part only; empty where nothing is kept.
    remembered : RememberedRows or None
        Where to look values at the cut up, and to keep them.
    """

    frozen: nn.Module | None
    rest: nn.Module
    place: str
    digest: bytes = b""
    remembered: RememberedRows | None = None

    def at_cut(self, inputs: Inputs | Tensor) -> Rows:
        """Return the values at the cut, each with a row for each row of the input."""
        inputs = Inputs.of(inputs)
        if self.frozen is None:
            return inputs.parts
        # On an accelerator, to look the rows up would take longer than to run them again.
        memory = self.remembered if inputs.device.type == "cpu" else None
        if memory is not None:
            digest = hashlib.blake2b(digest_size=16)
            for part in inputs.parts:
                digest.update(bytes_of(part))
            key = self.digest + digest.digest()
            found = memory.find(key)
            if found is not None:
                return found
        rows = inputs.at_least_two().parts
        with torch.no_grad(), NetworkErrors(partial(cannot_process, inputs)):
            values = tuple(value[: len(inputs)] for value in self.frozen(*rows))
        if memory is not None:
            memory.keep(key, values)
        return values

    def remembering(self, memory: RememberedRows | None) -> SplitModule:
        """Return the same parts; values at the cut are looked up in a memory, and kept there."""
        if memory is None or self.frozen is None:
            return self
        return replace(self, digest=_digest(self.frozen), remembered=memory)

    @torch.no_grad()
    def given(self, inputs: Inputs, likelihood: Likelihood) -> tuple[Rows, Prediction]:
        """Return the values at the cut, and what the given network makes of them."""
        rows = self.at_cut(inputs)
        return rows, predict_batch(self.rest, likelihood, inputs, rows)


def whole(output: Any) -> Any:
    """Return an output as it is."""
    return output


def split_module(
    module: nn.Module,
    names: tuple[str, ...],
    probe: Inputs | Tensor,
    poison: Poison = nullcontext,
    pick: Pick = whole,
) -> SplitModule:
    """Cut a module where the models begin to differ.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    names : tuple of str
        The parameters in which they differ.
    probe : Inputs or Tensor of shape (n_rows, ...)
        Some rows of input, at least three.
    poison : callable, default=nullcontext
        Returns a context in which what else differs between models is no number.
    pick : callable, default=whole
        Returns what counts of the network's output; the second part returns only this.

    Returns
    -------
    SplitModule
        The two parts; the whole module as the second one where it cannot be cut.
    """
    probe = Inputs.of(probe)
    for name in names:
        module.get_parameter(name)  # all are there
    frozen: nn.Module | None
    rest: nn.Module
    if names:
        try:
            frozen, rest, is_whole = cut_before_chain(module, names, probe, pick)
        except NetworkError:
            pass
        else:
            for name in names:
                place(rest, name, module.get_parameter(name))
            return SplitModule(frozen, rest, "at_input" if is_whole else "inside")
    try:
        frozen, rest = cut_before_modules(module, names, probe, pick, poison)
    except NothingToCutError:
        return SplitModule(None, module, "at_input")
    except NetworkError:
        return SplitModule(None, module, "failed")
    return SplitModule(frozen, rest, "inside")


def _digest(frozen: nn.Module) -> bytes:
    """Return what tells the frozen part of a network from others, as long as it lives."""
    # A module's repr leaves some attributes out, and classes may have the same name.
    parts = [
        (id(type(part)), [item for item in vars(part).items() if not item[0].startswith("_")])
        for part in frozen.modules()
    ]
    return module_digest(frozen) + repr(parts).encode()
