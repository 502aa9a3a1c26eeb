"""Predictions of models: probabilities of classes, or means and variances.

The last axis of all tensors are the classes or outputs, the axes before it rows, models, searches.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def as_double(value: Any) -> Any:
    """Return real numbers in double precision, in a tensor or in whatever holds tensors."""

    def exact(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.double() if part.is_floating_point() else part
        return part.in_double() if hasattr(part, "in_double") else part

    return pytree.tree_map(exact, value)


class HoldsTensors:
    """Pickles tensors as arrays: joblib maps these into workers' memory."""

    def in_double(self) -> Self:
        """Return the same in double precision; indices stay what they are."""
        return replace(self, **as_double(vars(self)))  # type: ignore[type-var]

    def __getstate__(self) -> dict[str, Any]:
        return pytree.tree_map_only(Tensor, _StoredTensor.of, vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            # Arrays that are mapped into memory are read-only, and nothing here writes to them.
            warnings.simplefilter("ignore", UserWarning)
            self.__dict__.update(pytree.tree_map_only(_StoredTensor, _StoredTensor.tensor, state))


# Arrays that are being stored: those of the same memory are one, so that it is stored once.
_STORED: WeakValueDictionary[tuple, np.ndarray] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class _StoredTensor:
    array: np.ndarray
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        array = tensor.detach().cpu().numpy()
        key = (array.ctypes.data, array.dtype.str, array.shape, array.strides)
        return cls(_STORED.setdefault(key, array), tensor.device)

    def tensor(self) -> Tensor:
        return torch.as_tensor(self.array, device=self.device)


class Prediction(HoldsTensors):
    """Methods of both kinds of predictions."""

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors, in the order of the constructor."""
        return tuple(getattr(self, part.name) for part in fields(self))  # type: ignore[arg-type]

    def map(self, function: Callable[..., Tensor], *others: Self) -> Self:
        """Return a prediction made by a function of each tensor, and of those of others."""
        every = zip(self.parts, *(other.parts for other in others), strict=True)
        return type(self)(*(function(*parts) for parts in every))

    def __getitem__(self, index: Any) -> Self:
        """Return some of the rows (or models, ...); the last axis cannot be indexed."""
        return self.map(lambda part: part[index])

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.parts[0].device

    @property
    def n_outputs(self) -> int:
        """Number of classes or outputs."""
        return self.parts[0].shape[-1]

    def to(self, dtype: torch.dtype) -> Self:
        """Return the same prediction in another floating point type."""
        return self.map(lambda part: part.to(dtype))

    def clone(self) -> Self:
        """Return a copy."""
        return self.map(torch.clone)

    def expand(self, times: int) -> Self:
        """Return the prediction with one more axis in front, in memory of its own."""
        return self.map(lambda part: part.expand(times, *part.shape).clone())

    def unflatten(self, axis: int, sizes: tuple[int, ...]) -> Self:
        """Return the prediction with an axis split into several."""
        return self.map(lambda part: part.unflatten(axis, sizes))

    def replaced(self, index: Tensor, where: Tensor, new: Self) -> Self:
        """Return a copy whose rows ``index`` are replaced by new ones where ``where`` is true."""
        return self.map(lambda old, part: replace_rows(old, index, where, part), new)

    def is_finite(self) -> Tensor:
        """Return which predictions are finite in all their parts."""
        fine = torch.stack([torch.isfinite(part).all(dim=-1) for part in self.parts])
        return fine.all(dim=0)

    def is_defined(self) -> Tensor:
        """Return which predictions are valid: a probability may be zero, a variance may not."""
        raise NotImplementedError

    @classmethod
    def cat(cls, predictions: Sequence[Self], dim: int = 0) -> Self:
        """Return predictions one after the other."""
        parts = zip(*(prediction.parts for prediction in predictions), strict=True)
        return cls(*(torch.cat(tensors, dim=dim) for tensors in parts))

    @classmethod
    def stack(cls, predictions: Sequence[Self]) -> Self:
        """Return predictions along one more axis in front."""
        parts = zip(*(prediction.parts for prediction in predictions), strict=True)
        return cls(*(torch.stack(tensors) for tensors in parts))

    def expected(self) -> Tensor:
        """Return what is expected to come true: probabilities of classes, or means."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """Return the entropy in nats, over the last axis."""
        raise NotImplementedError

    def kl(self, other: Self) -> Tensor:
        """Return KL(self || other) in nats, over the last axis."""
        raise NotImplementedError

    def to_array(self) -> np.ndarray:
        """Return probabilities or means as float64, on the host."""
        return self.expected().cpu().double().numpy()


@dataclass(frozen=True, eq=False)
class Categorical(Prediction):
    """Probabilities of classes, as logarithms (..., n_classes)."""

    log_proba: Tensor

    def is_defined(self) -> Tensor:
        """Return which probabilities are numbers."""
        return ~torch.isnan(self.log_proba).any(dim=-1)

    def expected(self) -> Tensor:
        """Return probabilities."""
        return self.log_proba.exp()

    def entropy(self) -> Tensor:
        """Return the entropy in nats; probabilities of zero count for nothing."""
        proba = self.log_proba.exp()
        return -torch.where(proba == 0, 0.0, proba * self.log_proba).sum(dim=-1)

    def kl(self, other: Categorical) -> Tensor:
        """Return KL(self || other) in nats."""
        proba, change = self.log_proba.exp(), other.log_proba - self.log_proba
        # As both sum to one, this is the sum of p (exp(change) - 1 - change). No term is negative:
        # a small divergence does not drown in the rounding of large ones that cancel each other.
        near = change.clamp(-1, 1)
        far = other.log_proba.exp() - proba * (1 + change)
        terms = torch.where(change.abs() < 1, proba * (torch.expm1(near) - near), far)
        terms = torch.where(proba == 0, other.log_proba.exp(), terms)
        return terms.sum(dim=-1).clamp(min=0)

    def to_array(self) -> np.ndarray:
        """Return probabilities that sum to one in float64, too."""
        return torch.softmax(self.log_proba.cpu().double(), dim=-1).numpy()


@dataclass(frozen=True, eq=False)
class Gaussian(Prediction):
    """Independent Gaussians, one for each output."""

    mean: Tensor
    variance: Tensor

    def is_defined(self) -> Tensor:
        """Return which Gaussians have a finite mean and a finite variance above zero."""
        return self.is_finite() & (self.variance > 0).all(dim=-1)

    def expected(self) -> Tensor:
        """Return means."""
        return self.mean

    def entropy(self) -> Tensor:
        """Return the differential entropy, summed over the outputs."""
        return 0.5 * (2 * math.pi * math.e * self.variance).log().sum(dim=-1)

    def kl(self, other: Gaussian) -> Tensor:
        """Return KL(self || other), summed over the outputs."""
        ratio = self.variance / other.variance
        shift = (self.mean - other.mean) ** 2 / other.variance
        excess = (ratio - 1) - ratio.log()
        return 0.5 * (excess + shift).sum(dim=-1).clamp(min=0)


def replace_rows(old: Tensor, index: Tensor, where: Tensor, new: Tensor) -> Tensor:
    """Return a copy of a tensor in which some rows, given by their numbers, are replaced."""
    mask = where.reshape(-1, *[1] * (new.ndim - 1))
    return old.index_copy(0, index, torch.where(mask, new.to(old), old[index]))
