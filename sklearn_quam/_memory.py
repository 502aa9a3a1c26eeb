"""How much memory may be used."""

from __future__ import annotations

import math
import os
import re

import torch

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DEFAULT_SHARE = 0.25
# Where the system does not tell what is free.
_FALLBACK = 10**9


def memory_in_bytes(limit: int | float | str | None, device: torch.device) -> int:
    """Return a memory limit in bytes.

    Parameters
    ----------
    limit : int, float, str or None
        Bytes, or a text such as "1GB" or "512MiB"; None takes a quarter of what is free.
    device : torch.device
        Whose memory is meant.

    Returns
    -------
    int
        Bytes.
    """
    if limit is None:
        return int(_DEFAULT_SHARE * _free_bytes(device))
    if not isinstance(limit, str):
        value = float(limit)
    else:
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(?:([KMGT])(i?))?B?\s*", limit, re.IGNORECASE)
        if match is None:
            raise ValueError(
                f"memory_limit={limit!r} is not understood: pass bytes or a text such as '1GB'."
            )
        number, unit, binary = match.groups()
        units = _BINARY_UNITS if binary else _UNITS
        value = float(number) * units[(unit or "").upper()]
    if not 1 <= value < math.inf:
        raise ValueError(f"memory_limit={limit!r} must be positive and finite, at least one byte.")
    return int(value)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 4 * _FALLBACK
