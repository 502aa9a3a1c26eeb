"""Costs of rivals: the first models of searches that give another answer, made cheaper."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._network.inputs.rows import Inputs
from .._network.limits import Limits, slices
from .._network.outputs import NetworkErrors
from .._network.predictions import Prediction, as_double
from ..exceptions import NetworkError
from .models import AdversarialModels
from .natural.refine import NEAR_ANSWER, Boundary, Effort, cheapest_models, effort_for
from .problem import Problem
from .searches import Searches

_ROWS_AT_ONCE = 512
# Share of the costliest samples among the training samples on which costs are measured.
_SHARE_OF_TOP = 0.75


def refined_costs(
    models: AdversarialModels, inputs: Inputs, original: Prediction, limits: Limits
) -> np.ndarray:
    """Return the cost of each answer by the cheapest model, (n_rows, n_answers), in nats."""
    if not effort_for(models.problem).is_enough:
        return models.answer_costs(inputs, original, limits)
    costs = np.full((len(inputs), models.problem.targets.n_answers), np.inf)
    for rows, targets, nats, _ in cheapest_rivals(models, inputs, original, limits):
        numbers = np.arange(len(inputs))[rows, None]
        costs[numbers, targets.cpu().numpy()] = nats.reshape(targets.shape).cpu().numpy()
    return costs


def cheapest_rivals(
    models: AdversarialModels, inputs: Inputs, original: Prediction, limits: Limits
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Yield samples, targets, costs and the cheapest models, for some samples at a time."""
    effort = effort_for(models.problem)
    at_once = limits.number_that_fits(effort.bytes)
    fewer = replace(limits, at_once=min(at_once, limits.at_once))
    for rows in slices(len(inputs), max(1, at_once // models.problem.targets.count)):
        for searches in models.searches(inputs[rows], original[rows], fewer):
            yield rows, searches.targets, *_refined(models, searches, effort)


def _refined(
    models: AdversarialModels, searches: Searches, effort: Effort
) -> tuple[Tensor, Tensor]:
    """Return costs of the answers of searches, and models that give them."""
    path = as_double(models.engine.outcome(models.problem, searches).cost)
    first = models.engine.first_rivals(models.problem, searches, close=False)
    rivals = as_double(models.problem.layout.flatten(first.free))
    some = (path > 0).nonzero()[:, 0]
    if not len(some):
        return path, rivals
    try:
        costs, best = _least(models, searches.at(some), rivals[some], first.found[some], effort)
    except NetworkError:
        # Not every network can be differentiated twice, or run in double precision.
        return path, rivals
    costs = torch.where(torch.isfinite(costs), costs, path[some])
    return path.index_copy(0, some, costs), rivals.index_copy(0, some, best)


def _exact_problem(problem: Problem) -> Problem:
    """Return a problem in double precision, where the device has it."""
    if problem.training.target.device.type == "mps":
        return problem
    free, executor = problem.network.free, problem.network.executor
    with NetworkErrors():
        module = copy.deepcopy(executor.module).double()
    network = replace(
        problem.network,
        free=replace(free, start=as_double(free.start), updates=as_double(free.updates)),
        executor=type(executor)(module, executor.likelihood),
    )
    return replace(problem, network=network, training=problem.training.in_double())


def _least(
    models: AdversarialModels, asked: Searches, found: Tensor, known: Tensor, effort: Effort
) -> tuple[Tensor, Tensor]:
    """Return costs of the cheapest models for some searches, infinite if none is, and these."""
    problem = _exact_problem(models.problem)
    given = _on_training(problem, problem.given_models(1))[0]
    each = torch.full_like(problem.training.losses, problem.n_training_rows / len(problem.training))
    weight = problem.training.weighted(each, slice(None))
    index, count = _training_sample(given.kl(_on_training(problem, found)) * weight, effort.n_rows)
    boundary = Boundary(
        problem,
        None if models.engine.inverse is None else models.engine.inverse.in_double(),
        replace(asked, query=as_double(asked.query), given=as_double(asked.given)),
        index,
        count * weight[index],
        given[index],
        models.engine.precision,
    )
    best, least = boundary.start(), torch.full_like(found[:, 0], torch.inf)
    # Judged on all training samples.
    for candidates in cheapest_models(boundary, found, known, effort):
        with torch.no_grad():
            divergence = given.kl(_on_training(problem, candidates))
            nats = divergence @ weight + boundary.prior(candidates)
            better = (boundary.score(candidates) > -NEAR_ANSWER) & (nats < least)
        best = torch.where(better[:, None], candidates, best)
        least = torch.where(better, nats, least)
    return least, best


@torch.no_grad()
def _on_training(problem: Problem, models: Tensor) -> Any:
    """Return predictions of models for all training samples."""
    training, free = problem.training, problem.layout.unflatten(models)
    parts: list[Any] = [
        problem.network.predict(free, training.rows_at(rows))
        for rows in slices(len(training), _ROWS_AT_ONCE)
    ]
    return parts[0].cat(parts, dim=1)


def _training_sample(nats: Tensor, n_rows: int) -> tuple[Tensor, Tensor]:
    """Return training samples on which costs are measured, and how many each of them represents.

    Unless these are all, they are the costliest ones of found models, and some of the others.
    """
    n_all = nats.shape[1]
    if n_rows == n_all:
        return torch.arange(n_all, device=nats.device).expand_as(nats), torch.ones_like(nats)
    n_top = int(_SHARE_OF_TOP * n_rows)
    order = nats.argsort(dim=1, descending=True, stable=True)
    # Evenly over the others, in the order of their costs.
    drawn = torch.linspace(n_top, n_all - 1, n_rows - n_top, device=nats.device).round().long()
    index = torch.cat([order[:, :n_top], order[:, drawn]], dim=1)
    count = torch.ones_like(nats[:, :n_rows])
    count[:, n_top:] = (n_all - n_top) / (n_rows - n_top)
    return index, count
