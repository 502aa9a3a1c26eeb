"""A single linear layer that returns logits, to second order: their posterior is Gaussian.

With A and G the Kronecker factors of the curvature and a the features of a sample, its logits have
the covariance a' A^-1 a G^-1: the leverage of the sample times the same matrix for all samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._curvature.preconditioner import LayerInverse
from ..._network.limits import accumulation_dtype, slices
from ..._network.predictions import Categorical
from ..._network.reference import Rows
from ..problem import Problem
from ..searches import Accumulator, Outcome, Searches
from .chain import affine, through_inverse

# Models that the integral over the posterior is made of, in pairs on both sides of the mean: more
# where there are fewer classes.
_NUMBERS, _LEAST_DRAWS, _MOST_DRAWS = 2**15, 32, 128
_DRAWS_AT_ONCE = 4
# Numbers that a core of a CPU has at hand, and searches for each sample.
_CACHE_NUMBERS, _SEARCHES = 2**18, 11
# Of more classes than this, costs of answers are computed for the likeliest ones.
MANY_CLASSES = 64
_N_STEPS, _NEAR = 10, 0.05
# Of the log-odds of the two likeliest classes, in the median of so many training samples.
_VARIANCE, _N_TYPICAL, _TYPICAL_AT_ONCE = 12.0, 2048, 128


@dataclass(frozen=True, eq=False)
class GaussianHead:
    """The posterior of the logits of a linear layer."""

    inverse: LayerInverse  # The inverse curvature
    draws: Tensor  # (n_draws, n_classes): changes of logits for a leverage of one

    @property
    def at_once_on_cpu(self) -> int:
        """Most searches that are worth running together on a CPU."""
        n_classes = self.draws.shape[1]
        n_samples = max(16, _CACHE_NUMBERS // (_DRAWS_AT_ONCE * n_classes))
        return n_samples * min(n_classes, _SEARCHES)

    @torch.no_grad()
    def temperature(self, problem: Problem) -> float:
        """Return the temperature at which log-odds of training samples vary as they should.

        The scale of the posterior depends on how small the training loss is. What ranks samples
        best is a posterior that can change the order of the two likeliest classes of many samples.
        """
        parts = [
            self._logits_and_leverage(problem, problem.training.rows_at(some))[1]
            for some in slices(min(len(problem.training), _N_TYPICAL), _TYPICAL_AT_ONCE)
        ]
        leverage = torch.cat(parts)
        log_proba = problem.original_on_training[: len(leverage)].log_proba  # type: ignore[union-attr]
        i, j = log_proba.topk(2, dim=1).indices.T
        inverse = self.inverse.outputs.to(leverage)
        variance = leverage * (inverse[i, i] + inverse[j, j] - 2 * inverse[i, j])
        # Each training sample lowers its own leverage.
        variance = variance / (1 - leverage / len(problem.training)).clamp(min=0.1)
        return float(_VARIANCE / variance.median().clamp(min=torch.finfo(variance.dtype).tiny))

    @torch.no_grad()
    def sample(
        self,
        problem: Problem,
        searches: Searches,
        posterior: Accumulator,
        temperature: float,
    ) -> Outcome:
        """Give models of the tempered posterior to an accumulator, once for each sample."""
        at_samples = self._logits_and_leverage(problem, searches.query)
        if searches.is_first:
            dtype = searches.given.log_proba.dtype
            logits, leverage = (part.to(dtype) for part in at_samples)
            scale = (temperature * leverage).sqrt()[:, None]
            for draws in self.draws.to(logits).split(_DRAWS_AT_ONCE):
                models = torch.addcmul(logits, draws[:, None], scale)
                prediction = Categorical(torch.log_softmax(models, dim=-1))
                posterior.update(prediction, models.new_zeros(models.shape[:2]))
        return self._outcome(searches, *at_samples)

    @torch.no_grad()
    def outcome(self, problem: Problem, searches: Searches) -> Outcome:
        """Return the least costs of making the targets likelier than not."""
        return self._outcome(searches, *self._logits_and_leverage(problem, searches.query))

    def _outcome(self, searches: Searches, logits: Tensor, leverage: Tensor) -> Outcome:
        """Return these costs, given the logits and the leverages of the samples.

        The cheapest change of the logits is looked for where the log-odds of a target are zero, by
        steps that take them as linear.
        """
        n_classes, targets = logits.shape[1], searches.targets
        kept = torch.arange(n_classes, device=logits.device).expand(len(logits), -1)
        inverse = self.inverse.outputs.to(logits)
        place = targets
        if n_classes > MANY_CLASSES:
            # The targets first, then the likeliest of the other classes.
            n_others = min(MANY_CLASSES, n_classes - searches.n_targets)
            others = logits.scatter(1, targets, -torch.inf).topk(n_others, dim=1).indices
            kept = torch.cat([targets, others], dim=1)
            inverse = inverse[kept[:, :, None], kept[:, None]]
            place = torch.arange(searches.n_targets, device=logits.device).expand_as(targets)
        index = place[..., None]
        start = logits.gather(1, kept)[:, None].expand(-1, searches.n_targets, -1)

        def odds(values: Tensor) -> tuple[Tensor, Tensor]:
            own = values.gather(-1, index)[..., 0]
            rest = values.scatter(-1, index, -torch.inf)
            return own - rest.logsumexp(dim=-1), (-rest.softmax(dim=-1)).scatter(-1, index, 1.0)

        score, gradient = at_start, _ = odds(start)
        change, cost = torch.zeros_like(start), torch.zeros_like(score)
        for _ in range(_N_STEPS):
            # The least change that the log-odds, linear around the last one, need to be zero.
            direction = leverage[:, None, None] * (gradient @ inverse)
            slope = (gradient * direction).sum(dim=-1).clamp(min=torch.finfo(score.dtype).tiny)
            length = ((gradient * change).sum(dim=-1) - score) / slope
            change, cost = length[..., None] * direction, 0.5 * length.square() * slope
            score, gradient = odds(start + change)
        fine = torch.isfinite(cost) & torch.isfinite(score)
        reached = fine & (score.abs() < _NEAR)
        cost = torch.where(reached, cost, torch.inf)
        cost = torch.where(at_start >= 0, 0.0, cost)
        moved = torch.where((reached & (at_start < 0))[..., None], change, 0.0)
        whole = logits[:, None].expand(-1, searches.n_targets, -1)
        rival = whole.scatter_add(-1, kept[:, None].expand_as(moved), moved).flatten(0, 1)
        prediction = Categorical(torch.log_softmax(rival, dim=-1))
        one = torch.ones_like(searches.target)
        dtype = searches.given.log_proba.dtype
        return Outcome(cost.flatten(), prediction.to(dtype), one, ~fine.flatten())

    def _logits_and_leverage(self, problem: Problem, query: Rows) -> tuple[Tensor, Tensor]:
        """Return logits (n_samples, n_classes) of the given network, and leverages."""
        executor: Any = problem.network.executor
        (layer,), (features,) = executor.chain.layers, query
        # An inverse curvature amplifies rounding.
        exact = features.to(accumulation_dtype(features.device))
        leverage = through_inverse(exact, self.inverse.inputs)[1]
        return affine(layer, exact), leverage.clamp(min=0)


def gaussian_head(inverse: LayerInverse, generator: torch.Generator) -> GaussianHead:
    """Return the posterior of logits, with draws that are the same for all samples."""
    outputs = inverse.outputs.double().cpu()
    values, vectors = torch.linalg.eigh((outputs + outputs.T) / 2)
    n_draws = min(max(_NUMBERS // len(values), _LEAST_DRAWS), _MOST_DRAWS)
    half = torch.randn(n_draws // 2, len(values), generator=generator, dtype=torch.float64)
    draws = (half * values.clamp(min=0).sqrt()) @ vectors.T
    return GaussianHead(inverse, torch.cat([draws, -draws]).to(inverse.outputs))
