"""A network as features and a linear last layer, which answers for each place or label alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.utils._param_validation import HasMethods
from torch import Tensor, nn
from torch.nn import functional

from .._arguments import allowed, arguments
from .._documented import parsed
from .._messages import ShortMessages
from .._network.adapters import module_of
from .._network.inputs.items import StoredDataset
from .._network.inputs.rows import Inputs, Source, StoredRows, from_tensor
from .._network.inputs.sources import StoredArrays, open_source
from .._network.limits import computing, peak_bytes, short_passes
from .._network.outputs import InvalidOutputError, NetworkErrors, first, picked
from .._network.reference import cannot_process, check_names, first_run
from ..ood._core.reading import run_noting

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# What may stand behind the last layer: it changes sizes of maps, and commutes with the layer as
# the weights of neighbours sum to one.
_RESIZES: tuple[dict[str, Any], ...] = (
    {"mode": "bilinear", "align_corners": False},
    {"mode": "bilinear", "align_corners": True},
    {"mode": "nearest"},
    {"mode": "bicubic", "align_corners": False},
)
_ENDINGS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "nothing": lambda scores, _: scores,
    "sigmoid": lambda scores, _: scores.sigmoid(),
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
}
# Entries of what methods take.
SHARED = parsed(
    """
    Parameters
    ----------
    X : array-like of shape (n_samples, ...)
        Samples as the network takes them; for ``fit``, its training data.
    mask : array-like of shape (n_samples, ...)
        Which places count; None takes ``attention_mask`` of X, if there is one.
    """
)


@dataclass(frozen=True, eq=False)
class FeatureReader:
    """Runs a network up to its last layer."""

    module: nn.Module  # the network, a private copy
    last: str  # name of its last layer
    resize: dict[str, Any] | None  # how maps of scores are resized behind it
    size: tuple[int, ...]  # their size after that
    ending: str  # what stands behind it: a key of `_ENDINGS`
    names: tuple[str, ...] | None  # of the inputs
    dtypes: tuple[torch.dtype, ...]  # of the inputs
    device: torch.device
    bytes_per_row: int = 0  # memory that the network needs for a sample

    def rows(self, source: Source) -> StoredRows:
        """Return samples as the network takes them."""
        check_names(source, self.names)
        return StoredRows(source, self.dtypes, self.device, self.bytes_per_row)

    def __call__(self, inputs: Inputs) -> Tensor:
        """Return the inputs of the last layer, (n_rows, ..., n_features), at each place."""
        rows = inputs.at_least_two()
        with NetworkErrors(partial(cannot_process, inputs)):
            noted, _ = run_noting(self.module, rows, [self.last])
        features = _features(self.module.get_submodule(self.last), noted[self.last][0])
        if self.resize is not None:
            maps = functional.interpolate(features.movedim(-1, 1), self.size, **self.resize)
            features = maps.movedim(1, -1)
        return features[: len(inputs)]


@arguments
class HeadClassifier(ShortMessages, MetaEstimatorMixin, BaseEstimator):
    """Asks the wrapped estimator about features of a network."""

    estimator: Any = allowed(
        HasMethods(["fit", "predict_uncertainty", "get_params"]), kw_only=False
    )

    @property
    def _given(self) -> dict[str, Any]:
        """The arguments of the wrapped estimator."""
        return self.estimator.get_params(deep=False)

    def _short_passes(self) -> Any:
        """Return a context in which the network is run on as many samples as memory allows."""
        return short_passes(self._given.get("memory_limit"))

    def _take_apart(self, estimator: Any, source: Source) -> nn.Linear:
        """Keep what reads features, and return the last layer as a linear one of these."""
        given = self._given
        with computing(), self._short_passes():
            options = given.get("output"), given.get("device")
            reader, head = split_head(estimator, source, *options)
        self._reader = reader
        return head


def open_rows(X: Any) -> Source:
    """Return a source of samples, read some at a time."""
    return open_source(X) or StoredArrays((np.asarray(from_tensor(X)),))


def targets_of(source: Source, y: Any) -> Any:
    """Return targets as passed, or those of a data set."""
    if y is None and isinstance(source, StoredDataset):
        return source.targets()
    if y is None:
        raise ValueError("y is None, and X is no data set that brings its targets: pass y.")
    return y


def split_head(
    estimator: Any, source: Source, output: str | int | None, device: Any
) -> tuple[FeatureReader, nn.Linear]:
    """Return what reads features of a network, and its last layer as a linear one of these."""
    module = module_of(estimator)
    own = next((p.device for p in module.parameters()), torch.device("cpu"))
    target = own if device is None else torch.device(device)
    module, rows, _ = first_run(module.to(target), source, target)
    rows, names, dtypes = rows[:2], source.names, tuple(part.dtype for part in rows.parts)
    layers = [
        name
        for name, part in module.named_modules()
        if isinstance(part, (nn.Linear, *_CONVOLUTIONS))
    ]
    with NetworkErrors(partial(cannot_process, rows)):
        noted, returned = run_noting(module, rows, layers)
        scores = first(picked(returned, output))
    for name in reversed(noted):
        layer, (taken, made) = module.get_submodule(name), noted[name]
        behind = _behind(made, scores, -1 if isinstance(layer, nn.Linear) else 1)
        if behind is None or _features(layer, taken) is None:
            continue
        resize, ending = behind
        size = () if resize is None else tuple(scores.shape[2:])
        reader = FeatureReader(module, name, resize, size, ending, names, dtypes, target)
        with torch.no_grad():
            needed = peak_bytes(partial(reader, rows)) // len(rows)
        return replace(reader, bytes_per_row=needed), _as_linear(layer)
    raise InvalidOutputError(
        "What the network returns is not made by a linear layer or a convolution at its end, with "
        "nothing behind it but a softmax, a sigmoid or a resize. Pass a module without what "
        "stands behind that layer; output= says which of several outputs is meant."
    )


def _behind(made: Tensor, scores: Any, axis: int) -> tuple[dict[str, Any] | None, str] | None:
    """Return how the scores of a layer are resized, and what follows; None for something else."""
    if not isinstance(scores, Tensor) or made.ndim < 2:
        return None
    resizes: tuple[dict[str, Any] | None, ...] = (None,)
    if made.shape != scores.shape:
        if axis != 1 or made.ndim != 4 or scores.ndim != 4 or made.shape[1] != scores.shape[1]:
            return None
        resizes = _RESIZES
    for resize in resizes:
        maps = made
        if resize is not None:
            maps = functional.interpolate(made, tuple(scores.shape[2:]), **resize)
        for ending, function in _ENDINGS.items():
            if _close(function(maps, axis), scores):
                return resize, ending
    return None


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one.to(other), other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


def _features(layer: nn.Module, taken: Tensor) -> Any:
    """Return what a layer is linear in, features last; None for convolutions that are not."""
    if isinstance(layer, nn.Linear):
        return taken
    conv: Any = layer
    if conv.groups != 1 or conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return None
    plain = not any(conv.padding) and set(conv.stride) == {1}
    if plain and set(conv.kernel_size) == {1}:
        return taken.movedim(1, -1)
    if not isinstance(conv, nn.Conv2d):
        return None
    options = (conv.kernel_size, conv.dilation, conv.padding, conv.stride)
    size = [
        (n + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for n, kernel, dilation, padding, stride in zip(taken.shape[2:], *options, strict=True)
    ]
    return functional.unfold(taken, *options).unflatten(2, size).movedim(1, -1)


def _as_linear(layer: Any) -> nn.Linear:
    """Return a layer as one of features, without drawing weights."""
    weight = layer.weight.detach().flatten(1)
    head = nn.Linear(weight.shape[1], len(weight), layer.bias is not None, device="meta")
    head.weight = nn.Parameter(weight.clone(), requires_grad=False)
    if layer.bias is not None:
        head.bias = nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
    return head.eval()
