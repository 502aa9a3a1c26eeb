"""Costs of answers, read off penalty searches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..problem import Problem
from ..searches import Outcome, Searches
from .loop import Visit

# Distances that are no rounding, in log-odds or standard deviations.
_SHORTEST = 0.01


class AnswerCosts:
    """Costs of the answers that searches go to, in mean loss.

    The cost is the loss increase that the given network expects itself. It is taken to rise with
    the square of the distance; the cost of a unit distance is averaged over the last steps.
    """

    def __init__(self, problem: Problem, searches: Searches, window: int) -> None:
        self._problem, self._searches, self._window = problem, searches, window
        self._rival = searches.original
        self._start = score = self.score(self._rival)
        self._cost = torch.where(score >= problem.targets.level, 0.0, torch.inf).to(score)
        # Of a search that has not come as far as the answer, by extrapolation.
        self._continued = torch.full_like(score, torch.inf)
        self.cost_of_unit = torch.full_like(score, torch.nan)
        self._every = torch.arange(len(score), device=score.device)
        # Of the last steps: costs of the models, and squares of their distances.
        self._last_costs = score.new_zeros(window, len(score))
        self._last_squares = torch.zeros_like(self._last_costs)
        self._n_steps, self._diverged = torch.zeros_like(self._every), score != score

    def score(self, prediction: Any) -> Tensor:
        """Return the score of the target of each search."""
        score = self._problem.score(prediction, self._searches)
        return score.to(self._problem.training.losses.dtype)

    def on_visit(self, visit: Visit) -> None:
        """Take the models of a step."""
        self._n_steps, self._diverged = visit.steps, ~visit.alive
        score, level = self.score(visit.prediction), self._problem.targets.level
        distance = score - self._start
        place, moved = visit.step % self._window, visit.steps == visit.step
        for kept, new in (
            (self._last_costs[place], visit.expected_increase),
            (self._last_squares[place], distance.clamp(min=0) ** 2),
        ):
            kept.copy_(torch.where(moved, new, kept))
        self.cost_of_unit = self._last_costs.sum(dim=0) / self._last_squares.sum(dim=0)
        cost = self.cost_of_unit * (level - self._start) ** 2
        reached = visit.alive & (score >= level)
        better = reached & (cost < self._cost)
        closer = visit.alive & (score < level) & torch.isinf(self._cost) & torch.isfinite(cost)
        closer &= (distance > _SHORTEST) & (cost < self._continued)
        self._cost = torch.where(better, cost, self._cost)
        self._continued = torch.where(closer, cost, self._continued)
        self._rival = self._rival.replaced(self._every, better | closer, visit.prediction)

    def outcome(self) -> Outcome:
        """Return costs of the answers, in nats."""
        cost = self._cost
        if self._problem.targets.continues:
            cost = torch.where(torch.isinf(cost), self._continued, cost)
        nats = cost * self._problem.n_training_rows
        return Outcome(nats, self._rival, self._n_steps, self._diverged)
