"""Thinned networks: one dropout mask for each model, shared by all rows.

What dropout layers do is replaced while the network runs; nothing of it is switched.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..._network.cut.running import Pick
from ..._network.cut.split import SplitModule, split_module
from ..._network.inputs.rows import Inputs, StoredRows
from ..._network.likelihood import Likelihood
from ..._network.limits import Limits, rows_at_once
from ..._network.outputs import NetworkErrors
from ..._network.predictions import Prediction
from ..._network.reference import Rows
from ..._posterior.accumulate import Posterior
from ..._posterior.fitted import Question

# What a dropped unit of a self-normalising network becomes.
_SELU_FLOOR = -1.7580993408473766

# Function -> whether it drops whole channels, and whether it keeps mean and variance.
_DROPOUTS: dict[Any, tuple[bool, bool]] = {
    functional.dropout: (False, False),
    functional.dropout1d: (True, False),
    functional.dropout2d: (True, False),
    functional.dropout3d: (True, False),
    functional.alpha_dropout: (False, True),
    functional.feature_alpha_dropout: (True, True),
    torch.dropout: (False, False),
    torch.feature_dropout: (True, False),
    torch.alpha_dropout: (False, True),
    torch.feature_alpha_dropout: (True, True),
}


class _SharedMasks(TorchFunctionMode):
    """While it is active, dropout functions draw one mask for each model, shared by its rows.

    Attention and recurrent layers run their inner dropout out of reach of this: it stays off.

    Parameters
    ----------
    models : range
        Numbers of the models whose rows are stacked behind each other.
    n_rows : int
        Rows of each of them.
    seed : int
        Decides the masks, together with the numbers of the model and of the call.
    rate : float or None
        Dropout rate; None takes what each layer has.
    axes : sequence of int or None
        Where each call has its rows; None to find out what is dropped only.
    """

    def __init__(
        self, models: range, n_rows: int, seed: int, rate: float | None, axes: Any = None
    ) -> None:
        super().__init__()
        self._models, self._n_rows = models, n_rows
        self._seed, self._rate, self._axes = seed, rate, axes
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _DROPOUTS:
            return func(*args, **(kwargs or {}))
        values, rate = _read_arguments(*args, **(kwargs or {}))
        self.shapes.append(tuple(values.shape))
        if self._axes is None:
            return values
        return self._drop(values, rate if self._rate is None else self._rate, *_DROPOUTS[func])

    def _drop(self, values: Tensor, rate: float, channels: bool, keeps_moments: bool) -> Tensor:
        axis = self._axes[len(self.shapes) - 1]
        rows_first = values.movedim(axis, 0)
        grouped = rows_first.unflatten(0, (len(self._models), self._n_rows, -1))
        shape = list(grouped.shape[2:])
        if channels:
            shape[2:] = [1] * len(shape[2:])
        kept = torch.stack([self._mask(model, shape, rate) for model in self._models])
        kept = kept.to(values.device)[:, None]
        if not keeps_moments:
            scale = 1 / (1 - rate) if rate < 1 else 0.0
            dropped = torch.where(kept, grouped * scale, 0.0)
        else:
            scale = ((1 - rate) * (1 + rate * _SELU_FLOOR**2)) ** -0.5 if rate < 1 else 0.0
            shift = -scale * _SELU_FLOOR * rate
            dropped = torch.where(kept, grouped, _SELU_FLOOR) * scale + shift
        return dropped.reshape(rows_first.shape).movedim(0, axis)

    def _mask(self, model: int, shape: list[int], rate: float) -> Tensor:
        """Return which units a model keeps, whichever models and rows run beside it."""
        seed = np.random.SeedSequence([self._seed, model, len(self.shapes)]).generate_state(1)
        generator = torch.Generator().manual_seed(int(seed[0]))
        return torch.rand(shape, generator=generator) >= rate


class _NoNumber(TorchFunctionMode):
    """While it is active, dropout functions return what is no number."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        return returned * torch.nan if func in _DROPOUTS else returned


def _read_arguments(
    input: Tensor,  # noqa: A002
    p: float = 0.5,
    *_: Any,
    **__: Any,
) -> tuple[Tensor, float]:
    return input, p


class DropInputs:
    """A hook that drops inputs of the layer it is put in front of."""

    def __call__(self, _: nn.Module, inputs: tuple, named: dict[str, Any]) -> tuple:
        # Not in training: it does nothing unless masks are being drawn.
        if inputs:
            return (functional.dropout(inputs[0], training=False), *inputs[1:]), named
        first = next(iter(named))
        return inputs, {**named, first: functional.dropout(named[first], training=False)}


@dataclass(frozen=True)
class ThinnedModels:
    """The network thinned out in many ways.

    Parameters
    ----------
    split : SplitModule
        The network, cut before its first dropout.
    likelihood : CategoricalLikelihood or GaussianLikelihood
        What its outputs mean.
    probe : Inputs
        A few rows to try the models on.
    n_samples : int
        Number of models.
    rate : float or None
        Share of units to drop; None leaves it to the layers.
    seed : int
        Seeds the masks.
    axes : tuple of int
        The axis of the rows for each call of dropout.
    module : torch.nn.Module
        The whole network, as it was given.
    hooked : str or None
        The layer that dropout was put in front of.
    output : str, int or None
        Which of several outputs of the whole network counts.
    """

    split: SplitModule
    likelihood: Likelihood
    probe: Inputs
    n_samples: int
    rate: float | None
    seed: int
    axes: tuple[int, ...]
    module: nn.Module
    hooked: str | None
    output: str | int | None

    # In a file; the cut is found again.
    _stored: ClassVar[dict[str, Any]] = {
        "module": nn.Module,
        "hooked": str | None,
        "likelihood": Likelihood,
        "probe": Inputs,
        "n_samples": int,
        "rate": float | None,
        "seed": int,
    }

    def _to_store(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self._stored}
        return {**own, "likelihood": replace(self.likelihood, output=self.output)}

    @classmethod
    def _from_store(cls, likelihood: Likelihood, **own: Any) -> ThinnedModels:
        split, of_rest = thinned(own["module"], own["hooked"], likelihood, own["probe"])
        axes = axes_of_rows(split, own["probe"])
        return cls(split, of_rest, axes=axes, output=likelihood.output, **own)

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:  # noqa: ARG002
        """Return how many rows are worked on together."""
        return rows_at_once(inputs)

    def given(self, inputs: Inputs) -> tuple[Inputs, Prediction]:
        """Return the values of rows at the cut, and what the given network predicts for them."""
        rows, original = self.split.given(inputs, self.likelihood)
        return Inputs(rows), original

    def sample(
        self,
        inputs: Inputs,
        original: Prediction,  # noqa: ARG002
        posterior: Posterior,
        question: Question,  # noqa: ARG002
    ) -> dict[str, np.ndarray]:
        """Hand the thinned models' predictions to the accumulator; see `Models`."""
        rows = inputs.parts
        at_once = max(1, rows_at_once(rows[0]) // len(inputs))
        for first in range(0, self.n_samples, at_once):
            models = range(first, min(first + at_once, self.n_samples))
            posterior.update(self.predict(rows, models))
        return {}

    @torch.no_grad()
    def predict(self, rows: Rows, models: range) -> Prediction:
        """Return what some of the models predict, (n_models, n_rows)."""
        n_rows = len(rows[0])
        # A single row is run twice: modules that squeeze their output would lose its axis.
        doubled = tuple(part.repeat_interleave(2, dim=0) if n_rows == 1 else part for part in rows)
        stacked = [part.repeat(len(models), *[1] * (part.ndim - 1)) for part in doubled]
        masks = _SharedMasks(models, len(doubled[0]), self.seed, self.rate, self.axes)
        with masks, NetworkErrors():
            output = self.split.rest(*stacked)
        prediction = self.likelihood.prediction(output)
        return prediction.unflatten(0, (len(models), -1))[:, :n_rows]


def thinned(
    module: nn.Module, hooked: str | None, likelihood: Likelihood, probe: Inputs
) -> tuple[SplitModule, Likelihood]:
    """Cut a network before its first dropout, or before a layer that gets some.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    hooked : str or None
        The layer that dropout is put in front of, in a copy.
    likelihood : Likelihood
        What the network's outputs mean.
    probe : Inputs
        A few rows to trace the network with.

    Returns
    -------
    tuple of SplitModule and Likelihood
        The two parts, and what the outputs of the second one mean.
    """
    if hooked is not None:
        module = copy.deepcopy(module)
        module.get_submodule(hooked).register_forward_pre_hook(DropInputs(), with_kwargs=True)
    split = cut_before_dropout(module, probe, likelihood.pick)
    if split.rest is not module:
        likelihood = replace(likelihood, output=None)  # the rest returns what was picked
    return split, likelihood


def dropped_shapes(module: nn.Module, *rows: Tensor) -> list[tuple[int, ...]]:
    """Return the shapes of what a module drops from."""
    masks = _SharedMasks(range(1), len(rows[0]), 0, None)
    with torch.no_grad(), masks, NetworkErrors():
        module(*rows)
    return masks.shapes


def cut_before_dropout(module: nn.Module, probe: Inputs, pick: Pick) -> SplitModule:
    """Return a network, cut before its first dropout."""
    split = split_module(module, (), probe, _NoNumber, pick)
    # A module may drop something that does not count, or what has no numbers.
    behind = dropped_shapes(split.rest, *split.at_cut(probe))
    if len(behind) < len(dropped_shapes(module, *probe.parts)):
        return SplitModule(None, module, "failed")
    return split


def axes_of_rows(split: SplitModule, probe: Inputs) -> tuple[int, ...]:
    """Return the axis of the rows for each call of dropout: that which depends on them."""
    shapes = (dropped_shapes(split.rest, *split.at_cut(rows)) for rows in (probe, probe[:-1]))
    axes: list[int] = []
    for shape, fewer in zip(*shapes, strict=True):
        pairs = enumerate(zip(shape, fewer, strict=True))
        changed = [i for i, (a, b) in pairs if a * (len(probe) - 1) == b * len(probe)]
        if len(changed) != 1:
            raise ValueError(
                f"Dropout is applied to a tensor of shape {shape}, none of whose axes holds "
                f"the {len(probe)} rows of the batch."
            )
        axes += changed
    return tuple(axes)


def check_rows(models: ThinnedModels) -> None:
    """Refuse a network that mixes rows with others on one axis before it drops."""
    all_rows, fewer = (
        models.predict(models.split.at_cut(rows), range(2)).expected()
        for rows in (models.probe, models.probe[:2])
    )
    if not torch.allclose(all_rows[:, :2], fewer, rtol=1e-3, atol=1e-4):
        raise ValueError(
            "With dropout, the answer for a row depends on the other rows: the network drops "
            "from a tensor that has rows and something else on one axis."
        )
