"""Arrays of any layout: byte order, strides, precision and owner of the memory do not matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_NUMPY_TYPES = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.bool: np.bool_,
}


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
