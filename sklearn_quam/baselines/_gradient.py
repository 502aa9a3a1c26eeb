"""Steps along gradients of mini-batches, with or without noise, as pure functions of a state."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._network.likelihood import GaussianLikelihood
from ._weights import TrainingLoss

_CURVATURE_ROWS = 512
_POWER_ITERATIONS = 10


class State(NamedTuple):
    """Position and momentum (the last change) of some chains, each (n_chains, n_parameters)."""

    position: Tensor
    momentum: Tensor


def init(position: Tensor) -> State:
    """Return the state of chains at rest."""
    return State(position, torch.zeros_like(position))


def update(
    state: State,
    gradient: Tensor,
    noise: Tensor | None = None,
    *,
    step_size: float,
    friction: float,
    temperature: float = 0.0,
) -> State:
    """Move chains one step of SG-HMC, or of gradient descent with momentum if there is no noise.

    ``friction`` is the share of the momentum that is lost. With standard normal noise, small steps
    sample exp(-potential / temperature), whose potential has the gradient.
    """
    momentum = (1 - friction) * state.momentum - step_size * gradient
    if noise is not None:
        momentum = momentum + math.sqrt(2 * friction * step_size * temperature) * noise
    return State(state.position + momentum, momentum)


def mean_gradient(
    loss: TrainingLoss, position: Tensor, index: Tensor, weight_decay: float = 0.0
) -> Tensor:
    """Return the gradient of the mean loss on a mini-batch, with weight decay."""
    return loss.sum_and_gradient(position, index)[1] / len(index) + weight_decay * position


def stable_step_size(loss: TrainingLoss, learning_rate: float, seed: int) -> float:
    """Return a step size that does not diverge at once: at most the inverse largest curvature.

    Where the noise variance is known, the learning rate is for half the squared error: gradients
    of the likelihood would be the larger the better the network fits. The curvature is found by
    power iterations, with differences of gradients for products with the Hessian.
    """
    likelihood, wanted = loss.network.executor.likelihood, learning_rate
    if isinstance(likelihood, GaussianLikelihood) and likelihood.noise_variance is not None:
        wanted *= float(likelihood.noise_variance.mean())
    given, n_rows = loss.start, len(loss.training)
    # From all over the data: they may be sorted.
    rows = torch.arange(0, n_rows, -(-n_rows // _CURVATURE_ROWS), device=given.device)
    direction = torch.randn(given.shape, generator=torch.Generator().manual_seed(seed)).to(given)
    distance = 1e-3 * max(1.0, float(given.norm()))
    for _ in range(_POWER_ITERATIONS):
        direction = direction / direction.norm().clamp(min=torch.finfo(given.dtype).tiny)
        pair = torch.cat([given + distance * direction, given - distance * direction])
        ahead, behind = mean_gradient(loss, pair, rows)
        direction = (ahead - behind)[None] / (2 * distance)
    curvature = float(direction.norm())
    return wanted if not curvature > 1 / wanted else 1 / curvature
