"""Packed things as files: one npz with arrays and, among them, a tree as json."""

from __future__ import annotations

import json
import os
import sys
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .pack import Packed

_TREE = "tree"


def write_packed(path: Path, packed: Packed) -> None:
    """Write something packed to a file, all of it or nothing.

    Parameters
    ----------
    path : Path
        Where to.
    packed : Packed
        What to write.
    """
    text = np.frombuffer(json.dumps(packed.tree).encode(), dtype=np.uint8)
    arrays: dict[str, Any] = {_TREE: text, **packed.arrays}

    def write(file: BinaryIO) -> None:
        np.savez(file, **arrays)

    _write_whole(path, write, os.replace)


def read_packed(path: Path) -> Packed:
    """Return what a file holds.

    Parameters
    ----------
    path : Path
        What `write_packed` has written.

    Returns
    -------
    Packed
        The tree and its arrays.
    """
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return Packed(json.loads(arrays.pop(_TREE).tobytes()), arrays)
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
        raise UnreadableError(f"{path} cannot be read: {error}") from error


class UnreadableError(ValueError):
    """A file that is not what was written."""


def write_first(path: Path, content: dict[str, Any]) -> bool:
    """Write plain values as json, unless there is such a file; tell whether it was written.

    Of several processes that write at the same time, one wins.

    Parameters
    ----------
    path : Path
        Where to.
    content : dict
        Plain values.

    Returns
    -------
    bool
        Whether there was none before.
    """
    text = json.dumps(content, indent=1).encode()
    try:
        _write_whole(path, lambda file: file.write(text), _move_if_free)
    except FileExistsError:
        return False
    return True


def _move_if_free(beside: Path, path: Path) -> None:
    """Give a file its name, unless another has it."""
    try:
        os.link(beside, path)
    except FileExistsError:
        raise
    except OSError as error:
        # Not every file system knows links.
        if path.exists():
            raise FileExistsError(path) from error
        os.replace(beside, path)


def package_version() -> str:
    """Return the version of this package, as a mark of what it stores."""
    return sys.modules[__name__.split(".")[0]].__version__


def _write_whole(
    path: Path, write: Callable[[BinaryIO], Any], move: Callable[[Path, Path], None]
) -> None:
    """Write a file beside its place and move it there when it is complete."""
    beside = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with open(beside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        move(beside, path)
    finally:
        beside.unlink(missing_ok=True)
