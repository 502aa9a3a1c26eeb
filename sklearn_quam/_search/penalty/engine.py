"""Penalty search as an engine: what is asked about samples, read off its searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..._network.free import Free
from ..problem import Problem
from ..searches import Accumulator, FoundModels, Outcome, Searches, Trace
from .adam import PenaltySteps
from .loop import run_searches
from .samplers import Profile, Trajectory, Weighing, count_around_best, count_best
from .watchers import AnswerCosts, BestModels, Bounds, FirstRivals, Measure


@dataclass(frozen=True, eq=False)
class PenaltyEngine:
    """Searches by gradients and a growing penalty."""

    steps: PenaltySteps
    # Scale of costs, in nats
    temperature: float
    # The precision of the prior in refined costs of answers
    precision: float
    sampling: str
    # Numbers of the training samples that found models are measured on
    evaluation: Tensor
    # The values of more searches leave the caches.
    at_once_on_cpu = 160

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
        if self.sampling in ("trajectory", "profile"):
            is_profile = self.sampling == "profile"
            sampler = Profile(weigh, searches, answers) if is_profile else Trajectory(weigh)
            self._run(problem, searches, [answers, sampler])
            sampler.finish()
        else:
            is_best = self.sampling == "best"
            best = self._best(problem, searches, {} if is_best else problem.network.free.start)
            self._run(problem, searches, [answers, best])
            models = best.kept.models()
            count_best(weigh, searches, models)
            if not is_best:
                count_around_best(weigh, searches, models, problem, self.evaluation)
        return answers.outcome(problem.n_training_rows)

    def outcome(self, problem: Problem, searches: Searches) -> Outcome:
        """Return what the answers of searches cost."""
        answers = AnswerCosts(problem, searches, self.steps.window)
        self._run(problem, searches, [answers])
        return answers.outcome(problem.n_training_rows)

    def bounds(self, problem: Problem, searches: Searches, slack: float) -> tuple[Tensor, Tensor]:
        """Return bounds of probabilities over the models that cost no more than a slack."""
        measure = self._measure(problem, searches)
        bounds = Bounds(searches, slack / problem.n_training_rows, measure)
        self._run(problem, searches, [bounds])
        return bounds.lower, bounds.upper

    def trace(self, problem: Problem, searches: Searches) -> Trace:
        """Return every model that searches meet."""
        trace = Trace([], [])
        for visit in run_searches(problem, self.steps, searches):
            trace.predictions.append(visit.prediction)
            trace.costs.append(visit.loss_increase * problem.n_training_rows)
        return trace

    def best_models(self, problem: Problem, searches: Searches) -> FoundModels:
        """Return the most divergent model of each search that explains the training data."""
        best = self._best(problem, searches, problem.network.free.start)
        self._run(problem, searches, [best])
        found = best.kept.models()
        return replace(found, cost=found.cost * problem.n_training_rows)

    def first_rivals(self, problem: Problem, searches: Searches, close: bool) -> FoundModels:  # noqa: ARG002
        """Return the first model of each search that gives another answer."""
        rivals = FirstRivals(problem, searches)
        self._run(problem, searches, [rivals])
        return rivals.kept.models()

    def _run(self, problem: Problem, searches: Searches, watchers: Sequence[Any]) -> None:
        for visit in run_searches(problem, self.steps, searches):
            for watcher in watchers:
                watcher.on_visit(visit)

    def _best(self, problem: Problem, searches: Searches, start: Free) -> BestModels:
        slack = self.slack / problem.n_training_rows
        return BestModels(start, searches, slack, self._measure(problem, searches))

    def _measure(self, problem: Problem, searches: Searches) -> Measure:
        """Return a function that measures models of searches on the evaluation samples."""
        queries = searches.queries

        def measure(number: Tensor, free: Free) -> Tensor:
            query = tuple(part[number] for part in queries)
            return problem.at_query_and_increase(free, query, self.evaluation)[1]

        return measure
