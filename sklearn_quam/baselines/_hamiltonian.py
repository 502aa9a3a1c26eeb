"""Hamiltonian dynamics of several chains at once, as pure functions of their state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# An integration whose energy has grown by more than this has failed.
_MAX_ENERGY_ERROR = 1000.0

# Takes positions and returns minus their unnormalised log posterior, and its gradient.
Potential = Callable[[Tensor], tuple[Tensor, Tensor]]


class State(NamedTuple):
    """Chains: position (n_chains, n_parameters), potential (n_chains,) and its gradient."""

    position: Tensor
    potential: Tensor
    gradient: Tensor


def init(position: Tensor, potential: Potential) -> State:
    """Return the state of chains that start at some positions."""
    return State(position, *potential(position))


def draw(state: State, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the momentum of each parameter and a uniform number for each chain."""
    momentum = torch.randn(state.position.shape, generator=generator)
    uniform = torch.rand(len(state.position), generator=generator)
    return momentum.to(state.position), uniform.to(state.position)


def update(
    state: State,
    potential: Potential,
    momentum: Tensor,
    uniform: Tensor,
    *,
    step_size: float,
    n_leapfrog: int,
) -> tuple[State, Tensor]:
    """Move each chain by one trajectory, or leave it; return the probabilities to move, too."""
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
    moved = State(
        torch.where(accepted[:, None], position, state.position),
        torch.where(accepted, value, state.potential),
        torch.where(accepted[:, None], gradient, state.gradient),
    )
    return moved, acceptance


def first_step_size(state: State, potential: Potential, generator: torch.Generator) -> float:
    """Return 0.1, halved until a single step is accepted more often than not."""
    size = 0.1
    for _ in range(30):
        drawn = draw(state, generator)
        if update(state, potential, *drawn, step_size=size, n_leapfrog=1)[1].mean() > 0.5:
            break
        size /= 2
    return size


class StepSize:
    """Adapts the step size to an acceptance rate by dual averaging (Hoffman and Gelman, 2014)."""

    def __init__(self, start: float, target: float) -> None:
        self._centre = math.log(10 * start)
        self._target = target
        self._error = self._average = 0.0
        self._count = 0
        self.value = start

    def adapt(self, acceptance: float) -> None:
        """Take the acceptance rate of the last trajectories into account."""
        self._count += 1
        share = 1 / (self._count + 10)
        self._error = (1 - share) * self._error + share * (self._target - acceptance)
        logarithm = self._centre - math.sqrt(self._count) / 0.05 * self._error
        share = self._count**-0.75
        self._average = share * logarithm + (1 - share) * self._average
        self.value = math.exp(logarithm)

    def settle(self) -> None:
        """Use the average from now on."""
        if self._count:
            self.value = math.exp(self._average)
