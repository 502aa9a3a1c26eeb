"""Adversarial model searches, many (row, target) pairs at once.

Each search starts at the given network and moves its own copy of the free parameters. None depends
on the others: what is found for a row does not depend on which rows are searched with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from .._network.free import Free
from .._network.predictions import Prediction
from .._network.reference import Rows
from .problem import Problem
from .steps import Evaluation, Steps

# Fewer running searches than this share of those in memory are worth moving together.
_COMPACT_BELOW = 0.8


@dataclass(frozen=True, eq=False)
class Visit:
    """The models that the searches have arrived at in a step.

    Parameters
    ----------
    step : int
        Number of the step.
    prediction : Prediction
        What they predict at the query row of each.
    loss_increase : Tensor of shape (n_searches,)
        See `Evaluation`.
    alive : Tensor of shape (n_searches,), dtype bool
        False for searches that have diverged.
    steps : Tensor of shape (n_searches,), dtype int
        Steps that each search has taken.
    expected_increase : Tensor of shape (n_searches,)
        See `Evaluation`; zero where it is not asked for.
    """

    step: int
    prediction: Any
    loss_increase: Tensor
    alive: Tensor
    steps: Tensor
    expected_increase: Tensor


@dataclass(frozen=True, eq=False)
class Candidates:
    """Models to look at closely.

    Parameters
    ----------
    number : Tensor of shape (n_models,)
        Numbers of the searches in memory.
    running : Tensor of shape (n_models,), dtype bool
        Which of them have arrived here, and have not ended before.
    evaluation : Evaluation
        What they predict and cost.
    free_of : callable
        Returns the free parameters of models that are given by their places.
    """

    number: Tensor
    running: Tensor
    evaluation: Evaluation
    free_of: Callable[[Tensor], Free]

    def pick(self, which: Tensor) -> tuple[Tensor, Free]:
        """Return numbers and parameters of some of the models."""
        index = which.nonzero()[:, 0]
        return self.number[index], self.free_of(index)


class Watcher(Protocol):
    """Who is told where searches get to."""

    def on_visit(self, visit: Visit) -> None:
        """Take the models of every step, the given network first."""

    def on_candidates(self, candidates: Candidates) -> None:
        """Take models to look at closely, from time to time and at the end of each search."""


@dataclass
class Reporter:
    """Tells how far searches have got, and hands on what it is told.

    Parameters
    ----------
    watcher : Watcher
        Who is told everything.
    report : callable
        Is told the share of the steps that is done.
    n_steps : int
        How many there are.
    """

    watcher: Watcher
    report: Callable[[float], None]
    n_steps: int

    def on_visit(self, visit: Visit) -> None:
        """Take the models of every step."""
        self.watcher.on_visit(visit)
        self.report(visit.step / max(1, self.n_steps))

    def on_candidates(self, candidates: Candidates) -> None:
        """Take models to look at closely."""
        self.watcher.on_candidates(candidates)


def run_searches(
    problem: Problem,
    steps: Steps,
    query: Rows,
    original: Prediction,
    target: Tensor,
    n_targets: int,
    watcher: Watcher,
) -> None:
    """Run one search for each row and target, all at once.

    Parameters
    ----------
    problem : Problem
        What the searches have in common.
    steps : Steps
        How they move.
    query : tuple of Tensor of shape (n_searches, ...)
        Values at the cut of the row that each search is about.
    original : Prediction
        What the given network predicts for it.
    target : Tensor of shape (n_searches,)
        What each search is after.
    n_targets : int
        Searches for each row, side by side.
    watcher : Watcher
        Is told where the searches get to.
    """
    state = steps.init(problem, query, original, target, n_targets)
    number = torch.arange(len(target), device=target.device)
    progress = _Progress(problem, steps, original, number)
    for step in range(steps.n_steps + 1):
        last, look = step == steps.n_steps, step > 0 and step % steps.every == 0
        if len(number):
            with torch.set_grad_enabled(not last):
                evaluation = steps.evaluate(problem, state, step)
            was_running = progress.running[number]
            progress.note(step, number, evaluation)
            if look or last:
                progress.end_converged()
                running = was_running & progress.alive[number]
                free_of = partial(steps.free, problem, state)
                with torch.no_grad():
                    watcher.on_candidates(Candidates(number, running, evaluation, free_of))
        watcher.on_visit(progress.visit(step))
        if not last and len(number):
            state = steps.update(problem, state, evaluation, step)
            still_running = progress.running[number]
            if steps.drops_ended and look and float(still_running.float().mean()) < _COMPACT_BELOW:
                kept = still_running.nonzero()[:, 0]
                state, number = steps.keep(state, kept), number[kept]


class _Progress:
    """Where all searches have got to, the ended ones among them.

    An ended search stays where it was, whether or not it is still moved along in memory, so that
    its result does not depend on the searches beside it.
    """

    def __init__(
        self, problem: Problem, steps: Steps, original: Prediction, number: Tensor
    ) -> None:
        # The kind of targets is that of the predictions.
        targets: Any = problem.targets
        self._targets = targets
        self._slack, self._tolerance = problem.slack, steps.tolerance
        self._original = self._prediction = original
        self.running = torch.ones_like(number, dtype=torch.bool)
        self.alive = torch.ones_like(self.running)
        self._steps = torch.zeros_like(number)
        self._increase = problem.training.losses.new_zeros(len(number))
        self._expected_increase = torch.zeros_like(self._increase)
        self._last_position = targets.position(original, original)
        self._still = torch.zeros_like(self.running)

    @torch.no_grad()
    def note(self, step: int, number: Tensor, evaluation: Evaluation) -> None:
        """Take over what the running searches have arrived at; those that diverged end."""
        at_query, increase = evaluation.at_query, evaluation.loss_increase
        was_running = self.running[number]
        fine = at_query.is_finite() & torch.isfinite(increase)
        self.alive[number] = self.alive[number] & (fine | ~was_running)
        self.running[number] = moved = was_running & fine
        self._steps[number] = torch.where(moved, step, self._steps[number])
        self._increase = _moved(self._increase, number, moved, increase)
        if evaluation.expected_increase is not None:
            self._expected_increase = _moved(
                self._expected_increase, number, moved, evaluation.expected_increase
            )
        self._prediction = self._prediction.replaced(number, moved, at_query)

    def end_converged(self) -> None:
        """End the searches that have changed little, since the last call and the one before."""
        position = self._targets.position(self._prediction, self._original)
        still = (position - self._last_position).abs().amax(dim=-1) < self._tolerance
        # A model that does not explain the data is still to be led back by the growing penalty.
        still &= self._increase <= self._slack
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
            self._expected_increase,
        )


def _moved(whole: Tensor, number: Tensor, moved: Tensor, part: Tensor) -> Tensor:
    return whole.index_copy(0, number, torch.where(moved, part, whole[number]))
