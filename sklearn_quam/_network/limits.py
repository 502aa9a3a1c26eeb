"""Limits of memory, and settings of torch that hold while the package computes."""

from __future__ import annotations

import math
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .._messages import shown

_DEFAULT_SHARE = 0.25
# Bytes that count as free if the system does not report it.
_UNKNOWN_MEMORY = 4 * 10**9
# Results of one pass that are larger than this leave the caches of a CPU.
_MAX_BYTES_ON_CPU = 2**26
# What a pass over training rows may take, and its share of a limit: other things are held besides.
_bytes_of_a_pass = ContextVar("bytes_of_a_pass", default=2**25)
_PASSES_IN_MEMORY = 8
# How many times as much a pass takes on an accelerator, which has no caches to stay in.
_PASSES_OF_AN_ACCELERATOR = 32
# Rows of one forward pass, so that its inputs take a few megabytes whatever their shape.
_MAX_ROWS = 512
_MAX_ELEMENTS = 2**20


@dataclass(frozen=True)
class Limits:
    """What may be used at once."""

    # Bytes of the device, which all workers share
    memory: int
    device: torch.device
    n_workers: int = 1
    # Models that may run together, where more of them have run out of memory before
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
    """Return a limit such as "1GB" or "512MiB" in bytes; None is a quarter of what is free."""
    if limit is None:
        return int(_DEFAULT_SHARE * _free_bytes(device))
    number, exponent, base = limit, 0, 1000
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(?:([KMGT])(i?))?B?\s*", limit, re.IGNORECASE)
        if match is None:
            raise ValueError(
                f"memory_limit={shown(limit)} is not understood: pass bytes or a text such as "
                "'1GB'."
            )
        number, unit, binary = match.groups()
        exponent, base = "KMGT".find((unit or " ").upper()) + 1, 1024 if binary else 1000
    value = float(number) * base**exponent
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
    # Pages of files that the system may forget count as available.
    available = _numbers(Path("/proc/meminfo")).get("MemAvailable:")
    found = [] if available is None else [1024 * available]
    found += _left_to_groups(Path("/proc"), Path("/sys/fs/cgroup"))
    return max(1, min(found, default=_UNKNOWN_MEMORY))


def _left_to_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yield what is left to each control group of this process: the limit of each binds all below.

    Inside of a container the path may be one of the host; its own group is the root.
    """
    versions = (
        (groups, "memory.max", "memory.current", ""),
        (groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    )
    for line in _lines(proc / "self" / "cgroup"):
        parts = Path(line.split(":", 2)[2].strip().strip("/"))
        for root, limit, used, prefix in versions:
            for group in (root / parts, *(root / part for part in parts.parents)):
                allowed, taken = _number(group / limit), _number(group / used)
                if allowed is not None and taken is not None:
                    statistics = _numbers(group / "memory.stat")
                    yield allowed - taken + statistics.get(f"{prefix}inactive_file", 0)


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
    """Yield slices of at most some size that cover all rows."""
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


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


class _Counter(TorchDispatchMode):
    """Counts the memory of tensors that are made while it is active, until they are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self._held = 0
        self._known: dict[int, weakref.ref] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and to import the compiler takes seconds.
        return False

    def __torch_dispatch__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        # What was there before is not counted, nor is a view of it.
        for value in tree_leaves(args):
            self._meet(value, is_new=False)
        found = function(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            self._meet(value, is_new=True)
        return found

    def _meet(self, value: Any, is_new: bool) -> None:
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            return
        storage = value.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes() if is_new else 0
        self._held += size
        self.largest = max(self.largest, self._held)

        def forget(_: object) -> None:
            del self._known[key]
            self._held -= size

        self._known[key] = weakref.ref(storage, forget)


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the most memory that tensors made by a function take at the same time."""
    with _Counter() as counter:
        run()
    return counter.largest


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating point type that a device can add in."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def gradients_allowed() -> Iterator[None]:
    """Work as usual whatever the caller has switched off or on.

    Searches need gradients, and what is computed must not depend on a `torch.autocast` outside.
    """
    with torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
        for kind in ("cpu", "cuda", "mps"):
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
    """Return whether this thread flushes such numbers, which torch does not say."""
    return not bool(torch.full((1,), 1e-30) * 1e-10)
