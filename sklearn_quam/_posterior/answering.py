"""All rows answered, chunk by chunk: here, by workers, or by a run that was ended before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ..exceptions import NetworkError
from .checkpoint import Checkpoint, in_any_order, open_checkpoint
from .fitted import FittedMethod, Question
from .progress import Progress
from .results import RowResults, join
from .workers import WorkersLostError, results_of_workers


def answer(
    fitted: FittedMethod,
    inputs: Any,
    question: Question,
    *,
    progress: Progress,
    errors: str = "warn",
    checkpoint: str | os.PathLike | None = None,
) -> RowResults:
    """Return what a method says about rows.

    Parameters
    ----------
    fitted : FittedMethod
        The method.
    inputs : StoredRows
        The rows.
    question : Question
        What is asked.
    progress : Progress
        Is told what is done.
    errors : {"warn", "raise"}, default="warn"
        What happens where the network cannot process a row.
    checkpoint : str or path, default=None
        Folder for what is done.

    Returns
    -------
    RowResults
        Of all rows.
    """
    done: dict[int, RowResults] = {}
    if checkpoint is None:
        folder, chunks = None, fitted.chunks(inputs, question.limits)
    else:
        folder = open_checkpoint(checkpoint, fitted, inputs, question)
        chunks = folder.chunks
    while len(done) < len(chunks):
        todo = {}
        for number in range(len(chunks)):
            stored = folder.find(number) if folder and number not in done else None
            if stored is not None:
                done[number] = stored
                progress.had_before(_length(chunks[number], inputs))
            elif number not in done:
                todo[number] = chunks[number]
        if folder and done:
            todo = {number: chunks[number] for number in in_any_order(list(todo))}
        try:
            for number, results in _results_of(fitted, inputs, question, todo, folder):
                if errors == "raise":
                    _refuse_failed(results, chunks[number].start)
                done[number] = results
                if folder:
                    folder.keep(number, results)
                progress.advance(_length(chunks[number], inputs))
        except WorkersLostError as error:
            n_done = sum(_length(chunks[number], inputs) for number in done)
            raise _lost(error, n_done, len(inputs), checkpoint) from error
    results = join([done[number] for number in range(len(chunks))])
    if results.diagnostics._failed.all():
        # Once more, for the error itself.
        fitted.results(inputs[:1], question)
        _refuse_failed(results, 0)
    return results


def _results_of(
    fitted: FittedMethod,
    inputs: Any,
    question: Question,
    chunks: dict[int, slice],
    folder: Checkpoint | None,
) -> Iterator[tuple[int, RowResults]]:
    """Yield the numbers of chunks and their results as they get done."""
    if question.limits.n_workers > 1 and len(chunks) > 1:
        elsewhere = folder.has if folder else None
        yield from results_of_workers(fitted, inputs, question, chunks, elsewhere)
        return
    begun = []

    def rows() -> Iterator[Any]:
        for number, chunk in chunks.items():
            if not (folder and folder.has(number)):
                begun.append(number)
                yield inputs[chunk]

    for results in fitted.results_of_chunks(rows(), question):
        yield begun[-1], results


def _length(rows: slice, inputs: Any) -> int:
    return min(rows.stop, len(inputs)) - rows.start


def _lost(
    error: WorkersLostError, n_done: int, n_rows: int, checkpoint: str | os.PathLike | None
) -> RuntimeError:
    kept = (
        "They are not kept: pass checkpoint='a folder' to keep what is done."
        if checkpoint is None
        else f"They are kept in {os.fspath(checkpoint)!r}: the same call goes on from there."
    )
    return RuntimeError(
        f"Worker processes were killed again and again, maybe because memory ran out. {n_done} of "
        f"{n_rows} rows are done. {kept} Fewer workers (n_jobs) or a smaller memory_limit may help."
        f" The last worker said: {error}"
    )


def _refuse_failed(results: RowResults, start: int) -> None:
    """Raise an error where the network has raised one for a row."""
    for row, error in enumerate(results.diagnostics.error, start):
        if error is not None:
            raise NetworkError(f"The network cannot process row {row} of X: {error}")
