"""Penalty search as an engine: questions about samples, answered by its searches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._network.free import Free
from ..problem import Problem
from ..searches import Accumulator, FoundModels, Outcome, Searches, Trace
from .adam import PenaltySteps
from .costs import AnswerCosts
from .loop import Candidates, run_searches
from .samplers import Profile, Trajectory, Weighing, count_around_best, count_best


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
                self._keep_better(problem, searches, best, visit.candidates)
            count_best(weigh, searches, best)
            if not is_best:
                count_around_best(weigh, searches, best, problem, self.evaluation)
        return answers.outcome(problem.n_training_rows)

    def outcome(self, problem: Problem, searches: Searches) -> Outcome:
        """Return costs of the answers of searches."""
        answers = AnswerCosts(problem, searches, self.steps.window)
        for visit in run_searches(problem, self.steps, searches):
            answers.on_visit(visit)
        return answers.outcome(problem.n_training_rows)

    def bounds(self, problem: Problem, searches: Searches, slack: float) -> tuple[Tensor, Tensor]:
        """Return bounds of probabilities over the models that cost no more than a slack."""
        lower = upper = searches.original.expected()
        for visit in run_searches(problem, self.steps, searches):
            if visit.candidates is not None:
                number, prediction, free = visit.candidates
                increase = self._increase(problem, searches, number, free)
                counts = (increase * problem.n_training_rows <= slack)[:, None]
                proba = prediction.expected().to(lower)
                least, most = lower[number], upper[number]
                least = torch.where(counts, torch.minimum(least, proba), least)
                most = torch.where(counts, torch.maximum(most, proba), most)
                lower, upper = lower.index_copy(0, number, least), upper.index_copy(0, number, most)
        return lower, upper

    def trace(self, problem: Problem, searches: Searches) -> Trace:
        """Return every model that searches meet."""
        trace = Trace([], [])
        for visit in run_searches(problem, self.steps, searches):
            trace.predictions.append(visit.prediction)
            trace.costs.append(visit.loss_increase * problem.n_training_rows)
        return trace

    def best_models(self, problem: Problem, searches: Searches) -> FoundModels:
        """Return the most divergent model of each search that explains the training data."""
        best = FoundModels(problem.network.free.start, searches)
        for visit in run_searches(problem, self.steps, searches):
            self._keep_better(problem, searches, best, visit.candidates)
        best.cost = best.cost * problem.n_training_rows
        return best

    def first_rivals(self, problem: Problem, searches: Searches, close: bool) -> FoundModels:  # noqa: ARG002
        """Return the first model of each search that gives another answer."""
        targets: Any = problem.targets
        rivals = FoundModels(problem.network.free.start, searches)
        for visit in run_searches(problem, self.steps, searches):
            if visit.candidates is not None:
                number, prediction, free = visit.candidates
                original, target = searches.original[number], searches.target[number]
                score = targets.score(prediction, original, target)
                first = (score >= targets.level) & ~rivals.found[number]
                nothing = torch.zeros_like(score)
                rivals.take(number, first, prediction, nothing, nothing, partial(_at, free))
        return rivals

    def _increase(self, problem: Problem, searches: Searches, number: Tensor, free: Free) -> Tensor:
        """Return the increase of the mean loss of models on the evaluation samples."""
        query = tuple(part[number] for part in searches.queries)
        return problem.at_query_and_increase(free, query, self.evaluation)[1]

    def _keep_better(
        self,
        problem: Problem,
        searches: Searches,
        best: FoundModels,
        candidates: Candidates | None,
    ) -> None:
        """Keep feasible models that are more divergent than those before; costs in mean loss."""
        if candidates is not None:
            number, prediction, free = candidates
            increase = self._increase(problem, searches, number, free)
            divergence = searches.original[number].kl(prediction)
            better = increase <= self.slack / problem.n_training_rows
            better &= divergence > best.divergence[number]
            best.take(number, better, prediction, increase, divergence, partial(_at, free))


def _at(free: Free, index: Tensor) -> Free:
    return {name: value[index] for name, value in free.items()}
