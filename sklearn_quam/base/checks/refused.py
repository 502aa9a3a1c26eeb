"""Errors that say what to do, raised before an unclear error could come from deeper down."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from joblib import parallel

from ..._messages import shown
from ..._network.inputs.sources import open_source

# Endings of files that networks are often fed with.
_FILES = (".bmp", ".gif", ".jpeg", ".jpg", ".npy", ".png", ".tif", ".tiff", ".wav", ".webp")


def refuse_targets(y: Any, task: str) -> None:
    """Refuse targets that are missing, texts as those of a regressor, and several labels."""
    if y is None:
        return
    try:
        values = np.asarray(y)
    except (RuntimeError, TypeError, ValueError):
        return  # the usual validation has a message for it
    if values.dtype.kind == "O":
        missing = [place for place, value in enumerate(values.ravel()) if value is None]
        if missing:
            raise ValueError(
                f"y contains None, first in row {missing[0]} ({len(missing)} in total). Leave "
                "these rows out of X and y, or give them a label or value."
            )
    if task == "regressor" and values.dtype.kind in "USO":
        try:
            values.astype(float)
        except (TypeError, ValueError):
            text = next((str(value) for value in values.ravel() if isinstance(value, str)), None)
            if text is not None:
                raise ValueError(
                    f"y contains texts such as {shown(text)}, but a regressor predicts values. "
                    "Pass numbers, or use the classifier of the same method."
                ) from None
    if task == "classifier" and values.ndim > 1 and values.shape[1:] != (1,):
        _refuse_several_labels(values)


def _refuse_several_labels(values: np.ndarray) -> None:
    shape = values.shape
    is_binary = values.dtype.kind in "biuf" and bool(np.isin(values, (0, 1)).all())
    if len(shape) == 2 and is_binary and bool((values.sum(axis=1) == 1).all()):
        raise ValueError(
            f"y has {shape[1]} columns, one of which is 1 in each row. Pass labels, "
            "y.argmax(axis=1); if any number of labels may be right for a row, use "
            "sklearn_quam.multioutput.MultiLabelClassifier."
        )
    if len(shape) == 2 and is_binary:
        raise ValueError(
            f"y has {shape[1]} labels a row, but this estimator takes one. Wrap it: "
            "sklearn_quam.multioutput.MultiLabelClassifier(estimator)."
        )
    raise ValueError(
        f"y has the shape {tuple(shape)}, but this estimator takes one label a row. If these are "
        "labels of pixels or tokens, wrap it: "
        "sklearn_quam.multioutput.DenseClassifier(estimator)."
    )


def refuse_texts(X: Any) -> None:
    """Refuse texts, paths of files, and mappings of single rows, where a network takes numbers."""
    is_vector = isinstance(X, (list, tuple)) or len(getattr(X, "shape", ())) == 1
    if open_source(X) is not None or not is_vector or not len(X):
        return
    first = X.iloc[0] if hasattr(X, "iloc") else X[0]
    if isinstance(first, Mapping):
        raise ValueError(
            f"X is a list whose items are mappings ({type(first).__name__}). Pass one mapping of "
            "arrays, such as tokenizer(texts, padding=True, return_tensors='np'), or a data set or "
            "DataLoader whose items these are."
        )
    if not isinstance(first, (str, os.PathLike)):
        return
    if isinstance(first, os.PathLike) or os.path.splitext(first)[1].lower() in _FILES:
        raise ValueError(
            f"X holds paths such as {shown(os.fspath(first))}, but a network takes numbers. Pass a "
            "data set that reads them, such as torchvision.datasets.ImageFolder."
        )
    raise ValueError(
        f"X holds texts such as {shown(str(first))}, but a network takes numbers. Pass what its "
        "tokenizer makes of them, tokenizer(texts, padding=True, return_tensors='np'), or a "
        "pipeline whose first steps take texts."
    )


def refuse_single_row(X: Any) -> None:
    """Refuse a vector, which may be a sample or a feature."""
    # skorch's SliceDataset calls itself a vector, of items.
    if open_source(X) is not None:
        return
    if getattr(X, "ndim", 2) == 1 or (isinstance(X, list) and X and np.ndim(X[0]) == 0):
        raise ValueError(
            f"X has one dimension ({len(X)} values), but a network takes rows of features. Reshape "
            "your data: a single row is X[i : i + 1] of an array, X.iloc[[i]] of a DataFrame, or "
            "x.reshape(1, -1); a single feature is x.reshape(-1, 1), or X[['name']] of a DataFrame."
        )


def refuse_options(errors: Any, checkpoint: Any) -> None:
    """Refuse bad values of ``errors`` and ``checkpoint``."""
    if not isinstance(errors, str) or errors not in ("warn", "raise"):
        raise ValueError(f"errors={shown(errors)} is not understood: pass 'warn' or 'raise'.")
    is_path = isinstance(checkpoint, (str, os.PathLike)) and str(checkpoint)
    if checkpoint is not None and not is_path:
        raise TypeError(f"checkpoint={shown(checkpoint)} is no folder: pass a str or a path.")


def refuse_infinite_loss(loss: float) -> None:
    """Refuse a network with an infinite loss on its training data."""
    if not np.isfinite(loss):
        raise ValueError(
            f"The network's loss on the training data is {loss}. Check its weights, and whether X "
            "is scaled and y encoded as they were for training."
        )


def refuse_multiprocessing(n_workers: int) -> None:
    """Refuse forked processes, in which torch hangs."""
    backend, _ = parallel.get_active_backend()
    if n_workers > 1 and type(backend).__name__ == "MultiprocessingBackend":
        raise ValueError(
            "joblib's backend 'multiprocessing' forks processes, in which torch may hang. Use "
            "parallel_config(backend='loky'), the default, or 'threading' or 'dask'; or n_jobs=1."
        )
