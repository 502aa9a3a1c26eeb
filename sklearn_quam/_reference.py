"""The reference model: the given network, checked and ready to predict."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from ._adapters import Network, floating_dtype, read_network, split_pipeline
from ._likelihood import (
    CategoricalLikelihood,
    GaussianLikelihood,
    InvalidOutputError,
    expected_values,
    infer_link,
    map_prediction,
)

Likelihood = CategoricalLikelihood | GaussianLikelihood

# Rows of one forward pass, so that its inputs take a few megabytes whatever their shape.
_MAX_ROWS = 4096
_MAX_ELEMENTS = 2**22
_PROBE_ROWS = 16


@dataclass(frozen=True)
class ReferenceModel:
    """The given network with everything needed to predict by it.

    Parameters
    ----------
    module : torch.nn.Module
        A private copy in evaluation mode.
    likelihood : CategoricalLikelihood or GaussianLikelihood
        What its outputs mean.
    transformers : Pipeline or None
        What runs before the network.
    input_dtype : torch.dtype
        What the network takes.
    device : torch.device
        Where it runs.
    threshold : float
        Probability of the second class above which a binary classifier predicts it.
    """

    module: nn.Module
    likelihood: Likelihood
    transformers: Pipeline | None
    input_dtype: torch.dtype
    device: torch.device
    threshold: float = 0.5

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the network."""
        return floating_dtype(self.module)

    def inputs(self, rows: np.ndarray) -> Tensor:
        """Return transformed rows as the tensor that the network takes.

        Parameters
        ----------
        rows : ndarray of shape (n_samples, ...)
            What came out of the transformers.

        Returns
        -------
        Tensor of shape (n_samples, ...)
            The same rows in the network's type, on its device.
        """
        tensor = _to_tensor(rows, self.input_dtype, self.device)
        if self.input_dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
            raise ValueError(
                f"X contains values too large for the network's {self.input_dtype}. "
                "Scale the data, or convert the network with module.double()."
            )
        return tensor

    def predict(self, inputs: Tensor) -> Any:
        """Return the prediction for some rows, computed in batches.

        Parameters
        ----------
        inputs : Tensor of shape (n_samples, ...)
            What `inputs` returned.

        Returns
        -------
        Tensor of shape (n_samples, n_classes) or Gaussian
            Log-probabilities, or means and variances.
        """
        parts = []
        with torch.no_grad():
            for rows in batches(inputs):
                parts.append(self._predict_batch(inputs[rows]))
        return map_prediction(lambda *tensors: torch.cat(tensors), *parts)

    def _predict_batch(self, inputs: Tensor) -> Any:
        # A single row is run twice: modules that squeeze their output would lose its axis.
        rows = inputs.repeat_interleave(2, dim=0) if len(inputs) == 1 else inputs
        try:
            output = self.module(rows)
        except Exception as error:
            raise _failed(inputs, error) from error
        prediction = self.likelihood.prediction(output)
        n_rows = len(expected_values(prediction))
        if n_rows != len(rows):
            raise InvalidOutputError(
                f"The network returns {n_rows} rows for {len(rows)} samples. If it is recurrent, "
                "construct it with batch_first=True."
            )
        return map_prediction(lambda part: part[: len(inputs)], prediction)


def batches(inputs: Tensor) -> Iterator[slice]:
    """Yield slices of rows that fit one forward pass.

    Parameters
    ----------
    inputs : Tensor of shape (n_samples, ...)
        Rows.

    Yields
    ------
    slice
        The next rows.
    """
    yield from slices(len(inputs), rows_at_once(inputs))


def slices(n_rows: int, size: int) -> Iterator[slice]:
    """Yield consecutive parts of some rows, or of anything that is numbered.

    Parameters
    ----------
    n_rows : int
        How many there are.
    size : int
        How many a part has at most.

    Yields
    ------
    slice
        The next part.
    """
    for start in range(0, n_rows, size):
        yield slice(start, start + size)


def rows_at_once(inputs: Tensor) -> int:
    """Return how many rows of this kind fit one forward pass."""
    return max(1, min(_MAX_ROWS, _MAX_ELEMENTS // max(1, inputs[:1].numel())))


def build_reference(
    estimator: Any,
    rows: np.ndarray,
    *,
    task: str,
    link: str | None = None,
    device: str | torch.device | None = None,
) -> tuple[ReferenceModel, Network, int]:
    """Return the reference model of a fitted estimator, after checking it on training rows.

    Parameters
    ----------
    estimator : object
        A fitted estimator or module.
    rows : ndarray of shape (n_samples, ...)
        Training rows behind the estimator's own transformers.
    task : {"classifier", "regressor"}
        What the network is used as.
    link : str or None
        What the network returns; None leaves it to the estimator.
    device : str, torch.device or None
        Where to run; None stays where the network is.

    Returns
    -------
    tuple of ReferenceModel, Network and int
        The model, what the estimator knew about it, and its number of classes or outputs.
    """
    # A copy: refitting the user's scaler later must not change what was fitted here.
    transformers, final = split_pipeline(estimator)
    transformers = copy.deepcopy(transformers)
    network = read_network(final, task=task, link=link)
    first = next(network.module.parameters(), torch.empty(0))
    target = torch.device(device or first.device)
    module = network.module.to(target)
    probe = rows[:: max(1, len(rows) // _PROBE_ROWS)][:_PROBE_ROWS]
    if len(probe) == 1:
        probe = np.repeat(probe, 2, axis=0)
    output, dtype = _first_run(module, probe, floating_dtype(module), target)
    chosen = network.link or infer_link(output, task)
    likelihood: Likelihood
    if task == "classifier":
        likelihood = CategoricalLikelihood(chosen)
    else:
        likelihood = GaussianLikelihood(chosen)
    likelihood.check(output)
    reference = ReferenceModel(
        module, likelihood, transformers, dtype, target, threshold=network.threshold
    )
    _check_rows(reference, reference.inputs(probe), output)
    return reference, network, likelihood.n_outputs(output)


def _to_tensor(rows: np.ndarray, dtype: torch.dtype, device: torch.device) -> Tensor:
    if rows.dtype.kind in "fiub" and not rows.dtype.isnative:
        rows = rows.astype(rows.dtype.newbyteorder("="))
    # A copy: the user's array may be read-only, and must not be shared.
    return torch.tensor(rows).to(device=device, dtype=dtype)


def _first_run(
    module: nn.Module, probe: np.ndarray, dtype: torch.dtype, device: torch.device
) -> tuple[Any, torch.dtype]:
    """Run training rows through the network and find out which type it takes them in.

    Whole numbers are features to most networks but indices to those with embeddings: they are
    tried as floating point numbers first, then as they are.
    """
    candidates = [dtype] if probe.dtype.kind == "f" else [dtype, torch.int64]
    errors = []
    for candidate in candidates:
        inputs = _to_tensor(probe, candidate, device)
        try:
            with torch.no_grad():
                return module(inputs), candidate
        except Exception as error:
            errors.append(error)
    raise _failed(inputs, errors[0]) from errors[0]


def _failed(inputs: Tensor, error: Exception) -> ValueError:
    return ValueError(
        f"The network cannot process rows of shape {tuple(inputs.shape[1:])} given as "
        f"{inputs.dtype} on {inputs.device}: {type(error).__name__}: {error}. X must have the "
        "shape that the network was trained with."
    )


def _check_rows(reference: ReferenceModel, inputs: Tensor, output: Any) -> None:
    """Refuse a network whose answer for a row is random or depends on the other rows."""
    expected = reference.likelihood.prediction(output)
    again = reference.predict(inputs)
    if not _close(expected, again):
        raise InvalidOutputError(
            "The network returns different outputs for the same rows even in evaluation mode. "
            "Randomness in forward must depend on self.training, as nn.Dropout's does."
        )
    # The later half: a recurrent network over the wrong axis lets rows depend on earlier ones.
    if not _close(expected, reference.predict(inputs[len(inputs) // 2 :])):
        raise InvalidOutputError(
            "The network's output for a row depends on the other rows. BatchNorm layers need "
            "track_running_stats=True, recurrent and attention layers batch_first=True."
        )


def _close(first: Any, second: Any) -> bool:
    a, b = expected_values(first), expected_values(second)
    return torch.allclose(a[-len(b) :], b, rtol=1e-3, atol=1e-4 * float(a.abs().max()))
