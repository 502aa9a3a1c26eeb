"""The loop of penalty search, many searches at once.

Each search starts at the given network and moves its own copy of the free parameters. None depends
on the others: what is found for a sample does not depend on which samples are searched with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._network.free import Free
from ..problem import Problem
from ..searches import Searches
from .adam import Evaluation, PenaltySteps

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
        What they predict for the sample of each.
    loss_increase, expected_increase : Tensor of shape (n_searches,)
        See `Evaluation`.
    alive : Tensor of shape (n_searches,), dtype bool
        False for searches that have diverged.
    steps : Tensor of shape (n_searches,), dtype int
        Steps that each search has taken.
    """

    step: int
    prediction: Any
    loss_increase: Tensor
    expected_increase: Tensor
    alive: Tensor
    steps: Tensor


@dataclass(frozen=True, eq=False)
class Candidates:
    """Models to look at closely.

    Parameters
    ----------
    number : Tensor of shape (n_models,)
        Numbers of their searches.
    prediction : Prediction
        What they predict for the sample of each.
    free : dict of Tensor of shape (n_models, ...)
        Their free parameters.
    """

    number: Tensor
    prediction: Any
    free: Free


class Watcher:
    """Is told where searches get to."""

    def on_visit(self, visit: Visit) -> None:
        """Take the models of every step, the given network first."""

    def on_candidates(self, candidates: Candidates) -> None:
        """Take models to look at closely, from time to time and at the end of each search."""

    def finish(self) -> None:
        """Take the end of all searches."""


def run_searches(
    problem: Problem,
    steps: PenaltySteps,
    searches: Searches,
    watchers: Sequence[Watcher],
) -> None:
    """Run searches side by side.

    Parameters
    ----------
    problem : Problem
        What the searches have in common.
    steps : PenaltySteps
        How they move.
    searches : Searches
        The searches.
    watchers : list of Watcher
        Are told where the searches get to.
    """
    state = steps.init(problem, searches)
    number = torch.arange(len(searches), device=searches.targets.device)
    progress = _Progress(problem, steps, searches)
    for step in range(steps.n_steps + 1):
        last, look = step == steps.n_steps, step > 0 and step % steps.every == 0
        if len(number):
            with torch.set_grad_enabled(not last):
                evaluation = steps.evaluate(problem, state, step)
            was_running = progress.running[number]
            progress.note(step, number, evaluation)
            if look or last:
                progress.end_converged()
                places = (was_running & progress.alive[number]).nonzero()[:, 0]
                if len(places):
                    _look(watchers, number, places, evaluation, partial(steps.free, state))
        for watcher in watchers:
            watcher.on_visit(progress.visit(step))
        if not last and len(number):
            state = steps.update(problem, state, evaluation, step)
            still_running = progress.running[number]
            if look and float(still_running.float().mean()) < _COMPACT_BELOW:
                kept = still_running.nonzero()[:, 0]
                state, number = steps.keep(state, kept), number[kept]
    for watcher in watchers:
        watcher.finish()


@torch.no_grad()
def _look(
    watchers: Sequence[Watcher],
    number: Tensor,
    places: Tensor,
    evaluation: Evaluation,
    free: Callable[[Tensor], Free],
) -> None:
    """Let watchers look closely at some of the models in memory."""
    prediction: Any = evaluation.at_query
    found = Candidates(number[places], prediction[places], free(places))
    for watcher in watchers:
        watcher.on_candidates(found)


class _Progress:
    """Where all searches have got to, the ended ones among them.

    An ended search stays where it was, whether or not it is still moved along in memory, so that
    its result does not depend on the searches beside it.
    """

    def __init__(self, problem: Problem, steps: PenaltySteps, searches: Searches) -> None:
        self._targets: Any = problem.targets
        self._slack, self._tolerance = steps.slack, steps.tolerance
        self._original = self._prediction = searches.original
        self.running = torch.ones_like(searches.target, dtype=torch.bool)
        self.alive = torch.ones_like(self.running)
        self._steps = torch.zeros_like(searches.target)
        self._increase = problem.training.losses.new_zeros(len(searches))
        self._expected_increase = torch.zeros_like(self._increase)
        self._last_position = self._targets.position(self._original, self._original)
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
        expected = evaluation.expected_increase
        self._expected_increase = _moved(self._expected_increase, number, moved, expected)
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
            self._expected_increase,
            self.alive.clone(),
            self._steps,
        )


def _moved(whole: Tensor, number: Tensor, moved: Tensor, part: Tensor) -> Tensor:
    return whole.index_copy(0, number, torch.where(moved, part, whole[number]))
