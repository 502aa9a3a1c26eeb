"""Fitted objects as plain values and named arrays, and back, by kinds that the code declares.

A kind is a type as annotations write it. The fields of a dataclass have the kinds of their
annotations; other classes declare theirs as ``_stored``; a dict of kinds is a record. What a file
holds is compared with these: no class, function or attribute is looked up by a name from a file.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from ..exceptions import UnreadableFileError
from .files import Arrays

# What arguments of estimators may be, besides objects of this package.
Plain = None | bool | int | float | str | list[str] | tuple[str, ...] | list[float] | np.ndarray
_SCALARS: dict[Any, Any] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, int, np.floating, np.integer),
    str: str,
    type(None): type(None),
}
_SEQUENCES = (list, tuple, torch.Size)
# Mark arrays that are not on the host, and those whose columns lie side by side in memory: to
# multiply by the same matrix laid out otherwise gives other last digits.
_ON_DEVICE, _BY_COLUMNS = "@device", "@columns"


class Instead(NamedTuple):
    """The stand-in for objects of a type in a file: its kind, made of an object, and back."""

    kind: Any
    of: Callable[[Any], Any]
    back: Callable[[Any], Any]


def write_as(
    kind: Any, value: Any, instead: dict[type, Instead] | None = None
) -> tuple[Any, Arrays]:
    """Return a value of a kind as plain values and arrays."""
    writer = _Writer(instead or {})
    return writer.write(kind, value, ""), writer.arrays


def read_as(
    kind: Any,
    tree: Any,
    arrays: Arrays,
    instead: dict[type, Instead] | None = None,
    device: torch.device | None = None,
) -> Any:
    """Return what `write_as` was given; all arrays have to be part of it."""
    reader = _Reader(arrays, instead or {}, device or torch.device("cpu"))
    value = reader.read(kind, tree, "")
    if reader.unused:
        raise UnreadableFileError(f"nothing needs its array {min(reader.unused)!r}")
    return value


def _opened(kind: Any) -> tuple[Any, tuple]:
    """Return the origin of a kind, and its arguments."""
    if isinstance(kind, types.UnionType):
        return typing.Union, typing.get_args(kind)
    return typing.get_origin(kind) or kind, typing.get_args(kind)


def _declared(kind: Any) -> dict[str, Any] | None:
    """Return the kinds of the parts of an object; None for what is no such object."""
    cls, arguments = _opened(kind)
    if not isinstance(cls, type):
        return None
    if "_stored" in vars(cls):
        return vars(cls)["_stored"]
    if issubclass(cls, BaseEstimator):
        return dict.fromkeys(cls._get_param_names(), Plain)  # type: ignore[attr-defined]
    if not (is_dataclass(cls) or hasattr(cls, "_fields")):
        return None
    hints = typing.get_type_hints(cls)
    names = [field.name for field in fields(cls)] if is_dataclass(cls) else cls._fields
    given = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
    return {name: _bound(hints[name], given) for name in names}


def _bound(kind: Any, given: dict[Any, Any]) -> Any:
    """Return a kind with type variables replaced."""
    if isinstance(kind, TypeVar):
        return given.get(kind, kind)
    parameters = getattr(kind, "__parameters__", ())
    return kind[tuple(given.get(one, one) for one in parameters)] if parameters else kind


def _fits(kind: Any, value: Any) -> bool:
    """Return whether a value may be of a kind, without looking into objects."""
    origin, arguments = _opened(kind)
    if origin is typing.Union:
        return any(_fits(one, value) for one in arguments)
    if origin is type:
        return value is arguments[0]
    if origin in _SCALARS:
        # Truth values are whole numbers to Python.
        return isinstance(value, _SCALARS[origin]) and (origin is bool or type(value) is not bool)
    if origin in _SEQUENCES:
        if type(value) is not origin:
            return False
        kinds = _kinds_of(origin, arguments, len(value))
        return len(kinds) == len(value) and all(map(_fits, kinds, value))
    if _declared(kind) is not None:
        return type(value) is origin
    return isinstance(origin, type) and isinstance(value, origin)


class _Writer:
    def __init__(self, instead: dict[type, Instead]) -> None:
        self.arrays: Arrays = {}
        self._instead = instead
        # By identity, with the object itself: its number must not go to another one meanwhile.
        self._known: dict[Any, tuple[str, Any]] = {}

    def write(self, kind: Any, value: Any, path: str) -> Any:
        if isinstance(kind, dict):
            return self._record(kind, value, path)
        origin, arguments = _opened(kind)
        if origin is typing.Union:
            number = next((i for i, one in enumerate(arguments) if _fits(one, value)), None)
            if number is None:
                raise _not_stored(value, path)
            return [number, self.write(arguments[number], value, path)]
        if not _fits(kind, value):
            raise _not_stored(value, path)
        if origin is type:
            return None
        if origin in _SCALARS:
            return value if value is None else origin(value)
        if origin in _SEQUENCES:
            kinds = _kinds_of(origin, arguments, len(value))
            numbered = enumerate(zip(kinds, value, strict=True))
            return [self.write(one, part, f"{path}.{i}") for i, (one, part) in numbered]
        if origin is dict:
            return self._record(dict.fromkeys(value, arguments[1]), value, path)
        if origin in (Tensor, np.ndarray):
            return self._array(value, path)
        if id(value) in self._known:
            return {"same": self._known[id(value)][0]}
        self._known[id(value)] = (path, value)
        return self._object(kind, origin, value, path)

    def _record(self, kinds: dict[str, Any], value: Any, path: str) -> dict[str, Any]:
        return {name: self.write(one, value[name], f"{path}.{name}") for name, one in kinds.items()}

    def _object(self, kind: Any, origin: Any, value: Any, path: str) -> Any:
        if origin in self._instead:
            stand_in = self._instead[origin]
            return {"instead": self.write(stand_in.kind, stand_in.of(value), path)}
        declared = _declared(kind)
        if declared is None:
            raise _not_stored(value, path)
        if hasattr(value, "_to_store"):
            return self._record(declared, value._to_store(), path)
        return self._record(declared, {name: getattr(value, name) for name in declared}, path)

    def _array(self, value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray):
            if value.dtype.kind in "UO":
                texts = [self.write(Plain, one, path) for one in value.ravel()]
                return {"values": texts, "kind": value.dtype.kind, "shape": list(value.shape)}
            if value.dtype.kind not in "biuf":
                raise _not_stored(value.dtype, path)
            value = torch.from_numpy(value.astype(value.dtype.newbyteorder("="), order="K"))
        tensor = value.detach()
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if not tensor.numel() or key not in self._known:
            turned = tensor.ndim > 1 and not tensor.is_contiguous() and tensor.mT.is_contiguous()
            name = path.strip(".") + (_BY_COLUMNS if turned else "")
            name += "" if tensor.device.type == "cpu" else _ON_DEVICE
            self._known[key] = (name, value)
            self.arrays[name] = (tensor.mT if turned else tensor).cpu()
        return self._known[key][0]


class _Reader:
    def __init__(self, arrays: Arrays, instead: dict[type, Instead], device: torch.device) -> None:
        self._arrays, self._instead, self._device = arrays, instead, device
        self._known: dict[str, Any] = {}
        self._tensors: Arrays = {}
        self.unused = set(arrays)

    def read(self, kind: Any, tree: Any, path: str) -> Any:
        if isinstance(kind, dict):
            return self._record(kind, tree, path)
        origin, arguments = _opened(kind)
        if origin is type:
            return arguments[0]
        if origin in _SCALARS:
            value = float(tree) if origin is float and type(tree) is int else tree
            _expect(type(value) is origin, path)
            return value
        if origin is typing.Union:
            _expect(type(tree) is list and len(tree) == 2 and type(tree[0]) is int, path)
            _expect(0 <= tree[0] < len(arguments), path)
            return self.read(arguments[tree[0]], tree[1], path)
        if origin in _SEQUENCES:
            _expect(type(tree) is list, path)
            kinds = _kinds_of(origin, arguments, len(tree))
            _expect(len(kinds) == len(tree), path)
            numbered = enumerate(zip(kinds, tree, strict=True))
            return origin([self.read(one, part, f"{path}.{i}") for i, (one, part) in numbered])
        if origin in (Tensor, np.ndarray):
            return self._array(origin, tree, path)
        _expect(type(tree) is dict, path)
        if origin is dict:
            return self._record(dict.fromkeys(tree, arguments[1]), tree, path)
        if tree.keys() == {"same"}:
            _expect(type(tree["same"]) is str and tree["same"] in self._known, path)
            known = self._known[tree["same"]]
            _expect(_fits(kind, known), path)
            return known
        self._known[path] = made = self._object(kind, origin, tree, path)
        return made

    def _record(self, kinds: dict[str, Any], tree: Any, path: str) -> dict[str, Any]:
        _expect(type(tree) is dict and tree.keys() == kinds.keys(), path)
        return {name: self.read(one, tree[name], f"{path}.{name}") for name, one in kinds.items()}

    def _object(self, kind: Any, origin: Any, tree: dict[str, Any], path: str) -> Any:
        if origin in self._instead:
            stand_in = self._instead[origin]
            return stand_in.back(self._record({"instead": stand_in.kind}, tree, path)["instead"])
        declared = _declared(kind)
        assert declared is not None, f"{kind} is no kind of this package"
        return getattr(origin, "_from_store", origin)(**self._record(declared, tree, path))

    def _array(self, origin: Any, tree: Any, path: str) -> Any:
        if origin is np.ndarray and type(tree) is dict:
            kinds = {"values": list[Plain], "kind": str, "shape": tuple[int, ...]}
            found = self._record(kinds, tree, path)
            texts = found["kind"] == "U"
            _expect(not texts or all(type(one) is str for one in found["values"]), path)
            _expect(math.prod(found["shape"]) == len(found["values"]), path)
            array = np.empty(len(found["values"]), dtype=object)
            array[:] = found["values"]
            return (array.astype(str) if texts else array).reshape(found["shape"])
        _expect(type(tree) is str and tree in self._arrays, path)
        self.unused.discard(tree)
        if tree not in self._tensors:
            tensor = self._arrays[tree]
            tensor = tensor.mT if _BY_COLUMNS in tree and tensor.ndim > 1 else tensor
            self._tensors[tree] = tensor.to(self._device) if _ON_DEVICE in tree else tensor
        return self._tensors[tree].numpy() if origin is np.ndarray else self._tensors[tree]


def _kinds_of(origin: Any, arguments: tuple, length: int) -> tuple:
    """Return the kinds of the parts of a list or tuple of a length."""
    if origin is torch.Size:
        return (int,) * length
    if origin is tuple and arguments[-1] is not Ellipsis:
        return arguments
    return arguments[:1] * length


def _expect(fine: bool, path: str) -> None:
    if not fine:
        what = path.strip(".") or "its content"
        raise UnreadableFileError(f"{what} is not what it should be")


def _not_stored(value: Any, path: str) -> TypeError:
    return TypeError(f"{path.strip('.')} is a {type(value).__name__}, which cannot be stored.")
