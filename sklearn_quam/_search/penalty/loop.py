"""The loop of penalty search: many searches side by side, none of which depends on the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._network.free import Free
from ..._network.predictions import replace_rows
from ..problem import Problem
from ..searches import Searches, models_at
from .adam import Evaluation, PenaltySteps

# Fewer running searches than this share of those in memory are moved together.
_COMPACT_BELOW = 0.8


class Candidates(NamedTuple):
    """Models with their parameters, from time to time and at the end of each search."""

    number: Tensor  # (n_models,): numbers of their searches
    searches: Searches  # These, each with a sample of its own
    prediction: Any
    free: Free


class Visit(NamedTuple):
    """The models of a step, one for each search; the given network comes first."""

    step: int
    prediction: Any
    # (n_searches,): see `Evaluation`
    loss_increase: Tensor
    expected_increase: Tensor
    alive: Tensor  # False for searches that have diverged
    # Steps that each search has taken
    steps: Tensor
    candidates: Candidates | None


def run_searches(problem: Problem, steps: PenaltySteps, searches: Searches) -> Iterator[Visit]:
    """Run searches, and yield their models after every step."""
    state = steps.init(problem, searches)
    number = torch.arange(len(searches), device=searches.targets.device)
    progress = _Progress(problem, steps, searches)
    for step in range(steps.n_steps + 1):
        is_last, look = step == steps.n_steps, step > 0 and step % steps.penalty_every == 0
        candidates = None
        if len(number):
            with torch.set_grad_enabled(not is_last):
                evaluation = steps.evaluate(problem, state, step)
            was_running = progress.running[number]
            progress.note(step, number, evaluation)
            if look or is_last:
                progress.end_converged()
                places = (was_running & progress.alive[number]).nonzero()[:, 0]
                # All may have diverged since the last look; no executor runs without a model.
                if len(places):
                    at_query = evaluation.at_query[places].map(torch.detach)
                    some, free = state.searches.at(places), models_at(state.free, places)
                    candidates = Candidates(number[places], some, at_query, free)
        yield progress.visit(step, candidates)
        if not is_last and len(number):
            state = steps.update(problem, state, evaluation, step)
            running = progress.running[number]
            if look and float(running.float().mean()) < _COMPACT_BELOW:
                kept = running.nonzero()[:, 0]
                state, number = steps.keep(state, kept), number[kept]


class _Progress:
    """The last model of each search. An ended search stays where it was."""

    def __init__(self, problem: Problem, steps: PenaltySteps, searches: Searches) -> None:
        self._targets: Any = problem.targets
        self._slack, self._tolerance = steps.slack / problem.n_training_rows, steps.tol
        self._original = self._prediction = searches.original
        self.running = torch.ones_like(searches.target, dtype=torch.bool)
        self.alive = torch.ones_like(self.running)
        self._steps = torch.zeros_like(searches.target)
        self._increase = problem.training.losses.new_zeros(len(searches))
        self._expected_increase = torch.zeros_like(self._increase)
        self._position = self._targets.position(self._original, self._original)
        self._still = torch.zeros_like(self.running)

    @torch.no_grad()
    def note(self, step: int, number: Tensor, evaluation: Evaluation) -> None:
        """Take over the models of the running searches; those that diverged end."""
        at_query, increase = evaluation.at_query, evaluation.loss_increase
        was_running = self.running[number]
        fine = at_query.is_finite() & torch.isfinite(increase)
        self.alive[number] = self.alive[number] & (fine | ~was_running)
        self.running[number] = moved = was_running & fine
        self._steps[number] = torch.where(moved, step, self._steps[number])
        self._increase = replace_rows(self._increase, number, moved, increase)
        self._expected_increase = replace_rows(
            self._expected_increase, number, moved, evaluation.expected_increase
        )
        self._prediction = self._prediction.replaced(number, moved, at_query)

    def end_converged(self) -> None:
        """End feasible searches that have changed little, twice in a row."""
        position = self._targets.position(self._prediction, self._original)
        still = (position - self._position).abs().amax(dim=-1) < self._tolerance
        still &= self._increase <= self._slack
        self.running = self.running & ~(still & self._still)
        self._position, self._still = position, still

    def visit(self, step: int, candidates: Candidates | None) -> Visit:
        """Return the models of a step."""
        increases = self._increase, self._expected_increase
        alive = self.alive.clone()
        return Visit(step, self._prediction, *increases, alive, self._steps, candidates)
