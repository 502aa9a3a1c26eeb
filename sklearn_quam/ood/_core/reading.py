"""Read logits and features of samples from a network, or take features that users pass."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils import check_array, check_consistent_length
from torch import Tensor, nn

from ..._messages import shown
from ..._network.adapters import Network, is_pretrained, read_network, split_pipeline
from ..._network.cut.layers import execution_order, last_module, layers_in_order
from ..._network.inputs.rows import Inputs, StoredRows, from_tensor
from ..._network.likelihood import as_columns
from ..._network.limits import batches
from ..._network.outputs import InvalidOutputError, NetworkErrors
from ..._network.reference import ReferenceModel, cannot_process
from ..._posterior.training_range import InputRange

PENULTIMATE, INPUT = "penultimate", "input"
# Layers whose output has channels on the second axis and places behind.
_WITH_PLACES_LAST = ("Conv", "Pool", "BatchNorm", "InstanceNorm", "GroupNorm")


@dataclass(frozen=True, eq=False)
class Seen:
    """Logits and features of samples in double precision; a single logit z counts as -z/2, z/2."""

    logits: np.ndarray
    features: np.ndarray
    # The largest magnitude in input, features and logits; infinite where one is not finite.
    largest: np.ndarray

    def __getitem__(self, rows: Any) -> Seen:
        return Seen(self.logits[rows], self.features[rows], self.largest[rows])


@dataclass(frozen=True, eq=False)
class LastLayer:
    """The linear layer that turns features into logits, in double precision."""

    weight: np.ndarray
    bias: np.ndarray

    @classmethod
    def of(cls, layer: nn.Linear) -> LastLayer:
        """Return a layer; a single logit z becomes -z/2 and z/2."""
        weight = layer.weight.detach().cpu().double().numpy()
        bias = np.zeros(len(weight)) if layer.bias is None else layer.bias.detach().cpu().numpy()
        if len(weight) == 1:
            weight, bias = np.vstack([-weight, weight]) / 2, np.hstack([-bias, bias]) / 2
        return cls(weight, bias.astype(float))

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Return the logits of features."""
        return features @ self.weight.T + self.bias


@dataclass(frozen=True, eq=False)
class Reader:
    """Run samples through the network, and take its logits and the features of some layers."""

    reference: ReferenceModel
    # The last layer that has parameters.
    last: str
    # "penultimate" (input of the last layer), "input", or submodules whose output is taken.
    layers: tuple[str, ...]
    # Whether the last layer returns the logits, and the network something else.
    logits_of_last: bool = False
    # Samples whose values are far outside of this range count as infinite.
    known: InputRange | None = None
    n_features: int = 0
    # Whether the features are what a linear last layer turns into the logits.
    last_gives_logits: bool = False

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.reference.device

    def __call__(self, inputs: StoredRows) -> Seen:
        parts = [self._read(inputs[rows]) for rows in batches(inputs)]
        return Seen(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _read(self, inputs: Inputs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n_rows, rows = len(inputs), inputs.at_least_two()
        module = self.reference.module
        names = {self.last, *self.layers} - {PENULTIMATE, INPUT}
        with NetworkErrors(partial(cannot_process, inputs)):
            noted, output = run_noting(module, rows, names)
        scores = noted[self.last][1]
        if not self.logits_of_last:
            scores = self.reference.likelihood.pick(output)
        scores = _symmetric(as_columns(scores))
        vectors = [self._vectors(name, rows, noted) for name in self.layers]
        logits = scores[:n_rows].cpu().double().numpy()
        features = torch.cat([part[:n_rows].cpu().double() for part in vectors], dim=1).numpy()
        own = _largest(_flat(inputs).cpu().double().numpy())
        if self.known is not None:
            own[self.known.beyond(inputs).cpu().numpy()] = np.inf
        return logits, features, np.column_stack([own, _largest(features), _largest(logits)])

    def _vectors(self, name: str, rows: Inputs, noted: dict[str, tuple[Any, Any]]) -> Tensor:
        """Return one vector for each sample: places and tokens are averaged."""
        if name == INPUT:
            return _flat(rows)
        taken, output = noted[self.last if name == PENULTIMATE else name]
        values = taken if name == PENULTIMATE else output
        if isinstance(values, (tuple, list)):
            values = values[0]
        if not isinstance(values, Tensor) or values.ndim < 1 or len(values) != len(rows):
            raise ValueError(
                f"layer={shown(name)} has no values with a row for each sample. Choose another "
                "layer."
            )
        if values.ndim == 1:
            return values[:, None]
        layer = self.reference.module.get_submodule(self.last if name == PENULTIMATE else name)
        kind = type(layer).__name__
        if values.ndim > 3 or (values.ndim == 3 and any(k in kind for k in _WITH_PLACES_LAST)):
            return values.flatten(2).mean(2)
        return values.flatten(1, -2).mean(1) if values.ndim == 3 else values

    def knowing(self, more: InputRange) -> Reader:
        """Return the same with a range of inputs that includes further training samples."""
        return replace(self, known=more if self.known is None else self.known.joined(more))

    def logits(self, features: np.ndarray) -> np.ndarray | None:
        """Return the logits of features, if the last layer computes them."""
        return self.head().logits(features) if self.last_gives_logits else None

    def head(self) -> LastLayer:
        """Return the last layer, which must be linear."""
        layer = self.reference.module.get_submodule(self.last)
        if type(layer) is not nn.Linear:
            raise ValueError(
                f"The network's last layer is a {type(layer).__name__}; this detector needs a "
                "linear one. EnergyDetector and MahalanobisDetector take any network."
            )
        return LastLayer.of(layer)


@dataclass(frozen=True, eq=False)
class GivenFeatures:
    """Stand for the reader of a network where features are passed."""

    last: LastLayer | None
    n_features: int
    layers: ClassVar[tuple[str, ...]] = (PENULTIMATE,)
    device: ClassVar[torch.device] = torch.device("cpu")

    @property
    def reference(self) -> ReferenceModel:
        """The given network, of which there is none."""
        raise ValueError(
            "This detector was fitted to features: it has no network to read samples with. Call "
            "score_features, or fit it to samples."
        )

    def head(self) -> LastLayer:
        """Return the last layer."""
        if self.last is None:
            raise ValueError(
                "This detector needs the network's last layer: pass that, a torch.nn.Linear, as "
                "the estimator, or a whole network and its logits=."
            )
        return self.last

    def logits(self, features: np.ndarray) -> np.ndarray | None:
        """Return the logits of features, if the last layer is known."""
        return None if self.last is None else self.last.logits(features)


AnyReader = Reader | GivenFeatures


def make_reader(
    reference: ReferenceModel, layer: str | list[str] | tuple[str, ...], probe: Inputs
) -> Reader:
    """Return what reads the chosen layers and the logits, tried on some training samples."""
    module = reference.module
    names = (layer,) if isinstance(layer, str) else tuple(layer)
    known = [name for name, _ in module.named_modules() if name]
    for name in names:
        if name not in (PENULTIMATE, INPUT, *known):
            near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.3) or known[:3]
            raise ValueError(
                f"layer={shown(name)} is no layer of the network; the nearest are {near}. Besides "
                "names, layer= takes 'penultimate', 'input', and lists of these."
            )
    rows = probe.at_least_two()
    with torch.no_grad():
        order = execution_order(module, lambda: module(*rows.parts))
    if idle := [name for name in names if name in known and name not in order]:
        raise ValueError(f"layer={shown(idle[0])} does not run when the network predicts.")
    layers = layers_in_order(module, lambda: reference.likelihood.pick(module(*rows.parts)))
    last = last_module(module, layers)
    reader = Reader(reference, last, names)
    if reference.likelihood.link not in ("logits", "binary_logit"):
        _check_logits_of_last(reference, last, rows)
        reader = replace(reader, logits_of_last=True)
    logits, features, _ = reader._read(probe)
    is_linear = type(module.get_submodule(last)) is nn.Linear and names == (PENULTIMATE,)
    gives_logits = is_linear and agrees(reader.head().logits(features), logits)
    return replace(reader, n_features=features.shape[1], last_gives_logits=gives_logits)


def agrees(found: np.ndarray, logits: np.ndarray) -> bool:
    """Return whether logits are the same, up to rounding in half precision."""
    if found.shape != logits.shape:
        return False
    return bool(np.abs(found - logits).max() <= 1e-2 * max(1.0, np.abs(logits).max()))


def _check_logits_of_last(reference: ReferenceModel, last: str, rows: Inputs) -> None:
    """Refuse probabilities that are not the softmax or sigmoid of the last layer."""
    noted, output = run_noting(reference.module, rows, {last})
    expected = reference.likelihood.prediction(output).expected()
    proba = torch.softmax(_symmetric(as_columns(noted[last][1])), dim=-1)
    if proba.shape != expected.shape or not torch.allclose(proba, expected, rtol=1e-3, atol=1e-5):
        raise InvalidOutputError(
            "The network returns probabilities that are not the softmax of its last layer, so "
            "that its logits are not known. Pass a network that returns logits."
        )


def run_noting(
    module: nn.Module, rows: Inputs, names: Iterable[str]
) -> tuple[dict[str, tuple[Any, Any]], Any]:
    """Return inputs and outputs of layers, in the order in which they run, and of the network."""
    noted: dict[str, tuple[Any, Any]] = {}
    # Hooks also run where other threads run the same module.
    thread = threading.get_ident()

    def note(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple, output: Any) -> None:
            if threading.get_ident() == thread:
                noted.pop(name, None)
                noted[name] = (args[0] if args else None, output)

        return hook

    handles = [module.get_submodule(name).register_forward_hook(note(name)) for name in names]
    try:
        with torch.no_grad():
            output = module(*rows.parts)
    finally:
        for handle in handles:
            handle.remove()
    return noted, output


def _symmetric(logits: Tensor) -> Tensor:
    """Return the logits of both classes, of a single logit."""
    return torch.cat([-logits, logits], dim=1) / 2 if logits.shape[1] == 1 else logits


def _flat(rows: Inputs) -> Tensor:
    """Return all inputs of a sample as one vector."""
    flat = [part.reshape(len(rows), -1) for part in rows.parts]
    return flat[0] if len(flat) == 1 else torch.cat([part.double() for part in flat], dim=1)


def _largest(values: np.ndarray) -> np.ndarray:
    """Return the largest magnitude of each sample, infinity where one is not finite."""
    found = np.abs(values).max(axis=1, initial=0.0)
    return np.where(np.isfinite(found), found, np.inf)


def network_of(estimator: Any) -> Network:
    """Return a fitted network as it is given; None has a network without layers."""
    if estimator is None:
        return Network(nn.Identity(), None)
    if not is_pretrained(estimator):
        raise TypeError(
            "fit_features trains no network: pass a fitted one, its last layer, or None."
        )
    return read_network(split_pipeline(estimator)[1], task="classifier")


def given_features(
    module: nn.Module, features: np.ndarray, logits: np.ndarray | None
) -> GivenFeatures:
    """Return the reader of given features, with the layer of the module that fits the logits."""
    n_features = features.shape[1]
    linear = [layer for layer in module.modules() if type(layer) is nn.Linear]
    layers = [LastLayer.of(layer) for layer in linear if layer.in_features == n_features]
    if logits is not None:
        layers = [layer for layer in layers if agrees(layer.logits(features), logits)]
    elif not isinstance(module, (nn.Linear, nn.Identity)):
        raise ValueError(
            "Which layer of the network takes these features is not known without its logits=. "
            "Pass them, as read_features returns them, or that layer as the estimator."
        )
    return GivenFeatures(layers[-1] if layers else None, n_features)


def seen_of(
    features: Any, logits: Any, reader: AnyReader | None = None, needs_logits: bool = False
) -> Seen:
    """Return features and logits that were passed, checked; logits are computed if possible."""
    features = check_array(from_tensor(features), dtype=np.float64, input_name="features")
    if reader is not None and features.shape[1] != reader.n_features:
        raise ValueError(
            f"There are {features.shape[1]} features, but {reader.n_features} when this was fitted."
        )
    if logits is not None:
        logits = _as_logits(logits, features)
    elif reader is not None:
        logits = reader.logits(features)
        if logits is None and needs_logits:
            raise ValueError("This detector needs logits, too: pass logits=.")
    logits = np.empty((len(features), 0)) if logits is None else logits
    largest = [np.zeros(len(features)), _largest(features), _largest(logits)]
    return Seen(logits, features, np.column_stack(largest))


def _as_logits(logits: Any, features: np.ndarray) -> np.ndarray:
    """Return logits as a table with a column for each class."""
    options: Any = {"dtype": np.float64, "input_name": "logits"}
    logits = check_array(from_tensor(logits), ensure_2d=False, **options)
    logits = check_array(logits.reshape(-1, 1) if logits.ndim < 2 else logits, **options)
    check_consistent_length(features, logits)
    return np.hstack([-logits, logits]) / 2 if logits.shape[1] == 1 else logits
