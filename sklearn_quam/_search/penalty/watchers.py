"""What is read off penalty searches: costs of answers, bounds, traces, found models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._network.free import Free
from ..problem import Problem
from ..searches import ModelKeeper, Outcome, Searches
from .loop import Candidates, Visit, Watcher

# Distances that are no rounding, in log-odds or standard deviations.
_SHORTEST = 0.01

# Measures models on training samples; returns the increase of the mean loss.
Measure = Callable[[Tensor, Free], Tensor]


class AnswerCosts(Watcher):
    """What the answer that each search is after costs, in mean loss.

    The cost is the loss increase that the given network expects itself: never negative, and zero
    for the given network alone. It is taken to rise with the square of the distance. A single
    mini-batch may be lucky: the cost of a unit of the distance is averaged over the last steps.

    Parameters
    ----------
    problem : Problem
        What the searches have in common.
    searches : Searches
        The searches.
    window : int
        Steps that the average goes back.
    """

    def __init__(self, problem: Problem, searches: Searches, window: int) -> None:
        targets: Any = problem.targets
        self._targets, self._window = targets, window
        self._original, self._target = searches.original, searches.target
        self._dtype = problem.training.losses.dtype
        score = self.score(self._original)
        self._start = score
        self.cost = torch.where(score >= targets.level, 0.0, torch.inf).to(score)
        # Of a search that has not come as far as the answer: what it would cost to go on.
        self._continued = torch.full_like(score, torch.inf)
        self.cost_of_unit = torch.full_like(score, torch.nan)
        self.rival = self._original.clone()
        self._every = torch.arange(len(score), device=score.device)
        # Of the last steps: what the models have cost, and the squares of their distances.
        self._last_costs = score.new_zeros(window, len(score))
        self._last_squares = torch.zeros_like(self._last_costs)
        self._n_steps, self._diverged = torch.zeros_like(self._every), score != score

    def score(self, prediction: Any) -> Tensor:
        """Return the score of each search's target."""
        return self._targets.score(prediction, self._original, self._target).to(self._dtype)

    def on_visit(self, visit: Visit) -> None:
        """Take the models of a step."""
        self._n_steps, self._diverged = visit.steps, ~visit.alive
        score = self.score(visit.prediction)
        slot, moved = visit.step % self._window, visit.steps == visit.step
        for kept, new in (
            (self._last_costs[slot], visit.expected_increase),
            (self._last_squares[slot], (score - self._start).clamp(min=0) ** 2),
        ):
            kept.copy_(torch.where(moved, new, kept))
        self.cost_of_unit = self._last_costs.sum(dim=0) / self._last_squares.sum(dim=0)
        cost = self.cost_of_unit * (self._targets.level - self._start) ** 2
        # A shorter distance may be rounding.
        is_far = score - self._start > _SHORTEST
        continued = torch.where(is_far & (cost < self._continued), cost, torch.inf)
        reached = score >= self._targets.level
        better = visit.alive & reached & (cost < self.cost)
        closer = visit.alive & ~reached & torch.isfinite(continued) & torch.isinf(self.cost)
        self.cost = torch.where(better, cost, self.cost)
        self._continued = torch.where(closer, continued, self._continued)
        self.rival = self.rival.replaced(self._every, better | closer, visit.prediction)

    def outcome(self, n_training_rows: int) -> Outcome:
        """Return what the answers cost, in nats."""
        cost = self.cost
        if self._targets.continues:
            cost = torch.where(torch.isinf(cost), self._continued, cost)
        return Outcome(cost * n_training_rows, self.rival, self._n_steps, self._diverged)


class Bounds(Watcher):
    """How small and how large each probability is among the models that are cheap enough.

    Parameters
    ----------
    searches : Searches
        The searches.
    slack : float
        Largest increase of the mean loss.
    measure : callable
        Measures models on training samples.
    """

    def __init__(self, searches: Searches, slack: float, measure: Measure) -> None:
        self._slack, self._measure = slack, measure
        self.lower = self.upper = searches.original.expected()

    def on_candidates(self, candidates: Candidates) -> None:
        """Widen the bounds of searches whose model is cheap enough."""
        number, proba = candidates.number, candidates.prediction.expected()
        counts = (self._measure(number, candidates.free) <= self._slack)[:, None]
        lower, upper = self.lower[number], self.upper[number]
        proba = proba.to(lower)
        least = torch.where(counts, torch.minimum(lower, proba), lower)
        most = torch.where(counts, torch.maximum(upper, proba), upper)
        self.lower = self.lower.index_copy(0, number, least)
        self.upper = self.upper.index_copy(0, number, most)


class Visits(Watcher):
    """Keeps every model that the searches meet: what it predicts, and what it costs."""

    def __init__(self) -> None:
        self.visits: list[Visit] = []

    def on_visit(self, visit: Visit) -> None:
        """Keep the models of a step."""
        self.visits.append(visit)


class BestModels(Watcher):
    """Keeps the most divergent model of each search that is cheap enough.

    Parameters
    ----------
    start : dict of Tensor
        Free parameters of the given network; empty if parameters are not wanted.
    searches : Searches
        The searches.
    slack : float
        Largest increase of the mean loss.
    measure : callable
        Measures models on training samples.
    """

    def __init__(self, start: Free, searches: Searches, slack: float, measure: Measure) -> None:
        self._original, self._slack, self._measure = searches.original, slack, measure
        self.kept = ModelKeeper(start, searches)

    def on_candidates(self, candidates: Candidates) -> None:
        """Measure all models."""
        number, prediction = candidates.number, candidates.prediction
        increase = self._measure(number, candidates.free)
        divergence = self._original[number].kl(prediction)
        better = (increase <= self._slack) & (divergence > self.kept.divergence[number])
        free = {name: candidates.free[name] for name in self.kept.free}
        self.kept.take(number, better, prediction, increase, divergence, lambda i: _at(free, i))


class FirstRivals(Watcher):
    """Keeps the first model of each search that has come to another answer.

    Parameters
    ----------
    problem : Problem
        What the searches have in common.
    searches : Searches
        The searches.
    """

    def __init__(self, problem: Problem, searches: Searches) -> None:
        self._targets: Any = problem.targets
        self._original, self._target = searches.original, searches.target
        self.kept = ModelKeeper(problem.network.free.start, searches)

    def on_candidates(self, candidates: Candidates) -> None:
        """Keep the models that have just come there."""
        number, prediction = candidates.number, candidates.prediction
        score = self._targets.score(prediction, self._original[number], self._target[number])
        first = (score >= self._targets.level) & ~self.kept.found[number]
        nothing = torch.zeros_like(score)
        self.kept.take(
            number, first, prediction, nothing, nothing, lambda i: _at(candidates.free, i)
        )


def _at(free: Free, index: Tensor) -> Free:
    return {name: value[index] for name, value in free.items()}
