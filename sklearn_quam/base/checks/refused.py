"""What is refused with a sentence about what to do, where an error from deeper down says little."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from joblib import parallel
from torch import Tensor

from ..._messages import few, shown
from ..._network.inputs.sources import open_source


def refuse_targets(y: Any, task: str) -> None:
    """Refuse targets that are missing, and texts where values are due.

    Parameters
    ----------
    y : object
        What the user passed to ``fit``.
    task : {"classifier", "regressor"}
        What the network is used as.
    """
    if y is None or isinstance(y, Tensor):
        return
    try:
        values = np.asarray(y)
    except (RuntimeError, TypeError, ValueError):
        return  # the usual validation knows what to say
    if values.dtype.kind == "O":
        missing = [place for place, value in enumerate(values.ravel()) if value is None]
        if missing:
            raise ValueError(
                f"y contains None, first in row {missing[0]} ({len(missing)} in all). Leave these "
                "rows out of X and y, or give them a label or value."
            )
    if task == "regressor" and values.dtype.kind in "USO":
        text = next((value for value in values.ravel() if isinstance(value, str)), None)
        if text is not None and not _is_number(text):
            raise ValueError(
                f"y contains texts such as {shown(str(text))}, but a regressor predicts values. "
                "Pass numbers, or use the classifier of the same method."
            )


def refuse_single_row(X: Any) -> None:
    """Refuse rows without an axis of rows: nobody can tell features from rows."""
    # skorch's SliceDataset calls itself a vector, of items.
    if open_source(X) is not None:
        return
    if getattr(X, "ndim", 2) == 1 or (isinstance(X, list) and X and np.ndim(X[0]) == 0):
        raise ValueError(
            f"X has one dimension ({len(X)} values), but rows of features are due. Reshape your "
            "data: a single row is X[i : i + 1] of an array, X.iloc[[i]] of a DataFrame, or "
            "x.reshape(1, -1); a single feature is x.reshape(-1, 1), or X[['name']] of a DataFrame."
        )


def refuse_options(errors: Any, checkpoint: Any) -> None:
    """Refuse what ``predict_uncertainty`` cannot take as ``errors`` and ``checkpoint``."""
    if not isinstance(errors, str) or errors not in ("warn", "raise"):
        raise ValueError(f"errors={shown(errors)} is not understood: pass 'warn' or 'raise'.")
    if checkpoint is None:
        return
    if not isinstance(checkpoint, (str, os.PathLike)) or not isinstance(os.fspath(checkpoint), str):
        raise TypeError(f"checkpoint={shown(checkpoint)} is no folder: pass a str or a path.")
    if not os.fspath(checkpoint):
        raise ValueError("checkpoint='' names no folder: pass one, such as 'run', or None.")


def refuse_unknown_answer(target: Any, answers: Any) -> None:
    """Refuse to look for an answer that the network cannot give.

    Parameters
    ----------
    target : object
        What the user asks for; None leaves it open.
    answers : sequence
        Labels, or the directions of a regressor.
    """
    if target is not None and not any(np.array_equal(name, target) for name in answers):
        raise ValueError(
            f"target={shown(target)} is no answer of the network: choose one of {few(answers)}."
        )


def refuse_infinite_loss(loss: float) -> None:
    """Refuse a network that explains its training data infinitely badly."""
    if not np.isfinite(loss):
        raise ValueError(
            f"The network's loss on the training data is {loss}. Check its weights, and whether X "
            "is scaled and y encoded as they were for training."
        )


def refuse_multiprocessing(n_workers: int) -> None:
    """Refuse forked processes: torch hangs in them, and joblib cannot hand on what they return."""
    backend, _ = parallel.get_active_backend()
    if n_workers > 1 and type(backend).__name__ == "MultiprocessingBackend":
        raise ValueError(
            "joblib's backend 'multiprocessing' forks processes, in which torch may hang. Use "
            "parallel_config(backend='loky'), the default, or 'threading' or 'dask'; or n_jobs=1."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
