"""Rows as a network takes them: in memory, or read some at a time from where they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..predictions import HoldsTensors

_NUMPY_TYPES = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.bool: np.bool_,
}
# One tensor for each value that is handed on, each with a row for each row of the input.
Rows = tuple[Tensor, ...]


class Source(Protocol):
    """Rows that can be read some at a time."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the inputs, if the network takes them by name."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def read(self, index: Any) -> tuple[np.ndarray, ...]:
        """Return an array for each input of the network, for a slice or an array of numbers."""


@dataclass(frozen=True, eq=False)
class Inputs(HoldsTensors):
    """Rows in memory: a tensor of shape (n_rows, ...) for each input of the network."""

    parts: Rows
    # Memory that the network needs for a row, as far as it is known.
    bytes_per_row: int = 0

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, index: Any) -> Inputs:
        return replace(self, parts=tuple(part[index] for part in self.parts))

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.parts[0].device

    def numel(self) -> int:
        """Return how many numbers there are."""
        return sum(part.numel() for part in self.parts)

    def clone(self) -> Inputs:
        """Return copies."""
        return replace(self, parts=tuple(part.clone() for part in self.parts))

    def at_least_two(self) -> Inputs:
        """Return a single row twice."""
        return replace(self, parts=at_least_two(self.parts))


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows that are read some at a time, in the types that the network takes."""

    source: Source
    dtypes: tuple[torch.dtype, ...]
    device: torch.device
    bytes_per_row: int = 0

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> Inputs:
        """Return some of the rows, by a slice or by their numbers."""
        if isinstance(index, Tensor):
            index = index.cpu().numpy()
        arrays = self.source.read(index)
        tensors = []
        for array, dtype in zip(arrays, self.dtypes, strict=True):
            tensor = to_tensor(array, dtype, self.device)
            check_finite(tensor, array)
            tensors.append(tensor)
        return Inputs(tuple(tensors), self.bytes_per_row)

    def in_double(self) -> StoredRows:
        """Return the same rows in double precision; indices stay what they are."""
        wider = tuple(torch.float64 if t.is_floating_point else t for t in self.dtypes)
        return replace(self, dtypes=wider)


def at_least_two(rows: Rows) -> Rows:
    """Return a single row twice: modules that squeeze their output would lose its axis."""
    return tuple(part.repeat_interleave(2, dim=0) if len(part) == 1 else part for part in rows)


def from_tensor(values: Any) -> Any:
    """Return tensors as arrays on the host, and other values as they are."""
    if not isinstance(values, Tensor):
        return values
    if values.is_meta:
        raise ValueError(
            "A tensor on the 'meta' device has a shape but no numbers. Pass one with data, such as "
            "a copy on the CPU."
        )
    values = values.detach().cpu()
    values = values.to_dense() if values.layout != torch.strided else values
    values = values.float() if values.dtype == torch.bfloat16 else values
    # torch computes conjugates and signs lazily.
    return values.resolve_conj().resolve_neg().numpy()


def refuse_masked(values: Any, name: str) -> None:
    """Refuse an array with a mask, which copies lose."""
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(
            f"{name} is a masked array, but a network cannot leave values out. Fill them, "
            f"{name}.filled(value), or pass {name}.filled(np.nan) to a pipeline with an imputer."
        )


def to_tensor(rows: np.ndarray, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a copy of an array as a tensor of the same shape."""
    if rows.dtype.kind == "f" and rows.dtype.itemsize > 8:
        # Rounded twice, as a plain array would be.
        rows = rows.astype(np.float64)
    # Values that are too large for the type are refused by `check_finite`.
    with np.errstate(over="ignore", invalid="ignore"):
        plain: Any = np.array(rows, dtype=_NUMPY_TYPES[dtype], order="C", copy=True)
    return torch.from_numpy(plain).to(device)


def check_finite(tensor: Tensor, rows: np.ndarray, name: str = "X") -> None:
    """Refuse missing and infinite values, and those too large for the type of a network."""
    if not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()):
        return
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        what = "NaN" if np.isnan(rows).any() else "infinity"
        raise ValueError(
            f"Input {name} contains {what}. Leave such rows out, or put an imputer before the "
            "network in a pipeline."
        )
    raise ValueError(
        f"{name} contains values too large for the network's {tensor.dtype}. "
        "Scale the data, or convert the network with module.double()."
    )
