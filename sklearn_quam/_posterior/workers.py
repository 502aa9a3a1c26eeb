"""Chunks of samples spread over the workers of joblib: processes, threads or a cluster.

Processes get the fitted method by pickle, its training data as arrays, which joblib maps into their
memory instead of copying them; every worker of a cluster gets a copy, once. Each runs one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pickle import PicklingError
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.backend import reduction
from joblib.externals.loky.process_executor import BrokenProcessPool
from joblib.parallel import get_active_backend

from .._network.limits import computing
from .fitted import FittedMethod, Question
from .results import RowResults

# Tasks for each worker: more than one, so that none waits for the slowest.
_TASKS_PER_WORKER = 4
# Seconds after which a worker process looks whether its parent is still there, and ends if not. As
# text, because to import this package takes seconds in which the parent may be gone.
_LOOK_EVERY = 2.0
_WATCH = """
import os, threading, time

def watch():
    while os.getppid() == {}:
        time.sleep({})
    os._exit(1)

threading.Thread(target=watch, daemon=True).start()
"""


def results_of_workers(
    fitted: FittedMethod,
    inputs: Any,
    question: Question,
    chunks: dict[int, slice],
    is_done: Callable[[int], bool] | None = None,
) -> Iterator[tuple[int, RowResults]]:
    """Yield the numbers of chunks and their results, as they get done.

    ``is_done`` is asked before each is sent.
    """
    # Rows come transformed: what may be large or cannot be sent stays here.
    fitted = replace(fitted, reference=replace(fitted.reference, transformers=None))
    n_workers, numbers = question.limits.n_workers, list(chunks)
    # With a checkpoint, each chunk is fetched as soon as it is done.
    per_task = 1 if is_done else max(1, -(-len(chunks) // (_TASKS_PER_WORKER * n_workers)))

    def tasks() -> Iterator[Any]:
        for start in range(0, len(numbers), per_task):
            # Rows are read when a worker is about to need them.
            rows = [
                (number, inputs[chunks[number]])
                for number in numbers[start : start + per_task]
                if is_done is None or not is_done(number)
            ]
            if rows:
                yield delayed(_work)(sent, question, rows, os.getpid())

    try:
        with _watched_workers():
            sent, _kept = _to_be_sent(fitted)
            run = Parallel(n_jobs=n_workers, return_as="generator_unordered", batch_size=1)
            for done in run(tasks()):
                yield from done
    except (PicklingError, TypeError, AttributeError, BrokenProcessPool) as error:
        if "pickl" not in str(error).lower():
            raise
        # A worker that cannot read a task says why in the last line of its traceback.
        said = (str(error.__cause__ or "") or str(error)).strip(' \n"')
        reason = said.rpartition("\n")[2]
        raise TypeError(
            f"The network cannot be sent to worker processes ({reason}). Define its class in an "
            "importable module and keep locks, files and generators out of it; or use n_jobs=1, or "
            "joblib.parallel_config(backend='threading')."
        ) from error


def _work(
    fitted: FittedMethod, question: Question, rows: list[tuple[int, Any]], parent: int
) -> list[tuple[int, RowResults]]:
    """Work on some chunks in a worker."""
    if os.getpid() != parent:
        torch.set_num_threads(1)
    # Workers of a cluster may run several threads.
    fitted, found = fitted.for_thread(), []
    with computing():
        for number, inputs in rows:
            results, limits = fitted.results_of_chunk(inputs, question)
            question = replace(question, limits=limits)
            found.append((number, results))
    return found


def _watched_workers() -> AbstractContextManager:
    """Let worker processes of this machine end with their parent, however that ends."""
    backend = get_active_backend()[0]
    if type(backend).__name__ != "LokyBackend" or "initializer" in backend.backend_kwargs:
        return nullcontext()
    watch = {"initializer": exec, "initargs": (_WATCH.format(os.getpid(), _LOOK_EVERY), {})}
    threads = backend.inner_max_num_threads
    return parallel_config(
        backend="loky", inner_max_num_threads=threads, **backend.backend_kwargs, **watch
    )


def _to_be_sent(fitted: FittedMethod) -> tuple[Any, list[np.ndarray]]:
    """Return what stands for a method in every task, and arrays that have to live meanwhile."""
    backend: Any = get_active_backend()[0]
    kind, kept = type(backend).__name__, []

    def note(array: np.ndarray) -> tuple:
        kept.append(array)
        return str, ()

    if kind == "DaskDistributedBackend":
        # To all workers: the loss of one must not be that of the method.
        return backend.client.scatter(fitted, broadcast=True, hash=False), kept
    if kind == "LokyBackend":
        # joblib writes an array for its processes once, as long as it is the same object.
        reduction.dumps(fitted, {np.ndarray: note})
    return fitted, kept
