"""Which models met by penalty searches count, and how much.

A model weighs exp(-(loss increase) / temperature), where the increase is measured against the given
network on the same data. A model that explains these data better than the given one counts no more
than it: which samples a mini-batch happens to hold must not make a model count a lot.

The given network counts, once for each target, because every search starts there. Where all other
models explain the training data badly, it alone remains.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..._network.limits import accumulation_dtype
from ..problem import Problem
from ..searches import Accumulator, Searches
from .loop import Visit, Watcher
from .watchers import AnswerCosts, BestModels

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
    """Gives models of penalty searches to an accumulator.

    Parameters
    ----------
    searches : Searches
        The searches.
    posterior : Accumulator
        Takes the models.
    temperature : float
        Scale of increases of the mean loss.
    """

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


class Trajectory(Watcher):
    """Every model met on the way is a sample.

    Parameters
    ----------
    weighing : Weighing
        Takes the models.
    """

    def __init__(self, weighing: Weighing) -> None:
        self._weighing = weighing
        self._waiting: list[Visit] = []

    def on_visit(self, visit: Visit) -> None:
        """Take the models of a step; they are handed over a few steps at a time."""
        self._waiting.append(visit)
        if len(self._waiting) == _HAND_OVER_EVERY:
            self.finish()

    def finish(self) -> None:
        """Hand over the models that wait."""
        if self._waiting:
            first: Any = self._waiting[0].prediction
            self._weighing(
                first.stack([visit.prediction for visit in self._waiting]),
                torch.stack([visit.loss_increase for visit in self._waiting]),
                torch.stack([visit.alive for visit in self._waiting]),
            )
        self._waiting = []


class Best(Watcher):
    """Of each search, the most divergent feasible model is a sample, besides the given network.

    Parameters
    ----------
    weighing : Weighing
        Takes the models.
    searches : Searches
        The searches.
    best : BestModels
        Keeps these models.
    """

    def __init__(self, weighing: Weighing, searches: Searches, best: BestModels) -> None:
        self._weighing, self._original, self._best = weighing, searches.original, best

    def on_candidates(self, candidates: Any) -> None:
        """Measure all models."""
        self._best.on_candidates(candidates)

    def finish(self) -> None:
        """Hand over the given network and the best model of each search."""
        kept = self._best.kept
        nothing, everywhere = torch.zeros_like(kept.cost), torch.ones_like(kept.found)
        self._weighing(self._original[None], nothing[None], everywhere[None])
        self._weighing(kept.prediction[None], kept.cost[None], kept.found[None])


class AroundBest(Best):
    """Models drawn around the best one of each search are samples, too.

    A local distribution around each mode, as the paper has it. Each free parameter varies with a
    standard deviation of a quarter of the change that the search has made to it. A draw counts by
    its own loss increase; the density that it was drawn with is left out of its weight.

    Parameters
    ----------
    weighing, searches, best
        See `Best`.
    problem : Problem
        What the searches have in common.
    evaluation : Tensor of shape (n_rows,)
        Training samples that draws are measured on.
    """

    def __init__(
        self,
        weighing: Weighing,
        searches: Searches,
        best: BestModels,
        problem: Problem,
        evaluation: Tensor,
    ) -> None:
        super().__init__(weighing, searches, best)
        self._queries, self._problem, self._evaluation = searches.queries, problem, evaluation

    def finish(self) -> None:
        """Hand over the given network, the best models and draws around them."""
        super().finish()
        generator = torch.Generator(device="cpu")
        start, kept = self._problem.network.free.start, self._best.kept
        for draw in range(_N_DRAWS):
            free = {}
            for offset, (name, best) in enumerate(kept.free.items()):
                # The same noise for every search: a sample must not depend on those beside it.
                generator.manual_seed(draw * len(kept.free) + offset)
                noise = torch.randn(start[name].shape, generator=generator).to(best)
                free[name] = best + _SPREAD * noise * (best - start[name])
            prediction, increase = self._problem.at_query_and_increase(
                free, self._queries, self._evaluation
            )
            fine = torch.isfinite(increase) & prediction.is_finite()
            self._weighing(prediction[None], increase[None], (kept.found & fine)[None])


class Profile(Watcher):
    """For every shift of a mean, the model that explains the data best.

    The searches go far away and come back as the penalty grows, slowly at the end: counting every
    model would count the small shifts most, whatever the data say. Here each shift counts by what
    it costs at least (its profile likelihood), which makes the weighted sum an integral over the
    shift. For a model that is linear in its parameters this is the posterior of the mean.

    On the straight line from the given network to a found model, the loss rises with the square of
    the shift, to a good approximation: a model that goes further at some cost could have gone half
    as far at a quarter of it.

    Parameters
    ----------
    weighing : Weighing
        Takes the models.
    searches : Searches
        The searches.
    answers : AnswerCosts
        Knows what a unit of the shift costs; it has to be told first.
    """

    def __init__(self, weighing: Weighing, searches: Searches, answers: AnswerCosts) -> None:
        self._weighing, self._answers = weighing, answers
        self._original, n_searches = searches.original, len(searches)
        # Shifts are kept in bins, so that memory does not grow with the number of steps.
        self._cost = answers.cost.new_full((_N_BINS, n_searches), torch.inf)
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
        edges = torch.arange(_N_BINS + 1).to(cost) * _BIN_WIDTH
        edges = torch.sinh(edges) * _FINEST_SHIFT
        shift, width = (edges[1:] + edges[:-1])[:, None] / 2, edges.diff()[:, None]
        part = (shift / self._shift.gather(0, source)).clamp(max=1.0)[..., None]

        def between(original: Tensor, found: Tensor) -> Tensor:
            reached = found[source, self._search]
            return original + part.to(original) * (reached - original)

        self._weighing(
            self._original.map(between, self._found),
            cost * shift**2,
            torch.isfinite(cost),
            width.expand_as(cost),
        )
        # A search that has not moved at all still has the given network.
        self._weighing(
            self._original[None],
            torch.zeros_like(cost[:1]),
            torch.isinf(cost[:1]),
            width[:1].expand_as(cost[:1]),
        )


SAMPLERS = ("trajectory", "best", "gaussian", "profile")
