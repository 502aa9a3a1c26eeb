"""What the machine allows, and what has to hold while the package computes."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._messages import shown

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DEFAULT_SHARE = 0.25
# Where the system does not tell what is free.
_FALLBACK = 10**9
# Results of one pass that are larger than this leave the caches of a CPU.
_MAX_BYTES_ON_CPU = 2**26
# What a pass over training rows may take, and its share of a limit: other things are held besides.
_bytes_of_a_pass = ContextVar("bytes_of_a_pass", default=2**25)
_PASSES_IN_MEMORY = 8
# How many times as much is worth it where there are no caches to stay in.
_PASSES_OF_AN_ACCELERATOR = 32
# Rows of one forward pass, so that its inputs take a few megabytes whatever their shape.
_MAX_ROWS = 1024
_MAX_ELEMENTS = 2**20


@dataclass(frozen=True)
class Limits:
    """What may be used at once.

    Parameters
    ----------
    memory : int
        Bytes, which all workers share.
    device : torch.device
        Whose memory is meant.
    n_workers : int, default=1
        Workers that run at the same time.
    at_once : int, default=sys.maxsize
        Models that may run together, where more of them have run out of memory before.
    """

    memory: int
    device: torch.device
    n_workers: int = 1
    at_once: int = sys.maxsize

    @property
    def for_each_worker(self) -> int:
        """Bytes that each worker may use."""
        return self.memory // self.n_workers

    def number_that_fits(self, bytes_each: int) -> int:
        """Return how many things of a size fit, and are still worth running together."""
        memory = self.memory
        if self.device.type == "cpu":
            memory = min(memory, _MAX_BYTES_ON_CPU)
        return max(1, memory // max(1, bytes_each))


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
                f"memory_limit={shown(limit)} is not understood: pass bytes or a text such as "
                "'1GB'."
            )
        number, unit, binary = match.groups()
        units = _BINARY_UNITS if binary else _UNITS
        value = float(number) * units[(unit or "").upper()]
    if not 1 <= value < math.inf:
        raise ValueError(
            f"memory_limit={shown(limit)} must be positive and finite, at least one byte."
        )
    return int(value)


def in_units(n_bytes: int) -> str:
    """Return a number of bytes to be read, never too small."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= size:
            return f"{-(-n_bytes * 10 // size) / 10:.1f} {unit}"
    return f"{n_bytes} bytes"


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [_available(Path("/proc")), *_left_to_groups(Path("/proc"), Path("/sys/fs/cgroup"))]
    return max(1, min((free for free in found if free is not None), default=4 * _FALLBACK))


def _available(proc: Path) -> int | None:
    """Return what the system can hand out: pages of files that it may forget count as free."""
    told = _numbers(proc / "meminfo").get("MemAvailable:")
    if told is not None:
        return 1024 * told
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _left_to_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yield what is left to each of the control groups that this process is in, as in a container.

    A limit binds everybody below: of the second version ("0::/path") and of the first
    ("4:memory:/path"). Inside of a container the path may be one of the host; its own is the root.
    """
    for line in _lines(proc / "self" / "cgroup"):
        _, kinds, path = line.split(":", 2)
        if not kinds:
            root, limit, used, cached = groups, "memory.max", "memory.current", "inactive_file"
        elif "memory" in kinds.split(","):
            root, limit, used = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = "total_inactive_file"
        else:
            continue
        own = root / path.strip().strip("/")
        for group in (own, *own.parents):
            allowed, taken = _number(group / limit), _number(group / used)
            if allowed is not None and taken is not None:
                yield allowed - taken + _numbers(group / "memory.stat").get(cached, 0)
            if group == root:
                break


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _numbers(path: Path) -> dict[str, int]:
    """Return what stands behind each first word of a file, where that is a number."""
    words = (line.split() for line in _lines(path))
    return {w[0]: int(w[1]) for w in words if len(w) > 1 and w[1].isdigit()}


def _number(path: Path) -> int | None:
    """Return the number that a file holds; None for "max", and where there is no such file."""
    (word, *_) = _lines(path) or [""]
    return int(word) if word.strip().isdigit() else None


def slices(n_rows: int, size: int) -> Iterator[slice]:
    """Yield consecutive parts of some rows, or of anything that is numbered.

    Parameters
    ----------
    n_rows : int
        How many there are.
    size : int
        How many a part has at most.

    Yields
    ------
    slice
        The next part.
    """
    for start in range(0, n_rows, size):
        yield slice(start, start + size)


@contextmanager
def short_passes(limit: int | float | str | None) -> Iterator[None]:
    """Let a pass over some rows take a small share of a memory limit, if there is one."""
    if limit is None:
        yield
        return
    share = memory_in_bytes(limit, torch.device("cpu")) // _PASSES_IN_MEMORY
    token = _bytes_of_a_pass.set(min(share, _bytes_of_a_pass.get()))
    try:
        yield
    finally:
        _bytes_of_a_pass.reset(token)


def rows_within(bytes_per_row: int) -> int:
    """Return how many rows are worth working on together: what leaves the caches gains nothing."""
    return max(1, _bytes_of_a_pass.get() // max(1, bytes_per_row))


def rows_at_once(inputs: Any) -> int:
    """Return how many rows of this kind fit one forward pass."""
    # What is no input of a network has no such number, and may be no tensor.
    within = rows_within(getattr(inputs, "bytes_per_row", 0))
    if getattr(inputs, "device", torch.device("cpu")).type != "cpu":
        within *= _PASSES_OF_AN_ACCELERATOR
    return max(1, min(_MAX_ROWS, _MAX_ELEMENTS // max(1, inputs[:1].numel()), within))


def batches(inputs: Any) -> Iterator[slice]:
    """Yield slices of rows that fit one forward pass."""
    yield from slices(len(inputs), rows_at_once(inputs))


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating point type that a device can add in."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def gradients_allowed() -> Iterator[None]:
    """Work as usual whatever the caller has switched off or on.

    Searches need gradients, and what is computed must not depend on a `torch.autocast` outside.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        for kind in ("cuda", "mps"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def computing() -> Iterator[None]:
    """Allow gradients, and take numbers for zero that are too small for normal ones.

    Gradients of rows that a network is sure about are that small, and processors take up to a
    hundred times longer for them.
    """
    was_flushing = _flushes()
    torch.set_flush_denormal(True)
    try:
        with gradients_allowed():
            yield
    finally:
        torch.set_flush_denormal(was_flushing)


def _flushes() -> bool:
    """Tell whether this thread takes such numbers for zero: torch does not say."""
    return not bool(torch.full((1,), 1e-30) * 1e-10)
