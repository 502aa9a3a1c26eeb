"""The plausible models of QUAM, which searches find for each sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._network.executors import ChainExecutor
from .._network.inputs.rows import Inputs, StoredRows
from .._network.limits import Limits
from .._network.predictions import Prediction
from .natural.engine import NaturalEngine
from .needs import NOTHING, Needs, measured_needs
from .penalty.engine import PenaltyEngine
from .problem import Problem
from .searches import Accumulator, Outcome, Searches

# Asks models about samples within limits, to measure the memory of it.
Run = Callable[["AdversarialModels", Inputs, Limits], object]


@dataclass(frozen=True)
class AdversarialModels:
    """Models that explain the training data but disagree at a sample, found on demand."""

    problem: Problem
    engine: NaturalEngine | PenaltyEngine
    needs: Needs = NOTHING  # Memory that searches were measured to need
    # Whether only the first targets are searched for: as many as may run together
    is_trial: bool = False

    def for_thread(self) -> AdversarialModels:
        """Return one that may search beside this one."""
        return replace(self, problem=self.problem.for_thread())

    # -- how much at once ------------------------------------------------------------------

    def sized(self, run: Run, inputs: StoredRows, limits: Limits) -> AdversarialModels:
        """Return the same with measured needs, in pieces that fit where that is possible."""
        models = self
        while True:
            trial = replace(models, engine=self.engine.shortened(), is_trial=True)
            needs = measured_needs(partial(run, trial), inputs, limits, self._most(limits))
            smaller = models._in_smaller_pieces()
            if needs.of(1, 1) <= limits.for_each_worker or smaller is None:
                break
            models = smaller
        needs.refuse_too_little(limits)
        return replace(models, needs=needs)

    def _in_smaller_pieces(self) -> AdversarialModels | None:
        """Return the same with half as many training samples at once, if that is possible."""
        problem = self.problem
        rows = min(problem.rows_at_once, self.engine.rows_at_once)
        if rows == 1 or isinstance(problem.network.executor, ChainExecutor):
            return None
        return replace(self, problem=replace(problem, rows_at_once=-(-rows // 2)))

    def _most(self, limits: Limits) -> int:
        """Return how many searches may run together, however much memory there is."""
        on_cpu = limits.device.type == "cpu"
        return min(limits.at_once, self.engine.at_once_on_cpu) if on_cpu else limits.at_once

    def _targets_at_once(self, n_samples: int, limits: Limits) -> int:
        """Return how many targets of some samples are searched for together."""
        count = self.problem.targets.count
        return self.needs.targets_that_fit(limits, n_samples, count, self._most(limits))

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:  # noqa: ARG002
        """Return how many samples are searched together, with all their targets."""
        self.needs.refuse_too_little(limits)
        return self.needs.rows_that_fit(limits, self.problem.targets.count, self._most(limits))

    def smaller_limits(self, n_samples: int, limits: Limits) -> Limits | None:
        """Return limits for half as many searches, or None where one was too many."""
        at_once = n_samples * self._targets_at_once(n_samples, limits) // 2
        return replace(limits, at_once=at_once) if at_once else None

    # -- searching -------------------------------------------------------------------------

    def given(self, inputs: Inputs) -> tuple[Inputs, Prediction]:
        """Return the values of samples at the cut, and the given network's predictions."""
        # Searches may be more exact than the given network is.
        if self.problem.training.losses.dtype == torch.float64:
            inputs = inputs.in_double()
        return self.problem.network.given(inputs)

    def sample(
        self, inputs: Inputs, original: Prediction, posterior: Accumulator, question: Any
    ) -> dict[str, np.ndarray]:
        """Search for models that disagree at some samples, and hand them to the accumulator."""
        batches = list(self.searches(inputs, original, question.limits))
        found = [self.engine.sample(self.problem, one, posterior) for one in batches]
        return self._diagnose(batches, found, original)

    def answer_costs(self, inputs: Inputs, original: Prediction, limits: Limits) -> np.ndarray:
        """Return the cost of each answer for some samples, (n_samples, n_answers), in nats.

        Answers are the classes, or up and down for each output; infinite for those that were not
        searched for, or not reached.
        """
        costs = np.full((len(inputs), self.problem.targets.n_answers), np.inf)
        samples = np.arange(len(inputs))[:, None]
        for searches in self.searches(inputs, original, limits):
            found = self.engine.outcome(self.problem, searches).cost.cpu().double().numpy()
            targets = searches.targets.cpu().numpy()
            costs[samples, targets] = found.reshape(targets.shape)
        return costs

    def bounds(
        self, inputs: Inputs, original: Prediction, limits: Limits, slack: float
    ) -> np.ndarray:
        """Return bounds of each probability for some samples, (n_samples, n_classes, 2).

        They are over the given network and all models met that cost no more than the slack.
        """
        lower, upper = [], []
        for searches in self.searches(inputs, original, limits):
            least, most = self.engine.bounds(self.problem, searches, slack)
            lower.append(least.unflatten(0, (-1, searches.n_targets)))
            upper.append(most.unflatten(0, (-1, searches.n_targets)))
        ends = torch.cat(lower, dim=1).amin(dim=1), torch.cat(upper, dim=1).amax(dim=1)
        return torch.stack(ends, dim=-1).cpu().double().numpy().clip(0, 1)

    def searches(self, inputs: Inputs, original: Prediction, limits: Limits) -> Iterator[Searches]:
        """Yield searches for all targets of samples, as many together as memory allows."""
        targets = self.problem.targets.choose(original)  # type: ignore[arg-type]
        parts = targets.split(self._targets_at_once(len(targets), limits), dim=1)
        for number, some in enumerate(parts[:1] if self.is_trial else parts):
            yield Searches(inputs.parts, original, some, number == 0)

    def _diagnose(
        self, batches: list[Searches], found: list[Outcome], original: Any
    ) -> dict[str, np.ndarray]:
        """Return diagnostics of each sample."""
        pairs = list(zip(batches, found, strict=True))

        def table(name: str) -> Tensor:
            parts = [getattr(f, name).unflatten(0, s.targets.shape) for s, f in pairs]
            return torch.cat(parts, dim=1)

        targets: Any = self.problem.targets
        own = targets.is_original(original, torch.cat([s.targets for s in batches], dim=1))
        least, cheapest = table("cost").masked_fill(own, torch.inf).min(dim=1)
        by_sample = [f.rival.unflatten(0, s.targets.shape) for s, f in pairs]
        samples = torch.arange(len(cheapest), device=cheapest.device)
        rivals = original.cat(by_sample, dim=1)[samples, cheapest]
        cost = least.cpu().double().numpy()
        names = targets.rival_names(rivals, original)
        return {
            "rival": np.where(np.isfinite(cost), names, np.array(None)),
            "rival_cost": cost,
            "feasible": cost <= self.engine.slack,
            "n_steps": table("n_steps").sum(dim=1).cpu().numpy(),
            "n_diverged": table("diverged").sum(dim=1).cpu().numpy(),
        }
