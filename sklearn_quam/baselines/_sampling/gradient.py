"""Steps along gradients of mini-batches, with or without noise, as pure functions of a state."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..._network.free import FreeNetwork
from ..._network.likelihood import GaussianLikelihood
from ..._network.reference import TrainingSet
from .weights import flatten, unflatten

_CURVATURE_ROWS = 512
_POWER_ITERATIONS = 10


class SGHMCState(NamedTuple):
    """Where the chains are and how fast they move.

    Parameters
    ----------
    position : Tensor of shape (n_chains, n_parameters)
        Parameters.
    momentum : Tensor of shape (n_chains, n_parameters)
        Their last change.
    """

    position: Tensor
    momentum: Tensor


def init(position: Tensor) -> SGHMCState:
    """Return the state of chains at rest.

    Parameters
    ----------
    position : Tensor of shape (n_chains, n_parameters)
        Parameters.

    Returns
    -------
    SGHMCState
        The state.
    """
    return SGHMCState(position, torch.zeros_like(position))


def update(
    state: SGHMCState,
    gradient: Tensor,
    noise: Tensor | None = None,
    *,
    step_size: float,
    friction: float,
    temperature: float = 0.0,
) -> SGHMCState:
    """Move the chains by one step.

    Parameters
    ----------
    state : SGHMCState
        Where the chains are.
    gradient : Tensor of shape (n_chains, n_parameters)
        Gradient of the potential, or an estimate of it.
    noise : Tensor of shape (n_chains, n_parameters), default=None
        Standard normal numbers; None only descends, as gradient descent with momentum does.
    step_size : float
        Step size.
    friction : float
        Share of the momentum that is lost in a step.
    temperature : float, default=0.0
        The stationary distribution is exp(-potential / temperature), for small steps.

    Returns
    -------
    SGHMCState
        Where they are now.
    """
    momentum = (1 - friction) * state.momentum - step_size * gradient
    if noise is not None:
        momentum = momentum + math.sqrt(2 * friction * step_size * temperature) * noise
    return SGHMCState(state.position + momentum, momentum)


def mean_gradient(
    network: FreeNetwork,
    training: TrainingSet,
    position: Tensor,
    index: Tensor,
    weight_decay: float,
) -> Tensor:
    """Return the gradient of the mean loss on a mini-batch, with weight decay.

    Parameters
    ----------
    network : FreeNetwork
        The network as a function of its free parameters.
    training : TrainingSet
        The training data.
    position : Tensor of shape (n_models, n_parameters)
        Free parameters.
    index : Tensor of shape (n_batch,)
        Rows of the mini-batch.
    weight_decay : float
        Strength of half the squared norm that is added to the loss.

    Returns
    -------
    Tensor of shape (n_models, n_parameters)
        Gradients.
    """
    leaf = position.detach().requires_grad_()
    losses = network.losses(unflatten(leaf, network.free.start), training, index)
    (gradient,) = torch.autograd.grad(losses.mean(dim=1).sum(), leaf)
    return gradient + weight_decay * position


def loss_scale(network: FreeNetwork) -> float:
    """Return what turns the loss into half the mean squared error, where it is that at all.

    Parameters
    ----------
    network : FreeNetwork
        The network.

    Returns
    -------
    float
        The noise variance of networks that predict the mean only, or 1. Steps along the gradient of
        the likelihood itself would be the larger the better the network fits.
    """
    likelihood = network.executor.likelihood
    if isinstance(likelihood, GaussianLikelihood) and likelihood.noise_variance is not None:
        return float(likelihood.noise_variance.mean())
    return 1.0


def stable_step_size(
    network: FreeNetwork, training: TrainingSet, wanted: float, seed: int
) -> float:
    """Return the wanted step size, or a smaller one where it would diverge at once.

    Steps that are longer than about twice the inverse of the largest curvature of the loss move
    away from a minimum. That curvature is found by a few power iterations, with differences of
    gradients for products with the Hessian.

    Parameters
    ----------
    network : FreeNetwork
        The network as a function of its free parameters.
    training : TrainingSet
        The training data.
    wanted : float
        Step size for the gradient of the mean loss.
    seed : int
        Decides the first direction.

    Returns
    -------
    float
        At most the inverse of the largest curvature.
    """
    given = flatten({name: value[None] for name, value in network.free.start.items()})
    # From all over the data: they may be sorted.
    n_rows = len(training.target)
    rows = torch.arange(0, n_rows, -(-n_rows // _CURVATURE_ROWS), device=given.device)
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(given.shape, generator=generator).to(given)
    distance = 1e-3 * max(1.0, float(given.norm()))
    curvature = 0.0
    for _ in range(_POWER_ITERATIONS):
        direction = direction / direction.norm().clamp(min=torch.finfo(given.dtype).tiny)
        pair = torch.cat([given + distance * direction, given - distance * direction])
        ahead, behind = mean_gradient(network, training, pair, rows, 0.0)
        product = ((ahead - behind) / (2 * distance))[None]
        curvature = float(product.norm())
        direction = product
    return wanted if not curvature > 1 / wanted else 1 / curvature
