"""Chunks of rows spread over the workers of joblib: processes, threads or a cluster.

Processes get the fitted method by pickle, its training data as arrays, which joblib maps into their
memory instead of copying them. Each worker runs one thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pickle import PicklingError

import numpy as np
import torch
from joblib import Parallel, delayed
from torch import Tensor

from .._network.limits import computing
from .fitted import FittedMethod, Question
from .results import RowResults

# Tasks for each worker: some more than one, so that none waits for the slowest.
_TASKS_PER_WORKER = 4


def results_of_workers(
    fitted: FittedMethod, inputs: Tensor, question: Question, chunks: list[slice]
) -> Iterator[RowResults]:
    """Run a fitted method on chunks of rows, in order.

    Parameters
    ----------
    fitted : FittedMethod
        The method.
    inputs : Tensor of shape (n_samples, ...)
        All rows.
    question : Question
        What is asked; its limits say how many workers there are.
    chunks : list of slice
        Rows that are worked on together.

    Yields
    ------
    RowResults
        The results of the next chunk.
    """
    # Rows come transformed: what may be large or cannot be sent stays here.
    fitted = replace(fitted, reference=replace(fitted.reference, transformers=None))
    rows = [inputs[chunk].cpu().numpy() for chunk in chunks]
    n_workers = question.limits.n_workers
    per_task = max(1, -(-len(chunks) // (_TASKS_PER_WORKER * n_workers)))
    tasks = [rows[start : start + per_task] for start in range(0, len(rows), per_task)]
    try:
        for done in Parallel(n_jobs=n_workers, return_as="generator")(
            delayed(_work)(fitted, question, task, os.getpid()) for task in tasks
        ):
            yield from done
    except (PicklingError, TypeError, AttributeError) as error:
        if "pickle" not in str(error).lower():
            raise
        raise TypeError(
            f"The network cannot be sent to worker processes ({error}). Define its class in an "
            "importable module and keep locks, files and generators out of it; or use n_jobs=1, or "
            "joblib.parallel_config(backend='threading')."
        ) from error


def _work(
    fitted: FittedMethod, question: Question, rows: list[np.ndarray], parent: int
) -> list[RowResults]:
    """Work on some chunks in a worker."""
    if os.getpid() == parent:
        fitted = fitted.for_thread()
    else:
        torch.set_num_threads(1)
    device = fitted.reference.device
    with computing():
        chunks = (torch.tensor(part, device=device) for part in rows)
        return list(fitted.results_of_chunks(chunks, question))
