"""Monte Carlo dropout: thinned networks as plausible models (Gal and Ghahramani, 2016).

A thinned network is one model: its dropout masks are the same for all samples, so that the answer
for a sample does not depend on the samples beside it. Calls of dropout functions are replaced while
the network runs; nothing in the network is switched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils._param_validation import Interval
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .._arguments import allowed, arguments, integer
from .._documented import CLASSIFIER, REGRESSOR, documented
from .._network.cut.layers import last_module, layers_in_order
from .._network.cut.split import SplitModule, split_module
from .._network.free import probe_rows
from .._network.inputs.rows import Inputs, Rows, StoredRows
from .._network.likelihood import Likelihood
from .._network.limits import Limits, rows_at_once, slices
from .._network.outputs import NetworkErrors
from .._network.predictions import Prediction
from .._posterior.accumulate import Posterior
from .._posterior.fitted import FittedMethod, Question
from ..base._data import FitData
from ..base._estimator import BaseUncertaintyEstimator
from ._method import ClassifierMethod, RegressorMethod

# The rate of the network that is trained where the user passes none.
_DEFAULT_RATE = 0.1
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


class _Dropouts(TorchFunctionMode):
    """While it is active, dropout functions return ``instead(values, rate, *kind)``.

    Attention and recurrent layers run their inner dropout out of its reach: it stays off.
    """

    def __init__(self, instead: Callable[..., Tensor]) -> None:
        super().__init__()
        self._instead = instead

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _DROPOUTS:
            return func(*args, **(kwargs or {}))
        given = {"p": 0.5, **dict(zip(("input", "p"), args, strict=False)), **(kwargs or {})}
        return self._instead(given["input"], given["p"], *_DROPOUTS[func])


def _undefined() -> _Dropouts:
    """Return a context in which dropout functions return NaN."""
    return _Dropouts(lambda values, *_: values * torch.nan)


@torch.no_grad()
def _dropped_shapes(module: nn.Module, rows: Rows) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors that a module drops from."""
    shapes = []

    def note(values: Tensor, *_: Any) -> Tensor:
        shapes.append(tuple(values.shape))
        return values

    with _Dropouts(note), NetworkErrors():
        module(*rows)
    return shapes


class _Masks:
    """Drops units by one mask for each model, shared by its samples, behind each other."""

    def __init__(
        self, models: range, n_rows: int, seed: int, rate: float | None, axes: tuple[int, ...]
    ) -> None:
        self._models, self._n_rows, self._axes = models, n_rows, axes
        self._seed, self._rate, self._n_calls = seed, rate, 0

    def __call__(self, values: Tensor, rate: float, channels: bool, keeps_moments: bool) -> Tensor:
        axis = self._axes[self._n_calls]
        self._n_calls += 1
        rate = rate if self._rate is None else self._rate
        rows_first = values.movedim(axis, 0)
        grouped = rows_first.unflatten(0, (len(self._models), self._n_rows, -1))
        shape = list(grouped.shape[2:])
        if channels:
            shape[2:] = [1] * len(shape[2:])
        kept = torch.stack([self._mask(model, shape, rate) for model in self._models])
        kept = kept.to(values.device)[:, None]
        floor, power = (_SELU_FLOOR, -0.5) if keeps_moments else (0.0, -1.0)
        scale = ((1 - rate) * (1 + rate * floor**2)) ** power if rate < 1 else 0.0
        dropped = (torch.where(kept, grouped, floor) - floor * rate) * scale
        return dropped.reshape(rows_first.shape).movedim(0, axis)

    def _mask(self, model: int, shape: list[int], rate: float) -> Tensor:
        """Return which units a model keeps, whichever models and samples run beside it."""
        seed = np.random.SeedSequence([self._seed, model, self._n_calls]).generate_state(1)
        generator = torch.Generator().manual_seed(int(seed[0]))
        return torch.rand(shape, generator=generator) >= rate


def _drop_inputs(_: nn.Module, inputs: tuple, named: dict[str, Any]) -> tuple:
    """Drop inputs of a layer: a hook in front of it, without effect unless masks are drawn."""
    if inputs:
        return (functional.dropout(inputs[0], training=False), *inputs[1:]), named
    first = next(iter(named))
    return inputs, {**named, first: functional.dropout(named[first], training=False)}


class _Cut(NamedTuple):
    split: SplitModule  # the network, cut before its first dropout
    likelihood: Likelihood  # of the outputs of its second part
    axes: tuple[int, ...]  # the axis of the samples, for each call of dropout


@dataclass(frozen=True)
class ThinnedModels:
    """The network thinned out in many ways."""

    module: nn.Module  # the whole network, as it was given
    hooked: str | None  # the layer that dropout is put in front of
    likelihood: Likelihood
    probe: Inputs  # a few samples to try the network on
    n_samples: int
    rate: float | None  # share of units to drop; None leaves it to the layers
    seed: int

    def __post_init__(self) -> None:
        """Refuse a network that mixes samples with others on one axis before it drops."""
        whole, fewer = (
            self.predict(self.cut.split.at_cut(rows), range(2)).expected()
            for rows in (self.probe, self.probe[:2])
        )
        if not torch.allclose(whole[:, :2], fewer, rtol=1e-3, atol=1e-4):
            raise ValueError(
                "With dropout, the answer for a row depends on the other rows: the network drops "
                "from a tensor that has rows and something else on one axis."
            )

    @cached_property
    def cut(self) -> _Cut:
        """The network, cut before its first dropout, which may be put into a copy."""
        module, likelihood = self.module, self.likelihood
        if self.hooked is not None:
            module = copy.deepcopy(module)
            layer = module.get_submodule(self.hooked)
            layer.register_forward_pre_hook(_drop_inputs, with_kwargs=True)
        split = split_module(module, (), self.probe, _undefined, likelihood.pick)
        # A module may drop something that does not count, or has no numbers.
        behind = len(_dropped_shapes(split.rest, split.at_cut(self.probe)))
        if behind < len(_dropped_shapes(module, self.probe.parts)):
            split = SplitModule(None, module, "failed")
        if split.rest is not module:
            likelihood = replace(likelihood, output=None)  # the rest returns what was picked
        return _Cut(split, likelihood, _axes_of_rows(split, self.probe))

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:  # noqa: ARG002
        """Return how many samples are worked on together."""
        return rows_at_once(inputs)

    def given(self, inputs: Inputs) -> tuple[Inputs, Prediction]:
        """Return the values of samples at the cut, and the given network's prediction."""
        rows, original = self.cut.split.given(inputs, self.cut.likelihood)
        return Inputs(rows), original

    def sample(
        self,
        inputs: Inputs,
        original: Prediction,  # noqa: ARG002
        posterior: Posterior,
        question: Question,  # noqa: ARG002
    ) -> dict[str, np.ndarray]:
        """Add the thinned networks' predictions to the accumulator; see `Models`."""
        at_once = max(1, rows_at_once(inputs.parts[0]) // len(inputs))
        for models in slices(self.n_samples, at_once):
            posterior.update(self.predict(inputs.parts, range(self.n_samples)[models]))
        return {}

    @torch.no_grad()
    def predict(self, rows: Rows, models: range) -> Prediction:
        """Return what some of the models predict, (n_models, n_rows)."""
        n_models, some = len(models), Inputs(rows).at_least_two()
        stacked = [part.repeat(n_models, *[1] * (part.ndim - 1)) for part in some.parts]
        masks = _Masks(models, len(some), self.seed, self.rate, self.cut.axes)
        with _Dropouts(masks), NetworkErrors():
            output = self.cut.split.rest(*stacked)
        prediction = self.cut.likelihood.prediction(output)
        return prediction.unflatten(0, (n_models, -1))[:, : len(rows[0])]


def _axes_of_rows(split: SplitModule, probe: Inputs) -> tuple[int, ...]:
    """Return, for each call of dropout, the axis whose length depends on the samples."""
    shapes = (_dropped_shapes(split.rest, split.at_cut(rows)) for rows in (probe, probe[:-1]))
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


@arguments
class _MCDropout(BaseUncertaintyEstimator):
    n_samples: int = integer(default=256)
    p: float | None = allowed(Interval(Real, 0, 1, closed="left"), None, default=None)

    _fitted_kind = FittedMethod[ThinnedModels]

    def _fit_models(self, fit: FitData) -> ThinnedModels:
        module, likelihood = fit.reference.module, fit.reference.likelihood
        probe = probe_rows(fit.training.inputs)
        self.p_, hooked = self.p, None
        if not _dropped_shapes(module, probe.parts):
            if self.p is None and self.estimator is not None:
                raise ValueError(
                    "The network has no dropout layers (those inside attention and recurrent "
                    "layers do not count). Pass p=0.1, say, to put dropout before its last layer."
                )
            self.p_ = _DEFAULT_RATE if self.p is None else self.p
            layers = layers_in_order(module, lambda: likelihood.pick(module(*probe.parts)))
            hooked = last_module(module, layers)
        return ThinnedModels(module, hooked, likelihood, probe, self.n_samples, self.p_, fit.seed)


@documented(CLASSIFIER, example="p=0.2, ")
@arguments
class MCDropoutClassifier(ClassifierMethod, _MCDropout):
    """Uncertainty of a network's classification by Monte Carlo dropout.

    Units are dropped at random when predicting, too: every pattern is a plausible model. Only
    dropout changes, batch normalisation and all else stay in evaluation mode; dropout inside
    attention and recurrent layers stays off. The part of the network before the first dropout is
    computed only once for each sample.

    Parameters
    ----------
    n_samples : int
        Thinned networks to average over. They are the same for all samples.
    p : float
        Dropout rate. None takes the network's own dropout layers as they are, and is an error if it
        has none; for the small network that is trained if ``estimator`` is None, it means 0.1. A
        number replaces the rates of all dropout layers, or puts dropout before the last layer of a
        network that has none.

    Attributes
    ----------
    p_ : float or None
        The rate that is used; None for the network's own.

    References
    ----------
    Y. Gal, Z. Ghahramani, "Dropout as a Bayesian Approximation: Representing Model Uncertainty in
    Deep Learning", ICML 2016.
    """


@documented(REGRESSOR, MCDropoutClassifier, example="p=0.2, ")
@arguments
class MCDropoutRegressor(RegressorMethod, _MCDropout):
    """Uncertainty of a network's regression by Monte Carlo dropout."""
