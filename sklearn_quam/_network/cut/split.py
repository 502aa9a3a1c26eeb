"""A network cut in two: the first part runs once for each sample, the second for each model."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ...exceptions import NetworkError
from ..inputs.rows import Inputs, Rows
from ..likelihood import Likelihood
from ..outputs import NetworkErrors
from ..predictions import Prediction
from ..reference import cannot_process, predict_batch
from .chain import cut_before_chain
from .replayed import NothingToCutError, Poison, cut_before_modules
from .running import Pick


@dataclass(frozen=True)
class SplitModule:
    """A network cut in two; searched parameters keep their names in `rest`.

    `place` is "inside", "at_input" if all of the network depends on the searched parameters, or
    "failed" if it cannot be cut, so that all of it runs for every model. `frozen` may then be None.
    """

    frozen: nn.Module | None
    rest: nn.Module
    place: str

    def at_cut(self, inputs: Inputs) -> Rows:
        """Return the values at the cut."""
        if self.frozen is None:
            return inputs.parts
        with torch.no_grad(), NetworkErrors(partial(cannot_process, inputs)):
            values = self.frozen(*inputs.at_least_two().parts)
        return tuple(value[: len(inputs)] for value in values)

    @torch.no_grad()
    def given(self, inputs: Inputs, likelihood: Likelihood) -> tuple[Rows, Prediction]:
        """Return the values at the cut, and what the given network predicts."""
        rows = self.at_cut(inputs)
        return rows, predict_batch(self.rest, likelihood, inputs, rows)


def whole(output: Any) -> Any:
    """Return an output as it is."""
    return output


def split_module(
    module: nn.Module,
    names: tuple[str, ...],
    probe: Inputs,
    poison: Poison = nullcontext,
    pick: Pick = whole,
) -> SplitModule:
    """Cut a network where models begin to differ: in the named parameters, or as `poison` does.

    `probe` has at least three samples. `pick` returns what counts of the network's output.
    """
    for name in names:
        module.get_parameter(name)  # all are there
    if names:
        try:
            frozen, rest, is_whole = cut_before_chain(module, names, probe, pick)
        except NetworkError:
            pass
        else:
            return SplitModule(frozen, rest, "at_input" if is_whole else "inside")
    try:
        replayed = cut_before_modules(module, names, probe, pick, poison)
    except NothingToCutError:
        return SplitModule(None, module, "at_input")
    except NetworkError:
        return SplitModule(None, module, "failed")
    return SplitModule(replayed, replayed.rest, "inside")
