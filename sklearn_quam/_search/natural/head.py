"""Natural search in a single linear layer that returns logits: no forward pass is needed.

The change of a model is an outer product of A^-1 a, with a the features of the sample, and a vector
c: logits of the sample change by its leverage times c, those of a training sample by the kernel
a_i' A^-1 a times c. The quadratic form of the curvature is the cost on all training samples to
second order, with the prior. What it misses is measured on the few that are moved most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._curvature.influence import with_constant
from ..._curvature.preconditioner import LayerInverse
from ..._network.free import Free
from ..._network.limits import accumulation_dtype, slices
from ..._network.predictions import Categorical
from ..problem import Problem
from ..searches import Searches
from .chain import affine, free_of_changes, through_inverse
from .paths import Point
from .walk import NaturalSteps, TrainingSample, length_of_step

# The cache of a core of a CPU.
_CACHE_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class HeadState:
    """Where searches are; see `HeadSteps`."""

    searches: Searches  # The searches
    leverage: Tensor  # (n_samples,): a' A^-1 a
    left: Tensor  # (n_samples, n_in): A^-1 a
    logits: Tensor  # (n_samples, n_classes): outputs of the given layer
    inverse: Tensor  # (n_classes, n_classes): the inverse curvature by logits
    change: Tensor  # (n_samples, n_targets, n_classes): the vectors c
    # (n_samples, n_targets, n_classes): the vectors c times the curvature by logits
    pulled: Tensor
    rows: TrainingSample  # Training samples on which the cost is measured
    kernel: Tensor  # (n_samples, n_rows): a_i' A^-1 a of these


@dataclass(frozen=True, eq=False)
class HeadSteps(NaturalSteps):
    """Natural steps in a linear layer that returns logits; see `NaturalSteps`."""

    inverse: LayerInverse  # The inverse curvature
    drops_searches = False

    @torch.no_grad()
    def init(self, problem: Problem, searches: Searches) -> HeadState:
        """Return the state of searches that start at the given network."""
        executor: Any = problem.network.executor
        (layer,), (features,) = executor.chain.layers, searches.query
        rows = self.training_sample(problem, [features], drawn=False)
        # An inverse curvature amplifies rounding.
        exact = features.to(accumulation_dtype(features.device))
        left, leverage = through_inverse(exact, self.inverse.inputs)
        logits = affine(layer, exact)
        (training,) = problem.training.rows
        seen = training[rows.index]
        kernel = (with_constant(seen, self.inverse.inputs) @ left.to(seen)[..., None])[..., 0]
        n_targets, n_classes = searches.n_targets, logits.shape[1]
        return HeadState(
            searches,
            leverage,
            left,
            logits,
            self.inverse.outputs.to(logits),
            logits.new_zeros(len(logits), n_targets, n_classes),
            logits.new_zeros(len(logits), n_targets, n_classes),
            rows,
            kernel,
        )

    @torch.no_grad()
    def evaluate(self, problem: Problem, state: HeadState) -> tuple[Any, Tensor, Any]:
        """Return predictions and scores of the models, and log-probabilities."""
        logits = state.logits[:, None] + state.leverage[:, None, None] * state.change
        log_proba = torch.log_softmax(logits, dim=-1).flatten(0, 1)
        targets: Any = problem.targets
        exact = Categorical(log_proba)
        score = targets.score(exact, None, state.searches.target)
        prediction = exact.to(state.searches.given.log_proba.dtype)
        return prediction, score, log_proba.unflatten(0, state.change.shape[:2])

    @torch.no_grad()
    def update(
        self,
        problem: Problem,
        state: HeadState,
        point: Point,
        step: int,
        kept: Tensor | None,  # noqa: ARG002
    ) -> HeadState:
        """Take an equal share of the distance to the goal, in the memory of the state."""
        targets: Any = problem.targets
        gradient = targets.gradient(point.inside, state.searches.targets)
        direction = gradient @ state.inverse
        slope = state.leverage[:, None] * (gradient * direction).sum(dim=-1)
        score = point.score.view_as(slope)
        goal = torch.full_like(score, self.goal)
        length = length_of_step(goal, score, slope, self.n_steps - step)[..., None]
        state.change.addcmul_(length, direction)
        state.pulled.addcmul_(length, gradient)
        return state

    def free(self, problem: Problem, state: HeadState, index: Tensor) -> Free:
        """Return the free parameters of some of the models."""
        (features,) = state.searches.query
        left = state.left[index // state.searches.n_targets].to(features)
        return free_of_changes(problem, [[(left, state.change.flatten(0, 1)[index].to(left))]])

    def cost(self, problem: Problem, state: HeadState) -> Tensor:
        """Return costs of the models."""
        is_every = self.n_rows >= len(problem.training)
        change = state.change
        beyond = self._beyond_second_order(state, is_every)
        if is_every:
            # Nothing is left to the quadratic form but the prior.
            squares = state.left.square().sum(dim=-1, keepdim=True) * change.square().sum(dim=-1)
            known = self.precision / 2 * squares
        else:
            known = state.leverage[:, None] * (change * state.pulled).sum(dim=-1) / 2
        return (known + beyond.to(known)).clamp(min=0).flatten()

    def _beyond_second_order(self, state: HeadState, is_every: bool) -> Tensor:
        """Return the cost on training samples beyond second order, or all of it.

        With p the probabilities of a training sample and d the centred change of its logits, it
        costs log(sum of p exp(d)). To second order that is half the variance of d, which the
        quadratic form knows already.
        """
        rows, kernel = state.rows, state.kernel
        given: Any = rows.given
        change = state.change.to(kernel)
        found = kernel.new_empty(change.shape[:2])
        n_bytes = kernel.shape[1] * change[0].numel() * change.element_size()
        size = len(change) if change.device.type != "cpu" else max(1, _CACHE_BYTES // n_bytes)
        # Training samples that are not at hand are not moved as far as these: none of these counts
        # several times.
        count = rows.count if is_every else torch.ones_like(rows.count)
        for some in slices(len(change), size):
            moved, log_proba = change[some], given.log_proba[some]
            proba = log_proba.exp()
            mean = proba @ moved.mT
            variance = (proba @ moved.square().mT - mean.square()).clamp(min=0)
            half = kernel[some, :, None].square() * variance / 2
            d = kernel[some, :, None, None] * (moved[:, None] - mean[..., None])
            # In logarithms: a network may be surer than the smallest probability that is no zero.
            exact = torch.logsumexp(log_proba[:, :, None] + d, dim=-1)
            cost = exact.clamp(min=0) - half * (not is_every)
            found[some] = (cost * count[some, :, None]).sum(dim=1)
        return found
