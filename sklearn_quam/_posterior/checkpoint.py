"""Finished chunks of samples in a folder, so that a run that was ended goes on where it was.

The folder holds a file of arrays for each finished chunk, with the run and the samples it is of.
Files appear whole or not at all. Several processes may work on one folder: each looks which chunks
are there before it begins the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._network.limits import batches, slices
from .._storing.files import package_version, place_beside, read_file, write_file
from .._storing.schema import read_as, write_as
from ..exceptions import UnreadableFileError
from .fitted import FittedMethod, Question
from .results import RowResults

_FORMAT = 3
# Samples of a chunk, whatever the method, the machine and its memory: no more are lost, and how
# samples are grouped, which shows in the last digits, does not depend on the folder.
ROWS_PER_CHUNK = 32


@dataclass(frozen=True)
class Checkpoint:
    """A folder of finished chunks."""

    folder: Path
    # What identifies the run, by the words for another one
    run: dict[str, Any]
    # The samples of each chunk
    chunks: list[slice]
    # Columns of diagnostics, besides those of all methods
    diagnostics: tuple[str, ...]

    def has(self, number: int) -> bool:
        """Return whether a chunk is done."""
        return self._file(number).exists()

    def keep(self, number: int, results: RowResults) -> None:
        """Store a chunk that is done."""
        rows, (tree, arrays) = self.chunks[number], write_as(RowResults, results)
        header = {"run": self.run, "rows": [rows.start, rows.stop], "results": tree}
        try:
            write_file(self._file(number), header, arrays)
        except (FileNotFoundError, PermissionError):
            # Another process has done the same chunk meanwhile, and moved or cleared the file.
            if not self.has(number):
                raise

    def found(self, known: Container[int]) -> Iterator[tuple[int, RowResults]]:
        """Yield the chunks that are done, but those that are known; delete unreadable ones."""
        for number in range(len(self.chunks)):
            if number in known or not self.has(number):
                continue
            try:
                yield number, self._read(number)
                # A killed process may have left a file behind, which nobody needs any more.
                with contextlib.suppress(PermissionError):
                    place_beside(self._file(number)).unlink(missing_ok=True)
            except FileNotFoundError:
                pass  # Another process has moved it meanwhile
            except UnreadableFileError:
                # A disk may have lost what was written last: it is computed again.
                self._file(number).unlink(missing_ok=True)

    def refuse_other_runs(self) -> None:
        """Raise an error where the folder holds chunks of another run."""
        paths = sorted(self.folder.glob("chunk-*"))
        for path in paths:
            if path.is_dir():
                raise UnreadableFileError(f"{path} is a folder, where a file should be. Remove it.")
        for path in paths:
            with contextlib.suppress(UnreadableFileError, FileNotFoundError):
                self._check_run(read_file(path)[0])
                return

    def _check_run(self, header: Any) -> None:
        found = header.get("run") if isinstance(header, dict) else None
        if not isinstance(found, dict):
            raise UnreadableFileError("It is no chunk of a run")
        other = [words for words, value in self.run.items() if found.get(words) != value]
        if other:
            raise ValueError(
                f"The folder {os.fspath(self.folder)!r} holds a run of {' and '.join(other)}. "
                "Choose another folder, or delete this one if it is no longer needed."
            )

    def _read(self, number: int) -> RowResults:
        """Return the results of a chunk, if they are what results can be."""
        rows, (header, arrays) = self.chunks[number], read_file(self._file(number))
        self._check_run(header)
        results: RowResults = read_as(RowResults, header.get("results"), arrays)
        uncertainty, diagnostics = results.uncertainty, results.diagnostics
        numbers = [results.prediction, results.variance, *uncertainty]
        vectors = [*uncertainty, *diagnostics._columns().values()]
        fine = (
            header.get("rows") == [rows.start, rows.stop]
            and tuple(diagnostics._columns())[3:] == self.diagnostics
            and all(len(column) == rows.stop - rows.start for column in (*numbers, *vectors))
            and all(column.dtype.kind == "f" and np.isfinite(column).all() for column in numbers)
            and all(column.ndim == 1 for column in vectors)
            and results.prediction.ndim == results.variance.ndim == 2
            and bool((uncertainty.epistemic >= 0).all())
        )
        if not fine:
            raise UnreadableFileError("These are no results of these rows")
        return results

    def _file(self, number: int) -> Path:
        return self.folder / f"chunk-{number:07d}.safetensors"


def open_checkpoint(
    folder: str | os.PathLike, fitted: FittedMethod, inputs: Any, question: Question
) -> Checkpoint:
    """Return the folder of a run; it is made if there is none, and refused if it is of another."""
    # Ensembles have samples for each of their networks.
    own = [inputs.reference, *inputs.members] if hasattr(inputs, "members") else [inputs]
    versions = f"sklearn_quam {package_version()}, torch {torch.__version__}"
    run = {
        "another fitted estimator": fitted.identity,
        "other rows of X": ["".join(map(digest_of_rows, own)), len(inputs)],
        "another setting": question.setting,
        "another measure": question.measure,
        "another version of sklearn_quam or torch": [versions, _FORMAT, ROWS_PER_CHUNK],
    }
    chunks = list(slices(len(inputs), ROWS_PER_CHUNK))
    opened = Checkpoint(Path(folder), run, chunks, fitted.diagnostics)
    if opened.folder.exists() and not opened.folder.is_dir():
        raise ValueError(f"checkpoint={os.fspath(folder)!r} is a file: pass the name of a folder.")
    opened.folder.mkdir(parents=True, exist_ok=True)
    opened.refuse_other_runs()
    return opened


def digest_of_rows(inputs: Any) -> str:
    """Return a digest of samples, read some at a time, however many these are."""
    digests: list[Any] = []
    for rows in batches(inputs):
        parts = inputs[rows].parts
        digests = digests or [hashlib.sha256(f"{p.dtype}{p.shape[1:]}".encode()) for p in parts]
        for digest, part in zip(digests, parts, strict=True):
            digest.update(part.cpu().numpy().tobytes())
    return "".join(digest.hexdigest() for digest in digests)
