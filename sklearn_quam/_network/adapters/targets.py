"""Networks that were trained on a transformed target, and predict it in its own units."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from ..outputs import first, picked
from .opened import WRAPPERS, inside


def target_scale(estimator: Any, n_outputs: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return factors and shifts from what the network predicts to the target; None for neither."""
    scale, shift, found = np.ones(n_outputs), np.zeros(n_outputs), False
    while isinstance(estimator, (*WRAPPERS, Pipeline)):
        if isinstance(estimator, TransformedTargetRegressor):
            own_scale, own_shift = _affine(estimator.transformer_, n_outputs)
            # The outermost transformation is undone last.
            scale, shift, found = scale * own_scale, shift + scale * own_shift, True
        estimator = estimator[-1] if isinstance(estimator, Pipeline) else inside(estimator)
    return (scale, shift) if found else None


def _affine(transformer: Any, n_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return factors and shifts of a transformer's inverse; refuse other transformers."""
    points = np.array([[-3.0], [-1.0], [0.0], [1.0], [3.0], [10.0]]) * np.ones(n_outputs)
    with np.errstate(all="ignore"):
        values = np.asarray(transformer.inverse_transform(points), float)
    shift = values[2]
    scale = values[3] - shift
    if not np.allclose(values, points * scale + shift, rtol=1e-6) or not (scale != 0).all():
        raise ValueError(
            "The TransformedTargetRegressor transforms the target by more than a factor and a "
            "shift, so that Gaussians around what the network predicts are none around the target. "
            "Pass the network itself (its regressor_) with the transformed target as y."
        )
    return scale, shift


class TargetUnits(nn.Module):
    """Convert predictions to the units of the target.

    This is not done in the weights of the last layer, so that their prior stays the same.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: np.ndarray, shift: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale), persistent=False)
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Return values of shape (..., n_outputs) in the units of the target."""
        return values * self.scale + self.shift

    def over_middle(self, values: Tensor) -> Tensor:
        """Return the same for values whose outputs are the last axis but one."""
        return values * self.scale[:, None] + self.shift[:, None]


class _InTargetUnits:
    """A network's ``forward`` in the units of the target."""

    def __init__(self, module: nn.Module, output: str | int | None) -> None:
        self.module, self.output = module, output

    def __repr__(self) -> str:
        return "InTargetUnits()"

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        output = type(self.module).forward(self.module, *args, **kwargs)
        output = first(picked(output, self.output))
        units: Any = self.module.target_units
        return units(output if output.ndim == 2 else output[:, None])


def in_target_units(
    module: nn.Module, scale: np.ndarray, shift: np.ndarray, output: str | int | None
) -> None:
    """Let a network return the target in its own units."""
    like = next(module.parameters())
    units = TargetUnits(scale, shift).to(like.device, like.dtype)
    if type(module) is nn.Sequential:
        module.append(units)
        return
    module.add_module("target_units", units)
    module.forward = _InTargetUnits(module, output)
