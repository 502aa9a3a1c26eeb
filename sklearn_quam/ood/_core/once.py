"""What a network shows of rows, read once while several detectors ask for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Value = TypeVar("Value")


class _Read:
    """What was read so far, and the seconds that were saved by not reading it again."""

    def __init__(self) -> None:
        # With the objects that a key names by their numbers, which must not go to others meanwhile.
        self.kept: dict[Any, tuple[Any, float, tuple]] = {}
        self.saved = 0.0


_READ: ContextVar[_Read | None] = ContextVar("read", default=None)


@contextmanager
def read_once() -> Iterator[None]:
    """Let detectors of the same network share what it shows of the same rows.

    Rows and networks must not change within.
    """
    token = _READ.set(_Read())
    try:
        yield
    finally:
        _READ.reset(token)


def clock() -> float:
    """Return the time in seconds, as if everybody had read everything on their own."""
    read = _READ.get()
    return time.perf_counter() + (0.0 if read is None else read.saved)


def remembered(what: Any, owners: tuple, make: Callable[[], Value]) -> Value:
    """Return what was made before of the same objects, within `read_once`.

    Parameters
    ----------
    what : object
        Tells values of the same objects apart.
    owners : tuple of object
        What the value is made of.
    make : callable
        Returns the value.

    Returns
    -------
    object
        The value.
    """
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
