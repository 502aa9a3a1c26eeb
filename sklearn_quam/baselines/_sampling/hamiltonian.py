"""Hamiltonian dynamics of several chains at once, as pure functions of their state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# An energy that has grown by more than this is an integration that went astray.
_MAX_ENERGY_ERROR = 1000.0

Potential = Callable[[Tensor], tuple[Tensor, Tensor]]


class HMCState(NamedTuple):
    """Where the chains are.

    Parameters
    ----------
    position : Tensor of shape (n_chains, n_parameters)
        Parameters.
    potential : Tensor of shape (n_chains,)
        Minus the unnormalised log posterior.
    gradient : Tensor of shape (n_chains, n_parameters)
        Its gradient.
    """

    position: Tensor
    potential: Tensor
    gradient: Tensor


def init(position: Tensor, potential: Potential) -> HMCState:
    """Return the state of chains that start at some positions.

    Parameters
    ----------
    position : Tensor of shape (n_chains, n_parameters)
        Parameters.
    potential : callable
        Returns the potential and its gradient.

    Returns
    -------
    HMCState
        The state.
    """
    return HMCState(position, *potential(position))


def update(
    state: HMCState,
    potential: Potential,
    momentum: Tensor,
    uniform: Tensor,
    *,
    step_size: float,
    n_leapfrog: int,
) -> tuple[HMCState, Tensor]:
    """Move all chains by one trajectory each, accepted or rejected one by one.

    Parameters
    ----------
    state : HMCState
        Where the chains are.
    potential : callable
        Returns the potential and its gradient.
    momentum : Tensor of shape (n_chains, n_parameters)
        Standard normal numbers.
    uniform : Tensor of shape (n_chains,)
        Numbers between 0 and 1.
    step_size : float
        Length of a leapfrog step.
    n_leapfrog : int
        Number of leapfrog steps.

    Returns
    -------
    HMCState
        Where the chains are now.
    acceptance : Tensor of shape (n_chains,)
        Probability with which each was accepted.
    """
    position, _, gradient = state
    energy = state.potential + 0.5 * momentum.square().sum(dim=1)
    for _ in range(n_leapfrog):
        momentum = momentum - 0.5 * step_size * gradient
        position = position + step_size * momentum
        value, gradient = potential(position)
        momentum = momentum - 0.5 * step_size * gradient
    error = value + 0.5 * momentum.square().sum(dim=1) - energy
    fine = torch.isfinite(error) & (error < _MAX_ENERGY_ERROR)
    acceptance = torch.where(fine, (-error).exp().clamp(max=1.0), 0.0)
    accepted = uniform < acceptance
    moved = HMCState(
        torch.where(accepted[:, None], position, state.position),
        torch.where(accepted, value, state.potential),
        torch.where(accepted[:, None], gradient, state.gradient),
    )
    return moved, acceptance


class StepSize:
    """Adapts the step size to an acceptance rate by dual averaging (Hoffman and Gelman, 2014).

    Parameters
    ----------
    start : float
        First step size.
    target : float
        Wanted acceptance rate.
    """

    def __init__(self, start: float, target: float) -> None:
        self._centre = math.log(10 * start)
        self._target = target
        self._error = self._average = 0.0
        self._count = 0
        self.value = start

    def adapt(self, acceptance: float) -> None:
        """Take the acceptance rate of the last trajectories into account."""
        self._count += 1
        count = self._count
        share = 1 / (count + 10)
        self._error = (1 - share) * self._error + share * (self._target - acceptance)
        logarithm = self._centre - math.sqrt(count) / 0.05 * self._error
        share = count**-0.75
        self._average = share * logarithm + (1 - share) * self._average
        self.value = math.exp(logarithm)

    def settle(self) -> None:
        """Take the average from now on."""
        if self._count:
            self.value = math.exp(self._average)


def first_step_size(state: HMCState, move: Callable[..., tuple[HMCState, float]]) -> float:
    """Return 0.1, halved until a single step is accepted more often than not.

    Parameters
    ----------
    state : HMCState
        Where the chains are.
    move : callable
        Returns, for a state, a step size and a number of steps, the next state and the mean
        probability of acceptance.

    Returns
    -------
    float
        Step size.
    """
    size = 0.1
    for _ in range(30):
        if move(state, size, 1)[1] > 0.5:
            break
        size /= 2
    return size
