"""Items of data sets, with or without targets: those of torch, of skorch and of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from .rows import from_tensor

# What the target is called where items are mappings.
TARGETS = ("labels", "label", "label_ids")


def as_array(values: Any, name: str) -> np.ndarray:
    """Return an array of values whose rows have the same length."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ragged(name) from error


def ragged(name: str) -> ValueError:
    """Return an error about an input whose rows are of different lengths."""
    return ValueError(
        f"The rows of {name!r} have different lengths. Pad them: padding=True of a tokenizer, or a "
        "DataLoader whose collate_fn pads."
    )


def collate_items(items: list[Any]) -> Any:
    """Return a batch of items; of mappings, the texts are left out."""
    if not isinstance(items[0], Mapping):
        return default_collate(items)
    batch = {
        name: as_array([as_array(from_tensor(item[name]), name) for item in items], name)
        for name in items[0]
    }
    return {name: values for name, values in batch.items() if values.dtype.kind in "fiub"}


@dataclass(frozen=True, eq=False)
class StoredDataset:
    """The items of a data set, with or without a target.

    An item may be a tensor, a mapping of named inputs, one of which may be the target, or a tuple
    whose last element is the target and the others the inputs; a tuple of one is an input.
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
        return tuple(sorted(inputs)) if isinstance(inputs, Mapping) else None

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, index: Any) -> tuple[np.ndarray, ...]:
        """Return some rows of each input."""
        inputs, _ = self._batch(index)
        if isinstance(inputs, Mapping):
            inputs = tuple(inputs[name] for name in sorted(inputs))
        parts = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        return tuple(np.asarray(from_tensor(part)) for part in parts)

    def has_targets(self) -> bool:
        """Return whether items come with a target."""
        return self._batch(slice(0, 1))[1] is not None

    def targets(self, size: int = 1024) -> np.ndarray:
        """Return the targets of all items."""
        if not self.has_targets():
            raise ValueError(
                "y is None, and the items of the data set have no target: pass y, or a data set "
                "whose items are (input, target), or mappings with 'labels' or 'label'."
            )
        found = [self._batch(slice(start, start + size))[1] for start in range(0, len(self), size)]
        parts = [np.asarray(from_tensor(part)) for part in found]
        if len({part.shape[1:] for part in parts}) > 1:
            raise ragged("labels")
        return np.concatenate(parts)

    def class_names(self) -> np.ndarray | None:
        """Return the names of the classes 0, 1, ..., if the data set has them."""
        dataset = self.dataset
        while not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):
            dataset = dataset.dataset  # some items of another
        names = getattr(dataset, "classes", None)
        features = getattr(dataset, "features", None)
        if names is None and isinstance(features, Mapping):
            known = (getattr(features.get(name), "names", None) for name in TARGETS)
            names = next((one for one in known if one), None)
        if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
            return None
        return np.array(names)

    def labels(self) -> np.ndarray:
        """Return the targets of all items, by the names of their classes if these are known."""
        targets, names = self.targets(), self.class_names()
        if names is None or targets.dtype.kind not in "iu" or targets.ndim != 1:
            return targets
        is_number = (targets >= 0) & (targets < len(names))
        return names[targets] if is_number.all() else targets

    def _batch(self, index: Any) -> tuple[Any, Any]:
        """Return inputs and targets of some items."""
        numbers = self.numbers[index]
        if type(self.dataset) is TensorDataset and self.collate is collate_items:
            batch: Any = tuple(tensor[torch.as_tensor(numbers)] for tensor in self.dataset.tensors)
        elif hasattr(self.dataset, "__getitems__"):
            batch = self.collate(self.dataset.__getitems__(numbers.tolist()))
        else:
            batch = self.collate([self.dataset[number] for number in numbers.tolist()])
        if self.element is not None:
            return batch[self.element], None
        if isinstance(batch, Mapping):
            target = next((batch[name] for name in TARGETS if name in batch), None)
            return {name: part for name, part in batch.items() if name not in TARGETS}, target
        if not isinstance(batch, (tuple, list)):
            return batch, None
        if len(batch) == 1:
            return batch[0], None
        if len(batch) == self.n_inputs:
            return tuple(batch), None
        inputs = batch[0] if len(batch) == 2 else tuple(batch[:-1])
        return inputs, batch[-1]


def is_dataset(X: Any) -> bool:
    """Return whether something is a data set of torch, skorch or Hugging Face, or a stream."""
    columns = hasattr(X, "column_names") and hasattr(X, "features")
    known = isinstance(X, Dataset) or is_slice_dataset(X)
    return known or (columns and not isinstance(X, Mapping))


def is_slice_dataset(X: Any) -> bool:
    """Return whether something is skorch's SliceDataset, without importing skorch."""
    return all(hasattr(X, name) for name in ("dataset", "idx", "indices_"))


def items_of(dataset: Any, n_inputs: int | None, collate: Callable | None = None) -> StoredDataset:
    """Return the items of a data set."""
    if is_slice_dataset(dataset):
        numbers = np.asarray(dataset.indices_)
        return StoredDataset(dataset.dataset, collate_items, numbers, dataset.idx, n_inputs)
    countable = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not countable:
        raise TypeError(
            f"{type(dataset).__name__} can only be walked through once, but rows are read several "
            "times. Pass a data set with __len__ and __getitem__, or collect rows in arrays; to "
            "predict, pass one batch of the stream after the other."
        )
    return StoredDataset(dataset, collate or collate_items, np.arange(len(dataset)), None, n_inputs)


def items_of_loader(loader: DataLoader, n_inputs: int | None) -> StoredDataset:
    """Return the items of a loader in the order of its data set."""
    sampler, collate = loader.sampler, loader.collate_fn
    own = (torch.utils.data.SequentialSampler, torch.utils.data.RandomSampler)
    if not isinstance(loader.dataset, IterableDataset) and not isinstance(sampler, own):
        raise TypeError(
            f"The loader draws its rows by {type(sampler).__name__}. Pass the data set itself, or "
            "a torch.utils.data.Subset of it."
        )
    return items_of(loader.dataset, n_inputs, None if collate is default_collate else collate)
