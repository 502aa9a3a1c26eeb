"""Where rows come from: arrays in memory or on disk, several of them, and torch's data sets."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from ..._messages import shown
from .layouts import from_tensor, refuse_masked
from .rows import Source


@dataclass(frozen=True, eq=False)
class StoredArrays:
    """Arrays with a row for each sample, one for each input of the network.

    Parameters
    ----------
    arrays : tuple of array
        What numpy, or dask, can index by slices and by numbers of rows.
    names : tuple of str or None
        Names of the inputs, if the network takes them by name.
    """

    arrays: tuple[Any, ...]
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.arrays[0])

    def read(self, index: Any) -> tuple[np.ndarray, ...]:
        """Return some rows of each array; see `Source`."""
        return tuple(_read(array, index) for array in self.arrays)


def _read(array: Any, index: Any) -> np.ndarray:
    part = array[index]
    if hasattr(part, "compute"):
        part = part.compute()
    if not isinstance(array, np.memmap):
        return np.asarray(part)
    part = np.array(part)
    _forget_pages(array)
    return part


def _forget_pages(array: np.memmap) -> None:
    """Give back the memory of what was read from a file: it would add up to the whole file.

    Not where the map is private: changes that were made to it are held in that memory alone.
    """
    owner = getattr(array, "_mmap", None)
    if array.mode != "c" and isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, eq=False)
class SomeRows:
    """Some rows of another source.

    Parameters
    ----------
    source : Source
        Where they come from.
    numbers : ndarray of shape (n_rows,)
        Which of its rows, in their order.
    """

    source: Source
    numbers: np.ndarray

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the inputs; see `Source`."""
        return self.source.names

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, index: Any) -> tuple[np.ndarray, ...]:
        """Return some rows of each input; see `Source`."""
        return self.source.read(self.numbers[index])


@dataclass(frozen=True, eq=False)
class Transformed:
    """Rows of another source, behind transformers that see some of them at a time.

    Parameters
    ----------
    source : Source
        Where they come from.
    transform : callable
        What makes an array of what was read.
    """

    source: Source
    transform: Callable[[Any], np.ndarray]
    names = None

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: Any) -> tuple[np.ndarray, ...]:
        """Return some rows, transformed; see `Source`."""
        (rows,) = self.source.read(index)
        return (self.transform(rows),)


@dataclass(frozen=True, eq=False)
class StoredDataset:
    """The items of a data set of torch, which come with or without a target.

    An item may be a tensor, a mapping of named inputs, or a tuple whose last element is the target
    and the others the inputs; a tuple of one is an input.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        Has a length, and items by number.
    collate : callable
        Makes batches of items.
    numbers : ndarray of shape (n_rows,)
        Items that are meant, in their order.
    element : int or None
        The element of each item that is the input; None finds out.
    n_inputs : int or None
        How many inputs the network takes, if that is known: a tuple of as many has no target.
    """

    dataset: Any
    collate: Callable[[list[Any]], Any]
    numbers: np.ndarray
    element: int | None = None
    n_inputs: int | None = None

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the inputs, if the items have such."""
        inputs, _ = self._batch(slice(0, 1))
        return tuple(inputs) if isinstance(inputs, Mapping) else None

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, index: Any) -> tuple[np.ndarray, ...]:
        """Return some rows of each input; see `Source`."""
        inputs, _ = self._batch(index)
        if isinstance(inputs, Mapping):
            inputs = tuple(inputs.values())
        parts = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        return tuple(np.asarray(from_tensor(part)) for part in parts)

    def has_targets(self) -> bool:
        """Tell whether items come with a target."""
        return self._batch(slice(0, 1))[1] is not None

    def targets(self, size: int = 1024) -> np.ndarray:
        """Return the targets of all items."""
        if not self.has_targets():
            raise ValueError(
                "y is None, and the items of the data set have no target: pass y, or a data set "
                "whose items are (input, target)."
            )
        found = [self._batch(slice(start, start + size))[1] for start in range(0, len(self), size)]
        return np.concatenate([np.asarray(from_tensor(part)) for part in found])

    def _batch(self, index: Any) -> tuple[Any, Any]:
        """Return inputs and targets of some items."""
        numbers = self.numbers[index]
        if type(self.dataset) is TensorDataset and self.collate is default_collate:
            batch: Any = tuple(tensor[torch.as_tensor(numbers)] for tensor in self.dataset.tensors)
        elif hasattr(self.dataset, "__getitems__"):
            batch = self.collate(self.dataset.__getitems__(numbers.tolist()))
        else:
            batch = self.collate([self.dataset[number] for number in numbers.tolist()])
        if self.element is not None:
            return batch[self.element], None
        if not isinstance(batch, (tuple, list)):
            return batch, None
        if len(batch) == 1:
            return batch[0], None
        if len(batch) == self.n_inputs:
            return tuple(batch), None
        inputs = batch[0] if len(batch) == 2 else tuple(batch[:-1])
        return inputs, batch[-1]


def open_source(X: Any, n_inputs: int | None = None) -> Source | None:
    """Return what rows can be read from, some at a time.

    Parameters
    ----------
    X : object
        What a user passed.
    n_inputs : int, default=None
        How many inputs the network takes, if that is known.

    Returns
    -------
    Source or None
        None for arrays and frames that are in memory already, which are checked as a whole.
    """
    refuse_masked(X, "X")
    if isinstance(X, Mapping):
        return _several(tuple(X.values()), tuple(map(str, X)))
    if _is_several(X):
        return _several(tuple(X), None)
    if isinstance(X, DataLoader):
        return _of_loader(X, n_inputs)
    if _is_slice_dataset(X):
        numbers = np.asarray(X.indices_)
        return StoredDataset(X.dataset, default_collate, numbers, X.idx, n_inputs)
    if isinstance(X, Dataset):
        return _of_dataset(X, default_collate, n_inputs)
    if isinstance(X, np.memmap):
        return StoredArrays((X,))
    if is_dask(X):
        return StoredArrays((_of_dask(X),))
    return None


def count_rows(X: Any) -> int:
    """Return how many rows there are in whatever a user may pass."""
    source = open_source(X)
    return _num_samples(X) if source is None else len(source)


def some_rows(X: Any, numbers: np.ndarray) -> Any:
    """Return some rows of whatever a user may pass, as the same kind of thing.

    Parameters
    ----------
    X : object
        An array, a frame, several inputs, or a data set of torch.
    numbers : ndarray of shape (n_rows,)
        Which rows, in their order.

    Returns
    -------
    object
        These rows.
    """
    if isinstance(X, Mapping):
        return {name: some_rows(part, numbers) for name, part in X.items()}
    if _is_several(X):
        return tuple(some_rows(part, numbers) for part in X)
    if isinstance(X, DataLoader):
        # A sampler would choose others.
        return DataLoader(Subset(X.dataset, numbers.tolist()), collate_fn=X.collate_fn)
    if isinstance(X, Dataset) and not _is_slice_dataset(X):
        return Subset(X, numbers.tolist())
    if is_dask(X):
        return _of_dask(X)[numbers]
    if isinstance(X, Tensor) or _is_slice_dataset(X):
        return X[numbers]
    return _safe_indexing(X.tocsr() if issparse(X) else X, numbers)


def brings_targets(X: Any) -> bool:
    """Tell whether X is a data set whose items come with targets."""
    source = open_source(X)
    return isinstance(source, StoredDataset) and source.has_targets()


def _is_several(X: Any) -> bool:
    """Tell whether a sequence holds the inputs of a network, and not rows.

    A tuple of arrays does; a list of vectors is a matrix to scikit-learn.
    """
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
    arrays = []
    for part, label in zip(parts, labels, strict=True):
        refuse_masked(part, f"X[{label!r}]")
        array = _of_dask(part) if is_dask(part) else from_tensor(part)
        if not hasattr(array, "compute"):
            array = array if isinstance(array, np.memmap) else np.asarray(array)
        if not array.ndim or array.dtype.kind not in "fiub":
            raise ValueError(
                f"X holds several inputs of the network, and each must be an array of numbers with "
                f"a row for each sample, but {label} is of shape {array.shape} and type "
                f"{array.dtype}."
            )
        arrays.append(array)
    lengths = {label: len(array) for label, array in zip(labels, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The inputs in X have different numbers of rows: {shown(lengths)}.")
    return StoredArrays(tuple(arrays), names)


def is_dask(X: Any) -> bool:
    """Tell whether something is a collection of dask, without importing dask."""
    return type(X).__module__.partition(".")[0] in ("dask", "dask_expr") and hasattr(X, "compute")


def _of_dask(X: Any) -> Any:
    array = X.to_dask_array(lengths=True) if hasattr(X, "to_dask_array") else X
    if any(np.isnan(size) for size in array.shape):
        raise ValueError(
            "X is a dask array whose number of rows is not known: call X.compute_chunk_sizes()."
        )
    return array


def _is_slice_dataset(X: Any) -> bool:
    """Tell whether something is skorch's SliceDataset, without importing skorch."""
    return all(hasattr(X, name) for name in ("dataset", "idx", "indices_"))


def _of_dataset(dataset: Any, collate: Callable, n_inputs: int | None) -> StoredDataset:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"{type(dataset).__name__} can only be walked through once, but rows are read several "
            "times. Pass a data set with __len__ and __getitem__."
        )
    return StoredDataset(dataset, collate, np.arange(len(dataset)), None, n_inputs)


def _of_loader(loader: DataLoader, n_inputs: int | None) -> StoredDataset:
    """Return the items of a loader in the order of its data set, so that answers fit the rows."""
    sampler = loader.sampler
    if isinstance(loader.dataset, torch.utils.data.IterableDataset) or not isinstance(
        sampler, (torch.utils.data.SequentialSampler, torch.utils.data.RandomSampler)
    ):
        raise TypeError(
            f"The loader draws its rows by {type(sampler).__name__}. Pass the data set itself, or "
            "a torch.utils.data.Subset of it."
        )
    return _of_dataset(loader.dataset, loader.collate_fn, n_inputs)
