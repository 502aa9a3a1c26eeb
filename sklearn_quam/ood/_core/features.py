"""Features that users pass, in place of rows that a network is to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from sklearn.utils import check_array, check_consistent_length
from torch import nn

from ..._network.adapters import Network, is_pretrained, read_network, split_pipeline
from ..._network.inputs.layouts import from_tensor
from ..._network.reference import ReferenceModel
from ..._posterior.training_range import InputRange
from .reading import PENULTIMATE, Head, Reader, Seen, agrees, head_of, seen_alone


@dataclass(frozen=True, eq=False)
class GivenFeatures:
    """Stands for the reader of a network where features are passed.

    Parameters
    ----------
    last : Head or None
        The last layer, if it is known.
    n_features : int
        How many features there are.
    """

    last: Head | None
    n_features: int
    layers: ClassVar[tuple[str, ...]] = (PENULTIMATE,)
    known: ClassVar[InputRange | None] = None

    @property
    def device(self) -> torch.device:
        """Where features are."""
        return torch.device("cpu")

    @property
    def reference(self) -> ReferenceModel:
        """The given network, of which there is none."""
        _refuse_rows()

    def __call__(self, _: Any) -> Seen:
        """Refuse to read rows."""
        _refuse_rows()

    def knowing(self, _: InputRange) -> GivenFeatures:
        """Refuse to learn from rows."""
        _refuse_rows()

    def head(self) -> Head:
        """Return the last layer."""
        if self.last is None:
            raise ValueError(
                "This detector needs the network's last layer: pass that, a torch.nn.Linear, as "
                "the estimator, or a whole network and its logits=."
            )
        return self.last

    def logits(self, features: np.ndarray) -> np.ndarray | None:
        """Return what the last layer makes of features, if it is known."""
        return None if self.last is None else self.last.logits(features)


AnyReader = Reader | GivenFeatures


def _refuse_rows() -> NoReturn:
    raise ValueError(
        "This detector was fitted to features: it has no network to read rows with. Call "
        "score_features, or fit it to rows."
    )


def network_of(estimator: Any) -> Network:
    """Return a fitted network as it is given, or what stands for none."""
    if estimator is None:
        return Network(nn.Identity(), None)
    if not is_pretrained(estimator):
        raise TypeError(
            "fit_features trains no network: pass a fitted one, its last layer, or None."
        )
    return read_network(split_pipeline(estimator)[1], task="classifier")


def given_features(module: nn.Module, features: np.ndarray, logits: np.ndarray | None) -> Any:
    """Return what stands for a network, with the layer that turns features into logits.

    Parameters
    ----------
    module : torch.nn.Module
        That layer, or a network that it is part of.
    features : ndarray of shape (n_rows, n_features)
        What it takes.
    logits : ndarray of shape (n_rows, n_classes) or None
        What the network makes of them.

    Returns
    -------
    GivenFeatures
        What stands for it.
    """
    n_features = features.shape[1]
    layers = [
        head_of(layer)
        for layer in module.modules()
        if type(layer) is nn.Linear and layer.in_features == n_features
    ]
    if logits is not None:
        layers = [layer for layer in layers if agrees(layer.logits(features), logits)]
    elif not isinstance(module, (nn.Linear, nn.Identity)):
        raise ValueError(
            "Which layer of the network takes these features is not known without its logits=. "
            "Pass them, as read_features returns them, or that layer as the estimator."
        )
    return GivenFeatures(layers[-1] if layers else None, n_features)


def seen_of(features: Any, logits: Any, reader: AnyReader | None, needs_logits: bool) -> Seen:
    """Return features and logits that were passed, checked, as what was seen of rows.

    Parameters
    ----------
    features : array-like of shape (n_rows, n_features)
        What a network's last layer takes, or other features.
    logits : array-like of shape (n_rows, n_classes) or None
        What the network makes of them; None computes them if the last layer is known.
    reader : Reader, GivenFeatures or None
        Knows the last layer, and how many features there are.
    needs_logits : bool
        Whether to refuse features without logits.

    Returns
    -------
    Seen
        The same.
    """
    features = check_array(from_tensor(features), dtype=np.float64, input_name="features")
    if reader is not None and features.shape[1] != reader.n_features:
        raise ValueError(
            f"There are {features.shape[1]} features, but {reader.n_features} when this was fitted."
        )
    if logits is not None:
        logits = as_logits(logits, features)
    elif reader is not None:
        logits = reader.logits(features)
        if logits is None and needs_logits:
            raise ValueError("This detector needs logits, too: pass logits=.")
    return seen_alone(features, np.empty((len(features), 0)) if logits is None else logits)


def as_logits(logits: Any, features: np.ndarray) -> np.ndarray:
    """Return logits as a table with a column for each class."""
    options: Any = {"dtype": np.float64, "input_name": "logits"}
    logits = check_array(from_tensor(logits), ensure_2d=False, **options)
    logits = check_array(logits.reshape(-1, 1) if logits.ndim < 2 else logits, **options)
    check_consistent_length(features, logits)
    return np.hstack([-logits, logits]) / 2 if logits.shape[1] == 1 else logits
