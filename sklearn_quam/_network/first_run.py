"""The first run of a network: which types it takes its inputs in, and what it does to rows."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ..exceptions import NetworkError
from .adapters import floating_dtype
from .inputs.rows import Inputs, Source, to_tensor
from .wrapped import TakesNamed, returned

_PROBE_ROWS = 16
# Types of whole numbers are tried out, but not all those of a large number of inputs.
_MAX_TRIALS = 64


def first_run(
    module: nn.Module, source: Source, device: torch.device
) -> tuple[nn.Module, tuple[np.ndarray, ...], Any, tuple[torch.dtype, ...]]:
    """Return a network that takes inputs in order, some rows, its output for them, and its types.

    Whole numbers are features to most networks but indices to those with embeddings: they are
    tried as floating point numbers first, where there are several inputs as they are first.
    """
    if source.names is not None:
        module = TakesNamed(module, source.names)
    probe = source.read(slice(0, len(source), max(1, len(source) // _PROBE_ROWS)))
    probe = tuple(part[:_PROBE_ROWS] for part in probe)
    if len(probe[0]) == 1:
        probe = tuple(np.repeat(part, 2, axis=0) for part in probe)
    dtype = floating_dtype(module)
    candidates = [_candidates(part, dtype, several=len(probe) > 1) for part in probe]
    failures = []
    for dtypes in itertools.islice(itertools.product(*candidates), _MAX_TRIALS):
        inputs = Inputs(tuple(map(partial(to_tensor, device=device), probe, dtypes)))
        try:
            with torch.no_grad():
                return module, probe, returned(module, *inputs.parts), dtypes
        except NetworkError as error:
            failures.append((inputs, error.__cause__ or error))
    inputs, cause = failures[0]
    raise NetworkError(cannot_process(inputs, cause)) from cause


def _candidates(part: np.ndarray, dtype: torch.dtype, several: bool) -> list[torch.dtype]:
    if part.dtype.kind == "f":
        return [dtype]
    itself = [torch.bool, torch.int64] if part.dtype.kind == "b" else [torch.int64]
    return [*itself, dtype] if several else [dtype, *itself]


def cannot_process(inputs: Inputs, error: object) -> str:
    """Return the message for an error that a network has raised for some rows."""
    what = "rows" if len(inputs.parts) == 1 else f"{len(inputs.parts)} inputs whose rows are"
    return (
        f"The network cannot process {what} of shape {inputs.describe()} on {inputs.device}: "
        f"{type(error).__name__}: {error}. X must have the shape that the network was trained with."
    )
