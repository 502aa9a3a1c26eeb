"""The models on the path of each search: their weights, costs of answers, and bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._network.limits import accumulation_dtype
from ..searches import Outcome
from ..targets import Targets

inf = torch.inf
# Places between the given network and the first model, in shares of the distance.
_FIRST_PARTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)


class Point(NamedTuple):
    """Models that searches have arrived at."""

    prediction: Any  # Their predictions for the sample of each search
    cost: Any  # (n_searches,): what they cost, in nats; None if it is not measured
    score: Tensor  # (n_searches,): log-odds of the target, or the shift of the mean
    inside: Any = None  # Values of the forward pass that the next step needs


@dataclass(frozen=True, eq=False)
class Paths:
    """Models from the given network to the target of each search."""

    # The given network first. The cost is infinite where a search has ended before
    points: list[Point]
    n_steps: Tensor  # (n_searches,): steps that each search has taken
    diverged: Tensor  # (n_searches,): which searches have left the range of numbers

    @property
    def cost(self) -> Tensor:
        """Costs of the models, (n_points, n_searches)."""
        return torch.stack([point.cost for point in self.points])

    @property
    def score(self) -> Tensor:
        """The scores of the targets, (n_points, n_searches)."""
        return torch.stack([point.score for point in self.points])


def weighted(paths: Paths, score: Callable[[Any], Tensor], temperature: float) -> tuple[Any, Any]:
    """Return the models of paths, and logarithms of their weights, (n_models, n_searches).

    The models are an integral over the score of the target. Each score counts by the least cost to
    get there or further, times the distance to its neighbours, so that the number of steps does not
    matter. Models with a lower score than the given network's do not count.
    """
    points = _with_first_part(paths.points, score, temperature)
    value = torch.stack([point.score for point in points])
    cost = torch.stack([point.cost for point in points])
    # A step may overshoot and land behind the start: such a model has no width, and takes none from
    # others. Nor has one that comes after the end of its search.
    counts = (value >= value[0]) & torch.isfinite(cost)
    value = torch.where(counts, value, torch.inf)
    cost = torch.where(counts, cost, torch.inf)
    value, order = value.sort(dim=0)
    # A model that goes further for less could have stopped here.
    cost = cost.gather(0, order).flip(0).cummin(dim=0).values.flip(0)
    gap = value.diff(dim=0) / 2
    gap = torch.where(torch.isfinite(gap), gap, 0.0)
    width = torch.zeros_like(value)
    width[1:] += gap
    width[:-1] += gap
    # Paths that lead nowhere still have the given network.
    width[0] = torch.where(width.sum(dim=0) > 0, width[0], 1.0)
    back = order.argsort(dim=0)
    # In the type of the sums: a small temperature may be none in single precision.
    cost, width = cost.gather(0, back), width.gather(0, back)
    log_weights = -cost.to(accumulation_dtype(cost.device)) / temperature + width.log()
    predictions = [point.prediction for point in points]
    return predictions[0].stack(predictions), log_weights


def _with_first_part(
    points: list[Point], score: Callable[[Any], Tensor], temperature: float
) -> list[Point]:
    """Return points with more models before the first step.

    The first step alone may cost more than a temperature. Between the given network and its model
    the cost rises with the square of the distance, and predictions about evenly.
    """
    (start, *others), between = points, []
    if others:
        first = others[0]
        # Where the first step is cheap, equal steps are the better integral.
        far = torch.isfinite(first.cost) & (first.cost > temperature)
        nearest = torch.where(far, first.cost, 0.0)
        for part in _FIRST_PARTS if far.any() else ():
            share = torch.where(far, part, 0.0).to(first.cost)
            weight = share[:, None].to(start.prediction.parts[0].dtype)
            found = start.prediction.map(partial(torch.lerp, weight=weight), first.prediction)
            reached = torch.where(far, score(found), start.score)
            between.append(Point(found, nearest * share**2, reached))
    return [start, *between, *others]


def outcome(paths: Paths, targets: Targets) -> Outcome:
    """Return costs of the answers that searches go to, by their paths.

    The cost is taken to rise with the square of the distance. It is interpolated where a path
    passes the answer.
    """
    score, cost, level = paths.score, paths.cost, targets.level
    fine = torch.isfinite(cost)
    root = cost.clamp(min=0).sqrt()
    before, now = score[:-1], score[1:]
    part = (level - before) / (now - before)
    between = (root[:-1] + part * (root[1:] - root[:-1])) ** 2
    passes = (before < level) & (now >= level)
    reached = torch.where(fine[1:] & (now >= level), torch.where(passes, between, cost[1:]), inf)
    every = torch.arange(score.shape[1], device=score.device)
    last = fine.sum(dim=0) - 1
    # Beyond the end of the path.
    distance, whole = score[last, every] - score[0], level - score[0]
    beyond = torch.where(distance > 0, cost[last, every] * (whole / distance) ** 2, inf)
    ended = (last < len(score) - 1) & ~paths.diverged
    beyond = torch.where(ended | targets.continues, beyond, inf)
    if len(score) > 1:
        least, place = reached.min(dim=0)
    else:
        least, place = torch.full_like(beyond, inf), torch.zeros_like(last)
    is_reached = torch.isfinite(least)
    place = torch.where(is_reached, place + 1, last)
    least = torch.where(is_reached, least, beyond)
    least = torch.where(score[0] >= level, 0.0, least)
    predictions = [point.prediction for point in paths.points]
    rival = predictions[0].stack(predictions)[place, every]
    return Outcome(least, rival, paths.n_steps, paths.diverged)


def probability_bounds(paths: Paths, slack: float) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest probability of each class on the paths.

    Models count that cost no more than the slack. Between one that does and the next one that does
    not, the cost is taken to rise with the square of the distance, and the log-odds of each class
    evenly.
    """
    cost, largest = paths.cost, slack**0.5
    log_odds = torch.stack([_log_odds(point.prediction) for point in paths.points])
    root = cost.clamp(min=0).sqrt().to(log_odds)
    within = root <= largest
    crosses = within[:-1] & ~within[1:] & torch.isfinite(root[1:])
    part = torch.where(crosses, (largest - root[:-1]) / (root[1:] - root[:-1]), 1.0)
    part = torch.nan_to_num(part, 1.0)
    proba = torch.lerp(log_odds[:-1], log_odds[1:], part[..., None]).sigmoid()
    counts = (within[1:] | crosses)[..., None]
    start = log_odds[:1].sigmoid()
    lower = torch.cat([start, torch.where(counts, proba, inf)]).amin(dim=0)
    upper = torch.cat([start, torch.where(counts, proba, -inf)]).amax(dim=0)
    return lower, upper


def _log_odds(prediction: Any) -> Tensor:
    """Return the log-odds of every class."""
    log_proba = prediction.log_proba.to(accumulation_dtype(prediction.device))
    log_proba = log_proba.clamp(max=-torch.finfo(log_proba.dtype).tiny)
    return log_proba - (-torch.expm1(log_proba)).log()
