"""What counts of all that a network returns or raises, and in which precision it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .._messages import shown
from ..exceptions import NetworkError

# What the code of users raises: a network, an estimator around it, or torch on its behalf. Warnings
# that are made errors, and interrupts, are none of these.
NETWORK_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
    torch.jit.Error,
)


class InvalidOutputError(NetworkError):
    """What a network returned does not fit its task, its classes or its link."""


def is_out_of_memory(error: object) -> bool:
    """Tell whether an error says that memory has run out: a CPU has no class of its own for it."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in said and "memory" in said


class NetworkErrors:
    """The one place where errors of code that is not ours become `NetworkError`.

    Nothing but a call of this code belongs into such a block, so that an error of our own is never
    taken for one of the network. That memory runs out is not the network's fault.

    Parameters
    ----------
    what : callable, default=None
        Returns the message for an error; None says what and why in general.
    """

    def __init__(self, what: Callable[[Any], str] | None = None) -> None:
        self._what = _in_general if what is None else what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, NETWORK_ERRORS) and not is_out_of_memory(error):
            if isinstance(error, NetworkError):
                return
            raise NetworkError(self._what(error)) from error


def _in_general(error: object) -> str:
    return (
        "The network raises an error, with its own weights or with those of other plausible "
        f"models: {type(error).__name__}: {error}"
    )


def picked(output: Any, which: str | int | None) -> Any:
    """Return one of several outputs of a network.

    Parameters
    ----------
    output : object
        What the network returned: a tensor, a tuple, a mapping, or an object with fields.
    which : str, int or None
        Its name or its number. None takes the logits, or what comes first.

    Returns
    -------
    object
        A tensor, or a tuple of them, in at least single precision.
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
    """Return what counts of an output where nobody says which of several it is."""
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


def returned(module: nn.Module, *inputs: Any) -> Any:
    """Run a network for the first time, and see to it that it computes in its own precision.

    Parameters
    ----------
    module : torch.nn.Module
        A private copy. If it chooses half precision by itself, with `torch.autocast` in its
        ``forward``, it does so no longer: what models cost are small differences.
    *inputs : object
        Its arguments.

    Returns
    -------
    object
        What it returns.
    """
    with NetworkErrors(), _NotingAutocast() as noting:
        output = module(*inputs)
    if not noting.seen:
        return output
    module.forward = InOwnPrecision(module)
    with NetworkErrors():
        return module(*inputs)


class _NotingAutocast(TorchFunctionMode):
    """Notes whether anything is computed under `torch.autocast`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch._C._is_any_autocast_enabled()
        return func(*args, **(kwargs or {}))


class _WithoutAutocast(TorchFunctionMode):
    """Computes everything without `torch.autocast`, in this thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableAutocast():
            return func(*args, **(kwargs or {}))


class InOwnPrecision:
    """The ``forward`` of a network, without `torch.autocast`.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __repr__(self) -> str:
        return "InOwnPrecision()"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network."""
        with _WithoutAutocast():
            return type(self.module).forward(self.module, *args, **kwargs)
