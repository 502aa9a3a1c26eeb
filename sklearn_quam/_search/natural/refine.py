"""The cheapest models that give an answer, from models that a search has found.

The cost of a model is C(w') = sum of KL(p_w || p_w') over the training data + tau / 2 |w' - w|^2,
in nats. It is minimised where the answer just holds at a sample. Gauss-Newton steps solve a
quadratic model of the cost by conjugate gradients within the tangent of the constraint; L-BFGS
continues where kinks (ReLU) stop them. After every step a model is led back to where the answer
just holds. All searches of a batch run side by side, and none depends on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._curvature.preconditioner import Preconditioner
from ..._network.outputs import NetworkErrors
from ..._network.predictions import Categorical, Prediction
from ..problem import Problem
from ..searches import Searches
from .general import dot, gradient_of, leaf

_TINY = 1e-30
# Equal shares of the distance to the answer; Gauss-Newton and L-BFGS steps there.
_N_STAGES, _N_STEPS, _N_QUASI_STEPS = 8, 12, 60
# A search ends after so many steps in a row that gain less than this share of its cost. L-BFGS has
# to find out first how long its steps may be.
_LEAST_GAIN, _PATIENCE, _MORE_PATIENCE = 1e-3, 3, 8
# Products with the curvature for a step, and the residual that is small enough.
_N_PRODUCTS, _RESIDUAL = 30, 0.05
# Shares of a step that are tried.
_SHARES = (1.0, 0.4, 0.15, 0.05)
# Pairs that L-BFGS remembers.
_MEMORY = 30
# Newton steps back to the answer, where they end, and how far off a model may still be.
_N_BACK, _AT_ANSWER, NEAR_ANSWER = 15, 1e-10, 1e-7
# Damping of the curvature at first and at least, and how it changes after good and bad steps.
_DAMPING, _LEAST_DAMPING, _LESS, _MORE = 1e-3, 1e-6, 0.3, 4.0
# Training samples on which costs are measured, and products of numbers that a search may take.
_MOST_ROWS, _FEWEST_ROWS, _MOST_WORK, _LEAST_EFFORT = 4096, 128, 2**30, 0.005
# Values of a search that are held together: of so many starts, in numbers of its parameters.
_N_STARTS, _N_VECTORS = 3, 2 * _MEMORY + 16


@dataclass(frozen=True)
class Effort:
    """How much a network allows: large ones have fewer training samples and steps."""

    n_rows: int  # Training samples on which costs are measured
    share: float  # Share of the usual steps
    bytes: int  # Memory that a search needs

    @property
    def is_enough(self) -> bool:
        """Whether it is worth a try."""
        return self.share >= _LEAST_EFFORT

    def of(self, number: int, least: int = 1) -> int:
        """Return how many steps of some are taken."""
        return max(least, round(number * self.share))


def effort_for(problem: Problem) -> Effort:
    """Return how much work a search for the cheapest model may be."""
    size, n_outputs = problem.network.free.size, problem.targets.n_answers
    # Work on a sample for a product with the curvature, outputs with all that is done to them.
    each = 6 * (size + 16 * n_outputs)
    usual = (_N_STAGES + _N_STEPS) * _N_PRODUCTS + len(_SHARES) * _N_QUASI_STEPS
    allowed = _MOST_WORK // (usual * each)
    n_rows = min(len(problem.training), _MOST_ROWS, max(_FEWEST_ROWS, allowed))
    share = min(1.0, _MOST_WORK / (usual * each * n_rows))
    held = _N_STARTS * (8 * _N_VECTORS * size + 4 * n_rows * problem.network.bytes_per_row())
    return Effort(n_rows, share, held)


@dataclass(frozen=True, eq=False)
class Boundary:
    """Models that give an answer at a sample each, and their costs.

    Models are rows of a matrix: all free parameters one after the other.
    """

    problem: Problem  # In double precision
    inverse: Preconditioner | None  # An inverse of the curvature; None where there is none
    searches: Searches  # Each with a sample of its own; their targets are the answers
    # (n_searches, n_rows): training samples on which costs are measured, and how many each of them
    # represents
    index: Tensor
    count: Tensor
    given: Prediction  # The given network's predictions for these
    precision: float  # The precision of the prior around the given network

    def repeated(self, times: int) -> Boundary:
        """Return all searches several times, one after the other."""

        def again(part: Tensor) -> Tensor:
            return torch.cat([part] * times)

        return replace(
            self,
            searches=self.searches.at(again(torch.arange(len(self.index)).to(self.index))),
            index=again(self.index),
            count=again(self.count),
            given=self.given.map(again),
        )

    def start(self) -> Tensor:
        """Return the given network, once for each search."""
        return self.problem.given_models(len(self.index))

    def solve(self, vectors: Tensor) -> Tensor:
        """Return products with the inverse curvature."""
        if self.inverse is None:
            return vectors
        return self.inverse(vectors, self.problem.layout)

    def score(self, models: Tensor) -> Tensor:
        """Return how far beyond the answer models are."""
        at_query = self.problem.predict_at(models, self.searches.query)
        return self.problem.score(at_query, self.searches) - self.problem.targets.level

    def slope(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far beyond the answer models are, and the gradient of it."""
        models = leaf(models)
        score = self.score(models)
        return score.detach(), gradient_of(score, models)

    def predict(self, models: Tensor) -> Any:
        """Return predictions of models for the training samples."""
        return self.problem.predict_each(self.problem.layout.unflatten(models), self.index)

    def cost(self, models: Tensor, prediction: Any) -> Tensor:
        """Return costs of models, given their predictions for the training samples."""
        return (self.given.kl(prediction) * self.count).sum(dim=1) + self.prior(models)

    def prior(self, models: Tensor) -> Tensor:
        """Return costs of models in the prior around the given network."""
        return self.precision / 2 * (models - self.start()).square().sum(dim=1)

    @torch.no_grad()
    def costs(self, models: Tensor) -> Tensor:
        """Return costs of models; infinite where that is not a number."""
        return torch.nan_to_num(self.cost(models, self.predict(models)), torch.inf, torch.inf)

    def back(
        self, models: Tensor, level: Tensor | float = 0.0, natural: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Lead models to where their scores have a level; return them, and which have arrived."""
        score, normal = self.slope(models)
        for _ in range(_N_BACK):
            gap = level - score
            off = gap.abs() > _AT_ANSWER
            if not off.any():
                break
            direction = self.solve(normal) if natural else normal
            length = torch.where(off, gap / dot(normal, direction).clamp(min=_TINY), 0.0)
            models = torch.nan_to_num(models + length[:, None] * direction, 0.0, 0.0, 0.0)
            score, normal = self.slope(models)
        return models, (score - level).abs() < NEAR_ANSWER

    def tried(
        self,
        models: Tensor,
        costs: Tensor,
        step: Tensor,
        running: Tensor,
        level: Tensor | float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the cheapest models along a step, their costs, and the shares taken."""
        best, least, taken = models, costs, torch.zeros_like(costs)
        for share in _SHARES:
            trial, there = self.back(models + share * step, level)
            found = torch.where(there, self.costs(trial), torch.inf)
            better = running & (found < least)
            best = torch.where(better[:, None], trial, best)
            least = torch.where(better, found, least)
            taken = torch.where(better, share, taken)
        return best, least, taken


def _newton_step(
    boundary: Boundary, models: Tensor, level: Tensor | float, damping: Tensor, n_products: int
) -> Tensor:
    """Return the step to the cheapest models of a level, by a quadratic model of the cost."""
    models = leaf(models)
    prediction = boundary.predict(models)
    parts = prediction.parts
    # Gradients are linear in what goes in at the outputs: their derivative by it leads forward.
    seeds = [torch.zeros_like(part, requires_grad=True) for part in parts]
    options: Any = {"retain_graph": True, "materialize_grads": True}
    with NetworkErrors():
        (backward,) = torch.autograd.grad(
            _inner(parts, seeds), models, create_graph=True, **options
        )
    gradient = gradient_of(boundary.cost(models, prediction), models, retain_graph=True)
    score, normal = boundary.slope(models)
    scales = [scale * boundary.count[..., None] for scale in _information(prediction)]
    diagonal = (boundary.precision + damping)[:, None]

    def product(vectors: Tensor) -> Tensor:
        with NetworkErrors():
            forward = torch.autograd.grad((backward * vectors).sum(), seeds, **options)
        outer = [scale * part for scale, part in zip(scales, forward, strict=True)]
        found = gradient_of(_inner(parts, outer), models, retain_graph=True)
        return found + diagonal * vectors

    steep = boundary.solve(normal)
    slope = dot(normal, steep).clamp(min=_TINY)

    def tangent(vectors: Tensor) -> Tensor:
        solved = boundary.solve(vectors)
        return solved - (dot(normal, solved) / slope)[:, None] * steep

    step = ((level - score) / slope)[:, None] * steep
    residual = gradient + product(step)
    solved = tangent(residual)
    direction, size = -solved, dot(residual, solved)
    first, running = size, size > 0
    for _ in range(n_products):
        if not running.any():
            break
        image = product(direction)
        bend = dot(direction, image)
        running = running & (bend > 0)
        length = torch.where(running, size / bend.clamp(min=_TINY), 0.0)[:, None]
        step, residual = step + length * direction, residual + length * image
        solved = tangent(residual)
        before, size = size, dot(residual, solved)
        running = running & (size > _RESIDUAL**2 * first)
        direction = (size / before.clamp(min=_TINY))[:, None] * direction - solved
    return torch.nan_to_num(step, 0.0, 0.0, 0.0)


class _Ending:
    """Ends searches that no longer gain anything."""

    def __init__(self, costs: Tensor, patience: int = _PATIENCE) -> None:
        self._patience = patience
        self._without = torch.zeros_like(costs)
        self.running = torch.isfinite(costs)

    def note(self, before: Tensor, after: Tensor) -> None:
        """Take costs before and after a step."""
        little = before - after < _LEAST_GAIN * before
        self._without = torch.where(little, self._without + 1, 0)
        self.running = self.running & (self._without < self._patience)


def _newton(
    boundary: Boundary, models: Tensor, costs: Tensor, effort: Effort, in_stages: bool = False
) -> tuple[Tensor, Tensor]:
    """Make models cheaper by Gauss-Newton steps, or lead them to the answer in stages."""
    n_products, n_steps = effort.of(_N_PRODUCTS, 4), effort.of(_N_STEPS)
    with torch.no_grad():
        score = boundary.score(models)
    damping, level = torch.full_like(costs, _DAMPING), torch.zeros_like(score)
    ending = _Ending(torch.zeros_like(costs) if in_stages else costs)
    for number in range(_N_STAGES if in_stages else n_steps):
        if not ending.running.any():
            break
        if in_stages:
            # A model of the next level may have any cost.
            level, costs = score * (1 - (number + 1) / _N_STAGES), torch.full_like(costs, torch.inf)
        step = _newton_step(boundary, models, level, damping, n_products)
        before = costs
        models, costs, taken = boundary.tried(models, costs, step, ending.running, level)
        if not in_stages:
            ending.note(before, costs)
        damping = torch.where(taken >= _SHARES[1], damping * _LESS, damping)
        damping = torch.where(taken < _SHARES[2], damping * _MORE, damping)
        damping = damping.clamp(min=_LEAST_DAMPING)
    return models, costs


def _quasi_newton(boundary: Boundary, models: Tensor, costs: Tensor, effort: Effort) -> Tensor:
    """Make models cheaper by L-BFGS along the boundary."""
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []
    last: tuple[Tensor, Tensor] | None = None
    length, ending = torch.ones_like(costs), _Ending(costs, _MORE_PATIENCE)
    for _ in range(effort.of(_N_QUASI_STEPS)):
        if not ending.running.any():
            break
        free = leaf(models)
        gradient = gradient_of(boundary.cost(free, boundary.predict(free)), free)
        normal = boundary.slope(models)[1]
        steep = boundary.solve(normal)
        slope = dot(normal, steep).clamp(min=_TINY)
        # The gradient of the cost of a model that is led back to the boundary.
        gradient = gradient - (dot(gradient, steep) / slope)[:, None] * normal
        if last is not None:
            moved, change = models - last[0], gradient - last[1]
            fine = dot(moved, change) > 1e-10 * moved.norm(dim=1) * change.norm(dim=1)
            pairs = [*pairs, (moved, change, fine)][-_MEMORY:]
        last = models, gradient
        step = -_inverse_product(boundary.solve, pairs, gradient)
        step = step - (dot(normal, step) / slope)[:, None] * steep
        fresh = ~torch.stack([torch.zeros_like(ending.running), *(p[2] for p in pairs)]).any(dim=0)
        step = torch.where(fresh, length, 1.0)[:, None] * torch.nan_to_num(step, 0.0, 0.0, 0.0)
        before = costs
        models, costs, taken = boundary.tried(models, costs, step, ending.running)
        ending.note(before, costs)
        failed = taken == 0
        # Failed pairs are forgotten; then steps become shorter.
        pairs = [(moved, change, fine & ~failed) for moved, change, fine in pairs]
        length = torch.where(failed & fresh, length * _SHARES[2], torch.where(failed, length, 1.0))
    return models


def _inverse_product(
    solve: Callable[[Tensor], Tensor], pairs: list[tuple[Tensor, Tensor, Tensor]], vectors: Tensor
) -> Tensor:
    """Return products with the inverse curvature of L-BFGS, by pairs of moves and changes."""
    factors = []
    for moved, change, fine in reversed(pairs):
        rate = torch.where(fine, 1 / dot(moved, change), 0.0)
        part = rate * dot(moved, vectors)
        factors.append((rate, part))
        vectors = vectors - part[:, None] * change
    vectors = solve(vectors)
    for (moved, change, _), (rate, part) in zip(pairs, reversed(factors), strict=True):
        vectors = vectors + (part - rate * dot(change, vectors))[:, None] * moved
    return vectors


def cheapest_models(
    boundary: Boundary, found: Tensor, known: Tensor, effort: Effort
) -> list[Tensor]:
    """Return the cheapest models that give the answers, from several starts."""
    given = boundary.start()
    own, there = boundary.back(torch.where(known[:, None], found, given))
    of_own = torch.where(known & there, boundary.costs(own), torch.inf)
    first, of_first = _newton(boundary, given, torch.full_like(of_own, torch.inf), effort, True)
    better = of_own < of_first
    first = torch.where(better[:, None], own, first)
    starts = [(first, torch.where(better, of_own, of_first))]
    if effort.share == 1:
        # Jumps lead elsewhere than small steps; kinks stop one or the other.
        for natural in (True, False):
            jump, there = boundary.back(given, natural=natural)
            starts.append((jump, torch.where(there, boundary.costs(jump), torch.inf)))
    every = boundary.repeated(len(starts))
    models, costs = (torch.cat(part) for part in zip(*starts, strict=True))
    ends = _quasi_newton(every, *_newton(every, models, costs, effort), effort)
    return [*ends.chunk(len(starts)), own, found]


def _information(prediction: Any) -> list[Tensor]:
    """Return the Fisher information of each part of a prediction."""
    if isinstance(prediction, Categorical):
        return [prediction.log_proba.detach().exp()]
    variance = prediction.variance.detach()
    return [1 / variance, 0.5 / variance**2]


def _inner(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Return the inner product of tensors; autograd imports much where it takes it itself."""
    return torch.stack([(a * b).sum() for a, b in zip(first, second, strict=True)]).sum()
