"""The plausible models of QUAM: whatever searches find for the rows that are asked about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._network.executors import ChainExecutor
from .._network.free import FreeNetwork
from .._network.inputs.rows import Inputs, StoredRows
from .._network.limits import Limits
from .._network.predictions import Gaussian, Prediction
from .._network.reference import TrainingSet
from .natural.chains import ChainSteps
from .natural.general import GeneralSteps
from .natural.linear import LinearSteps
from .needs import NOTHING, Needs
from .penalty import PenaltySteps
from .problem import Problem
from .profile import choose_sampler
from .run import Reporter, run_searches
from .sampling import Accumulator, BoundsSampler, Sampler
from .targets import Targets

# Rows that the loss of a found model is measured on.
_MAX_EVALUATION_ROWS = 1024


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
    needs : Needs
        Memory that searches were measured to need.
    """

    problem: Problem
    steps: ChainSteps | GeneralSteps | LinearSteps | PenaltySteps
    sampling: str
    temperature: float
    needs: Needs = NOTHING

    def for_thread(self) -> AdversarialModels:
        """Return one that may search beside this one."""
        return replace(self, problem=self.problem.for_thread())

    # -- how much at once ------------------------------------------------------------------

    def most(self, limits: Limits) -> int:
        """Return how many searches may run together, however much memory there is."""
        on_cpu = limits.device.type == "cpu"
        return min(limits.at_once, self.steps.at_once_on_cpu) if on_cpu else limits.at_once

    def smaller_limits(self, n_rows: int, limits: Limits) -> Limits | None:
        """Return limits for half as many searches, or None where one was too many."""
        at_once = n_rows * self._targets_at_once(n_rows, limits) // 2
        return replace(limits, at_once=at_once) if at_once else None

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:  # noqa: ARG002
        """Return how many rows are searched together, with all their targets."""
        self.needs.refuse_too_little(limits)
        return self.needs.rows_that_fit(limits, self.problem.targets.count, self.most(limits))

    def _targets_at_once(self, n_rows: int, limits: Limits) -> int:
        """Return how many targets of some rows are searched for together."""
        count = self.problem.targets.count
        return self.needs.targets_that_fit(limits, n_rows, count, self.most(limits))

    def for_trial(self) -> AdversarialModels:
        """Return the same with few steps and searches, to find out how much these need."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {"steps": self.steps.shortened(), "needs": NOTHING}
        return _Trial(**values)

    def in_smaller_pieces(self) -> AdversarialModels | None:
        """Return the same with half as many training rows at once, if a search can be cut so."""
        problem = self.problem
        rows = min(problem.rows_at_once, self.steps.rows_at_once)
        if rows == 1 or isinstance(problem.network.executor, ChainExecutor):
            return None
        return replace(self, problem=replace(problem, rows_at_once=-(-rows // 2)))

    # -- searching -------------------------------------------------------------------------

    def given(self, inputs: Inputs) -> tuple[Inputs, Prediction]:
        """Return the values of rows at the cut, and what the given network predicts for them."""
        # Searches may be more exact than the given network is.
        if self.problem.training.losses.dtype == torch.float64:
            inputs = inputs.in_double()
        return self.problem.network.given(inputs)

    def sample(
        self, inputs: Inputs, original: Prediction, posterior: Accumulator | None, question: Any
    ) -> dict[str, np.ndarray]:
        """Search for models that disagree at some rows, and hand them to the accumulator.

        Parameters
        ----------
        inputs : Inputs
            Values of rows at the cut, as `given` returns them; so in all that follows.
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
        groups = list(self._target_groups(original, question.limits))
        samplers = []
        for number, targets in enumerate(groups):
            report = question.report and partial(_report, question.report, number, len(groups))
            samplers.append(
                self._search(inputs, original, targets, self._sampler, posterior, report)
            )
        return self._diagnose(samplers, original)

    @property
    def _sampler(self) -> type[Sampler]:
        regression = self.problem.network.executor.likelihood.kind is Gaussian
        return choose_sampler(self.sampling, self.steps.measures_all, regression)

    def prices(self, inputs: Inputs, original: Prediction, limits: Limits) -> np.ndarray:
        """Return what each answer costs for some rows, (n_rows, n_answers), in nats.

        Answers are the classes, or up and down for each output; infinite for those that were not
        searched for, or not reached.
        """
        n_answers = self.problem.targets.n_answers
        prices = np.full((len(inputs), n_answers), np.inf)
        rows = np.arange(len(inputs))[:, None]
        for targets in self._target_groups(original, limits):
            sampler = self._search(inputs, original, targets, Sampler, None)
            found = sampler.answers.costs().unflatten(0, (-1, sampler.n_targets))
            nats = found.cpu().double().numpy() * self.problem.n_training_rows
            prices[rows, targets.cpu().numpy()] = nats
        return prices

    def bounds(
        self, inputs: Inputs, original: Prediction, limits: Limits, slack: float
    ) -> np.ndarray:
        """Return bounds of each probability for some rows, (n_rows, n_classes, 2).

        They are over the given network and all models met whose loss increase is within the slack.
        """
        kind: Any = type("BoundsWithin", (BoundsSampler,), {"bound": slack})
        lower, upper = [], []
        for targets in self._target_groups(original, limits):
            sampler: Any = self._search(inputs, original, targets, kind, None)
            lower.append(sampler.lower.unflatten(0, (-1, sampler.n_targets)))
            upper.append(sampler.upper.unflatten(0, (-1, sampler.n_targets)))
        ends = torch.cat(lower, dim=1).amin(dim=1), torch.cat(upper, dim=1).amax(dim=1)
        return torch.stack(ends, dim=-1).cpu().double().numpy().clip(0, 1)

    def searches_of_row(
        self, inputs: Inputs, original: Prediction, kind: type[Sampler], limits: Limits
    ) -> Iterator[tuple[Any, int, int]]:
        """Search a single row; yield for each search who watched it, its number and its target."""
        for watcher, targets in self.watched(inputs, original, kind, limits):
            for number, target in enumerate(targets[0].tolist()):
                yield watcher, number, target

    def watched(
        self, inputs: Inputs, original: Prediction, kind: type[Sampler], limits: Limits
    ) -> Iterator[tuple[Any, Tensor]]:
        """Search some rows; yield who watched, and the targets (n_rows, n_targets)."""
        for targets in self._target_groups(original, limits):
            yield self._search(inputs, original, targets, kind, None), targets

    def _target_groups(self, original: Any, limits: Limits) -> Iterator[Tensor]:
        """Yield targets (n_rows, n_targets), as many together as memory allows."""
        targets = self.problem.targets.choose(original)
        yield from targets.split(self._targets_at_once(len(original), limits), dim=1)

    def _search(
        self,
        inputs: Inputs,
        original: Prediction,
        targets: Tensor,
        kind: type[Sampler],
        posterior: Accumulator | None,
        report: Callable[[float], None] | None = None,
    ) -> Sampler:
        """Run the searches of some rows for some targets."""
        problem, n_targets = self.problem, targets.shape[1]
        steps: Any = self.steps
        query = tuple(part.repeat_interleave(n_targets, dim=0) for part in inputs.parts)
        repeated, target = original.repeat(n_targets), targets.flatten()
        sampler = kind(
            problem, steps, posterior, query, repeated, target, n_targets, self.temperature
        )
        watcher = sampler if report is None else Reporter(sampler, report, steps.n_steps)
        run_searches(problem, steps, query, repeated, target, n_targets, watcher)
        sampler.finish()
        return sampler

    def _diagnose(self, samplers: list[Sampler], original: Prediction) -> dict[str, np.ndarray]:
        """Return what the searches of each row have come to."""

        def table(name: str) -> Tensor:
            parts = [getattr(s, name).unflatten(0, (-1, s.n_targets)) for s in samplers]
            return torch.cat(parts, dim=1)

        targets: Any = self.problem.targets
        of_answers = [s.answers.costs().unflatten(0, (-1, s.n_targets)) for s in samplers]
        own = targets.is_original(original, table("target"))
        least, cheapest = torch.cat(of_answers, dim=1).masked_fill(own, torch.inf).min(dim=1)
        by_row = [s.answers.rival.unflatten(0, (-1, s.n_targets)) for s in samplers]
        rows = torch.arange(len(cheapest), device=cheapest.device)
        rivals: Any = original.cat(by_row, dim=1)[rows, cheapest]
        price = least.cpu().double().numpy()
        names = targets.rival_names(rivals, original)
        return {
            "rival": np.where(np.isfinite(price), names, np.array(None)),
            "rival_cost": price * self.problem.n_training_rows,
            "feasible": price <= self.problem.slack,
            "n_steps": table("n_steps").sum(dim=1).cpu().numpy(),
            "n_diverged": table("diverged").sum(dim=1).cpu().numpy(),
        }


class _Trial(AdversarialModels):
    """Searches for the first targets only: as many as may run together."""

    def _target_groups(self, original: Any, limits: Limits) -> Iterator[Tensor]:
        yield next(super()._target_groups(original, limits))


def _report(report: Callable[[float], None], number: int, count: int, share: float) -> None:
    """Report a share of one of several groups as a share of the whole."""
    report((number + share) / count)


def adversarial_models(
    network: FreeNetwork,
    training: TrainingSet,
    on_training: Any,
    search: Any,
    targets: Targets,
    *,
    sampling: str,
    temperature: float,
    slack: float,
    n_training_rows: int,
    limits: Limits,
    seed: int,
) -> AdversarialModels:
    """Prepare searches, so that whatever is wrong shows when an estimator is fitted.

    Parameters
    ----------
    network : FreeNetwork
        The network as a function of what may change.
    training : TrainingSet
        The training data, as the network takes them.
    on_training : Prediction
        What the given network predicts for them.
    search : NaturalSearch, LinearSearch or PenaltySearch
        The way to search.
    targets : Targets
        What the searches are after.
    sampling : str
        Which of the models that they meet count.
    temperature, slack : float
        Scale of loss increases, and the largest one of a feasible model.
    n_training_rows : int
        How many rows the network was trained on.
    limits : Limits
        What may be used meanwhile.
    seed : int
        Seeds whatever the searches draw.

    Returns
    -------
    AdversarialModels
        What answers for rows.
    """
    generator = torch.Generator().manual_seed(seed)
    device, nothing = training.target.device, torch.empty(0, dtype=torch.long)
    problem = Problem(
        network,
        network.training_at_cut(training),
        targets,
        slack,
        nothing,
        on_training,
        n_training_rows,
    )
    steps = search._steps(problem, generator, limits)
    evaluation = torch.randperm(len(training), generator=generator)[:_MAX_EVALUATION_ROWS]
    problem = replace(problem, evaluation=evaluation.to(device))
    return AdversarialModels(problem, steps, sampling, temperature)
