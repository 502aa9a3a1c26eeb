"""Files of named arrays and a header of plain values, in the layout of safetensors.

Eight bytes with the length of a json table, the table, and the arrays one after the other. The
table declares every type, shape and place, which is checked before an array is read, and a digest
over all content, which is checked before anything is made of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..exceptions import UnreadableFileError

Arrays = dict[str, Tensor]

_MAX_TABLE = 2**24
_MAX_AXES = 16
_MAX_ELEMENTS = 2**48
_METADATA = "__metadata__"
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write(file: BinaryIO, header: Any, arrays: Arrays) -> None:
    """Write arrays and plain values."""
    table, position = {}, 0
    for name, array in arrays.items():
        end = position + array.numel() * array.element_size()
        entry = {"dtype": _NAMES[array.dtype], "shape": list(array.shape)}
        table[name] = {**entry, "data_offsets": [position, end]}
        position = end
    content = json.dumps(header)
    digest = _digest(content, table)
    for array in arrays.values():
        digest.update(_bytes_of(array))
    metadata = {_METADATA: {"digest": digest.hexdigest(), "content": content}}
    text = json.dumps({**metadata, **table}).encode()
    if len(text) > _MAX_TABLE:
        raise ValueError(f"Plain values of {len(text)} bytes are too many to be stored.")
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for array in arrays.values():
        file.write(_bytes_of(array))


def read(file: BinaryIO, size: int) -> tuple[Any, Arrays]:
    """Return the plain values and the arrays of a file, none of them before all was checked."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(_MAX_TABLE, size - 8):
        raise UnreadableFileError(
            "it does not begin as files of this package do: pass a file that save has written"
        )
    table = parsed(file.read(length))
    metadata: Any = table.pop(_METADATA, None) if isinstance(table, dict) else None
    if not _is_record(metadata, digest=str, content=str):
        raise UnreadableFileError("it was not written by this package")
    declared, position = [], 0
    for name, entry in table.items():
        if not _is_record(entry, dtype=str, shape=list, data_offsets=list):
            raise UnreadableFileError(f"the array {name!r} is not declared as it should be")
        dtype, shape = _DTYPES.get(entry["dtype"]), entry["shape"]
        sizes = all(type(n) is int and n >= 0 for n in shape) and len(shape) <= _MAX_AXES
        # Sizes beside a zero must be numbers that torch can hold, too.
        if dtype is None or not sizes or math.prod(max(n, 1) for n in shape) > _MAX_ELEMENTS:
            raise UnreadableFileError(f"the array {name!r} has no type or shape that is known")
        end = position + math.prod(shape) * dtype.itemsize
        if entry["data_offsets"] != [position, end]:
            raise UnreadableFileError(f"the array {name!r} has another size than its shape says")
        declared.append((name, dtype, shape, end - position))
        position = end
    if position != size - 8 - length:
        raise UnreadableFileError(f"its arrays take {size - 8 - length} bytes, not {position}")
    digest, arrays = _digest(metadata["content"], table), {}
    for name, dtype, shape, n_bytes in declared:
        buffer = bytearray(n_bytes)
        if file.readinto(buffer) != n_bytes:  # type: ignore[attr-defined]
            raise UnreadableFileError("it ends before its arrays do")
        digest.update(buffer)
        # There is no array over no bytes.
        flat = torch.frombuffer(buffer, dtype=dtype) if n_bytes else torch.empty(0, dtype=dtype)
        arrays[name] = flat.reshape(shape)
    if digest.hexdigest() != metadata["digest"]:
        raise UnreadableFileError("its content is not what was written: it was damaged, or changed")
    return parsed(metadata["content"]), arrays


def place_beside(path: Path) -> Path:
    """Return where a file is written before it is complete."""
    return path.with_name(f".{path.stem}.part")


def write_file(path: Path, header: Any, arrays: Arrays, beside: Path | None = None) -> None:
    """Write a file beside its place, and move it there when it is complete."""
    beside = beside or place_beside(path)
    # Not emptied first: somebody else may be about to move it.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
    if beside.is_symlink():
        # In a folder from elsewhere it may lead to a file that is not ours to write.
        beside.unlink()
    with open(os.open(beside, flags | getattr(os, "O_NOFOLLOW", 0)), "wb") as file:
        write(file, header, arrays)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def read_file(path: Path) -> tuple[Any, Arrays]:
    """Return the plain values and the arrays of a file; see `read`."""
    if path.is_dir():
        raise UnreadableFileError("it is a folder")
    if path.exists() and not path.is_file():
        # A pipe would be waited for.
        raise UnreadableFileError("it is no regular file")
    with open(path, "rb") as file:
        return read(file, os.fstat(file.fileno()).st_size)


def parsed(text: str | bytes) -> Any:
    """Return the plain values of a json text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(f"its table is no json ({type(error).__name__})") from error


def package_version() -> str:
    """Return the version of this package, as a mark of what it stores."""
    return sys.modules[__name__.split(".")[0]].__version__


def _is_record(value: Any, **types: type) -> bool:
    """Return whether a value has these keys with values of these types, and no others."""
    if not isinstance(value, dict) or value.keys() != types.keys():
        return False
    return all(type(value[name]) is kind for name, kind in types.items())


def _digest(content: str, table: dict[str, Any]) -> Any:
    declared = json.dumps([content, table], sort_keys=True)
    return hashlib.sha256(declared.encode())


def _bytes_of(array: Tensor) -> Any:
    if not array.numel():
        return b""
    # A single number may lie anywhere: its steps are made up.
    flat = array.contiguous().as_strided((array.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data
