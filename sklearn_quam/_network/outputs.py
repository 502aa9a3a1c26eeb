"""Pick the meant output of a network, and turn errors of user code into `NetworkError`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from .._messages import shown
from ..exceptions import NetworkError

# What the code of users raises: a network, an estimator around it, or torch on its behalf. Warnings
# that are made errors, and interrupts, are none of these.
NETWORK_ERRORS = (
    (ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError)
    + (LookupError, NameError, OSError, RuntimeError, StopIteration, TypeError, ValueError)
    + (torch.jit.Error,)
)


class InvalidOutputError(NetworkError):
    """What a network returned does not fit its task, its classes or its link."""


def is_out_of_memory(error: object) -> bool:
    """Return whether memory has run out: a CPU has no error class of its own for it."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in said and "memory" in said


class NetworkErrors:
    """Context in which errors of code that is not ours become `NetworkError`.

    Nothing but a call of that code belongs into it; running out of memory is none of its errors.
    """

    def __init__(self, message: Callable[[Any], str] | None = None) -> None:
        self._message = message or _in_general

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        known = isinstance(error, NetworkError) or is_out_of_memory(error)
        if isinstance(error, NETWORK_ERRORS) and not known:
            raise NetworkError(self._message(error)) from error


def _in_general(error: object) -> str:
    return (
        "The network raises an error, with its own weights or with those of other plausible "
        f"models: {type(error).__name__}: {error}"
    )


def picked(output: Any, which: str | int | None) -> Any:
    """Return one of several outputs by name or number, in at least single precision.

    None takes the logits, or what comes first.
    """
    if which is None:
        return _wide(_by_itself(output))
    parts = _parts(output)
    if parts is None:
        raise InvalidOutputError(
            f"output={shown(which)}, but the network returns only one. Leave output=None."
        )
    names = list(parts)
    if which not in parts and isinstance(which, int) and -len(parts) <= which < len(parts):
        which = names[which]
    if which not in parts:
        raise InvalidOutputError(f"The network has no output {shown(which)}. It returns {names}.")
    return _wide(_by_itself(parts[which]))


def _by_itself(output: Any) -> Any:
    """Return the logits of several outputs, or what comes first, where no name was passed."""
    if isinstance(output, (tuple, list)) and not hasattr(output, "logits"):
        return output
    parts = _parts(output)
    if parts is None:
        return output
    if "logits" in parts:
        return parts["logits"]
    if len(parts) > 1 and not is_dataclass(output):
        raise InvalidOutputError(
            f"The network returns several outputs: {list(parts)}. Pass output= with the name of "
            "the one that is meant."
        )
    return next(iter(parts.values()), output)


def _parts(output: Any) -> dict[Any, Any] | None:
    """Return several outputs by name or number, or None for a single one."""
    if isinstance(output, Mapping):
        parts = dict(output)
    elif is_dataclass(output):
        parts = {field.name: getattr(output, field.name) for field in fields(output)}
    elif hasattr(output, "_fields"):
        parts = output._asdict()
    elif isinstance(output, (tuple, list)):
        return dict(enumerate(output))
    else:
        return {"logits": output.logits} if hasattr(output, "logits") else None
    return {name: value for name, value in parts.items() if value is not None}


def _wide(output: Any) -> Any:
    """Return half precision as single precision: numbers of models are small differences."""
    if isinstance(output, (tuple, list)):
        return type(output)(map(_wide, output)) if type(output) in (tuple, list) else output
    half = getattr(output, "dtype", None) in (torch.float16, torch.bfloat16)
    return output.float() if half else output


def first(output: Any) -> Any:
    """Return the first of several outputs, or the only one."""
    return output[0] if isinstance(output, (tuple, list)) else output
