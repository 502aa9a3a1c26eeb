"""What a network shows about rows: its logits, and what goes in and out of its layers."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..._messages import shown
from ..._network.cut.layers import execution_order, last_module, layers_in_order
from ..._network.first_run import cannot_process
from ..._network.inputs.rows import Inputs, StoredRows
from ..._network.likelihood import as_columns
from ..._network.limits import batches
from ..._network.outputs import InvalidOutputError, NetworkErrors
from ..._network.reference import ReferenceModel
from ..._posterior.training_range import InputRange

PENULTIMATE, INPUT = "penultimate", "input"
# Layers whose output has channels on the second axis and places behind.
_WITH_PLACES_LAST = ("Conv", "Pool", "BatchNorm", "InstanceNorm", "GroupNorm")


@dataclass(frozen=True, eq=False)
class Seen:
    """What was seen of some rows, in double precision.

    Parameters
    ----------
    logits : ndarray of shape (n_rows, n_classes)
        Scores of the classes; of two classes with one logit, minus and plus half of it.
    features : ndarray of shape (n_rows, n_features)
        What the chosen layers show.
    largest : ndarray of shape (n_rows, 3)
        The largest magnitude in the input, the features and the logits of each row; infinite
        where something is not finite.
    """

    logits: np.ndarray
    features: np.ndarray
    largest: np.ndarray

    def __getitem__(self, rows: Any) -> Seen:
        return Seen(self.logits[rows], self.features[rows], self.largest[rows])


@dataclass(frozen=True, eq=False)
class Head:
    """The linear layer that turns features into logits.

    Parameters
    ----------
    weight : ndarray of shape (n_logits, n_features)
        Its weight.
    bias : ndarray of shape (n_logits,)
        Its bias, zeros if it has none.
    """

    weight: np.ndarray
    bias: np.ndarray

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Return what it makes of features."""
        return features @ self.weight.T + self.bias


def head_of(layer: nn.Linear) -> Head:
    """Return a linear layer in double precision; of a single logit, minus and plus half of it."""
    weight = layer.weight.detach().cpu().double().numpy()
    bias = np.zeros(len(weight)) if layer.bias is None else layer.bias.detach().cpu().numpy()
    if len(weight) == 1:
        weight, bias = np.vstack([-weight, weight]) / 2, np.hstack([-bias, bias]) / 2
    return Head(weight, bias.astype(float))


@dataclass(frozen=True, eq=False)
class Reader:
    """Runs rows through the network and notes what it is asked for.

    Parameters
    ----------
    reference : ReferenceModel
        The given network.
    last : str
        The last layer that has parameters.
    layers : tuple of str
        "penultimate", which is what the last layer takes; "input"; or names of submodules,
        whose output is meant.
    logits_of_last : bool
        Whether the logits are what the last layer returns, and not the network.
    known : InputRange or None
        Where the values of the training rows lie; what is far outside counts as infinite.
    n_features : int
        How many features the layers show.
    last_gives_logits : bool
        Whether the features are what a linear last layer turns into the logits.
    """

    reference: ReferenceModel
    last: str
    layers: tuple[str, ...]
    logits_of_last: bool = False
    known: InputRange | None = None
    n_features: int = 0
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
            noted, output = _run(module, rows, names)
        scores = as_columns(
            noted[self.last][1] if self.logits_of_last else self.reference.likelihood.pick(output)
        )
        if scores.shape[1] == 1:
            scores = torch.cat([-scores, scores], dim=1) / 2
        vectors = [self._vectors(name, rows, noted) for name in self.layers]
        logits = scores[:n_rows].cpu().double().numpy()
        features = torch.cat([part[:n_rows].cpu().double() for part in vectors], dim=1).numpy()
        magnitudes = [_largest(part.reshape(n_rows, -1)) for part in (features, logits)]
        own = _largest(_flat(inputs).cpu().double().numpy())
        if self.known is not None:
            own[self.known.beyond(inputs).cpu().numpy()] = np.inf
        return logits, features, np.column_stack([own, *magnitudes])

    def _vectors(self, name: str, rows: Inputs, noted: dict[str, tuple[Any, Any]]) -> Tensor:
        """Return one vector for each row: places and tokens are averaged."""
        if name == INPUT:
            return _flat(rows)
        if name == PENULTIMATE:
            values, layer = noted[self.last][0], self.reference.module.get_submodule(self.last)
        else:
            values, layer = noted[name][1], self.reference.module.get_submodule(name)
        if isinstance(values, (tuple, list)):
            values = values[0]
        if not isinstance(values, Tensor) or values.ndim < 1 or len(values) != len(rows):
            raise ValueError(
                f"layer={shown(name)} has no values with a row for each sample. Choose another "
                "layer."
            )
        if values.ndim == 1:
            return values[:, None]
        places_last = values.ndim > 3 or any(
            text in type(layer).__name__ for text in _WITH_PLACES_LAST
        )
        if values.ndim > 2:
            values = values.flatten(2).mean(2) if places_last else values.flatten(1, -2).mean(1)
        return values

    def knowing(self, more: InputRange) -> Reader:
        """Return the same with training rows whose values lie elsewhere, too."""
        return replace(self, known=more if self.known is None else self.known.joined(more))

    def logits(self, features: np.ndarray) -> np.ndarray | None:
        """Return what the last layer makes of features, if it is known."""
        return self.head().logits(features) if self.last_gives_logits else None

    def head(self) -> Head:
        """Return the last layer, if it is linear and nothing but a softmax comes behind it."""
        layer = self.reference.module.get_submodule(self.last)
        if type(layer) is not nn.Linear:
            raise ValueError(
                f"The network's last layer is a {type(layer).__name__}; this detector needs a "
                "linear one. EnergyDetector and MahalanobisDetector take any network."
            )
        return head_of(layer)


def make_reader(
    reference: ReferenceModel, layer: str | list[str] | tuple[str, ...], probe: Inputs
) -> Reader:
    """Return what reads the chosen layers and the logits.

    Parameters
    ----------
    reference : ReferenceModel
        The given network.
    layer : str or list of str
        What the user chose.
    probe : Inputs
        Some training rows.

    Returns
    -------
    Reader
        To be called with rows.
    """
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
    for name in names:
        if name in known and name not in order:
            raise ValueError(f"layer={shown(name)} does not run when the network predicts.")
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
    """Tell whether logits are the same, to half a precision."""
    if found.shape != logits.shape:
        return False
    return bool(np.abs(found - logits).max() <= 1e-2 * max(1.0, np.abs(logits).max()))


def seen_alone(features: np.ndarray, logits: np.ndarray) -> Seen:
    """Return features and logits of rows of which nothing else was seen."""
    largest = [np.zeros(len(features)), _largest(features), _largest(logits)]
    return Seen(logits, features, np.column_stack(largest))


def _check_logits_of_last(reference: ReferenceModel, last: str, rows: Inputs) -> None:
    """Refuse probabilities that are not the softmax or sigmoid of the last layer."""
    noted, output = _run(reference.module, rows, {last})
    expected = reference.likelihood.prediction(output).expected()
    found = as_columns(noted[last][1])
    if found.shape[1] == 1:
        found = torch.cat([-found, found], dim=1) / 2
    proba = torch.softmax(found, dim=-1)
    if proba.shape != expected.shape or not torch.allclose(proba, expected, rtol=1e-3, atol=1e-5):
        raise InvalidOutputError(
            "The network returns probabilities that are not the softmax of its last layer, so "
            "that its logits are not known. Pass a network that returns logits."
        )


def _run(
    module: nn.Module, rows: Inputs, names: set[str]
) -> tuple[dict[str, tuple[Any, Any]], Any]:
    """Return what some layers take and return, and what the network returns."""
    noted: dict[str, tuple[Any, Any]] = {}
    # Other threads may run the same module: what they do is not noted here.
    thread = threading.get_ident()

    def note(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple, output: Any) -> None:
            if threading.get_ident() == thread:
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


def _flat(rows: Inputs) -> Tensor:
    """Return all inputs of a row as one vector."""
    flat = [part.reshape(len(rows), -1) for part in rows.parts]
    return flat[0] if len(flat) == 1 else torch.cat([part.double() for part in flat], dim=1)


def _largest(values: np.ndarray) -> np.ndarray:
    """Return the largest magnitude of each row, infinity where one is not finite."""
    found = np.abs(values).max(axis=1, initial=0.0)
    return np.where(np.isfinite(found), found, np.inf)
