"""Natural search through a chain of linear layers, as large matrix products.

The change of each layer is a sum of outer products, one for each step: models are never written out
as weights. In the first searched layer the left factor never changes, because the sample comes in
unchanged: training samples enter by one number each, and the largest product disappears.

What concerns the sample itself is computed in double precision: an inverse curvature amplifies
rounding. It takes little time, because there is one such sample for many training samples.

In a single layer that returns logits, the curvature is the cost on all training samples to second
order, with the prior. What it misses is measured on the few that are moved most.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._curvature.influence import with_constant
from ..._curvature.preconditioner import LayerInverse
from ..._network.cut.chain import Chain
from ..._network.free import Free
from ..._network.limits import accumulation_dtype, slices
from ..problem import Problem
from ..searches import Searches
from .paths import Point
from .walk import NaturalSteps, TrainingSample, goals, length_of_step

# The cache of a core of a CPU.
_CACHE_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class ChainState:
    """Searches whose layers have changed by outer products."""

    searches: Searches  # The searches, without the values of their samples
    sample: Tensor  # (n_searches,): the number of the sample of each
    change: Tensor  # (n_searches, n_out): right factor of the change of the first layer
    pulled: Tensor  # (n_searches, n_out): this factor times the curvature by outputs
    # Left and right factors of the change of each layer behind it, a pair for each step
    changes: list[list[tuple[Tensor, Tensor]]]
    goal: Tensor | None  # (n_searches,): where the searches go; known from the first step on
    left: Tensor  # (n_samples, n_in): left factor of the change of the first layer
    leverage: Tensor  # (n_samples,): product of the left factor with the sample itself
    at_first: Tensor  # (n_samples, n_out): output of the given first layer for it
    rows: TrainingSample  # Training samples on which the cost is measured
    kernel: Tensor  # (n_samples, n_rows): products of the left factor with these
    rows_at_first: Tensor  # (n_samples, n_rows, n_out): the same for these

    def every_change(self) -> list[list[tuple[Tensor, Tensor]]]:
        """Return the factors of the changes of all layers."""
        return [[(self.left[self.sample], self.change)], *self.changes]


@dataclass(frozen=True, eq=False)
class ChainSteps(NaturalSteps):
    """Natural steps through a chain of linear layers; see `NaturalSteps`."""

    inverses: list[LayerInverse]  # The inverse curvature of each layer
    drops_searches = True

    @torch.no_grad()
    def init(self, problem: Problem, searches: Searches) -> ChainState:
        """Return the state of searches that start at the given network."""
        executor: Any = problem.network.executor
        layers, (own,) = executor.chain.layers, searches.query
        rows = self.training_sample(problem, inputs_of_layers(layers, own))
        first, inverse = layers[0], self.inverses[0].inputs
        exact = own.to(accumulation_dtype(own.device))
        left, leverage = through_inverse(exact, inverse)
        (training,) = problem.training.rows
        seen = training[rows.index]
        sample = torch.arange(len(own), device=own.device).repeat_interleave(searches.n_targets)
        return ChainState(
            Searches((), searches.original, searches.target[:, None]),
            sample,
            change=exact.new_zeros(len(sample), len(first.weight)),
            pulled=exact.new_zeros(len(sample), len(first.weight)),
            changes=[[] for _ in layers[1:]],
            goal=None,
            left=left,
            leverage=leverage,
            at_first=affine(first, exact),
            rows=rows,
            kernel=(with_constant(seen, inverse) @ left.to(seen)[..., None])[..., 0],
            rows_at_first=affine(first, seen),
        )

    @torch.no_grad()
    def evaluate(self, problem: Problem, state: ChainState) -> tuple[Any, Tensor, Any]:
        """Return predictions and scores of the models, and values for the next step."""
        executor: Any = problem.network.executor
        own = state.leverage[state.sample, None] * state.change
        at_first = state.at_first[state.sample] + own
        values, slopes = outputs_and_slopes(executor.chain.layers, at_first, state.changes)
        exact = executor.interpret(values[-1][..., None])[:, 0]
        # Predictions have the type of everything else.
        prediction = exact.to(state.searches.given.parts[0].dtype)
        return prediction, problem.score(exact, state.searches), (values, slopes)

    @torch.no_grad()
    def update(self, problem: Problem, state: ChainState, point: Point, step: int) -> ChainState:
        """Take an equal share of the distance to the goal."""
        (values, slopes), score = point.inside, point.score
        layers = problem.network.executor.chain.layers  # type: ignore[attr-defined]
        gradient = output_gradients(problem, state.searches, values[-1])
        gradients = gradients_of_layers(layers, slopes, state.changes, gradient)
        directions: list[Any] = []
        slope = torch.zeros_like(score)
        for number, (gradient, inverse) in enumerate(zip(gradients, self.inverses, strict=True)):
            right, gain = through_inverse(gradient, inverse.outputs)
            if number == 0:
                left, leverage = None, state.leverage[state.sample]
            else:
                left, leverage = through_inverse(values[number - 1], inverse.inputs)
            slope = slope + leverage * gain
            directions.append((left, right))
        goal = goals(problem, self.goal, score, slope) if state.goal is None else state.goal
        length = length_of_step(goal, score, slope, self.n_steps - step)[:, None]
        (_, right), *others = directions
        pulled = torch.addcmul(state.pulled, length, gradients[0])
        changes = [
            [*pairs, (left, length * right)]
            for pairs, (left, right) in zip(state.changes, others, strict=True)
        ]
        change = torch.addcmul(state.change, length, right)
        return replace(state, change=change, pulled=pulled, changes=changes, goal=goal)

    def keep(self, state: ChainState, index: Tensor) -> ChainState:
        """Return the state of some of the searches."""
        return replace(
            state,
            searches=state.searches.at(index),
            sample=state.sample[index],
            change=state.change[index],
            pulled=state.pulled[index],
            changes=[[(a[index], b[index]) for a, b in pairs] for pairs in state.changes],
            goal=None if state.goal is None else state.goal[index],
        )

    def free(self, problem: Problem, state: ChainState, index: Tensor) -> Free:
        """Return the free parameters of some of the models."""
        names, layers, _ = problem.network.executor.steps  # type: ignore[attr-defined]
        found = {}
        for (own, shift), layer, pairs in zip(names, layers, state.every_change(), strict=True):
            n_in = layer.weight.shape[1]
            weight = layer.weight.expand(len(index), -1, -1).to(state.change)
            bias = None if layer.bias is None else layer.bias.expand(len(index), -1).to(weight)
            for left, right in ((left[index], right[index]) for left, right in pairs):
                weight = weight + right[..., None] * left[:, None, :n_in]
                bias = None if bias is None else bias + right * left[:, n_in:]
            found[own] = weight.to(layer.weight)
            if bias is not None:
                found[shift] = bias.to(layer.weight)
        return {name: found[name] for name in problem.network.free.start}

    def cost(self, problem: Problem, state: ChainState) -> Tensor:
        """Return costs of the models: KL(given || model) of the training samples, and the prior."""
        executor: Any = problem.network.executor
        widest = max(len(layer.weight) for layer in executor.chain.layers)
        size = _searches_in_cache(state.kernel, widest)
        found = state.kernel.new_empty(len(state.sample))
        factors = [_stacked(pairs, state.kernel) for pairs in state.changes]
        has_logits = returns_logits(executor)
        for some in slices(len(found), size):
            outputs = _values_of_rows(executor.chain, state, factors, some)
            sample = state.sample[some]
            given: Any = state.rows.given[sample]
            if has_logits:
                nats = _kl_of_logits(given.log_proba, outputs)
            else:
                # The softmax of a chain is taken over the middle axis.
                nats = given.kl(executor.interpret(outputs.mT))
            found[some] = (nats * state.rows.count[sample].to(nats)).sum(dim=-1)
        return found.to(state.change) + self._prior(state)

    def _prior(self, state: ChainState) -> Tensor:
        """Return the cost of the models in the prior around the given network, in nats."""
        square = torch.zeros_like(state.change[:, 0])
        for pairs in state.every_change():
            for number, (left, right) in enumerate(pairs):
                for other_left, other_right in pairs[: number + 1]:
                    product = (left * other_left).sum(dim=-1) * (right * other_right).sum(dim=-1)
                    square = square + (product if other_left is left else 2 * product)
        return self.precision / 2 * square


@dataclass(frozen=True, eq=False)
class HeadSteps(ChainSteps):
    """Natural steps in a single layer that returns logits: costs need no forward pass."""

    # Searches for all targets of a sample go through its training samples together.
    drops_searches = False

    def cost(self, problem: Problem, state: ChainState) -> Tensor:
        """Return costs of the models: to second order, and beyond it on some training samples."""
        is_every = self.n_rows >= len(problem.training)
        if is_every:
            # Nothing is left to the quadratic form but the prior.
            known = self._prior(state)
        else:
            leverage = state.leverage[state.sample]
            known = leverage * (state.change * state.pulled).sum(dim=-1) / 2
        beyond = self._beyond_second_order(state, is_every).flatten()
        return (known + beyond.to(known)).clamp(min=0)

    def _beyond_second_order(self, state: ChainState, is_every: bool) -> Tensor:
        """Return the cost on training samples beyond second order, or all of it.

        With p the probabilities of a training sample and d the centred change of its logits, it
        costs log(sum of p exp(d)). To second order that is half the variance of d, which the
        quadratic form knows already.
        """
        rows, kernel = state.rows, state.kernel
        given: Any = rows.given
        change = state.change.unflatten(0, (len(kernel), -1)).to(kernel)
        found = kernel.new_empty(change.shape[:2])
        size = _searches_in_cache(kernel, change[0].numel())
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


def _searches_in_cache(kernel: Tensor, n_numbers: int) -> int:
    """Return how many searches with so many numbers for each training sample stay in a cache."""
    if kernel.device.type != "cpu":
        return sys.maxsize
    return max(1, _CACHE_BYTES // (n_numbers * kernel.shape[1] * kernel.element_size()))


def _kl_of_logits(given: Tensor, logits: Tensor) -> Tensor:
    """Return KL(given || model), given log-probabilities, without those of the model."""
    proba = given.exp()
    # Of log-probabilities, minus infinity is that of a class without any.
    change = torch.where(proba > 0, given, 0.0).sub_(logits).mul_(proba).sum(dim=-1)
    return (change + logits.logsumexp(dim=-1)).clamp(min=0)


def outputs_and_slopes(
    layers: list[Any], at_first: Tensor, changes: list[list[tuple[Tensor, Tensor]]]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs of each layer, and slopes of the activations, given those of the first one."""
    values: list[Tensor] = []
    slopes: list[Tensor] = []
    for layer, pairs in zip(layers, [[], *changes], strict=True):
        value = affine(layer, values[-1]) if values else at_first
        for left, right in pairs:
            taken = with_constant(values[-1], left[0])
            value += (taken * left).sum(dim=-1, keepdim=True) * right
        value, slope = layer.activated(value)
        values.append(value)
        slopes.append(slope)
    return values, slopes


def inputs_of_layers(layers: list[Any], rows: Tensor) -> list[Tensor]:
    """Return the inputs of each given layer, for rows at the first one."""
    inputs = [rows]
    for layer in layers[:-1]:
        inputs.append(layer.activated(affine(layer, inputs[-1]))[0])
    return inputs


def _stacked(pairs: list[tuple[Tensor, Tensor]], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return left factors (n_searches, n_in, n_steps) and right ones (n_searches, n_steps, n)."""
    left = torch.stack([left for left, _ in pairs], dim=2).to(like)
    return left, torch.stack([right for _, right in pairs], dim=1).to(like)


def _values_of_rows(
    chain: Chain, state: ChainState, factors: list[tuple[Tensor, Tensor]], some: slice
) -> Tensor:
    """Return outputs of the chain for the training samples, (n_searches, n_rows, n_out)."""
    sample, memory = state.sample[some], chain.memory
    first = state.rows_at_first
    value = memory.tensor(("natural", 0), (len(sample), *first.shape[1:]), first)
    torch.index_select(first, 0, sample, out=value)
    change = state.change[some].to(first)
    value.addcmul_(state.kernel[sample][..., None], change[:, None])
    value = chain.layers[0].activated(value)[0]
    for number, (layer, (left, right)) in enumerate(zip(chain.layers[1:], factors, strict=True)):
        shape = (*value.shape[:2], len(layer.weight))
        out = memory.tensor(("natural", number + 1), shape, first)
        n_in = layer.weight.shape[1]
        torch.matmul(value.flatten(0, 1), layer.weight.T, out=out.flatten(0, 1))
        moved = torch.bmm(value, left[some, :n_in])
        if left.shape[1] > n_in:
            moved += left[some, n_in:]
        out.baddbmm_(moved, right[some])
        if layer.bias is not None:
            out += layer.bias
        value = layer.activated(out)[0]
    return value


def gradients_of_layers(
    layers: list[Any], slopes: Any, changes: list[list[tuple[Tensor, Tensor]]], gradient: Tensor
) -> list[Tensor]:
    """Return derivatives of scores by the outputs of each layer before its activation."""
    gradients = [gradient]
    for number in reversed(range(1, len(layers))):
        gradient, weight = gradients[0], layers[number].weight
        back = gradient @ weight.to(gradient)
        for left, right in changes[number - 1]:
            share = (gradient * right).sum(dim=-1, keepdim=True)
            back += share * left[:, : weight.shape[1]]
        gradients.insert(0, layers[number - 1].back(back, slopes[number - 1]))
    return gradients


def output_gradients(problem: Problem, searches: Searches, outputs: Tensor) -> Tensor:
    """Return derivatives of the scores of targets by the outputs of the last layer."""
    executor: Any = problem.network.executor
    if returns_logits(executor):
        targets: Any = problem.targets
        return targets.gradient(outputs, searches.target)
    with torch.enable_grad():
        outputs = outputs.detach().requires_grad_()
        score = problem.score(executor.interpret(outputs[..., None])[:, 0], searches)
        (gradient,) = torch.autograd.grad(score.sum(), outputs)
    return gradient


def returns_logits(executor: Any) -> bool:
    """Return whether the last layer of a chain returns the logits of classes."""
    return executor.likelihood.link == "logits" and not executor.steps[2]


def affine(layer: Any, rows: Tensor) -> Tensor:
    """Return the outputs of a given layer before its activation, in the type of the rows."""
    bias = None if layer.bias is None else layer.bias.to(rows)
    return torch.nn.functional.linear(rows, layer.weight.to(rows), bias)


def through_inverse(values: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Return products with an inverse, and inner products of these with the values."""
    own = with_constant(values, inverse)
    product = own @ inverse.to(own)
    return product, (product * own).sum(dim=-1)
