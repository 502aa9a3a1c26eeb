"""Check that an estimator and the network inside it predict the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from ..._network.adapters import is_skorch, split_pipeline, target_scale
from ..._network.inputs.rows import Inputs, StoredRows
from ..._network.likelihood import InvalidOutputError
from ..._network.outputs import NetworkErrors
from ..._network.predictions import Categorical
from ..._network.reference import ReferenceModel
from ...exceptions import NetworkError

# Number of training samples that are compared.
_N_ROWS = 16
# Largest difference of predictions, as a share of the largest one.
_TOLERANCE, _TOLERANCE_OF_HALF = 1e-3, 3e-2


def check_agreement(estimator: Any, reference: ReferenceModel, inputs: StoredRows) -> None:
    """Refuse an estimator that predicts something else than the network taken out of it.

    A subclass may normalise its input in ``infer``, or change what ``predict`` returns.
    """
    final = split_pipeline(estimator)[1]
    if isinstance(final, nn.Module) or reference.likelihood.output is not None:
        return  # it has no other prediction than its output, or one of another output
    index = np.linspace(0, len(inputs) - 1, num=min(_N_ROWS, len(inputs)), dtype=int)
    rows = inputs[torch.as_tensor(index, device=inputs.device)]
    given = reference.predict(rows).to_array()
    own = _own_prediction(final, rows, reference)
    if own is None or own.shape[1] < given.shape[1]:
        return
    own = own[:, : given.shape[1]]  # behind the means, a net may return variances
    units = target_scale(estimator, own.shape[1])
    if units is not None:
        own = own * units[0] + units[1]
    module = getattr(final, "module_", None)
    weights = module.parameters() if isinstance(module, nn.Module) else ()
    is_half = any(weight.dtype.itemsize < 4 for weight in weights)
    share = _TOLERANCE_OF_HALF if is_half else _TOLERANCE
    differs = ~(np.abs(own - given) <= share * np.abs(given).max()).all(axis=1)
    if differs.any():
        first = int(differs.argmax())
        numbers = ", ".join(map(str, index[differs]))
        raise InvalidOutputError(
            f"{type(final).__name__} itself predicts something else than the network inside it, "
            f"for the training rows {numbers} of those compared; for row {index[first]}, "
            f"{own[first][:5].round(4)} instead of {given[first][:5].round(4)}. If its class "
            "overrides infer, predict or predict_proba, that is not run here: put what it does "
            "into the forward of the module, or into a transformer in front (make_pipeline); or "
            "pass the network alone."
        )


def _own_prediction(final: Any, rows: Inputs, reference: ReferenceModel) -> np.ndarray | None:
    """Return what an estimator predicts itself, (n_rows, n_outputs); None where it cannot."""
    parts = [part.cpu().numpy() for part in rows.parts]
    values: Any = parts[0] if len(parts) == 1 else tuple(parts)
    if reference.input_names is not None:
        values = dict(zip(reference.input_names, parts, strict=True))
    names = getattr(final, "feature_names_in_", None)
    if names is not None and len(parts) == 1 and values.ndim == 2 and len(names) == values.shape[1]:
        import pandas as pd

        values = pd.DataFrame(values, columns=names)
    try:
        with NetworkErrors(), _untouched(getattr(final, "module_", None)):
            if is_skorch(final) and not _is_plain(final):
                # link= says what its outputs mean.
                output = final.forward(values, device=reference.device)
                return reference.likelihood.prediction(output).to_array()
            if reference.likelihood.kind is Categorical:
                own = np.asarray(final.predict_proba(values), dtype=float)
            else:
                own = np.asarray(final.predict(values), dtype=float)
    except NetworkError:
        return None
    own = own.reshape(len(rows), -1)
    if reference.likelihood.kind is Categorical and own.shape[1] == 1:
        own = np.column_stack([1 - own, own])
    return own


def _is_plain(net: Any) -> bool:
    """Return whether the criterion says what the predictions of a skorch net mean."""
    import skorch

    nonlinearity = getattr(net, "predict_nonlinearity", "auto")
    return nonlinearity == "auto" and type(net).get_loss in (
        skorch.NeuralNet.get_loss,
        skorch.NeuralNetClassifier.get_loss,
        skorch.NeuralNetRegressor.get_loss,
        skorch.NeuralNetBinaryClassifier.get_loss,
    )


@contextmanager
def _untouched(module: Any) -> Iterator[None]:
    """Restore training flags and the random state, which data loaders change."""
    parts = list(module.modules()) if isinstance(module, nn.Module) else []
    flags = [part.training for part in parts]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for part, flag in zip(parts, flags, strict=True):
            part.training = flag
