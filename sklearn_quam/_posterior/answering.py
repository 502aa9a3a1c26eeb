"""Results of all samples, chunk by chunk: computed here, by workers, or by an earlier run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from joblib.externals.loky.process_executor import TerminatedWorkerError

from ..exceptions import NetworkError
from .checkpoint import Checkpoint, open_checkpoint
from .fitted import FittedMethod, Question
from .progress import Progress
from .results import RowResults, join
from .workers import results_of_workers

# How often workers may be killed in a row without a single chunk getting done.
_MAX_LOSSES = 3


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
    # The last chunk, too: what kills a worker must not kill this process.
    in_workers = question.limits.n_workers > 1 and len(chunks) > 1
    done: dict[int, RowResults] = {}
    n_losses = 0
    while len(done) < len(chunks):
        if folder is not None:
            for number, results in folder.found(done):
                done[number] = results
                progress.had_before(len(results.prediction))
        todo = [number for number in range(len(chunks)) if number not in done]
        if folder is not None and done:
            # Processes that share a folder then rarely do the same work.
            todo = np.random.default_rng().permutation(todo).tolist()
        some, n_before = {number: chunks[number] for number in todo}, len(done)
        try:
            for number, results in _computed(fitted, inputs, question, some, folder, in_workers):
                if errors == "raise":
                    _refuse_failed(results, chunks[number].start)
                done[number] = results
                if folder is not None:
                    folder.keep(number, results)
                progress.advance(len(results.prediction))
        except TerminatedWorkerError as error:
            # The chunks that are left are tried again.
            n_losses = n_losses + 1 if len(done) == n_before else 1
            if n_losses == _MAX_LOSSES:
                n_done = sum(len(results.prediction) for results in done.values())
                raise RuntimeError(
                    "Worker processes were killed again and again, maybe because memory ran out. "
                    f"{n_done} of {len(inputs)} rows are done. {_kept(checkpoint)} Fewer workers "
                    f"(n_jobs) or a smaller memory_limit may help. The last worker said: {error}"
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
    in_workers: bool,
) -> Iterator[tuple[int, RowResults]]:
    """Yield the numbers and results of chunks that no other process has finished meanwhile."""
    is_done = None if folder is None else folder.has
    if in_workers:
        yield from results_of_workers(fitted, inputs, question, chunks, is_done)
        return
    for number, rows in chunks.items():
        if is_done is None or not is_done(number):
            results, limits = fitted.results_of_chunk(inputs[rows], question)
            question = replace(question, limits=limits)
            yield number, results


def _kept(checkpoint: Any) -> str:
    if checkpoint is None:
        return "They are not kept: pass checkpoint='a folder' to keep what is done."
    return f"They are kept in {os.fspath(checkpoint)!r}: the same call goes on there."


def _refuse_failed(results: RowResults, start: int) -> None:
    """Raise an error where the network has raised one for a sample."""
    for row, error in enumerate(results.diagnostics.error, start):
        if error is not None:
            raise NetworkError(f"The network cannot process row {row} of X: {error}")
