"""Results of all samples, chunk by chunk: computed here, by workers, or by an earlier run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
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
    """Return the results of samples, kept in a folder if there is a checkpoint."""
    folder = None
    if checkpoint is not None:
        folder = open_checkpoint(checkpoint, fitted, inputs, question)
    chunks = fitted.chunks(inputs, question.limits) if folder is None else folder.chunks
    done: dict[int, RowResults] = {}
    while len(done) < len(chunks):
        todo = [number for number in range(len(chunks)) if number not in done]
        if folder is not None:
            # Other processes may have worked on the same folder meanwhile.
            for number in list(todo):
                if (stored := folder.find(number)) is not None:
                    done[number] = stored
                    todo.remove(number)
                    progress.had_before(_length(chunks[number], inputs))
            if done:
                todo = in_any_order(todo)
        some = {number: chunks[number] for number in todo}
        try:
            for number, results in _computed(fitted, inputs, question, some, folder):
                if errors == "raise":
                    _refuse_failed(results, chunks[number].start)
                done[number] = results
                if folder is not None:
                    folder.keep(number, results)
                progress.advance(_length(chunks[number], inputs))
        except WorkersLostError as error:
            n_done = sum(_length(chunks[number], inputs) for number in done)
            kept = (
                "They are not kept: pass checkpoint='a folder' to keep what is done."
                if checkpoint is None
                else f"They are kept in {os.fspath(checkpoint)!r}: the same call goes on there."
            )
            raise RuntimeError(
                "Worker processes were killed again and again, maybe because memory ran out. "
                f"{n_done} of {len(inputs)} rows are done. {kept} Fewer workers (n_jobs) or a "
                f"smaller memory_limit may help. The last worker said: {error}"
            ) from error
    results = join([done[number] for number in range(len(chunks))])
    if results.diagnostics._failed.all():
        # Once more, for the error itself.
        fitted.results(inputs[:1], question)
        _refuse_failed(results, 0)
    return results


def _computed(
    fitted: FittedMethod,
    inputs: Any,
    question: Question,
    chunks: dict[int, slice],
    folder: Checkpoint | None,
) -> Iterator[tuple[int, RowResults]]:
    """Yield the numbers and results of chunks that no other process has finished meanwhile."""
    has = None if folder is None else folder.has
    if question.limits.n_workers > 1 and len(chunks) > 1:
        yield from results_of_workers(fitted, inputs, question, chunks, has)
        return
    for number, rows in chunks.items():
        if has is None or not has(number):
            results, limits = fitted.results_of_chunk(inputs[rows], question)
            question = replace(question, limits=limits)
            yield number, results


def _length(rows: slice, inputs: Any) -> int:
    return min(rows.stop, len(inputs)) - rows.start


def _refuse_failed(results: RowResults, start: int) -> None:
    """Raise an error where the network has raised one for a sample."""
    for row, error in enumerate(results.diagnostics.error, start):
        if error is not None:
            raise NetworkError(f"The network cannot process row {row} of X: {error}")
