"""Which models of penalty searches count, and how much; what answers cost.

A model weighs exp(-(loss increase) / temperature), where the increase is measured against the given
network on the same data. A model that explains these data better than the given network counts no
more than it: a lucky mini-batch must not make a model count a lot. The given network counts once
for each target, because every search starts there.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..._network.free import Free
from ..._network.limits import accumulation_dtype
from ..problem import Problem
from ..searches import Accumulator, FoundModels, Outcome, Searches
from .loop import Visit

# Distances that are no rounding, in log-odds or standard deviations.
_SHORTEST = 0.01
# "gaussian": models drawn around each best one, and their spread relative to the change found.
_N_DRAWS = 8
_SPREAD = 0.25
# Steps whose models are handed over together, which costs less than one by one.
_HAND_OVER_EVERY = 8
# "profile": bins of the shift of a mean, in units of the given standard deviation.
_N_BINS = 96
_FINEST_SHIFT, _LARGEST_SHIFT = 0.01, 1e3
_BIN_WIDTH = math.asinh(_LARGEST_SHIFT / _FINEST_SHIFT) / _N_BINS


class Weighing:
    """Gives models of penalty searches to an accumulator."""

    def __init__(self, searches: Searches, posterior: Accumulator, temperature: float) -> None:
        self._searches, self._posterior, self._temperature = searches, posterior, temperature

    def __call__(
        self, prediction: Any, increase: Tensor, counts: Tensor, width: Tensor | None = None
    ) -> None:
        """Give models (n_models, n_searches); each may represent a share of many."""
        # In the type of the sums: a small temperature may be none in single precision.
        increase = increase.clamp(min=0).to(accumulation_dtype(increase.device))
        log_weights = torch.where(counts, -increase / self._temperature, -torch.inf)
        if width is not None:
            log_weights = log_weights + width.to(log_weights).log()
        self._searches.hand_over(self._posterior, prediction, log_weights)


class AnswerCosts:
    """Costs of the answers that searches go to, in mean loss.

    The cost is the loss increase that the given network expects itself. It is taken to rise with
    the square of the distance; the cost of a unit distance is averaged over the last steps.
    """

    def __init__(self, problem: Problem, searches: Searches, window: int) -> None:
        self._problem, self._searches, self._window = problem, searches, window
        self._rival = searches.original
        self._start = score = self.score(self._rival)
        self._cost = torch.where(score >= problem.targets.level, 0.0, torch.inf).to(score)
        # Of a search that has not come as far as the answer, by extrapolation.
        self._continued = torch.full_like(score, torch.inf)
        self.cost_of_unit = torch.full_like(score, torch.nan)
        self._every = torch.arange(len(score), device=score.device)
        # Of the last steps: costs of the models, and squares of their distances.
        self._last_costs = score.new_zeros(window, len(score))
        self._last_squares = torch.zeros_like(self._last_costs)
        self._n_steps, self._diverged = torch.zeros_like(self._every), score != score

    def score(self, prediction: Any) -> Tensor:
        """Return the score of the target of each search."""
        score = self._problem.score(prediction, self._searches)
        return score.to(self._problem.training.losses.dtype)

    def on_visit(self, visit: Visit) -> None:
        """Take the models of a step."""
        self._n_steps, self._diverged = visit.steps, ~visit.alive
        score, level = self.score(visit.prediction), self._problem.targets.level
        distance = score - self._start
        place, moved = visit.step % self._window, visit.steps == visit.step
        for kept, new in (
            (self._last_costs[place], visit.expected_increase),
            (self._last_squares[place], distance.clamp(min=0) ** 2),
        ):
            kept.copy_(torch.where(moved, new, kept))
        self.cost_of_unit = self._last_costs.sum(dim=0) / self._last_squares.sum(dim=0)
        cost = self.cost_of_unit * (level - self._start) ** 2
        reached = visit.alive & (score >= level)
        better = reached & (cost < self._cost)
        closer = visit.alive & (score < level) & torch.isinf(self._cost) & torch.isfinite(cost)
        closer &= (distance > _SHORTEST) & (cost < self._continued)
        self._cost = torch.where(better, cost, self._cost)
        self._continued = torch.where(closer, cost, self._continued)
        self._rival = self._rival.replaced(self._every, better | closer, visit.prediction)

    def outcome(self) -> Outcome:
        """Return costs of the answers, in nats."""
        cost = self._cost
        if self._problem.targets.continues:
            cost = torch.where(torch.isinf(cost), self._continued, cost)
        nats = cost * self._problem.n_training_rows
        return Outcome(nats, self._rival, self._n_steps, self._diverged)


class Trajectory:
    """Counts every model that searches meet."""

    def __init__(self, weigh: Weighing) -> None:
        self._weigh = weigh
        self._waiting: list[Visit] = []

    def on_visit(self, visit: Visit) -> None:
        """Take the models of a step."""
        self._waiting.append(visit._replace(candidates=None))  # their parameters would be kept
        if len(self._waiting) == _HAND_OVER_EVERY:
            self.finish()

    def finish(self) -> None:
        """Hand over the models that wait."""
        if self._waiting:
            self._weigh(
                self._waiting[0].prediction.stack([visit.prediction for visit in self._waiting]),
                torch.stack([visit.loss_increase for visit in self._waiting]),
                torch.stack([visit.alive for visit in self._waiting]),
            )
        self._waiting = []


class Profile:
    """Counts, for every shift of a mean, the cheapest model: its profile likelihood.

    To count every model would count small shifts most, where searches return as the penalty grows.
    The loss rises about with the square of the shift, so that a model which goes further at some
    cost could have gone half as far at a quarter of it.
    """

    def __init__(self, weigh: Weighing, searches: Searches, answers: AnswerCosts) -> None:
        # `answers` has to take each visit first.
        self._weigh, self._answers = weigh, answers
        self._original, n_searches = searches.original, len(searches)
        # Shifts are kept in bins, so that memory does not grow with the number of steps.
        self._cost = answers.cost_of_unit.new_full((_N_BINS, n_searches), torch.inf)
        self._shift = torch.ones_like(self._cost)
        self._found = self._original.expand(_N_BINS)
        self._search = torch.arange(n_searches, device=self._cost.device)

    def on_visit(self, visit: Visit) -> None:
        """Keep the models of a step that cost the least among those of about the same shift."""
        shift, cost = self._answers.score(visit.prediction), self._answers.cost_of_unit
        bins = torch.asinh(shift.clamp(0, _LARGEST_SHIFT) / _FINEST_SHIFT) / _BIN_WIDTH
        place = bins.long().clamp(0, _N_BINS - 1), self._search
        # A shift within the first bin may be the rounding of the given network's own prediction.
        better = visit.alive & (place[0] > 0) & (cost < self._cost[place])
        self._cost[place] = torch.where(better, cost, self._cost[place])
        self._shift[place] = torch.where(better, shift, self._shift[place])

        def keep(kept: Tensor, part: Tensor) -> Tensor:
            kept[place] = torch.where(better[:, None], part.to(kept), kept[place])
            return kept

        self._found = self._found.map(keep, visit.prediction)

    def finish(self) -> None:
        """Hand over a model for each bin up to the furthest that was reached."""
        cost, source = self._cost.flip(0).cummin(dim=0)
        cost, source = cost.flip(0), (_N_BINS - 1) - source.flip(0)
        edges = torch.sinh(torch.arange(_N_BINS + 1).to(cost) * _BIN_WIDTH) * _FINEST_SHIFT
        shift, width = (edges[1:] + edges[:-1])[:, None] / 2, edges.diff()[:, None]
        part = (shift / self._shift.gather(0, source)).clamp(max=1.0)[..., None]

        def between(original: Tensor, found: Tensor) -> Tensor:
            return original + part.to(original) * (found[source, self._search] - original)

        models = self._original.map(between, self._found)
        self._weigh(models, cost * shift**2, torch.isfinite(cost), width.expand_as(cost))
        # A search that has not moved at all still has the given network.
        first, start = cost[:1], self._original[None]
        self._weigh(start, torch.zeros_like(first), torch.isinf(first), width[:1].expand_as(first))


def count_best(weigh: Weighing, searches: Searches, best: FoundModels) -> None:
    """Count the given network, and the best model of each search."""
    nothing, everywhere = torch.zeros_like(best.cost), torch.ones_like(best.found)
    weigh(searches.original[None], nothing[None], everywhere[None])
    weigh(best.prediction[None], best.cost[None], best.found[None])


def count_around_best(
    weigh: Weighing, searches: Searches, best: FoundModels, problem: Problem, rows: Tensor
) -> None:
    """Count draws around the best model of each search, the paper's mixture of modes.

    Each parameter varies by a quarter of its change. A draw counts by its own loss increase on some
    training samples; the density that it was drawn with is left out of its weight.
    """
    start, generator = problem.network.free.start, torch.Generator()
    query = searches.each().query
    for draw in range(_N_DRAWS):
        free: Free = {}
        for offset, (name, value) in enumerate(best.free.items()):
            # The same noise for every search: a sample must not depend on those beside it.
            generator.manual_seed(draw * len(best.free) + offset)
            noise = torch.randn(start[name].shape, generator=generator).to(value)
            free[name] = value + _SPREAD * noise * (value - start[name])
        prediction, increase = problem.at_query_and_increase(free, query, rows)
        fine = torch.isfinite(increase) & prediction.is_finite()
        weigh(prediction[None], increase[None], (best.found & fine)[None])
