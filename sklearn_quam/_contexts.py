"""What has to hold while the package computes, whatever the caller has set; put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def gradients_allowed() -> Iterator[None]:
    """Work as usual where the caller has switched gradients off: searches need them."""
    with torch.inference_mode(False), torch.enable_grad():
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
