"""Chunks of rows spread over the workers of joblib: processes, threads or a cluster.

Workers get the training data as numpy arrays, which joblib maps into memory instead of copying
them, and run one thread each.
"""

from __future__ import annotations

import copy
import threading
import uuid
import warnings
from collections.abc import Iterator
from pickle import PicklingError
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from torch import Tensor

from ._contexts import computing

# Tasks for each worker: some more than one, so that none waits for the slowest.
_TASKS_PER_WORKER = 4
_TENSORS = ("_inputs", "_target", "_sample_weight", "_given_losses")


class _Latest(threading.local):
    """The estimator that this worker, a process or a thread, worked with last."""

    run: str | None = None
    estimator: Any = None


_latest = _Latest()
# Estimators that have handed out work, for workers that are threads of the same process.
_at_home: dict[str, Any] = {}


def results_of_workers(
    estimator: Any, inputs: Tensor, chunks: list[slice], n_jobs: int
) -> Iterator[list[Any]]:
    """Run a fitted estimator on chunks of rows, in order.

    Parameters
    ----------
    estimator : BaseUncertaintyEstimator
        The fitted estimator.
    inputs : Tensor of shape (n_samples, ...)
        All rows.
    chunks : list of slice
        Rows that are worked on together.
    n_jobs : int
        Number of workers.

    Yields
    ------
    list of RowResults
        The results of the next few chunks.
    """
    packed, run = _pack(estimator), uuid.uuid4().hex
    _at_home[run] = estimator
    rows = [inputs[chunk].cpu().numpy() for chunk in chunks]
    per_task = max(1, -(-len(chunks) // (_TASKS_PER_WORKER * n_jobs)))
    tasks = [rows[start : start + per_task] for start in range(0, len(rows), per_task)]
    try:
        yield from Parallel(n_jobs=n_jobs, return_as="generator")(
            delayed(_work)(packed, run, task) for task in tasks
        )
    except (PicklingError, TypeError, AttributeError) as error:
        if "pickle" not in str(error).lower():
            raise
        raise TypeError(
            f"The network cannot be sent to worker processes ({error}). Define its class in an "
            "importable module and keep locks, files and generators out of it; or use n_jobs=1, or "
            "joblib.parallel_config(backend='threading')."
        ) from error
    finally:
        del _at_home[run]


def _pack(estimator: Any) -> Any:
    """Return a copy that holds what workers need: no user's estimator, arrays for tensors."""
    packed = copy.copy(estimator)
    packed.estimator = packed.estimator_ = None
    for name in _TENSORS:
        value = getattr(packed, name)
        setattr(packed, name, None if value is None else value.cpu().numpy())
    return packed


def _unpack(packed: Any) -> Any:
    estimator = copy.copy(packed)
    with warnings.catch_warnings():
        # Memory-mapped arrays are read-only, and nothing here writes to them.
        warnings.simplefilter("ignore", UserWarning)
        for name in _TENSORS:
            value = getattr(packed, name)
            if value is not None:
                setattr(estimator, name, torch.as_tensor(value, device=packed._reference.device))
    return estimator


def _work(packed: Any, run: str, rows: list[np.ndarray]) -> list[Any]:
    """Work on some chunks in a worker."""
    if _latest.run != run:
        if run in _at_home:
            _latest.estimator = _at_home[run]._for_thread()
        else:
            torch.set_num_threads(1)
            _latest.estimator = _unpack(packed)
        _latest.run = run
    estimator = _latest.estimator
    device = estimator._reference.device
    with computing():
        return [
            estimator._results_within_memory(torch.tensor(part, device=device)) for part in rows
        ]
