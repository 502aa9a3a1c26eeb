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
from typing import Any, Protocol

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

    def update(self, prediction: Any, log_weights: Tensor) -> None:
        """Add models (n_models, n_rows) with logarithms of their weights."""


# "gaussian": models drawn around each best one, and their spread relative to the change found.
_N_DRAWS = 8
_SPREAD = 0.25
# Ways that are no rounding, in log-odds or standard deviations.
_SHORTEST_WAY = 0.01
# Steps whose models are handed over together, which costs less than one by one.
_HAND_OVER_EVERY = 8


class AnswerCosts:
    """What the answer that each search is after costs, in mean loss.

    The cost of a model is the loss increase that the given network expects itself. It is never
    negative, and zero for the given network alone. Costs are taken to rise with the square of the
    way. Where a search measures every model well, the cost is interpolated where the way passes the
    answer. Where it sees mini-batches, a single one may be lucky: the cost of a unit of the way is
    averaged over the last steps.

    Parameters
    ----------
    problem : Problem
        What the searches have in common.
    steps : Steps
        How they move.
    original : Prediction
        What the given network predicts.
    score : Tensor of shape (n_searches,)
        The score of the target there.
    """

    def __init__(self, problem: Problem, steps: Steps, original: Any, score: Tensor) -> None:
        self._level, self._continues = problem.targets.level, problem.targets.continues
        self._measures_all, self._window = steps.measures_all, steps.window
        self._start = self._last_score = score
        self._last_root = torch.zeros_like(score)
        self.cost = torch.where(score >= self._level, 0.0, torch.inf).to(score)
        # Of a search that has not come as far as the answer: what it would cost to go on.
        self._continued = torch.full_like(score, torch.inf)
        # What a unit of the way costs, where mini-batches tell.
        self.cost_of_unit = torch.full_like(score, torch.nan)
        # A model that gives the answer, or is the closest to it.
        self.rival = original.clone()
        self._every = torch.arange(len(score), device=score.device)
        # Of the last steps: what the models have cost, and the squares of their ways.
        self._last_costs = score.new_zeros(self._window, len(score))
        self._last_squares = torch.zeros_like(self._last_costs)

    def note(self, visit: Visit, score: Tensor) -> None:
        """Take the models of a step, with their scores."""
        if self._measures_all:
            cost, continued = self._between_steps(visit, score)
        else:
            self.cost_of_unit = self._over_last_steps(visit, score)
            cost = self.cost_of_unit * (self._level - self._start) ** 2
            # A shorter way may be rounding.
            moved = score - self._start > _SHORTEST_WAY
            continued = torch.where(moved & (cost < self._continued), cost, torch.inf)
        reached, alive = score >= self._level, visit.alive
        better = alive & reached & (cost < self.cost)
        closer = alive & ~reached & torch.isfinite(continued) & torch.isinf(self.cost)
        self.cost = torch.where(better, cost, self.cost)
        self._continued = torch.where(closer, continued, self._continued)
        self.rival = self.rival.replaced(self._every, better | closer, visit.prediction)

    def _over_last_steps(self, visit: Visit, score: Tensor) -> Tensor:
        """Return what a unit of the way costs, by the mini-batches of the last steps."""
        slot, moved = visit.step % self._window, visit.steps == visit.step
        for kept, new in (
            (self._last_costs[slot], visit.expected_increase),
            (self._last_squares[slot], (score - self._start).clamp(min=0) ** 2),
        ):
            kept.copy_(torch.where(moved, new, kept))
        return self._last_costs.sum(dim=0) / self._last_squares.sum(dim=0)

    def _between_steps(self, visit: Visit, score: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cost where the way passes the answer, and where it would."""
        increase = visit.expected_increase.to(score)
        root = increase.clamp(min=0).sqrt()
        part = (self._level - self._last_score) / (score - self._last_score)
        passes = (self._last_score < self._level) & (score >= self._level)
        between = (self._last_root + part * (root - self._last_root)) ** 2
        way, whole = score - self._start, self._level - self._start
        continued = torch.where(way > 0, increase * (whole / way) ** 2, torch.inf)
        self._last_score, self._last_root = score, root
        return torch.where(passes, between, increase), continued

    def costs(self) -> Tensor:
        """Return what each answer costs; ways of means are drawn out to it."""
        if not self._continues:
            return self.cost
        return torch.where(torch.isinf(self.cost), self._continued, self.cost)


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
    """

    problem: Problem
    steps: Steps
    posterior: Accumulator | None
    query: Rows
    original: Prediction
    target: Tensor
    n_targets: int
    temperature: float

    def __post_init__(self) -> None:
        n_searches, device = len(self.target), self.target.device
        self.n_steps = torch.zeros(n_searches, dtype=torch.long, device=device)
        self.diverged = torch.zeros(n_searches, dtype=torch.bool, device=device)
        score = self._score(self.original)
        self.answers = AnswerCosts(self.problem, self.steps, self.original, score)

    def _score(self, prediction: Prediction) -> Tensor:
        targets: Any = self.problem.targets
        score = targets.score(prediction, self.original, self.target)
        return score.to(self.problem.training.losses.dtype)

    def on_visit(self, visit: Visit) -> None:
        """Take the models of a step."""
        self.n_steps, self.diverged = visit.steps, ~visit.alive
        self.answers.note(visit, self._score(visit.prediction))

    def on_candidates(self, candidates: Candidates) -> None:
        """Take nothing: what a step tells is enough."""

    def finish(self) -> None:
        """Hand over what could not be handed over before."""

    def _measure(self, number: Tensor, free: Free) -> tuple[Prediction, Tensor]:
        query = tuple(part[number] for part in self.query)
        return self.problem.measure(free, query, self.steps.rows_at_once)

    def _hand_over(
        self, prediction: Prediction, increase: Tensor, counts: Tensor, share: Tensor | None = None
    ) -> None:
        """Give models (..., n_searches) to the accumulator; each may stand for a share of many."""
        # In the type of the sums: a small temperature may be none in single precision.
        increase = increase.clamp(min=0).to(accumulation_dtype(increase.device))
        log_weights = torch.where(counts, -increase / self.temperature, -torch.inf)
        if share is not None:
            log_weights = log_weights + share.to(log_weights).log()
        n_axes = increase.ndim
        assert self.posterior is not None
        self.posterior.update(
            prediction.map(lambda part: self._models_first(part, n_axes)),
            self._models_first(log_weights, n_axes),
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
        self.best_increase = torch.zeros_like(self.answers.cost)
        self.best_divergence = torch.zeros_like(self.answers.cost)
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


class BoundsSampler(Sampler):
    """How small and how large each probability is among the models that are cheap enough.

    Natural search takes few steps. Between a model that is cheap enough and the next one that is
    not, the cost is taken to rise with the square of the way, and the log-odds of each class
    evenly, which they do in a linear model with two classes.
    """

    # The largest cost of a model that counts, in mean loss.
    bound: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lower = self.upper = _log_odds(self.original).sigmoid()
        # Of the model before: log-odds of all classes, and the root of what it costs.
        self._before = _log_odds(self.original)
        self._root_before = torch.zeros_like(self._before[:, 0])

    def on_candidates(self, candidates: Candidates) -> None:
        """Take the models of a step."""
        if self.steps.measures_all:
            found = candidates.evaluation
            # What `AnswerCosts` goes by, too.
            cost: Any = found.expected_increase
            self._take_until_too_dear(candidates.number, candidates.running, found.at_query, cost)
        elif bool(candidates.running.any()):
            number, free = candidates.pick(candidates.running)
            prediction, increase = self._measure(number, free)
            counts = (increase <= self.bound)[:, None]
            self._widen(number, counts, prediction.expected())

    def _take_until_too_dear(
        self, number: Tensor, fine: Tensor, prediction: Any, cost: Tensor
    ) -> None:
        """Take models up to where their way becomes too expensive."""
        root, largest = cost.clamp(min=0).sqrt().to(self._root_before), self.bound**0.5
        log_odds = _log_odds(prediction)
        before, root_before = self._before[number], self._root_before[number]
        crosses = (root > largest) & (root_before <= largest)
        part = torch.where(crosses, (largest - root_before) / (root - root_before), 1.0)
        reached = torch.lerp(before, log_odds, part[:, None]).sigmoid()
        self._widen(number, (fine & ((root <= largest) | crosses))[:, None], reached)
        self._before = replace_rows(self._before, number, fine, log_odds)
        self._root_before = self._root_before.index_copy(
            0, number, torch.where(fine, root, root_before)
        )

    def _widen(self, number: Tensor, counts: Tensor, proba: Tensor) -> None:
        """Let the bounds of some searches hold probabilities, where these count."""
        lower, upper = self.lower[number], self.upper[number]
        proba = torch.where(counts, proba.to(lower), lower)
        self.lower = self.lower.index_copy(0, number, torch.minimum(lower, proba))
        proba = torch.where(counts, proba, upper)
        self.upper = self.upper.index_copy(0, number, torch.maximum(upper, proba))


def _log_odds(prediction: Any) -> Tensor:
    """Return the log-odds of every class."""
    log_proba = prediction.log_proba.to(accumulation_dtype(prediction.device))
    log_proba = log_proba.clamp(max=-torch.finfo(log_proba.dtype).tiny)
    return log_proba - (-torch.expm1(log_proba)).log()


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
