"""Steps of penalty search: Adam on the loss of a target plus a penalty on the training loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam

from ..._network.free import Free
from ..._network.outputs import NetworkErrors
from ..problem import Problem
from ..searches import Searches, models_at


@dataclass(frozen=True, eq=False)
class PenaltyState:
    """Running searches: their models, and the moments of their gradients."""

    # (n_searches, ...): free parameters; running means of gradients, and of their squares
    free: Free
    first: Free
    second: Free
    count: Free  # Steps that each free tensor has taken
    searches: Searches  # Each with a sample of its own
    # (window, n_searches): loss increases on the mini-batches of the last steps
    last_increases: Tensor


class Evaluation(NamedTuple):
    """Predictions and costs of the current models of searches."""

    at_query: Any  # Predictions for the sample of each search
    # (n_searches,): mean loss minus the given network's, over the last mini-batches
    loss_increase: Tensor
    # Loss increase to be expected on this mini-batch if the given network is right
    expected_increase: Tensor
    # Loss on this mini-batch
    batch_loss: Tensor
    last_increases: Tensor


@dataclass(frozen=True, eq=False)
class PenaltySteps:
    """Adam steps; see `PenaltySearch` for the arguments."""

    learning_rate: float
    learning_rate_decay: float
    penalty: float
    penalty_growth: float
    penalty_every: int
    adam_epsilon: float
    weight_decay: float
    max_change: float | None
    tol: float
    slack: float
    # (n_steps + 1, batch_size): the training samples of each step, and of the last model
    batches: Tensor
    # Factors on the learning rate of free tensors, if not one
    scale: dict[str, float]
    # Mini-batches over which loss increases are averaged: a single one may be lucky
    window: int
    perturbation: float  # Size of a random first displacement, relative to the free parameters

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return len(self.batches) - 1

    def init(self, problem: Problem, searches: Searches) -> PenaltyState:
        """Return the state of searches that start at, or next to, the given network."""
        free = {
            name: _perturbed(value, self.perturbation, seed)
            .expand(len(searches), *value.shape)
            .clone()
            .requires_grad_()
            for seed, (name, value) in enumerate(problem.network.free.start.items())
        }
        return PenaltyState(
            free,
            {name: torch.zeros_like(value, requires_grad=False) for name, value in free.items()},
            {name: torch.zeros_like(value, requires_grad=False) for name, value in free.items()},
            {name: torch.zeros((), device=value.device) for name, value in free.items()},
            searches.each(),
            problem.training.losses.new_zeros(self.window, len(searches)),
        )

    def evaluate(self, problem: Problem, state: PenaltyState, step: int) -> Evaluation:
        """Return predictions for the samples, and losses on the mini-batch of a step."""
        index, training = self.batches[step], problem.training
        on_batch, at_query = problem.predict(state.free, index, state.searches.query)
        batch_loss = training.mean_loss(problem.losses(on_batch, index), index)
        # The start costs nothing, which must not make the first steps look cheaper: step 1 takes
        # its place.
        n_moved = max(step, 1)
        place = torch.tensor([(n_moved - 1) % self.window], device=batch_loss.device)
        increase = batch_loss.detach() - training.mean_loss(training.losses[index], index)
        last = state.last_increases.index_copy(0, place, increase[None])
        mean = last.sum(dim=0) / min(n_moved, self.window)
        expected = problem.expected_increase(on_batch, index)
        return Evaluation(at_query, mean, expected, batch_loss, last)

    def update(
        self, problem: Problem, state: PenaltyState, evaluation: Evaluation, step: int
    ) -> PenaltyState:
        """Take a step down the objective, each search by itself, in the memory of the state."""
        targets: Any = problem.targets
        searches = state.searches
        n_changes = step // self.penalty_every
        loss = targets.loss(evaluation.at_query, searches.given, searches.target)
        objective = loss + self.penalty * self.penalty_growth**n_changes * evaluation.batch_loss
        with NetworkErrors():
            found = torch.autograd.grad(
                objective.sum(), list(state.free.values()), allow_unused=True
            )
        # Parameters that the network does not use do not move, and may hold anything. Contiguous:
        # the fused steps would misread a transposed gradient.
        gradients = {
            name: gradient.contiguous()
            for name, gradient in zip(state.free, found, strict=True)
            if gradient is not None
        }
        self._move(state, gradients, self.learning_rate / self.learning_rate_decay**n_changes)
        if self.max_change is not None:
            _bound_change(state.free, problem.network.free.start, gradients, self.max_change)
        return replace(state, last_increases=evaluation.last_increases)

    @torch.no_grad()
    def _move(self, state: PenaltyState, gradients: Free, learning_rate: float) -> None:
        """Take a step of Adam; tensors of the same learning rate go together."""
        groups: dict[float, list[str]] = {}
        for name in gradients:
            groups.setdefault(self.scale.get(name, 1.0), []).append(name)
        for scale, names in groups.items():
            values = [state.free[name] for name in names]
            adam(
                values,
                [gradients[name] for name in names],
                [state.first[name] for name in names],
                [state.second[name] for name in names],
                [],
                [state.count[name] for name in names],
                fused=values[0].device.type in ("cpu", "cuda"),
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=scale * learning_rate,
                weight_decay=self.weight_decay,
                eps=self.adam_epsilon,
                maximize=False,
            )

    @torch.no_grad()
    def keep(self, state: PenaltyState, index: Tensor) -> PenaltyState:
        """Return the state of some of the searches."""
        return PenaltyState(
            {name: value.requires_grad_() for name, value in models_at(state.free, index).items()},
            models_at(state.first, index),
            models_at(state.second, index),
            {name: value.clone() for name, value in state.count.items()},
            state.searches.at(index),
            state.last_increases[:, index],
        )


def _perturbed(start: Tensor, size: float, seed: int) -> Tensor:
    """Return a parameter with noise of a relative size; untargeted losses are flat without."""
    if size == 0:
        return start
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(seed)).to(start)
    return start + size * start.square().mean().sqrt() * noise


@torch.no_grad()
def _bound_change(free: Free, start: Free, moved: Free, max_change: float) -> None:
    """Shorten changes of the moved parameters to the largest Euclidean norm, in place."""
    squares = [(free[name] - start[name]).flatten(1).square().sum(dim=1) for name in moved]
    factor = (max_change / torch.stack(squares).sum(dim=0).sqrt()).clamp(max=1.0)
    for name in moved:
        value = free[name]
        scale = factor.reshape(-1, *[1] * (value.ndim - 1))
        value.copy_(torch.where(scale < 1, start[name] + scale * (value - start[name]), value))
