"""Penalty search as an engine: questions about samples, answered by its searches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..problem import Problem
from ..searches import Accumulator, FoundModels, Outcome, Searches, models_at
from .adam import PenaltySteps
from .loop import Candidates, run_searches
from .samplers import AnswerCosts, Profile, Trajectory, Weighing, count_around_best, count_best


@dataclass(frozen=True, eq=False)
class PenaltyEngine:
    """Searches by gradients and a growing penalty."""

    steps: PenaltySteps
    temperature: float  # Scale of costs, in nats
    # The precision of the prior in refined costs of answers
    precision: float
    sampling: str
    evaluation: Tensor  # Numbers of the training samples that found models are measured on
    inverse = None  # Refined costs of answers start without an inverse curvature
    at_once_on_cpu = 160  # The values of more searches leave the caches.

    @property
    def slack(self) -> float:
        """Largest cost of a model that explains the training data, in nats."""
        return self.steps.slack

    @property
    def rows_at_once(self) -> int:
        """Training samples of one pass."""
        return self.steps.batches.shape[1]

    def shortened(self) -> PenaltyEngine:
        """Return the same with a single step, to find out how much memory it takes."""
        return replace(self, steps=replace(self.steps, batches=self.steps.batches[:2]))

    def sample(self, problem: Problem, searches: Searches, posterior: Accumulator) -> Outcome:
        """Run searches, and give their models to an accumulator."""
        weigh = Weighing(searches, posterior, self.temperature / problem.n_training_rows)
        answers = AnswerCosts(problem, searches, self.steps.window)
        visits = run_searches(problem, self.steps, searches)
        if self.sampling in ("trajectory", "profile"):
            is_profile = self.sampling == "profile"
            sampler = Profile(weigh, searches, answers) if is_profile else Trajectory(weigh)
            for visit in visits:
                answers.on_visit(visit)
                sampler.on_visit(visit)
            sampler.finish()
        else:
            is_best = self.sampling == "best"
            best = FoundModels({} if is_best else problem.network.free.start, searches)
            for visit in visits:
                answers.on_visit(visit)
                if visit.candidates is not None:
                    self._keep_better(problem, best, visit.candidates)
            count_best(weigh, searches, best)
            if not is_best:
                count_around_best(weigh, searches, best, problem, self.evaluation)
        return answers.outcome()

    def outcome(self, problem: Problem, searches: Searches) -> Outcome:
        """Return costs of the answers of searches."""
        answers = AnswerCosts(problem, searches, self.steps.window)
        for visit in run_searches(problem, self.steps, searches):
            answers.on_visit(visit)
        return answers.outcome()

    def bounds(self, problem: Problem, searches: Searches, slack: float) -> tuple[Tensor, Tensor]:
        """Return bounds of probabilities over the models that cost no more than a slack."""
        lower = upper = searches.original.expected()
        for met in self._candidates(problem, searches):
            counts = (self._increase(problem, met) * problem.n_training_rows <= slack)[:, None]
            proba = met.prediction.expected().to(lower)
            least, most = lower[met.number], upper[met.number]
            least = torch.where(counts, torch.minimum(least, proba), least)
            most = torch.where(counts, torch.maximum(most, proba), most)
            lower = lower.index_copy(0, met.number, least)
            upper = upper.index_copy(0, met.number, most)
        return lower, upper

    def trace(self, problem: Problem, searches: Searches) -> list[tuple[Any, Tensor]]:
        """Return prediction and cost of every model that searches meet."""
        visits = run_searches(problem, self.steps, searches)
        return [(v.prediction, v.loss_increase * problem.n_training_rows) for v in visits]

    def best_models(self, problem: Problem, searches: Searches) -> FoundModels:
        """Return the most divergent model of each search that explains the training data."""
        best = FoundModels(problem.network.free.start, searches)
        for met in self._candidates(problem, searches):
            self._keep_better(problem, best, met)
        best.cost = best.cost * problem.n_training_rows
        return best

    def first_rivals(self, problem: Problem, searches: Searches, close: bool) -> FoundModels:  # noqa: ARG002
        """Return the first model of each search that gives another answer."""
        rivals = FoundModels(problem.network.free.start, searches)
        for met in self._candidates(problem, searches):
            score = problem.score(met.prediction, met.searches)
            first = (score >= problem.targets.level) & ~rivals.found[met.number]
            nothing = torch.zeros_like(score)
            rivals.take(met.number, first, met.prediction, nothing, partial(models_at, met.free))
        return rivals

    def _candidates(self, problem: Problem, searches: Searches) -> Iterator[Candidates]:
        visits = run_searches(problem, self.steps, searches)
        return (visit.candidates for visit in visits if visit.candidates is not None)

    def _increase(self, problem: Problem, met: Candidates) -> Tensor:
        """Return the increase of the mean loss of models on the evaluation samples."""
        return problem.at_query_and_increase(met.free, met.searches.query, self.evaluation)[1]

    def _keep_better(self, problem: Problem, best: FoundModels, met: Candidates) -> None:
        """Keep feasible models that are more divergent than those before; costs in mean loss."""
        increase = self._increase(problem, met)
        better = increase <= self.slack / problem.n_training_rows
        better &= best.is_surpassed(met.number, met.prediction)
        best.take(met.number, better, met.prediction, increase, partial(models_at, met.free))
