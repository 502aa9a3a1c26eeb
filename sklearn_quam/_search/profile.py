"""Models of a way as an integral over where it leads: log-odds of a class, shifts of a mean."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .run import Visit
from .sampling import BestSampler, GaussianSampler, Sampler, TrajectorySampler

# Bins of the shift of a mean, in units of the given standard deviation.
_N_BINS = 96
_FINEST_SHIFT, _LARGEST_SHIFT = 0.01, 1e3
_BIN_WIDTH = math.asinh(_LARGEST_SHIFT / _FINEST_SHIFT) / _N_BINS
# What a model counts at least.
_LEAST_WIDTH = 1e-6
# Places on the way to the first model, in shares of it.
_FIRST_PARTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)


class PathSampler(Sampler):
    """The models of a way are an integral over the score of its target.

    Each score (log-odds of a class, shift of a mean) counts by what it costs at most to get there
    or further, times the distance to its neighbours: how many steps a way is cut into does not
    matter. Models with a lower score than the given network's are not on the way, and do not
    count. The cost is the loss increase that the given network expects itself.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._visits: list[Visit] = []

    def on_visit(self, visit: Visit) -> None:
        """Keep the models of a step."""
        super().on_visit(visit)
        self._visits.append(visit)

    def finish(self) -> None:
        """Hand over all models."""
        predictions, costs, alive = self._with_first_part()
        score = torch.stack([self._score(prediction) for prediction in predictions])
        # A step may overshoot and land behind the start. It must not be had for the start's cost
        # of zero, and has no width.
        ahead = score >= score[0]
        score = torch.where(ahead, score, score[0])
        cost = torch.where(ahead & torch.stack(alive), torch.stack(costs), torch.inf)
        score, order = score.sort(dim=0)
        cost = cost.gather(0, order)
        # Who comes further for less could have stopped here.
        cost = cost.flip(0).cummin(dim=0).values.flip(0)
        gap = score.diff(dim=0) / 2
        width = torch.zeros_like(score)
        width[1:] += gap
        width[:-1] += gap
        # Ways that lead nowhere still have the given network.
        width.clamp_(min=_LEAST_WIDTH)
        back = order.argsort(dim=0)
        cost, width = cost.gather(0, back), width.gather(0, back)
        prediction = self.original.stack(predictions)
        self._hand_over(prediction, cost, torch.isfinite(cost), width)
        self._visits = []

    def _with_first_part(self) -> tuple[list[Any], list[Tensor], list[Tensor]]:
        """Return predictions, costs and who is alive, with more models before the first step.

        The first step alone may cost more than a temperature. On the way to it the cost rises
        with the square, and predictions about evenly.
        """
        start, *others = self._visits
        predictions, costs = [start.prediction], [start.expected_increase]
        for part in _FIRST_PARTS if others else ():
            first = others[0].expected_increase
            # Where it is cheap, equal steps are the better integral: no part of it is needed.
            share = torch.where(first > self.temperature, part, 0.0).to(first)
            predictions.append(
                start.prediction.map(
                    partial(torch.lerp, weight=share[:, None]), others[0].prediction
                )
            )
            costs.append(first * share**2)
        predictions += [visit.prediction for visit in others]
        costs += [visit.expected_increase for visit in others]
        extra = len(costs) - len(self._visits)
        alive = [start.alive, *[visit.alive for visit in others[:1] * extra + others]]
        return predictions, costs, alive


class ProfileSampler(Sampler):
    """For every shift of a mean, the model that explains the data best.

    The searches go far away and come back as the penalty grows, slowly at the end: counting every
    model on the way would count the small shifts most, whatever the data say. Here each shift
    counts by what it costs at least (its profile likelihood), which makes the weighted sum an
    integral over the shift. For a model that is linear in its parameters this is the posterior of
    the mean. The cost is the loss increase that the given network expects itself.

    On the straight line from the given network to a found model, the loss rises with the square of
    the shift, to a good approximation: who can come further at some cost could have come half as
    far at a quarter of it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        n_searches = len(self.target)
        # Shifts are kept in bins, so that memory does not grow with the number of steps.
        self._cost = self.answers.cost.new_full((_N_BINS, n_searches), torch.inf)
        self._shift = torch.ones_like(self._cost)
        self._found = self.original.expand(_N_BINS)
        self._search = torch.arange(n_searches, device=self.target.device)

    def on_visit(self, visit: Visit) -> None:
        """Keep the models of a step that cost the least among those of about the same shift."""
        super().on_visit(visit)
        shift = self._score(visit.prediction)
        cost = self.answers.cost_of_unit
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
        part_of_way = (shift / self._shift.gather(0, source)).clamp(max=1.0)[..., None]

        def on_the_way(original: Tensor, found: Tensor) -> Tensor:
            reached = found[source, self._search]
            return original + part_of_way.to(original) * (reached - original)

        self._hand_over(
            self.original.map(on_the_way, self._found),
            cost * shift**2,
            torch.isfinite(cost),
            width.expand_as(cost),
        )
        # A search that has not moved at all still has the given network.
        at_rest = torch.isinf(cost[0])
        self._hand_over(
            self.original[None],
            torch.zeros_like(cost[:1]),
            at_rest[None],
            width[:1].expand_as(cost[:1]),
        )


SAMPLERS: dict[str, type[Sampler]] = {
    "trajectory": TrajectorySampler,
    "best": BestSampler,
    "gaussian": GaussianSampler,
    "profile": PathSampler,
}


def choose_sampler(sampling: str, measures_all: bool, regression: bool) -> type[Sampler]:
    """Return what turns models into samples.

    Parameters
    ----------
    sampling : str
        What the user says.
    measures_all : bool
        Whether each model's cost is known, not only the mean over some of the last steps.
    regression : bool
        Whether means are searched for.

    Returns
    -------
    type
        The kind of sampler.
    """
    if sampling == "profile" and regression and not measures_all:
        return ProfileSampler
    return SAMPLERS[sampling]
