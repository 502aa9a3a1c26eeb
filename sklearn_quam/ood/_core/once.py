"""Outputs of a network, computed once while several detectors ask for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

Value = TypeVar("Value")


@dataclass
class _Read:
    """Values with the seconds they took, and the seconds saved by not computing them again."""

    # With the objects whose ids are in the key: these ids must not be used again meanwhile.
    kept: dict[Any, tuple[Any, float, tuple]] = field(default_factory=dict)
    saved: float = 0.0


_READ: ContextVar[_Read | None] = ContextVar("read", default=None)


@contextmanager
def read_once() -> Iterator[None]:
    """Let detectors share network outputs; samples and networks must not change within."""
    token = _READ.set(_Read())
    try:
        yield
    finally:
        _READ.reset(token)


def clock() -> float:
    """Return the time in seconds, as if nothing had been shared."""
    read = _READ.get()
    return time.perf_counter() + (0.0 if read is None else read.saved)


def remembered(what: Any, owners: tuple, make: Callable[[], Value]) -> Value:
    """Return the value made of the same objects before within `read_once`, else a new one."""
    read = _READ.get()
    if read is None:
        return make()
    key = (what, *map(id, owners))
    if key not in read.kept:
        start = clock()
        read.kept[key] = (make(), clock() - start, owners)
        return read.kept[key][0]
    value, seconds, _ = read.kept[key]
    read.saved += seconds
    return value
