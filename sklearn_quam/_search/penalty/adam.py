"""Steps of penalty search: Adam on the loss of a target and a penalty on the training loss."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam

from ..._network.free import Free, draw_batches
from ..._network.outputs import NetworkErrors
from ..._network.predictions import Prediction
from ..._network.reference import Rows
from ..problem import Problem
from ..searches import Searches


@dataclass(frozen=True)
class Schedule:
    """How learning rate and penalty change from step to step.

    The penalty weight (c in the paper) grows and the learning rate falls by a factor every so many
    steps: first the model is led away, then it has to explain the training data again.

    Parameters
    ----------
    learning_rate, learning_rate_decay : float
        Where the learning rate starts, and what it is divided by.
    penalty, penalty_growth : float
        Where the penalty weight starts, and what it is multiplied by.
    every : int
        Steps from one change to the next.
    """

    learning_rate: float
    learning_rate_decay: float
    penalty: float
    penalty_growth: float
    every: int

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.learning_rate / self.learning_rate_decay ** (step // self.every)

    def penalty_at(self, step: int) -> float:
        """Return the penalty weight of a step."""
        return self.penalty * self.penalty_growth ** (step // self.every)


class Drawn(NamedTuple):
    """What mini-batches were drawn with; see `draw_batches`."""

    n_rows: int
    batch_size: int
    n_batches: int
    generator_state: Tensor


@dataclass(frozen=True, eq=False)
class PenaltyState:
    """Searches with the moments of their gradients, and what their last steps have cost.

    Parameters
    ----------
    free : dict of Tensor of shape (n_searches, ...)
        The free parameters of the model that each search has arrived at.
    query : tuple of Tensor of shape (n_searches, ...)
        Values at the cut of the sample of each search.
    original : Prediction
        What the given network predicts for it.
    target : Tensor of shape (n_searches,)
        Its target.
    first, second : dict of Tensor of shape (n_searches, ...)
        Running means of gradients and of their squares.
    count : dict of Tensor
        Steps that each free tensor has been moved by.
    last_increases : Tensor of shape (window, n_searches)
        Loss increases on the mini-batches of the last steps.
    """

    free: Free
    query: Rows
    original: Any
    target: Tensor
    first: Free
    second: Free
    count: Free
    last_increases: Tensor


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the models that searches have arrived at predict and cost.

    Parameters
    ----------
    at_query : Prediction
        What they predict for the sample of each search.
    loss_increase : Tensor of shape (n_searches,)
        Mean training loss minus the given network's, over the last mini-batches.
    expected_increase : Tensor of shape (n_searches,)
        The loss increase to be expected on this mini-batch if the given network is right.
    batch_loss : Tensor of shape (n_searches,)
        Loss on the mini-batch of the step.
    last_increases : Tensor of shape (window, n_searches)
        Loss increases on the last mini-batches, this one among them.
    """

    at_query: Prediction
    loss_increase: Tensor
    expected_increase: Tensor
    batch_loss: Tensor
    last_increases: Tensor


@dataclass(frozen=True, eq=False)
class PenaltySteps:
    """Adam steps down the loss of the target and a penalty on the training loss.

    Parameters
    ----------
    batches : Tensor of shape (n_batches, batch_size)
        Numbers of the training samples of a mini-batch for each step, and for the last model. They
        are drawn again, not stored: there may be thousands.
    drawn : Drawn
        What they were drawn with.
    schedule : Schedule
        Learning rate and penalty of each step.
    scale : dict of float
        What the learning rate of a free tensor is multiplied by, if not one.
    adam_epsilon, weight_decay, max_change
        See `PenaltySearch`.
    window : int
        Number of the last mini-batches over which loss increases are averaged: a single one may be
        lucky, and weights would pick the lucky ones.
    tolerance : float
        See `PenaltySearch`, ``tol``.
    slack : float
        Largest increase of the mean loss at which a search may have converged.
    perturbation : float
        Size of a random first displacement, relative to the free parameters.
    """

    batches: Tensor
    drawn: Drawn
    schedule: Schedule
    scale: dict[str, float]
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_change: float | None = None
    window: int = 1
    tolerance: float = 0.0
    slack: float = 0.0
    perturbation: float = 0.0
    # The values of more leave the caches.
    at_once_on_cpu = 160

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return len(self.batches) - 1

    @property
    def every(self) -> int:
        """Steps from one change of the schedule to the next."""
        return self.schedule.every

    @property
    def rows_at_once(self) -> int:
        """Training rows of one pass."""
        return self.batches.shape[1]

    def init(self, problem: Problem, searches: Searches) -> PenaltyState:
        """Return the state of searches that start at, or next to, the given network."""
        n_searches, start = len(searches), problem.network.free.start
        free = {
            name: _perturbed(value, self.perturbation, seed)
            .expand(n_searches, *value.shape)
            .clone()
            .requires_grad_()
            for seed, (name, value) in enumerate(start.items())
        }
        return PenaltyState(
            free,
            searches.queries,
            searches.original,
            searches.target,
            first={name: torch.zeros_like(v, requires_grad=False) for name, v in free.items()},
            second={name: torch.zeros_like(v, requires_grad=False) for name, v in free.items()},
            count={name: torch.zeros((), device=value.device) for name, value in free.items()},
            last_increases=problem.training.losses.new_zeros(self.window, n_searches),
        )

    def evaluate(self, problem: Problem, state: PenaltyState, step: int) -> Evaluation:
        """Return predictions at query rows, and losses on the step's mini-batch."""
        index, training = self.batches[step], problem.training
        on_batch, at_query = problem.predict(state.free, index, state.query)
        batch_loss = training.mean_loss(problem.losses(on_batch, index), index)
        # The start, which costs nothing, must not make the first steps look cheaper: step 1 takes
        # its place.
        n_moved = max(step, 1)
        slot = torch.tensor([(n_moved - 1) % self.window], device=batch_loss.device)
        increase = batch_loss.detach() - training.mean_loss(training.losses[index], index)
        last = state.last_increases.index_copy(0, slot, increase[None])
        return Evaluation(
            at_query,
            last.sum(dim=0) / min(n_moved, self.window),
            problem.expected_increase(on_batch, index),
            batch_loss,
            last,
        )

    def update(
        self, problem: Problem, state: PenaltyState, evaluation: Evaluation, step: int
    ) -> PenaltyState:
        """Take a step down the objective, every search by itself, in the memory of the state."""
        targets: Any = problem.targets
        loss = targets.loss(evaluation.at_query, state.original, state.target)
        objective = loss + self.schedule.penalty_at(step) * evaluation.batch_loss
        with NetworkErrors():
            gradients = torch.autograd.grad(
                objective.sum(), list(state.free.values()), allow_unused=True
            )
        # Parameters that the network does not use do not move, and may hold anything.
        # The fused steps walk memory in order: a transposed gradient would be misread.
        moving = {
            name: gradient.contiguous()
            for name, gradient in zip(state.free, gradients, strict=True)
            if gradient is not None
        }
        self._adam(state, moving, self.schedule.learning_rate_at(step))
        if self.max_change is not None:
            _bound_change(state.free, problem.network.free.start, list(moving), self.max_change)
        return dataclasses.replace(state, last_increases=evaluation.last_increases)

    @torch.no_grad()
    def _adam(self, state: PenaltyState, gradients: Free, learning_rate: float) -> None:
        # The fewer groups, the fewer calls.
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
            {name: value[index].clone().requires_grad_() for name, value in state.free.items()},
            tuple(rows[index] for rows in state.query),
            state.original[index],
            state.target[index],
            first={name: value[index] for name, value in state.first.items()},
            second={name: value[index] for name, value in state.second.items()},
            count={name: value.clone() for name, value in state.count.items()},
            last_increases=state.last_increases[:, index],
        )

    def free(self, state: PenaltyState, index: Tensor) -> Free:
        """Return the free parameters of some of the models."""
        return {name: value.detach()[index] for name, value in state.free.items()}

    def shortened(self) -> PenaltySteps:
        """Return the same with a single step, to find out how much memory it takes."""
        return dataclasses.replace(self, batches=self.batches[:2])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "batches": self.batches.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        drawn, generator = state["drawn"], torch.Generator()
        generator.set_state(drawn.generator_state)
        batches = draw_batches(drawn.n_rows, drawn.batch_size, drawn.n_batches, generator)
        self.__dict__.update({**state, "batches": batches.to(state["batches"])})


def _perturbed(start: Tensor, size: float, seed: int) -> Tensor:
    if size == 0:
        return start
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(start.shape, generator=generator).to(start)
    return start + size * start.square().mean().sqrt() * noise


@torch.no_grad()
def _bound_change(free: Free, start: Free, moved: list[str], max_change: float) -> None:
    """Shorten changes of parameters to the largest Euclidean norm, in place."""
    squares = sum(
        ((free[name] - start[name]) ** 2).reshape(len(free[name]), -1).sum(dim=1) for name in moved
    )
    factor = (max_change / torch.as_tensor(squares).sqrt()).clamp(max=1.0)
    for name in moved:
        value = free[name]
        scale = factor.reshape(-1, *[1] * (value.ndim - 1))
        value.copy_(torch.where(scale < 1, start[name] + scale * (value - start[name]), value))
