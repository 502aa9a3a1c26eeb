"""Finished chunks of rows in a folder, so that a run that was ended goes on where it was.

The folder holds ``run.json``, which says what is asked of whom, and a file of arrays for each chunk
that is done. Files appear whole or not at all. Several processes may work on one folder: each looks
which chunks are there before it begins the next.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._network.limits import batches, slices
from .._storing.files import (
    UnreadableError,
    package_version,
    read_packed,
    write_first,
    write_packed,
)
from .._storing.pack import pack, unpack
from .fitted import FittedMethod, Question
from .results import RowResults

_FORMAT = 1
# What is compared, and what it is called when it differs.
_ASKED = {
    "model": "another fitted estimator",
    "rows": "other rows of X",
    "setting": "another setting",
    "measure": "another measure",
    "made_by": "another version of sklearn_quam or torch",
    "format": "another version of sklearn_quam",
}


@dataclass(frozen=True)
class Checkpoint:
    """A folder of finished chunks.

    Parameters
    ----------
    folder : Path
        The folder.
    asked : dict
        What identifies the run.
    n_rows : int
        Rows of the run.
    """

    folder: Path
    asked: dict[str, Any]
    n_rows: int

    def plan(self, rows_at_once: int | None = None) -> list[slice] | None:
        """Return the chunks of the run; all processes that work on it have the same.

        Parameters
        ----------
        rows_at_once : int, default=None
            Rows of a chunk, which counts where nothing has been decided yet.

        Returns
        -------
        list of slice or None
            The first chunk is one row; None where nothing has been decided.
        """
        file = self.folder / "run.json"
        if rows_at_once is not None:
            size = {"n_rows": self.n_rows, "rows_at_once": rows_at_once}
            write_first(file, {**self.asked, **size})
        try:
            found = json.loads(file.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{file} is no checkpoint of this package: {error}") from error
        other = [words for key, words in _ASKED.items() if found.get(key) != self.asked[key]]
        if other:
            raise ValueError(
                f"The folder {os.fspath(self.folder)!r} holds a run of {' and '.join(other)}. "
                "Choose another folder, or delete this one if it is no longer needed."
            )
        rest = slices(self.n_rows - 1, found["rows_at_once"])
        return [slice(0, 1), *(slice(1 + part.start, 1 + part.stop) for part in rest)]

    def has(self, number: int) -> bool:
        """Tell whether a chunk is done."""
        return self._file(number).exists()

    def keep(self, number: int, results: RowResults) -> None:
        """Store a chunk that is done."""
        write_packed(self._file(number), pack(results))

    def find(self, number: int) -> RowResults | None:
        """Return a chunk if it is done."""
        try:
            return unpack(read_packed(self._file(number)))
        except FileNotFoundError:
            return None
        except UnreadableError:
            # A disk may have lost what was written last: it is computed again.
            self._file(number).unlink(missing_ok=True)
            return None

    def _file(self, number: int) -> Path:
        return self.folder / f"chunk-{number:07d}.npz"


def open_checkpoint(
    folder: str | os.PathLike, fitted: FittedMethod, inputs: Any, question: Question
) -> Checkpoint:
    """Return the folder that the chunks of a run are kept in.

    Parameters
    ----------
    folder : str or path
        The folder; it is made if there is none.
    fitted : FittedMethod
        Who is asked.
    inputs : StoredRows
        About which rows.
    question : Question
        What.

    Returns
    -------
    Checkpoint
        The folder.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    asked = {
        "format": _FORMAT,
        "made_by": f"sklearn_quam {package_version()}, torch {torch.__version__}",
        "model": pack(fitted).digest(),
        "rows": _digest_of_rows(inputs),
        "setting": question.setting,
        "measure": question.measure,
    }
    return Checkpoint(path, asked, len(inputs))


def _digest_of_rows(inputs: Any) -> str:
    """Return what is the same for the same rows only, read some at a time."""
    digest = hashlib.sha256()
    # Ensembles have rows for each of their networks.
    for own in (inputs.reference, *inputs.members) if hasattr(inputs, "members") else (inputs,):
        for rows in batches(own):
            digest.update(pack(own[rows]).digest().encode())
    return digest.hexdigest()


def in_any_order(numbers: list[int]) -> list[int]:
    """Return numbers shuffled, so that processes that share a folder rarely do the same work."""
    return random.Random(os.urandom(8)).sample(numbers, len(numbers))
