"""The plausible models of QUAM: whatever searches find for the rows that are asked about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._network.free import FreeNetwork
from .._network.limits import Limits
from .._network.predictions import Prediction
from .._network.reference import ReferenceModel, TrainingSet
from .problem import Problem
from .run import run_searches
from .sampling import SAMPLERS, Accumulator, Sampler
from .steps import Steps
from .targets import Targets

# Rows that the loss of a found model is measured on.
_MAX_EVALUATION_ROWS = 1024
# More searches at once than this no longer pay on a CPU: their values leave the caches.
_MAX_SEARCHES_ON_CPU = 160


@dataclass(frozen=True)
class AdversarialModels:
    """Models that explain the training data but disagree at a row, found when it is asked about.

    Parameters
    ----------
    problem : Problem
        What the searches have in common.
    steps : Steps
        How they move.
    sampling : str
        Which of the models that they meet count.
    temperature : float
        Scale of loss increases.
    bytes_per_search : int
        Memory that one more search needs.
    """

    problem: Problem
    steps: Steps
    sampling: str
    temperature: float
    bytes_per_search: int

    def for_thread(self) -> AdversarialModels:
        """Return one that may search beside this one."""
        return replace(self, problem=self.problem.for_thread())

    # -- how much at once ------------------------------------------------------------------

    def _searches_at_once(self, limits: Limits) -> int:
        """Return how many searches fit the memory limit, which all workers share."""
        number = max(1, limits.memory // limits.n_workers // self.bytes_per_search)
        if limits.device.type == "cpu":
            number = min(number, _MAX_SEARCHES_ON_CPU)
        return min(number, limits.at_once)

    def smaller_limits(self, limits: Limits) -> Limits | None:
        """Return limits for half as many searches, or None where one was too many."""
        at_once = self._searches_at_once(limits) // 2
        return replace(limits, at_once=at_once) if at_once else None

    def rows_at_once(self, inputs: Tensor, limits: Limits) -> int:  # noqa: ARG002
        """Return how many rows are searched together, with all their targets."""
        return max(1, self._searches_at_once(limits) // self.problem.targets.count)

    # -- searching -------------------------------------------------------------------------

    def sample(
        self, inputs: Tensor, original: Prediction, posterior: Accumulator | None, question: Any
    ) -> dict[str, np.ndarray]:
        """Search for models that disagree at some rows, and hand them to the accumulator.

        Parameters
        ----------
        inputs : Tensor of shape (n_rows, ...)
            Rows as the network takes them.
        original : Prediction
            What the given network predicts for them.
        posterior : Accumulator
            Takes the models.
        question : Question
            Its limits say how many searches may run together.

        Returns
        -------
        dict of ndarray
            Columns of `SearchDiagnostics`.
        """
        kind = SAMPLERS[self.sampling]
        samplers = [
            self._search(inputs, original, targets, kind, posterior)
            for targets in self._target_groups(original, question.limits)
        ]
        return self._diagnose(samplers, original)

    def searches_of_row(
        self, inputs: Tensor, original: Prediction, kind: type[Sampler], limits: Limits
    ) -> Iterator[tuple[Any, int, int]]:
        """Search a single row; yield for each search who watched it, its number and its target."""
        for targets in self._target_groups(original, limits):
            watcher = self._search(inputs, original, targets, kind, None)
            for number, target in enumerate(targets[0].tolist()):
                yield watcher, number, target

    def _target_groups(self, original: Any, limits: Limits) -> Iterator[Tensor]:
        """Yield targets (n_rows, n_targets), as many together as memory allows."""
        targets = self.problem.targets.choose(original)
        size = max(1, self._searches_at_once(limits) // len(original))
        yield from targets.split(size, dim=1)

    def _search(
        self,
        inputs: Tensor,
        original: Prediction,
        targets: Tensor,
        kind: type[Sampler],
        posterior: Accumulator | None,
    ) -> Sampler:
        """Run the searches of some rows for some targets."""
        problem, n_targets = self.problem, targets.shape[1]
        at_cut = problem.network.split.at_cut(inputs)
        query = tuple(part.repeat_interleave(n_targets, dim=0) for part in at_cut)
        repeated, target = original.repeat(n_targets), targets.flatten()
        sampler = kind(
            problem, self.steps, posterior, query, repeated, target, n_targets, self.temperature
        )
        run_searches(problem, self.steps, query, repeated, target, sampler)
        sampler.finish()
        return sampler

    def _diagnose(self, samplers: list[Sampler], original: Prediction) -> dict[str, np.ndarray]:
        """Return what the searches of each row have come to."""

        def table(name: str) -> Tensor:
            parts = [getattr(s, name).unflatten(0, (-1, s.n_targets)) for s in samplers]
            return torch.cat(parts, dim=1)

        increase, cheapest = table("rival_increase").min(dim=1)
        by_row = [s.rival.unflatten(0, (-1, s.n_targets)) for s in samplers]
        rows = torch.arange(len(cheapest), device=cheapest.device)
        rivals: Any = original.cat(by_row, dim=1)[rows, cheapest]
        found = torch.isfinite(increase).cpu().numpy()
        targets: Any = self.problem.targets
        return {
            "rival": np.where(found, targets.rival_names(rivals, original), np.array(None)),
            "loss_increase": np.where(found, increase.cpu().double().numpy(), np.nan),
            "feasible": found & (increase <= self.problem.slack).cpu().numpy(),
            "n_steps": table("n_steps").sum(dim=1).cpu().numpy(),
            "n_diverged": table("diverged").sum(dim=1).cpu().numpy(),
        }


def adversarial_models(
    reference: ReferenceModel,
    network: FreeNetwork,
    training: TrainingSet,
    search: Any,
    targets: Targets,
    *,
    sampling: str,
    temperature: float,
    slack: float,
    seed: int,
) -> AdversarialModels:
    """Prepare searches, so that whatever is wrong shows when an estimator is fitted.

    Parameters
    ----------
    reference : ReferenceModel
        The given network.
    network : FreeNetwork
        The network as a function of what may change.
    training : TrainingSet
        The training data, as the network takes them.
    search : PenaltySearch
        The way to search.
    targets : Targets
        What the searches are after.
    sampling : str
        Which of the models that they meet count.
    temperature, slack : float
        Scale of loss increases, and the largest one of a feasible model.
    seed : int
        Seeds whatever the searches draw.

    Returns
    -------
    AdversarialModels
        What answers for rows.
    """
    on_training = None
    if SAMPLERS[sampling].needs_expected_increase:
        on_training = reference.predict(training.inputs)
    generator = torch.Generator().manual_seed(seed)
    device, nothing = training.target.device, torch.empty(0, dtype=torch.long)
    problem = Problem(
        network, network.training_at_cut(training), targets, slack, nothing, on_training
    )
    steps = search._steps(problem, generator)
    evaluation = torch.randperm(len(training), generator=generator)[:_MAX_EVALUATION_ROWS]
    problem = replace(problem, evaluation=evaluation.to(device))
    needed = steps.bytes_per_search(problem, network.at_cut(network.probe))
    return AdversarialModels(problem, steps, sampling, temperature, needed)
