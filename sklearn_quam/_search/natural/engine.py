"""Natural and linear search as an engine: questions about samples, answered by paths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._curvature.preconditioner import Preconditioner
from ..problem import Problem
from ..searches import Accumulator, FoundModels, Outcome, Searches
from .chain import ChainSteps, HeadSteps
from .gaussian import GaussianHead
from .general import GeneralSteps
from .linear import LinearSteps
from .paths import Point, outcome, probability_bounds, weighted

# A search ends when its model weighs less than exp(-12).
_LEAST_LOG_WEIGHT = 12.0
# Steps of a search whose first model with another answer is looked at closely.
_CLOSE_STEPS = 20


@dataclass(frozen=True, eq=False)
class NaturalEngine:
    """Searches that follow the inverse curvature."""

    steps: HeadSteps | ChainSteps | GeneralSteps | LinearSteps  # How they move
    temperature: float  # Scale of costs, in nats
    slack: float  # Largest cost of a model that explains the training data, in nats
    inverse: Preconditioner  # The inverse curvature
    # The posterior of logits in closed form: then nothing is searched
    gaussian: GaussianHead | None = None

    @property
    def precision(self) -> float:
        """The precision of the prior around the given network."""
        return self.inverse.precision

    @property
    def at_once_on_cpu(self) -> int:
        """Most searches that are worth running together on a CPU."""
        return (self.gaussian or self.steps).at_once_on_cpu

    @property
    def rows_at_once(self) -> int:
        """Training samples of one pass."""
        return self.steps.rows_at_once

    def shortened(self) -> NaturalEngine:
        """Return the same with a single step, to find out how much memory it takes."""
        return replace(self, steps=self.steps.shortened())

    def sample(self, problem: Problem, searches: Searches, posterior: Accumulator) -> Outcome:
        """Run searches, and give their models to an accumulator."""
        if self.gaussian is not None:
            return self.gaussian.sample(problem, searches, posterior, self.temperature)
        until = _LEAST_LOG_WEIGHT * self.temperature
        paths = self.steps.paths(problem, searches, until)
        score = partial(problem.score, searches=searches)
        models, log_weights = weighted(paths, score, self.temperature)
        searches.hand_over(posterior, models, log_weights)
        return outcome(paths, problem.targets)

    def outcome(self, problem: Problem, searches: Searches) -> Outcome:
        """Return costs of the answers of searches."""
        if self.gaussian is not None:
            return self.gaussian.outcome(problem, searches)
        return outcome(self.steps.paths(problem, searches), problem.targets)

    def bounds(self, problem: Problem, searches: Searches, slack: float) -> tuple[Tensor, Tensor]:
        """Return bounds of probabilities over the models that cost no more than a slack."""
        return probability_bounds(self.steps.paths(problem, searches), slack)

    def trace(self, problem: Problem, searches: Searches) -> list[tuple[Any, Tensor]]:
        """Return prediction and cost of every model that searches meet."""
        return [
            (point.prediction, point.cost) for point in self.steps.paths(problem, searches).points
        ]

    def best_models(self, problem: Problem, searches: Searches) -> FoundModels:
        """Return the most divergent model of each search that explains the training data."""
        keeper = FoundModels(problem.network.free.start, searches)

        def watch(number: Tensor, point: Point, free: Any) -> None:
            fine = point.prediction.is_finite() & (point.cost <= self.slack)
            better = fine & keeper.is_surpassed(number, point.prediction)
            keeper.take(number, better, point.prediction, point.cost, free)

        self.steps.paths(problem, searches, watch=watch)
        # The estimates of the path are measured on all training samples.
        every = torch.arange(len(problem.training), device=searches.targets.device)
        query = searches.each().query
        _, increase = problem.at_query_and_increase(keeper.free, query, every)
        nats = increase.to(keeper.cost) * problem.n_training_rows
        keeper.cost = torch.where(keeper.found, nats, keeper.cost)
        keeper.found &= keeper.cost <= self.slack
        return keeper

    def first_rivals(self, problem: Problem, searches: Searches, close: bool) -> FoundModels:
        """Return the first model of each search that gives another answer."""
        steps = self.steps
        if close and not isinstance(steps, LinearSteps):
            steps = replace(steps, n_steps=max(steps.n_steps, _CLOSE_STEPS))
        keeper = FoundModels(problem.network.free.start, searches)

        def watch(number: Tensor, point: Point, free: Any) -> None:
            gives = (point.score >= problem.targets.level) & point.prediction.is_finite()
            first = gives & ~keeper.found[number]
            keeper.take(number, first, point.prediction, point.cost, free)

        steps.paths(problem, searches, watch=watch)
        return keeper
