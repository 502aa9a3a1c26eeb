"""Penalty search as an engine: what is asked about samples, read off its searches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ..._network.free import Free
from ..problem import Problem
from ..searches import Accumulator, FoundModels, Outcome, Searches, Trace
from .adam import PenaltySteps
from .loop import Watcher, run_searches
from .samplers import AroundBest, Best, Profile, Trajectory, Weighing
from .watchers import AnswerCosts, BestModels, Bounds, FirstRivals, Measure, Visits


@dataclass(frozen=True, eq=False)
class PenaltyEngine:
    """Searches by gradients and a growing penalty.

    Parameters
    ----------
    steps : PenaltySteps
        How they move.
    temperature : float
        Scale of costs, in nats.
    slack : float
        Largest cost of a model that explains the training data, in nats.
    precision : float
        The precision of the prior that refined costs of answers have.
    sampling : str
        Which of the models that they meet count.
    evaluation : Tensor of shape (n_rows,)
        Training samples that found models are measured on.
    """

    steps: PenaltySteps
    temperature: float
    slack: float
    precision: float
    sampling: str
    evaluation: Tensor
    # The values of more searches leave the caches.
    at_once_on_cpu = 160

    @property
    def rows_at_once(self) -> int:
        """Training samples of one pass."""
        return self.steps.rows_at_once

    def shortened(self) -> PenaltyEngine:
        """Return the same with a single step, to find out how much memory it takes."""
        return dataclasses.replace(self, steps=self.steps.shortened())

    def sample(self, problem: Problem, searches: Searches, posterior: Accumulator) -> Outcome:
        """Run searches, and give their models to an accumulator."""
        n_rows = problem.n_training_rows
        answers = AnswerCosts(problem, searches, self.steps.window)
        weighing = Weighing(searches, posterior, self.temperature / n_rows)
        sampler = self._sampler(problem, searches, weighing, answers)
        run_searches(problem, self.steps, searches, [answers, sampler])
        return answers.outcome(n_rows)

    def _sampler(
        self, problem: Problem, searches: Searches, weighing: Weighing, answers: AnswerCosts
    ) -> Watcher:
        """Return what turns models into samples."""
        if self.sampling == "trajectory":
            return Trajectory(weighing)
        if self.sampling == "profile":
            return Profile(weighing, searches, answers)
        if self.sampling == "best":
            return Best(weighing, searches, self._best(problem, searches, {}))
        best = self._best(problem, searches, problem.network.free.start)
        return AroundBest(weighing, searches, best, problem, self.evaluation)

    def _measure(self, problem: Problem, searches: Searches) -> Measure:
        """Return a function that measures models of searches on the evaluation samples."""
        queries = searches.queries

        def measure(number: Tensor, free: Free) -> Tensor:
            query = tuple(part[number] for part in queries)
            return problem.at_query_and_increase(free, query, self.evaluation)[1]

        return measure

    def _best(self, problem: Problem, searches: Searches, start: Free) -> BestModels:
        slack = self.slack / problem.n_training_rows
        return BestModels(start, searches, slack, self._measure(problem, searches))

    def outcome(self, problem: Problem, searches: Searches) -> Outcome:
        """Return what the answers of searches cost."""
        answers = AnswerCosts(problem, searches, self.steps.window)
        run_searches(problem, self.steps, searches, [answers])
        return answers.outcome(problem.n_training_rows)

    def bounds(self, problem: Problem, searches: Searches, slack: float) -> tuple[Tensor, Tensor]:
        """Return bounds of probabilities over the models that cost no more than a slack."""
        measure = self._measure(problem, searches)
        bounds = Bounds(searches, slack / problem.n_training_rows, measure)
        run_searches(problem, self.steps, searches, [bounds])
        return bounds.lower, bounds.upper

    def trace(self, problem: Problem, searches: Searches) -> Trace:
        """Return every model that searches meet."""
        kept = Visits()
        run_searches(problem, self.steps, searches, [kept])
        nats = partial(Tensor.mul, other=problem.n_training_rows)
        return Trace(
            [visit.prediction for visit in kept.visits],
            [nats(visit.loss_increase) for visit in kept.visits],
        )

    def best_models(self, problem: Problem, searches: Searches) -> FoundModels:
        """Return the most divergent model of each search that explains the training data."""
        best = self._best(problem, searches, problem.network.free.start)
        run_searches(problem, self.steps, searches, [best])
        found = best.kept.models()
        return dataclasses.replace(found, cost=found.cost * problem.n_training_rows)

    def first_rivals(self, problem: Problem, searches: Searches, close: bool) -> FoundModels:  # noqa: ARG002
        """Return the first model of each search that gives another answer."""
        rivals = FirstRivals(problem, searches)
        run_searches(problem, self.steps, searches, [rivals])
        return rivals.kept.models()
