"""Adversarial model searches, many (point, target) pairs at once.

Each search starts at the given network and moves its own copy of the free parameters. All searches
see the same mini-batch in a step, and none depends on the others: what is found for a row does not
depend on which rows are searched with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._batched import Executor
from ._cache import Rows
from ._free_network import Free, TrainingSet
from ._likelihood import map_prediction
from ._objective import Schedule, Targets
from ._parameters import FreeParameters

# For short-lived results and what an allocator cannot use again.
_MEMORY_RESERVE = 1.25
# Fewer running searches than this share of those in memory are worth moving together.
_COMPACT_BELOW = 0.8


@dataclass(frozen=True)
class Problem:
    """Everything that all searches have in common.

    Parameters
    ----------
    free : FreeParameters
        What may change.
    executor : Executor
        Runs many models at once.
    training : TrainingSet
        What the models have to explain.
    batches : Tensor of shape (n_steps + 1, batch_size)
        Numbers of the training rows of each step.
    evaluation : Tensor of shape (n_evaluation,)
        Numbers of the training rows that the loss of a found model is measured on.
    schedule : Schedule
        Learning rate and penalty of each step.
    targets : ClassTargets or DirectionTargets
        What the searches are after.
    scale : dict of float
        What the learning rate of each free tensor is multiplied by.
    optimizer : {"adam", "sgd"}
        How the free parameters move.
    adam_eps : float
        Adam moves every parameter alike, also those whose gradient is next to nothing, which costs
        training loss and gains nothing. Gradients below this move a parameter less.
    weight_decay : float
        Pull of the free parameters towards zero.
    max_change : float or None
        Largest Euclidean norm of the change of the free parameters.
    slack : float
        Largest loss increase of a feasible model.
    window : int
        Number of the last mini-batches over which loss increases are averaged.
    tolerance : float
        A feasible search has converged when its prediction changes by less from one change of the
        schedule to the next, twice in a row; zero never stops early.
    nudge : float
        Size of a random first displacement, relative to the free parameters.
    given_on_training : Gaussian or None
        What the given network predicts for the training rows, (n_rows, n_outputs), where the
        departure from it is asked for.
    """

    free: FreeParameters
    executor: Executor
    training: TrainingSet
    batches: Tensor
    evaluation: Tensor
    schedule: Schedule
    targets: Targets
    slack: float
    scale: dict[str, float]
    optimizer: str = "adam"
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    max_change: float | None = None
    window: int = 1
    tolerance: float = 0.0
    nudge: float = 0.0
    given_on_training: Any = None


@dataclass
class Visit:
    """The models that the searches have arrived at in a step.

    Parameters
    ----------
    step : int
        Number of the step; the last one is the number of rows of ``batches`` minus one.
    prediction : Tensor of shape (n_searches, n_classes) or Gaussian
        What they predict at the own row of each.
    loss_increase : Tensor of shape (n_searches,)
        Loss on a mini-batch minus the given network's on the same rows, the mean over the last
        `Problem.window` steps, the start left out.
    alive : Tensor of shape (n_searches,), dtype bool
        False for searches that have diverged.
    steps : Tensor of shape (n_searches,), dtype int
        Steps that each search has taken.
    departure : Tensor of shape (n_searches,)
        Mean divergence from the given network's predictions for the step's mini-batch, or zero
        where it is not asked for: the loss increase to be expected if the given network is right.
        It has no part that is linear in the change of the model, which makes the loss increase on
        a mini-batch noisy: on all training rows that part vanishes at the optimum.
    """

    step: int
    prediction: Any
    loss_increase: Tensor
    alive: Tensor
    steps: Tensor
    departure: Tensor


@dataclass
class Checkpoint:
    """Models to look at closely.

    Parameters
    ----------
    number : Tensor of shape (n_models,)
        Numbers of the searches in memory.
    running : Tensor of shape (n_models,), dtype bool
        Which of them have arrived here, and have not ended before.
    ending : Tensor of shape (n_models,), dtype bool
        Which of these end here.
    free : dict of Tensor of shape (n_models, ...)
        Their free parameters.
    own : tuple of Tensor of shape (n_models, ...)
        Values at the cut of their own rows.
    """

    number: Tensor
    running: Tensor
    ending: Tensor
    free: Free
    own: Rows

    def pick(self, which: Tensor) -> tuple[Tensor, Free, Rows]:
        """Return numbers, parameters and rows of some of the models."""
        index = which.nonzero()[:, 0]
        return (
            self.number[index],
            {name: value[index] for name, value in self.free.items()},
            tuple(rows[index] for rows in self.own),
        )


class _Running:
    """The searches that have not ended: their parameters, optimizer and data."""

    def __init__(self, problem: Problem, own: Rows, given: Any, target: Tensor) -> None:
        n_searches = len(target)
        self.problem = problem
        self.number = torch.arange(n_searches, device=target.device)
        self.own, self.given, self.target = own, given, target
        self.free = {
            name: _nudged(start, problem.nudge, seed)
            .expand(n_searches, *start.shape)
            .clone()
            .requires_grad_()
            for seed, (name, start) in enumerate(problem.free.start.items())
        }
        self.optimizer = self._make_optimizer()

    def _make_optimizer(self) -> torch.optim.Optimizer:
        kind: Any = torch.optim.SGD
        options = {}
        if self.problem.optimizer == "adam":
            kind, options = torch.optim.Adam, {"eps": self.problem.adam_eps}
        device = next(iter(self.free.values())).device
        # The fewer groups, the fewer calls.
        groups: dict[float, list[Tensor]] = {}
        for name, value in self.free.items():
            groups.setdefault(self.problem.scale[name], []).append(value)
        return kind(
            [{"params": values, "scale": scale} for scale, values in groups.items()],
            lr=self.problem.schedule.learning_rate,
            weight_decay=self.problem.weight_decay,
            fused=device.type in ("cpu", "cuda"),
            **options,
        )

    def evaluate(self, step: int) -> tuple[Any, Tensor, Tensor]:
        """Return predictions at own rows, losses on the mini-batch, and the departure there."""
        problem, index = self.problem, self.problem.batches[step]
        rows = tuple(part[index] for part in problem.training.rows)
        weights = problem.free.weights(self.free)
        prediction = problem.executor.predict(weights, rows, self.own)
        on_batch = map_prediction(lambda part: part[:, :-1], prediction)
        losses = problem.executor.likelihood.negative_log_likelihood(
            on_batch, problem.training.target[index]
        )
        at_own = map_prediction(lambda part: part[:, -1], prediction)
        batch_loss = problem.training.mean_loss(losses, index)
        return at_own, batch_loss, self._departure(on_batch, index, batch_loss)

    @torch.no_grad()
    def _departure(self, on_batch: Any, index: Tensor, batch_loss: Tensor) -> Tensor:
        problem = self.problem
        if problem.given_on_training is None:
            return torch.zeros_like(batch_loss)
        given = map_prediction(lambda part: part[index], problem.given_on_training)
        return problem.training.mean_loss(problem.targets.divergence(given, on_batch), index)

    def move(self, step: int, at_own: Any, batch_loss: Tensor) -> None:
        """Take a step down the objective, every search by itself."""
        schedule = self.problem.schedule
        target_loss = self.problem.targets.loss(at_own, self.given, self.target)
        objective = target_loss + schedule.penalty_at(step) * batch_loss
        parameters = list(self.free.values())
        gradients = torch.autograd.grad(objective.sum(), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # The fused optimizers walk memory in order: a transposed gradient would be misread.
            parameter.grad = None if gradient is None else gradient.contiguous()
        for group in self.optimizer.param_groups:
            group["lr"] = group["scale"] * schedule.learning_rate_at(step)
        self.optimizer.step()
        if self.problem.max_change is not None:
            self._bound_change(self.problem.max_change)

    @torch.no_grad()
    def _bound_change(self, max_change: float) -> None:
        start = self.problem.free.start
        # Parameters that the network does not use do not move, and may hold anything.
        moved = {name: value for name, value in self.free.items() if value.grad is not None}
        squares = sum(
            ((value - start[name]) ** 2).flatten(1).sum(dim=1) for name, value in moved.items()
        )
        factor = (max_change / torch.as_tensor(squares).sqrt()).clamp(max=1.0)
        for name, value in moved.items():
            scale = factor.reshape(-1, *[1] * (value.ndim - 1))
            value.copy_(torch.where(scale < 1, start[name] + scale * (value - start[name]), value))

    @torch.no_grad()
    def checkpoint(self, progress: _Progress, was_running: Tensor, final: bool) -> Checkpoint:
        """Return the models that have just been evaluated, without those that diverged or ended."""
        running = was_running & progress.alive[self.number]
        ending = running if final else running & ~progress.running[self.number]
        free = {name: value.detach() for name, value in self.free.items()}
        return Checkpoint(self.number, running, ending, free, self.own)

    @torch.no_grad()
    def keep(self, running: Tensor) -> None:
        """Go on with some of the searches only."""
        kept = running.nonzero()[:, 0]
        old_states = [self.optimizer.state.get(value, {}) for value in self.free.values()]
        self.number, self.target = self.number[kept], self.target[kept]
        self.own = tuple(rows[kept] for rows in self.own)
        self.given = map_prediction(lambda part: part[kept], self.given)
        self.free = {
            name: value[kept].clone().requires_grad_() for name, value in self.free.items()
        }
        self.optimizer = self._make_optimizer()
        for value, state in zip(self.free.values(), old_states, strict=True):
            self.optimizer.state[value] = {
                key: part[kept] if isinstance(part, Tensor) and part.ndim else part
                for key, part in state.items()
            }


def run_searches(
    problem: Problem,
    own: Rows,
    given: Any,
    target: Tensor,
    *,
    on_visit: Callable[[Visit], None],
    on_checkpoint: Callable[[Checkpoint], None],
) -> None:
    """Search for adversarial models, all pairs of a row and a target together.

    Parameters
    ----------
    problem : Problem
        What the searches have in common.
    own : tuple of Tensor of shape (n_searches, ...)
        Values at the cut of the row of each search.
    given : Tensor of shape (n_searches, n_classes) or Gaussian
        What the given network predicts for it.
    target : Tensor of shape (n_searches,)
        What each search is after.
    on_visit : callable
        Called with the `Visit` of every step, the given network first.
    on_checkpoint : callable
        Called with a `Checkpoint` before every change of the schedule and at the end.
    """
    running = _Running(problem, own, given, target)
    progress = _Progress(problem, given, len(target), target.device)
    n_steps = len(problem.batches) - 1
    for step in range(n_steps + 1):
        at_boundary = step > 0 and step % problem.schedule.every == 0
        if len(running.number):
            with torch.set_grad_enabled(step < n_steps):
                at_own, batch_loss, departure = running.evaluate(step)
            was_running = progress.running[running.number]
            progress.note(step, running.number, at_own, batch_loss, departure)
            if at_boundary or step == n_steps:
                progress.end_converged()
                on_checkpoint(running.checkpoint(progress, was_running, step == n_steps))
        on_visit(progress.visit(step))
        if step < n_steps and len(running.number):
            running.move(step, at_own, batch_loss)
            if at_boundary:
                still_running = progress.running[running.number]
                if float(still_running.float().mean()) < _COMPACT_BELOW:
                    running.keep(still_running)


class _Progress:
    """Where all searches have got to, the ended ones among them.

    An ended search stays where it was, whether or not it is still moved along in memory, so that
    its result does not depend on the searches beside it.
    """

    def __init__(self, problem: Problem, given: Any, n_searches: int, device: torch.device) -> None:
        self._problem, self._given = problem, given
        self.running = torch.ones(n_searches, dtype=torch.bool, device=device)
        self.alive = torch.ones_like(self.running)
        self._steps = torch.zeros(n_searches, dtype=torch.long, device=device)
        dtype = problem.training.losses.dtype
        self._increase = torch.zeros(n_searches, device=device, dtype=dtype)
        # A single mini-batch may be lucky, and weights would pick the lucky ones.
        self._last_increases = torch.zeros(problem.window, n_searches, device=device, dtype=dtype)
        self._departure = torch.zeros_like(self._increase)
        self._prediction = given
        self._last_position = problem.targets.position(given, given)
        self._still = torch.zeros_like(self.running)

    @torch.no_grad()
    def note(
        self, step: int, number: Tensor, at_own: Any, batch_loss: Tensor, departure: Tensor
    ) -> None:
        """Take over what the running searches have arrived at; those that diverged end."""
        index, training = self._problem.batches[step], self._problem.training
        reference = training.mean_loss(training.losses[index], index)
        was_running = self.running[number]
        fine = is_finite(at_own) & torch.isfinite(batch_loss)
        self.alive[number] = self.alive[number] & (fine | ~was_running)
        self.running[number] = was_running & fine
        moved = was_running & fine
        self._steps[number] = torch.where(moved, step, self._steps[number])
        # The start, which costs nothing, must not make the first steps look cheaper: step 1 takes
        # its place.
        n_moved, window = max(step, 1), self._problem.window
        self._last_increases[(n_moved - 1) % window, number] = batch_loss - reference
        n_known = min(n_moved, window)
        recent = self._last_increases[:, number].sum(dim=0) / n_known
        increase = torch.where(moved, recent, self._increase[number])
        self._increase = self._increase.index_copy(0, number, increase)
        departure = torch.where(moved, departure, self._departure[number])
        self._departure = self._departure.index_copy(0, number, departure)
        self._prediction = map_prediction(
            lambda whole, part: whole.index_copy(
                0, number, torch.where(moved[:, None], part.to(whole), whole[number])
            ),
            self._prediction,
            at_own,
        )

    def end_converged(self) -> None:
        """End the searches that have changed little, since the last call and the one before."""
        position = self._problem.targets.position(self._prediction, self._given)
        still = (position - self._last_position).abs().amax(dim=-1) < self._problem.tolerance
        # A model that does not explain the data is still to be led back by the growing penalty.
        still &= self._increase <= self._problem.slack
        self.running = self.running & ~(still & self._still)
        self._last_position, self._still = position, still

    def visit(self, step: int) -> Visit:
        """Return what the step has led to."""
        return Visit(
            step,
            self._prediction,
            self._increase,
            self.alive.clone(),
            self._steps,
            self._departure,
        )


def is_finite(prediction: Any) -> Tensor:
    """Tell which predictions are finite in all their parts, (n_searches,)."""
    parts = [prediction] if isinstance(prediction, Tensor) else list(prediction)
    fine = torch.stack([torch.isfinite(part).all(dim=-1) for part in parts])
    return fine.all(dim=0)


def _nudged(start: Tensor, size: float, seed: int) -> Tensor:
    if size == 0:
        return start
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(start.shape, generator=generator).to(start)
    return start + size * start.square().mean().sqrt() * noise


@torch.no_grad()
def evaluate_models(problem: Problem, free: Free, own: Rows) -> tuple[Any, Tensor]:
    """Measure models on the fixed evaluation rows.

    Parameters
    ----------
    problem : Problem
        What the searches have in common.
    free : dict of Tensor of shape (n_models, ...)
        Free parameters of the models.
    own : tuple of Tensor of shape (n_models, ...)
        Values at the cut of the own row of each.

    Returns
    -------
    prediction : Tensor of shape (n_models, n_classes) or Gaussian
        What they predict at their own row.
    loss_increase : Tensor of shape (n_models,)
        Their mean loss on the evaluation rows minus the given network's.
    """
    weights = problem.free.weights(free)
    total = problem.training.losses.new_zeros(len(own[0]))
    for index in problem.evaluation.split(problem.batches.shape[1]):
        rows = tuple(part[index] for part in problem.training.rows)
        prediction = problem.executor.predict(weights, rows, own)
        losses = problem.executor.likelihood.negative_log_likelihood(
            map_prediction(lambda part: part[:, :-1], prediction), problem.training.target[index]
        )
        change = losses - problem.training.losses[index]
        total = total + problem.training.mean_loss(change, index) * len(index)
    at_own = map_prediction(lambda part: part[:, -1], prediction)
    return at_own, total / len(problem.evaluation)


def bytes_per_search(problem: Problem, own: Rows) -> int:
    """Return the memory that one more search needs, measured on a few.

    Parameters
    ----------
    problem : Problem
        What the searches have in common.
    own : tuple of Tensor of shape (n_rows, ...)
        Values at the cut of some rows.

    Returns
    -------
    int
        Bytes: parameters, gradients and optimizer state, and what the backward pass keeps.
    """
    few = tuple(rows[:2] for rows in own)
    free = {
        name: start.expand(len(few[0]), *start.shape).clone().requires_grad_()
        for name, start in problem.free.start.items()
    }
    rows = tuple(part[problem.batches[0]] for part in problem.training.rows)
    values = problem.executor.bytes_per_model(problem.free.weights(free), rows, few)
    parameters = sum(start.numel() * start.element_size() for start in problem.free.start.values())
    own_rows = sum(part[:1].numel() * part.element_size() for part in own)
    # Values, gradients and two moments of Adam, and one spare copy while searches are moved.
    needed = 5 * parameters + values + 2 * own_rows
    return int(_MEMORY_RESERVE * needed)
