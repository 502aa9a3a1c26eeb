"""The reference model: the given network, checked and ready to predict."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array
from torch import Tensor, nn

from .adapters import (
    Network,
    floating_dtype,
    in_target_units,
    is_quantised,
    is_torch,
    read_network,
    split_pipeline,
    target_scale,
)
from .likelihood import (
    CategoricalLikelihood,
    GaussianLikelihood,
    Likelihood,
    Output,
    infer_link,
)
from .limits import batches
from .outputs import InvalidOutputError, picked, returned
from .predictions import Prediction, from_arrays, to_arrays

Rows = tuple[Tensor, ...]

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
    any_ndim : bool
        Whether it takes rows of any number of dimensions, or only vectors.
    threshold : float
        Probability of the second class above which a binary classifier predicts it.
    """

    module: nn.Module
    likelihood: Likelihood
    transformers: Pipeline | None
    input_dtype: torch.dtype
    device: torch.device
    any_ndim: bool = True
    threshold: float = 0.5

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the network."""
        return floating_dtype(self.module)

    def in_double(self) -> ReferenceModel:
        """Return the same network in double precision."""
        module = copy.deepcopy(self.module).double()
        floating = self.input_dtype.is_floating_point
        return replace(
            self, module=module, input_dtype=torch.float64 if floating else self.input_dtype
        )

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

    def predict(self, inputs: Tensor) -> Prediction:
        """Return the prediction for some rows, computed in batches.

        Parameters
        ----------
        inputs : Tensor of shape (n_samples, ...)
            What `inputs` returned.

        Returns
        -------
        Prediction
            Of all rows.
        """
        with torch.no_grad():
            parts: list[Any] = [self._predict_batch(inputs[rows]) for rows in batches(inputs)]
        return self.likelihood.kind.cat(parts)

    def _predict_batch(self, inputs: Tensor) -> Prediction:
        # A single row is run twice: modules that squeeze their output would lose its axis.
        rows = inputs.repeat_interleave(2, dim=0) if len(inputs) == 1 else inputs
        try:
            output = self.module(rows)
        except Exception as error:
            raise _failed(inputs, error) from error
        prediction = self.likelihood.prediction(output)
        if len(prediction) != len(rows):
            raise InvalidOutputError(
                f"The network returns {len(prediction)} rows for {len(rows)} samples. If it is "
                "recurrent, construct it with batch_first=True."
            )
        return prediction[: len(inputs)]


@dataclass(frozen=True)
class TrainingSet:
    """The training data, as the network or the part of it behind a cut sees them.

    Parameters
    ----------
    rows : tuple of Tensor of shape (n_rows, ...)
        What the network takes, or the values at a cut of it.
    target : Tensor of shape (n_rows, ...)
        Class indices or real targets.
    weight : Tensor of shape (n_rows,) or None
        Sample weights with mean one.
    losses : Tensor of shape (n_rows,)
        What each row costs the given network.
    """

    rows: Rows
    target: Tensor
    weight: Tensor | None
    losses: Tensor

    def __len__(self) -> int:
        return len(self.target)

    @property
    def inputs(self) -> Tensor:
        """Rows as the network takes them; only where nothing has been cut off."""
        (inputs,) = self.rows
        return inputs

    def in_double(self) -> TrainingSet:
        """Return the same rows in double precision; indices stay what they are."""
        return replace(
            self,
            rows=tuple(as_double(part) for part in self.rows),
            target=as_double(self.target),
            weight=None if self.weight is None else as_double(self.weight),
            losses=as_double(self.losses),
        )

    def rows_at(self, index: Tensor | slice) -> Rows:
        """Return some of the rows."""
        return tuple(part[index] for part in self.rows)

    def mean_loss(self, losses: Tensor, index: Tensor) -> Tensor:
        """Return the weighted mean over rows (the last axis) that are given by their numbers."""
        return self.weighted(losses, index).mean(dim=-1)

    def weighted(self, losses: Tensor, index: Tensor | slice) -> Tensor:
        """Return the losses of rows (the last axis) times their sample weights."""
        return losses if self.weight is None else losses * self.weight[index]

    def __getstate__(self) -> dict[str, Any]:
        return to_arrays((*self.rows, self.target, self.weight, self.losses))

    def __setstate__(self, state: dict[str, Any]) -> None:
        *rows, target, weight, losses = from_arrays(state)
        values = {"rows": tuple(rows), "target": target, "weight": weight, "losses": losses}
        for name, value in values.items():
            object.__setattr__(self, name, value)


def as_double(tensor: Tensor) -> Tensor:
    """Return real numbers in double precision, and others as they are."""
    return tensor.double() if tensor.is_floating_point() else tensor


def build_reference(
    estimator: Any,
    rows: np.ndarray,
    *,
    task: str,
    link: str | None = None,
    output: str | int | None = None,
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
    output : str, int or None
        Which of several outputs is meant; None takes the logits, or what comes first.
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
    target = first.device if device is None else _device(device)
    module = network.module.to(target)
    probe = rows[:: max(1, len(rows) // _PROBE_ROWS)][:_PROBE_ROWS]
    if len(probe) == 1:
        probe = np.repeat(probe, 2, axis=0)
    given, dtype = _first_run(module, probe, floating_dtype(module), target)
    chosen = network.link or infer_link(picked(given, output), task)
    likelihood: Likelihood
    if task == "classifier":
        likelihood = CategoricalLikelihood(chosen, output)
    else:
        likelihood = GaussianLikelihood(chosen, output=output)
    likelihood.check(given)
    scaled = target_scale(estimator, likelihood.n_outputs(given))
    if scaled is not None:
        if chosen != "mean":
            raise ValueError(
                "Inside a TransformedTargetRegressor, only networks that predict the mean alone "
                "are supported. Pass the network itself (its regressor_) with the transformed "
                "target as y."
            )
        in_target_units(module, *scaled, likelihood.pick)
        likelihood = replace(likelihood, output=None)
        given = module(_to_tensor(probe, dtype, target))
    reference = ReferenceModel(
        module, likelihood, transformers, dtype, target, is_torch(final), network.threshold
    )
    _check_rows(reference, reference.inputs(probe), given)
    return reference, network, likelihood.n_outputs(given)


def _device(device: str | torch.device) -> torch.device:
    """Return a device that is there."""
    try:
        target = torch.device(device)
        # One number, there and back: "meta" has none.
        torch.ones(1, device=target).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"device={str(device)!r} cannot be used on this machine ({str(error).splitlines()[0]}) "
            "Leave device=None to stay where the network is, or pass device='cpu'."
        ) from error
    return target


def from_tensor(values: Any) -> Any:
    """Return tensors as arrays on the host; leave everything else to the usual validation."""
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def as_dense(X: Any) -> Any:
    """Return sparse rows as an array: layers are large matrices of numbers anyway."""
    return X.toarray() if issparse(X) else X


def transform(transformers: Pipeline | None, X: Any) -> np.ndarray:
    """Return what the network gets to see of X."""
    if transformers is None:
        return X
    rows = as_dense(transformers.transform(X))
    return check_array(rows, allow_nd=True, input_name="the output of the pipeline's transformers")


def _to_tensor(rows: np.ndarray, dtype: torch.dtype, device: torch.device) -> Tensor:
    if rows.dtype.kind in "fiub" and not rows.dtype.isnative:
        rows = rows.astype(rows.dtype.newbyteorder("="))
    # A copy: the user's array may be read-only, and must not be shared.
    return torch.tensor(rows).to(device=device, dtype=dtype)


def _first_run(
    module: nn.Module, probe: np.ndarray, dtype: torch.dtype, device: torch.device
) -> tuple[Output, torch.dtype]:
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
                return returned(module, inputs), candidate
        except Exception as error:
            errors.append(error)
    raise _failed(inputs, errors[0]) from errors[0]


def _failed(inputs: Tensor, error: Exception) -> ValueError:
    return ValueError(
        f"The network cannot process rows of shape {tuple(inputs.shape[1:])} given as "
        f"{inputs.dtype} on {inputs.device}: {type(error).__name__}: {error}. X must have the "
        "shape that the network was trained with."
    )


def _check_rows(reference: ReferenceModel, inputs: Tensor, output: Output) -> None:
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
        cure = (
            "BatchNorm layers need track_running_stats=True, recurrent and attention layers "
            "batch_first=True."
        )
        if any(map(is_quantised, reference.module.modules())):
            cure = (
                "Dynamically quantised layers scale all rows of a batch together: pass the network "
                "as it was before quantisation."
            )
        raise InvalidOutputError(
            f"The network's output for a row depends on the other rows. {cure}"
        )


def _close(first: Prediction, second: Prediction) -> bool:
    a, b = first.expected(), second.expected()
    return torch.allclose(a[-len(b) :], b, rtol=1e-3, atol=1e-4 * float(a.abs().max()))
