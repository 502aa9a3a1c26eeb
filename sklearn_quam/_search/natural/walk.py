"""The loop of natural search: equal shares of the distance to a goal, by the cheapest change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._curvature.influence import Influence
from ..._network.free import Free
from ..._network.predictions import Prediction
from ..problem import Problem
from ..searches import Searches
from .paths import Paths, Point

# Regression: how far a search goes, in standard deviations of the mean in a linear model.
_GOAL_OF_VALUES = 5.0
# Searches that go on are moved together in memory where they are fewer than this share.
_COMPACT_BELOW = 0.8

# Is called where searches arrive, with numbers of the searches, the point, their free parameters.
Watch = Callable[[Tensor, Point, Callable[[Tensor], Free]], None]


@dataclass(frozen=True, eq=False)
class TrainingSample:
    """Training samples on which the cost of models for each of some samples is measured."""

    index: Tensor  # (n_samples, n_rows): their numbers
    # (n_samples, n_rows): how many training samples each of them represents, sample weights
    # included
    count: Tensor
    given: Prediction  # The given network's predictions for them, (n_samples, n_rows)


@dataclass(frozen=True, eq=False)
class NaturalSteps:
    """The common part of steps through heads, chains and other networks."""

    n_steps: int  # Number of steps
    goal: float  # Log-odds that the searches go to
    n_rows: int  # Training samples on which the cost is measured
    precision: float  # The precision of the prior around the given network
    influence: Influence  # Finds these training samples
    at_once_on_cpu = 1024

    @property
    def rows_at_once(self) -> int:
        """Training samples of one pass."""
        return self.n_rows

    def shortened(self) -> Any:
        """Return the same with a single step, to find out how much memory it takes."""
        return replace(self, n_steps=1)

    def training_sample(self, problem: Problem, features: list[Tensor]) -> TrainingSample:
        """Return the training samples that changes for samples with these features move most."""
        index, count = self.influence.rows_for(features, self.n_rows)
        training = problem.training
        # Those at hand may be a sample of all.
        count = training.weighted(count, index) * (problem.n_training_rows / len(training))
        return TrainingSample(index, count, problem.original_on_training[index])

    def paths(
        self,
        problem: Problem,
        searches: Searches,
        until: float = math.inf,
        watch: Watch | None = None,
    ) -> Paths:
        """Run searches side by side; none depends on the others."""
        steps: Any = self
        state = steps.init(problem, searches)
        number = torch.arange(len(searches), device=searches.targets.device)
        record = Record(searches, until)
        for step in range(self.n_steps + 1):
            if not len(number):
                record.skip()
                continue
            is_last = step == self.n_steps
            with torch.set_grad_enabled(not is_last):
                prediction, score, inside = steps.evaluate(problem, state)
            # The given network costs nothing.
            cost = None if step else torch.zeros_like(score.detach())
            with torch.no_grad():
                if step and (watch is not None or is_measured(step, self.n_steps)):
                    cost = steps.cost(problem, state)
                point = Point(prediction, cost, score, inside)
                record.add(number, point)
                if watch is not None:
                    watch(number, point, partial(steps.free, problem, state))
            if not is_last:
                state = steps.update(problem, state, point, step)
                kept = _fewer(record.going[number]) if steps.drops_searches else None
                if kept is not None:
                    state, number = steps.keep(state, kept), number[kept]
        return record.paths()


def goals(problem: Problem, goal: float, score: Tensor, slope: Tensor) -> Tensor:
    """Return the score that each search goes to, given that of its start and its slope."""
    if problem.is_classification:
        return torch.full_like(score, goal)
    return score + _GOAL_OF_VALUES * slope.clamp(min=0).sqrt()


def length_of_step(goal: Tensor, score: Tensor, slope: Tensor, n_left: int) -> Tensor:
    """Return the length of a step along the cheapest direction; zero where nothing moves."""
    share = (goal - score).clamp(min=0) / n_left
    moves = slope > torch.finfo(slope.dtype).tiny
    return torch.where(moves, share / torch.where(moves, slope, 1.0), 0.0)


def is_measured(step: int, n_steps: int) -> bool:
    """Return whether costs are measured: at every second step, from the first one on.

    Between them the square root of the cost is about linear.
    """
    return step % 2 == 1 or step in (0, n_steps)


def _fewer(going: Tensor) -> Tensor | None:
    """Return the places of searches that go on, if moving them together saves time."""
    # On other devices the host would have to wait for the answer.
    if going.device.type != "cpu" or float(going.float().mean()) >= _COMPACT_BELOW:
        return None
    return going.nonzero()[:, 0]


class Record:
    """The points of all searches. An ended search stays where it was, at an infinite cost."""

    def __init__(self, searches: Searches, until: float = math.inf) -> None:
        self._original, self._until = searches.original, until
        self._points: list[Point] = []
        device = searches.targets.device
        self.going = torch.ones(len(searches), dtype=torch.bool, device=device)
        self._diverged = torch.zeros_like(self.going)
        self._n_steps = torch.zeros_like(self.going, dtype=torch.long)

    @torch.no_grad()
    def add(self, number: Tensor, point: Point) -> None:
        """Take the point that some of the searches have arrived at; an unknown cost is NaN."""
        fine = point.prediction.is_finite() & self.going[number]
        reached = torch.full_like(point.score.detach(), torch.nan)
        if point.cost is not None:
            fine, reached = fine & torch.isfinite(point.cost), point.cost
        self._diverged[number] |= self.going[number] & ~fine
        self._n_steps[number] += fine
        before = self._points[-1] if self._points else None
        if before is None:
            before = Point(self._original, torch.zeros_like(reached), point.score.detach())
        cost = torch.full_like(before.cost, torch.inf)
        cost[number] = torch.where(fine, reached, torch.inf)
        score = before.score.clone()
        score[number] = torch.where(fine, point.score.detach(), score[number])
        prediction = before.prediction.replaced(number, fine, point.prediction)
        self._points.append(Point(prediction, cost, score))
        self.going[number] = fine & ~(reached > self._until)

    def skip(self) -> None:
        """Take a step for which no search is left."""
        before = self._points[-1]
        self._points.append(before._replace(cost=torch.full_like(before.cost, torch.inf)))

    def paths(self) -> Paths:
        """Return where the searches went."""
        points = _with_every_cost(self._points)
        return Paths(points, (self._n_steps - 1).clamp(min=0), self._diverged)


def _with_every_cost(points: list[Point]) -> list[Point]:
    """Return points with the costs that were not measured: the mean root of both neighbours'.

    Where a search has left the range of numbers after it, the root goes on as it began.
    """
    found = list(points)
    for step, point in enumerate(points):
        if is_measured(step, len(points) - 1):
            continue
        unknown = torch.isnan(point.cost)
        before, after = (found[k].cost.clamp(min=0).sqrt() for k in (step - 1, step + 1))
        root = torch.where(torch.isfinite(after), (before + after) / 2, before * step / (step - 1))
        found[step] = point._replace(cost=torch.where(unknown, root.square(), point.cost))
    return found
