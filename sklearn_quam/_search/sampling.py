"""Which models met by the searches count, and how much.

A sample's weight is exp(-(loss increase) / temperature), where the increase is measured against the
given network on the same data. A model that explains these data better than the given one counts
no more than it: which rows a mini-batch happens to hold must not make a model count a lot.

The given network counts as a sample, once for each target, because every search starts there. It
anchors the weights: where all other models explain the training data badly, it alone remains, and
the epistemic uncertainty is small instead of being an average over bad models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from .._network.free import Free
from .._network.limits import accumulation_dtype
from .._network.predictions import Prediction, replace_rows
from .._network.reference import Rows
from .problem import Problem
from .run import Candidates, Visit
from .steps import Steps


class Accumulator(Protocol):
    """Who takes samples."""

    def update(
        self, prediction: Any, log_weights: Tensor, forecast_log_weights: Tensor | None = None
    ) -> None:
        """Add models (n_models, n_rows) with logarithms of their weights.

        The average that predicts may have weights of its own.
        """


# "gaussian": models drawn around each best one, and their spread relative to the change found.
_N_DRAWS = 8
_SPREAD = 0.25
# Steps whose models are handed over together, which costs less than one by one.
_HAND_OVER_EVERY = 8


@dataclass
class Sampler:
    """Turns the models of a batch of searches into weighted samples.

    Parameters
    ----------
    problem : Problem
        What the searches have in common.
    steps : Steps
        How they move.
    posterior : Accumulator or None
        Takes the samples; None where models are only watched.
    query : tuple of Tensor of shape (n_searches, ...)
        Values at the cut of the row of each search, the targets of a row side by side.
    original : Prediction
        What the given network predicts for it.
    target : Tensor of shape (n_searches,)
        What each search is after.
    n_targets : int
        Searches for each row.
    temperature : float
        Scale of loss increases.
    forecast_temperature : float or None
        Scale of loss increases for the average that predicts; None where it is the same.
    """

    # Whether it needs the loss increase that the given network expects itself.
    needs_expected_increase: ClassVar[bool] = False

    problem: Problem
    steps: Steps
    posterior: Accumulator | None
    query: Rows
    original: Prediction
    target: Tensor
    n_targets: int
    temperature: float
    forecast_temperature: float | None = None

    def __post_init__(self) -> None:
        n_searches, device = len(self.target), self.target.device
        # The cheapest model that disagrees with the given one, of each search.
        dtype = self.problem.training.losses.dtype
        self.rival_increase = torch.full((n_searches,), torch.inf, dtype=dtype, device=device)
        self.rival = self.original.clone()
        self.n_steps = torch.zeros(n_searches, dtype=torch.long, device=device)
        self.diverged = torch.zeros(n_searches, dtype=torch.bool, device=device)
        # What it costs to come to another answer, and where the last step was on the way to it.
        given = self._score(self.original) >= self.problem.targets.level
        self.price = torch.where(given, 0.0, self.rival_increase)
        self._beyond = self.price
        self._last_score = self._score(self.original)
        self._last_root = torch.zeros_like(self.price)

    def _score(self, prediction: Prediction) -> Tensor:
        targets: Any = self.problem.targets
        return targets.score(prediction, self.original, self.target).to(self.rival_increase)

    def on_visit(self, visit: Visit) -> None:
        """Take the models of a step."""
        self.n_steps, self.diverged = visit.steps, ~visit.alive
        self._note_price(visit)
        if self.steps.measures_all:
            increase = torch.maximum(visit.loss_increase, visit.expected_increase)
            every = torch.arange(len(self.target), device=self.target.device)
            self._note_rivals(
                every, visit.prediction, torch.where(visit.alive, increase, torch.inf)
            )

    def _note_price(self, visit: Visit) -> None:
        """Note what the answer costs where a way passes it; a cost rises with the square."""
        level = self.problem.targets.level
        measured = self.steps.measures_all
        increase = visit.expected_increase if measured else visit.loss_increase
        score, root = self._score(visit.prediction), increase.clamp(min=0).sqrt()
        part = (level - self._last_score) / (score - self._last_score)
        passes = (self._last_score < level) & (score >= level)
        price = (self._last_root + part * (root - self._last_root)) ** 2
        price = torch.where(score >= level, torch.where(passes, price, root**2), torch.inf)
        self.price = torch.where(visit.alive, torch.minimum(self.price, price), self.price)
        short = (score > 0) & (score < level) & visit.alive
        self._beyond = torch.where(short, increase * (level / score) ** 2, self._beyond)
        self._last_score, self._last_root = score, root

    def prices(self) -> Tensor:
        """Return what each answer costs in mean loss; ways of means are drawn out to it."""
        if not self.problem.targets.continues:
            return self.price
        return torch.where(torch.isinf(self.price), self._beyond, self.price)

    def on_candidates(self, candidates: Candidates) -> None:
        """Measure the models of searches that end, unless every model is measured anyway."""
        if not self.steps.measures_all and bool(candidates.ending.any()):
            self._measure(*candidates.pick(candidates.ending))

    def finish(self) -> None:
        """Hand over what could not be handed over before."""

    def _measure(self, number: Tensor, free: Free) -> tuple[Prediction, Tensor]:
        query = tuple(part[number] for part in self.query)
        prediction, increase = self.problem.measure(free, query, self.steps.rows_at_once)
        self._note_rivals(number, prediction, increase)
        return prediction, increase

    def _note_rivals(self, number: Tensor, prediction: Any, increase: Tensor) -> None:
        targets: Any = self.problem.targets
        disagrees = targets.disagrees(self.original[number], prediction)
        cheaper = disagrees & (increase < self.rival_increase[number])
        self.rival_increase[number] = torch.where(cheaper, increase, self.rival_increase[number])
        self.rival = self.rival.replaced(number, cheaper, prediction)

    def _hand_over(
        self, prediction: Prediction, increase: Tensor, counts: Tensor, share: Tensor | None = None
    ) -> None:
        """Give models (..., n_searches) to the accumulator; each may stand for a share of many."""
        # In the type of the sums: a small temperature may be none in single precision.
        increase = increase.clamp(min=0).to(accumulation_dtype(increase.device))
        n_axes = increase.ndim

        def log_weights(temperature: float) -> Tensor:
            weights = torch.where(counts, -increase / temperature, -torch.inf)
            if share is not None:
                weights = weights + share.to(weights).log()
            return self._models_first(weights, n_axes)

        assert self.posterior is not None
        own = self.forecast_temperature
        self.posterior.update(
            prediction.map(lambda part: self._models_first(part, n_axes)),
            log_weights(self.temperature),
            None if own is None else log_weights(own),
        )

    def _models_first(self, part: Tensor, n_axes: int) -> Tensor:
        """Turn (..., n_rows * n_targets, n_outputs) into (n_models, n_rows, n_outputs)."""
        split = part.unflatten(n_axes - 1, (-1, self.n_targets))
        return split.transpose(n_axes - 1, n_axes).flatten(0, n_axes - 1)


class TrajectorySampler(Sampler):
    """Every model met on the way is a sample."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._waiting: list[Visit] = []

    def on_visit(self, visit: Visit) -> None:
        """Take the models of a step; they are handed over a few steps at a time."""
        super().on_visit(visit)
        self._waiting.append(visit)
        if len(self._waiting) == _HAND_OVER_EVERY:
            self.finish()

    def finish(self) -> None:
        """Hand over the models that wait."""
        if self._waiting:
            self._hand_over(
                self.original.stack([v.prediction for v in self._waiting]),
                torch.stack([v.loss_increase for v in self._waiting]),
                torch.stack([v.alive for v in self._waiting]),
            )
        self._waiting = []


class BestSampler(Sampler):
    """Of each search, the most divergent feasible model is a sample."""

    keeps_models = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.best = self.original.clone()
        self.best_increase = torch.zeros_like(self.rival_increase)
        self.best_divergence = torch.zeros_like(self.rival_increase)
        self.found = torch.zeros_like(self.diverged)
        self.models: Free = {}
        if self.keeps_models:
            self.models = {
                name: start.expand(len(self.found), *start.shape).clone()
                for name, start in self.problem.network.free.start.items()
            }

    def on_candidates(self, candidates: Candidates) -> None:
        """Measure all models."""
        if self.steps.measures_all:
            found, number = candidates.evaluation, candidates.number
            prediction: Any = found.at_query
            increase = found.loss_increase
            if found.expected_increase is not None:
                increase = torch.maximum(increase, found.expected_increase)
            fine = candidates.running
            free = candidates.free_of(number) if self.keeps_models else {}
        else:
            if not bool(candidates.running.any()):
                return
            number, free = candidates.pick(candidates.running)
            prediction, increase = self._measure(number, free)
            fine = torch.ones_like(number, dtype=torch.bool)
        self._take(number, fine, prediction, increase, free)

    def _take(
        self, number: Tensor, fine: Tensor, prediction: Any, increase: Tensor, free: Free
    ) -> None:
        """Take measured models, given by the numbers of their searches, of which some count."""
        divergence = self.original[number].kl(prediction)
        better = fine & (increase <= self.problem.slack)
        better &= divergence > self.best_divergence[number]
        self.best = self.best.replaced(number, better, prediction)
        self.best_increase[number] = torch.where(better, increase, self.best_increase[number])
        self.best_divergence[number] = torch.where(better, divergence, self.best_divergence[number])
        self.found[number] |= better
        for name, kept in self.models.items():
            self.models[name] = replace_rows(kept, number, better, free[name])

    def finish(self) -> None:
        """Hand over the given network and the best model of each search."""
        everywhere = torch.ones_like(self.found)
        self._hand_over(self.original, torch.zeros_like(self.best_increase), everywhere)
        self._hand_over(self.best, self.best_increase, self.found)


class BoundsSampler(BestSampler):
    """How small and how large each probability is among the models that are cheap enough.

    Natural search takes few steps. Between a model that is cheap enough and the next one that is
    not, the cost is taken to rise with the square of the way, and probabilities evenly.
    """

    # The largest loss increase of a model that counts.
    bound: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lower = self.upper = self._last = self.original.expected()
        self._last_root = torch.zeros_like(self.rival_increase)

    def _take(
        self,
        number: Tensor,
        fine: Tensor,
        prediction: Any,
        increase: Tensor,
        free: Free,  # noqa: ARG002
    ) -> None:
        proba, root = prediction.expected().to(self.lower), increase.clamp(min=0).sqrt()
        last, last_root = self._last[number], self._last_root[number]
        largest = self.bound**0.5
        within = fine & (root <= largest)
        if self.steps.measures_all:
            crosses = fine & (root > largest) & (last_root <= largest)
            part = torch.where(crosses, (largest - last_root) / (root - last_root), 1.0)
            counted = torch.lerp(last, proba, part[:, None].to(last))
            within = within | crosses
        else:
            counted = proba
        counts = within[:, None]
        lower, upper = self.lower[number], self.upper[number]
        lower = torch.where(counts, torch.minimum(lower, counted), lower)
        upper = torch.where(counts, torch.maximum(upper, counted), upper)
        self.lower = self.lower.index_copy(0, number, lower)
        self.upper = self.upper.index_copy(0, number, upper)
        moved = torch.where(fine[:, None], proba, last)
        self._last = self._last.index_copy(0, number, moved)
        self._last_root = self._last_root.index_copy(
            0, number, torch.where(fine, root, last_root).to(self._last_root)
        )

    def finish(self) -> None:
        """Hand over nothing: only the bounds are wanted."""


class GaussianSampler(BestSampler):
    """Models drawn around the best one of each search are samples.

    A local distribution around each mode, as the paper has it. Each free parameter varies with a
    standard deviation of a quarter of the change that the search has made to it. A draw counts by
    its own loss increase; the density that it was drawn with is left out of its weight.
    """

    keeps_models = True

    def finish(self) -> None:
        """Hand over the given network, the best models and draws around them."""
        super().finish()
        generator = torch.Generator(device="cpu")
        start = self.problem.network.free.start
        for draw in range(_N_DRAWS):
            free = {}
            for offset, (name, best) in enumerate(self.models.items()):
                # The same noise for every search: a row must not depend on the rows beside it.
                generator.manual_seed(draw * len(self.models) + offset)
                noise = torch.randn(start[name].shape, generator=generator).to(best)
                free[name] = best + _SPREAD * noise * (best - start[name])
            prediction, increase = self.problem.measure(free, self.query, self.steps.rows_at_once)
            fine = torch.isfinite(increase) & prediction.is_finite()
            self._hand_over(prediction, increase, self.found & fine)
