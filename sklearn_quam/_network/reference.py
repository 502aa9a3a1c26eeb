"""The reference model: the given network, checked and ready to predict."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from .._messages import shown
from ..exceptions import NetworkError
from .adapters import (
    Network,
    floating_dtype,
    is_quantised,
    is_torch,
    read_network,
    split_pipeline,
    target_scale,
)
from .inputs.rows import Inputs, Rows, Source, StoredRows
from .inputs.sources import StoredArrays
from .likelihood import CategoricalLikelihood, GaussianLikelihood, Likelihood, infer_link
from .limits import batches, peak_bytes
from .outputs import InvalidOutputError, NetworkErrors, picked
from .predictions import HoldsTensors, Prediction
from .wrapped import TakesNamed, returned

_PROBE_ROWS = 16
# Types of whole numbers are tried out, but not all those of a large number of inputs.
_MAX_TRIALS = 64


@dataclass(frozen=True)
class ReferenceModel:
    """The given network with everything needed to predict by it."""

    # A private copy in evaluation mode
    module: nn.Module
    likelihood: Likelihood
    # What runs before the network
    transformers: Pipeline | None
    # Types and names of its inputs; None where it takes them by position
    input_dtypes: tuple[torch.dtype, ...]
    input_names: tuple[str, ...] | None
    device: torch.device
    # Whether it takes rows of any number of dimensions, or only vectors
    any_ndim: bool = True
    # Probability of the second class above which a binary classifier predicts it
    threshold: float = 0.5
    # Memory that the network needs for a row
    bytes_per_row: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the network."""
        return floating_dtype(self.module)

    def in_double(self) -> ReferenceModel:
        """Return the same network in double precision."""
        module = copy.deepcopy(self.module).double()
        wider = (torch.float64 if dtype.is_floating_point else dtype for dtype in self.input_dtypes)
        return replace(self, module=module, input_dtypes=tuple(wider))

    def inputs(self, source: Source) -> StoredRows:
        """Return rows in the network's types, which are read when they are asked for."""
        check_names(source, self.input_names)
        return StoredRows(source, self.input_dtypes, self.device, self.bytes_per_row)

    def predict(self, inputs: Inputs | StoredRows) -> Prediction:
        """Return the prediction for some rows, computed in batches."""
        module, likelihood = self.module, self.likelihood
        with torch.no_grad():
            parts: Any = [
                predict_batch(module, likelihood, inputs[rows]) for rows in batches(inputs)
            ]
        return likelihood.kind.cat(parts)


def predict_batch(
    module: nn.Module, likelihood: Likelihood, inputs: Inputs, at_cut: Rows | None = None
) -> Prediction:
    """Return what a network predicts for rows, or its part behind a cut for their values there."""
    rows = (inputs if at_cut is None else Inputs(at_cut)).at_least_two()
    with NetworkErrors(partial(cannot_process, inputs)):
        output = module(*rows.parts)
    prediction = likelihood.prediction(output)
    if len(prediction) != len(rows):
        raise InvalidOutputError(
            f"The network returns {len(prediction)} rows for {len(rows)} samples. If it is "
            "recurrent, construct it with batch_first=True."
        )
    return prediction[: len(inputs)]


@dataclass(frozen=True)
class TrainingSet(HoldsTensors):
    """The training data, as the network or the part of it behind a cut sees them."""

    # The values at a cut; empty where there is none yet
    rows: Rows
    # Class indices or real targets
    target: Tensor
    # Sample weights with mean one
    weight: Tensor | None
    # The loss of the given network for each sample
    losses: Tensor
    # What the network takes; None behind a cut, where nothing holds on to the user's data
    inputs: Any = None
    # In a file; nothing holds on to the user's data.
    _stored: ClassVar[dict[str, Any]] = {
        "rows": Rows,
        "target": Tensor,
        "weight": Tensor | None,
        "losses": Tensor,
    }

    def __len__(self) -> int:
        return len(self.target)

    def rows_at(self, index: Tensor | slice) -> Rows:
        """Return some of the rows."""
        return tuple(part[index] for part in self.rows)

    def behind_cut(self) -> TrainingSet:
        """Return the same without the inputs, which the part behind the cut does not need."""
        return replace(self, inputs=None)

    def mean_loss(self, losses: Tensor, index: Tensor) -> Tensor:
        """Return the weighted mean over rows (the last axis) that are given by their numbers."""
        return self.weighted(losses, index).mean(dim=-1)

    def weighted(self, losses: Tensor, index: Tensor | slice) -> Tensor:
        """Return the losses of rows (the last axis) times their sample weights."""
        return losses if self.weight is None else losses * self.weight[index]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "inputs": None}


def build_reference(
    estimator: Any,
    source: Source,
    *,
    task: str,
    link: str | None = None,
    output: str | int | None = None,
    device: str | torch.device | None = None,
) -> tuple[ReferenceModel, Network, int]:
    """Return the reference model of a fitted estimator, what it knew, and its number of outputs.

    The source has training rows behind the estimator's own transformers, to check the network on.
    """
    transformers, final = split_pipeline(estimator)
    network = read_network(final, task=task, link=link)
    own = next(network.module.parameters(), torch.empty(0)).device
    target = own if device is None else _device(device)
    module, rows, given = first_run(network.module.to(target), source, target)
    chosen = network.link or infer_link(picked(given, output), task)
    kind: Any = CategoricalLikelihood if task == "classifier" else GaussianLikelihood
    likelihood = kind(chosen, output=output)
    likelihood.check(given)
    scaled = target_scale(estimator, likelihood.n_outputs(given))
    if scaled is not None:
        if chosen != "mean":
            raise ValueError(
                "Inside a TransformedTargetRegressor, only networks that predict the mean alone "
                "are supported. Pass the network itself (its regressor_) with the transformed "
                "target as y."
            )
        likelihood = replace(likelihood, units=tuple(map(torch.as_tensor, scaled)))
    # All rows at once: batches of large rows would be smaller.
    again: list[Prediction] = []
    with torch.no_grad():
        needed = peak_bytes(lambda: again.append(predict_batch(module, likelihood, rows)))
    reference = ReferenceModel(
        module,
        likelihood,
        # A copy: refitting the user's scaler later must not change what was fitted here.
        copy.deepcopy(transformers),
        tuple(part.dtype for part in rows.parts),
        source.names,
        target,
        any_ndim=is_torch(final),
        threshold=network.threshold,
        bytes_per_row=needed // len(rows),
    )
    _check_rows(reference, rows, likelihood.prediction(given), again[0])
    return reference, network, likelihood.n_outputs(given)


def first_run(
    module: nn.Module, source: Source, device: torch.device
) -> tuple[nn.Module, Inputs, Any]:
    """Return a network that takes inputs in order, some rows in its types, and its output for them.

    Whole numbers are features to most networks but indices to those with embeddings: they are
    tried as floating point numbers first, where there are several inputs as they are first.
    """
    if source.names is not None:
        module = TakesNamed(module, source.names)
    probe = source.read(slice(0, len(source), max(1, len(source) // _PROBE_ROWS)))
    probe = tuple(part[:_PROBE_ROWS] for part in probe)
    if len(probe[0]) == 1:
        probe = tuple(np.repeat(part, 2, axis=0) for part in probe)
    dtype = floating_dtype(module)
    candidates = [_candidates(part, dtype, several=len(probe) > 1) for part in probe]
    failures = []
    for dtypes in itertools.islice(itertools.product(*candidates), _MAX_TRIALS):
        inputs = StoredRows(StoredArrays(probe), dtypes, device)[:]
        try:
            with torch.no_grad():
                return module, inputs, returned(module, *inputs.clone().parts)
        except NetworkError as error:
            failures.append((inputs, error.__cause__ or error))
    inputs, cause = failures[0]
    raise NetworkError(cannot_process(inputs, cause)) from cause


def _candidates(part: np.ndarray, dtype: torch.dtype, several: bool) -> list[torch.dtype]:
    if part.dtype.kind == "f":
        return [dtype]
    itself = [torch.bool, torch.int64] if part.dtype.kind == "b" else [torch.int64]
    return [*itself, dtype] if several else [dtype, *itself]


def cannot_process(inputs: Inputs, error: object) -> str:
    """Return the message for an error that a network has raised for some rows."""
    what = "rows" if len(inputs.parts) == 1 else f"{len(inputs.parts)} inputs whose rows are"
    shapes = ", ".join(f"{tuple(part.shape[1:])} given as {part.dtype}" for part in inputs.parts)
    return (
        f"The network cannot process {what} of shape {shapes} on {inputs.device}: "
        f"{type(error).__name__}: {error}. X must have the shape that the network was trained with."
    )


def _check_rows(
    reference: ReferenceModel, inputs: Inputs, expected: Prediction, again: Prediction
) -> None:
    """Refuse a network whose answer for a row is random or depends on the other rows."""
    if not _close(expected, again):
        raise InvalidOutputError(
            "The network returns different outputs for the same rows even in evaluation mode. "
            "Randomness in forward must depend on self.training, as nn.Dropout's does."
        )
    # The later half: a recurrent network over the wrong axis lets rows depend on earlier ones.
    if _close(expected, reference.predict(inputs[len(inputs) // 2 :])):
        return
    cure = (
        "Dynamically quantised layers scale all rows of a batch together: pass the network as it "
        "was before quantisation."
        if any(map(is_quantised, reference.module.modules()))
        else "BatchNorm layers need track_running_stats=True, recurrent and attention layers "
        "batch_first=True."
    )
    raise InvalidOutputError(f"The network's output for a row depends on the other rows. {cure}")


def _close(first: Prediction, second: Prediction) -> bool:
    a, b = first.expected(), second.expected()
    return torch.allclose(a[-len(b) :], b, rtol=1e-3, atol=1e-4 * float(a.abs().max()))


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


def check_names(source: Source, names: tuple[str, ...] | None) -> None:
    """Refuse rows whose inputs have other names than those that the network was tried with."""
    if names != source.names:
        found, wanted = (
            "without names" if one is None else f"named {shown(list(one))}"
            for one in (source.names, names)
        )
        raise ValueError(f"X has the inputs {found}, but the network was fitted with {wanted}.")
