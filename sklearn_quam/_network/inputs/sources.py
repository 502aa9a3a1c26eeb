"""Where rows come from: arrays in memory or on disk, data sets, transformers of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, check_array
from sklearn.utils.validation import _num_samples
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from ..._messages import cut, is_about_numbers, shown
from .items import (
    TARGETS,
    StoredDataset,
    as_array,
    is_dataset,
    is_slice_dataset,
    items_of,
    items_of_loader,
)
from .rows import Source, from_tensor, refuse_masked

_IF_GRAPH = (
    " Of a graph network, pass the head alone: its last layer as the network, what goes into that "
    "layer as X, a row for each node."
)


@dataclass(frozen=True, eq=False)
class StoredArrays:
    """Arrays with a row for each sample, one for each input of the network."""

    arrays: tuple[Any, ...]
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.arrays[0])

    def read(self, index: Any) -> tuple[np.ndarray, ...]:
        """Return some rows of each array."""
        return tuple(np.asarray(array[index]) for array in self.arrays)


@dataclass(frozen=True, eq=False)
class View:
    """Some samples of another source, or its samples transformed."""

    source: Source
    numbers: np.ndarray | None = None
    # Of a source with one input
    transform: Callable[[Any], np.ndarray] | None = None

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the inputs."""
        return self.source.names

    def __len__(self) -> int:
        return len(self.source) if self.numbers is None else len(self.numbers)

    def read(self, index: Any) -> tuple[np.ndarray, ...]:
        """Return some rows of each input."""
        parts = self.source.read(index if self.numbers is None else self.numbers[index])
        return parts if self.transform is None else (self.transform(*parts),)


def open_source(X: Any, n_inputs: int | None = None) -> Source | None:
    """Return a source of rows, None for arrays and frames in memory."""
    refuse_masked(X, "X")
    if hasattr(X, "edge_index") or hasattr(X, "edata"):  # of torch_geometric or dgl
        raise TypeError(f"X is a graph, whose nodes are no rows by themselves.{_IF_GRAPH}")
    if isinstance(X, Mapping) and not issparse(X):  # sparse arrays of the format "dok" are dicts
        # Sorted, here and in data sets: names may come in another order to predict.
        named = {str(name): X[name] for name in sorted(X, key=str)}
        return _several(tuple(named.values()), tuple(named))
    if _is_several(X):
        return _several(tuple(X), None)
    if isinstance(X, DataLoader):
        return items_of_loader(X, n_inputs)
    if is_dataset(X):
        return items_of(X, n_inputs)
    if isinstance(X, np.memmap):
        return StoredArrays((X,))
    if is_dask(X):
        return StoredArrays((_of_dask(X),))
    return None


def count_rows(X: Any) -> int:
    """Return the number of rows."""
    source = open_source(X)
    return _num_samples(X) if source is None else len(source)


def some_rows(X: Any, numbers: np.ndarray) -> Any:
    """Return some rows as the same kind of data."""
    if isinstance(X, Mapping) and not issparse(X):  # sparse arrays of the format "dok" are dicts
        return {name: some_rows(part, numbers) for name, part in X.items()}
    if _is_several(X):
        return tuple(some_rows(part, numbers) for part in X)
    if isinstance(X, DataLoader):
        # A sampler would choose others.
        return DataLoader(Subset(X.dataset, numbers.tolist()), collate_fn=X.collate_fn)
    if is_dataset(X) and not is_slice_dataset(X):
        return Subset(X, numbers.tolist())
    if is_dask(X):
        return _of_dask(X)[numbers]
    if isinstance(X, Tensor) or is_slice_dataset(X):
        return X[numbers]
    return _safe_indexing(X.tocsr() if issparse(X) else X, numbers)


def brings_targets(X: Any) -> bool:
    """Return whether X is a data set whose items come with targets."""
    source = open_source(X)
    return isinstance(source, StoredDataset) and source.has_targets()


def _is_several(X: Any) -> bool:
    """Return whether a sequence holds inputs; a list of vectors is a matrix to scikit-learn."""
    if not isinstance(X, (tuple, list)) or not len(X):
        return False
    kinds = (np.ndarray, Tensor)
    if not all(isinstance(part, kinds) or is_dask(part) for part in X):
        return False
    return isinstance(X, tuple) or any(part.ndim > 1 for part in X)


def _several(parts: tuple[Any, ...], names: tuple[str, ...] | None) -> StoredArrays:
    labels = names or tuple(f"input {number}" for number in range(len(parts)))
    if not parts:
        raise ValueError("X holds no inputs at all.")
    targets = [name for name in TARGETS if name in labels]
    if targets:
        raise ValueError(
            f"X holds {shown(targets[0])}, which are targets: leave them out of X and pass them as "
            "y."
        )
    arrays = []
    for part, label in zip(parts, labels, strict=True):
        refuse_masked(part, f"X[{label!r}]")
        if is_dataset(part):
            raise ValueError(f"X holds several data sets: pass one of them, X[{label!r}].")
        array = _of_dask(part) if is_dask(part) else as_array(from_tensor(part), label)
        if not array.ndim or array.dtype.kind not in "fiub":
            raise ValueError(
                f"X holds several inputs of the network, and each must be an array of numbers with "
                f"a row for each sample, but {label} is of shape {array.shape} and type "
                f"{array.dtype}."
            )
        arrays.append(array)
    lengths = {label: len(array) for label, array in zip(labels, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"The inputs in X have different numbers of rows: {shown(lengths)}.{_IF_GRAPH}"
        )
    return StoredArrays(tuple(arrays), names)


def is_dask(X: Any) -> bool:
    """Return whether X is a collection of dask, without importing dask."""
    return type(X).__module__.partition(".")[0] in ("dask", "dask_expr") and hasattr(X, "compute")


def _of_dask(X: Any) -> Any:
    array = X.to_dask_array(lengths=True) if hasattr(X, "to_dask_array") else X
    if any(np.isnan(size) for size in array.shape):
        raise ValueError(
            "X is a dask array whose number of rows is not known: call X.compute_chunk_sizes()."
        )
    return array


def transformed(transformers: Pipeline | None, X: Any, source: Source | None) -> Source:
    """Return X, or the source of its rows, behind the transformers."""
    if transformers is None:
        return StoredArrays((X,)) if source is None else source
    if isinstance(source, StoredArrays) and len(source.arrays) == 1:
        return View(source, transform=partial(_transformed_array, transformers))
    rows = _transform(transformers, X)
    return open_source(rows) or StoredArrays((_checked(rows),))


def as_dense(X: Any) -> Any:
    """Return sparse rows as an array."""
    return X.toarray() if issparse(X) else X


def _transformed_array(transformers: Pipeline, X: Any) -> np.ndarray:
    return _checked(_transform(transformers, X))


def _transform(transformers: Pipeline, X: Any) -> Any:
    try:
        return transformers.transform(X)
    except (TypeError, ValueError) as error:
        if not is_about_numbers(error):
            raise
        raise ValueError(
            f"The pipeline's transformers take numbers, but {cut(error)}. Pass columns of the "
            "types that they were fitted with, or put an encoder among them."
        ) from error


def _checked(rows: Any) -> np.ndarray:
    """Return transformed rows as an array of finite numbers."""
    what = "What the pipeline's transformers make of X"
    try:
        rows = check_array(as_dense(rows), allow_nd=True, ensure_all_finite=False)
    except (TypeError, ValueError) as error:
        if not is_about_numbers(error):
            raise
        raise ValueError(
            f"{what} is no table of numbers: {cut(error)}. Put an encoder among them."
        ) from error
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        found = "NaN" if np.isnan(rows).any() else "infinity"
        raise ValueError(
            f"{what} contains {found}. Leave such rows out, or put an imputer among the "
            "transformers."
        )
    return rows
