"""Natural search through a chain of linear layers, as large matrix products.

In the first searched layer the change of a search is an outer product with a left factor that
never changes, because the row that the search is about comes in unchanged: training rows enter by
one number each, and the largest product disappears. Where there is no other layer, this is all
there is.

What concerns the row itself is computed in double precision: an inverse curvature amplifies
rounding, and costs near the answer are small differences. It takes little time, because there is
one such row for many training rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._curvature.influence import Influence, with_constant
from ..._curvature.preconditioner import EigenInverse, LayerInverse, Preconditioner
from ..._network.chain import ACTIVATIONS, Chain, through_activation
from ..._network.executors import ChainExecutor
from ..._network.free import Free, FreeNetwork
from ..._network.limits import accumulation_dtype, batches, slices
from ..._network.predictions import Prediction
from ..._network.reference import Rows, TrainingSet
from ..problem import Problem
from ..steps import State
from .path import NaturalEvaluation, NaturalSteps, Witnesses

# What a core of a CPU has at hand.
_CACHE_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class ChainState(State):
    """Searches whose first layer has changed by outer products; see `State`.

    Parameters
    ----------
    free, query, original, target
        See `State`; nothing is kept as free parameters, and the query rows are not repeated.
    change : Tensor of shape (n_rows, n_targets, n_out)
        Right factors of the change of the first layer.
    weights, biases : list of Tensor of shape (n_searches, ...)
        Parameters of the layers behind it.
    pulled : Tensor of shape (n_rows, n_targets, n_out)
        What the right factors of the first layer are made of: they are products of this with the
        inverse curvature.
    changes : list of list of tuple
        Left and right factors of the change of each of these layers, a pair for each step.
    left : Tensor of shape (n_rows, n_in)
        Left factor of the change of the first layer.
    reach : Tensor of shape (n_rows,)
        Product of the left factor with the row itself.
    at_first : Tensor of shape (n_rows, n_out)
        What the given first layer makes of the row.
    witnesses : Witnesses
        Training rows that tell what a model costs.
    witness_reach : Tensor of shape (n_rows, n_witnesses)
        Products of the left factor with these.
    witness_first : Tensor of shape (n_rows, n_out, n_witnesses)
        What the given first layer makes of these.
    goal : Tensor of shape (n_searches,) or None
        Where the searches go; known from the first step on.
    """

    change: Tensor
    pulled: Tensor
    weights: list[Tensor]
    biases: list[Tensor]
    changes: list[list[tuple[Tensor, Tensor]]]
    left: Tensor
    reach: Tensor
    at_first: Tensor
    witnesses: Witnesses
    witness_reach: Tensor
    witness_first: Tensor
    goal: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ChainSteps(NaturalSteps):
    """Natural steps through a chain of linear layers; see `NaturalSteps`.

    Parameters
    ----------
    n_steps, goal, n_rows, precision, influence
        See `NaturalSteps`.
    inverses : list of LayerInverse
        The inverse curvature of each layer.
    """

    inverses: list[LayerInverse | EigenInverse]

    def init(
        self, problem: Problem, query: Rows, original: Prediction, target: Tensor, n_targets: int
    ) -> ChainState:
        """Return the state of searches that start at the given network."""
        executor: Any = problem.network.executor
        layers, (rows,) = executor.chain.layers, query
        rows = rows[::n_targets]
        inputs = inputs_of_layers(executor.chain, rows)
        # What all rows cost to second order is known for a head: none stands for others.
        witnesses = self.witnesses(problem, inputs, drawn=not _is_plain_head(executor))
        first, inverse = layers[0], self.inverses[0].inputs
        exact = rows.to(accumulation_dtype(rows.device))
        left, reach = through_inverse(exact, inverse)
        (training,) = problem.training.rows
        seen = training[witnesses.index]
        n_searches = len(target)
        return ChainState(
            {},
            (rows,),
            original,
            target,
            change=exact.new_zeros(len(rows), n_targets, len(first.weight)),
            pulled=exact.new_zeros(len(rows), n_targets, len(first.weight)),
            weights=[_copies(layer.weight, n_searches) for layer in layers[1:]],
            biases=[_copies(_bias(layer), n_searches) for layer in layers[1:]],
            changes=[[] for _ in layers[1:]],
            left=left,
            reach=reach,
            at_first=affine(first, exact),
            witnesses=witnesses,
            witness_reach=(with_constant(seen, inverse) @ left.to(seen)[..., None])[..., 0],
            # Where there is nothing behind it, what it returns is not needed.
            witness_first=seen.new_empty(0)
            if _is_plain_head(executor)
            else affine(first, seen).mT.contiguous(),
        )

    @torch.no_grad()
    def evaluate(self, problem: Problem, state: ChainState, step: int) -> NaturalEvaluation:
        """Return what the models predict and cost."""
        executor: Any = problem.network.executor
        values = self._values_at_query(executor.chain, state)
        at_query = executor.interpret(values[-1][..., None])[:, 0]
        if step == 0:
            # The given network itself.
            cost = torch.zeros(len(state.target), device=state.target.device)
        elif _is_plain_head(executor):
            cost = self._cost_of_head(problem, state)
        else:
            outputs = self._values_of_witnesses(executor.chain, state)
            prediction: Any = executor.interpret(outputs)
            prediction = prediction.unflatten(0, state.change.shape[:2])
            divergence = state.witnesses.original[:, None].kl(prediction)
            cost = self.cost(problem, state.witnesses, divergence, self._prior(state))
        targets: Any = problem.targets
        score = targets.score(at_query, state.original, state.target)
        # What is handed on has the type of everything else.
        at_query = at_query.to(state.original.parts[0].dtype)
        cost = cost.to(at_query.parts[0])
        return NaturalEvaluation(at_query, cost, cost, score, values)

    @torch.no_grad()
    def update(
        self, problem: Problem, state: ChainState, evaluation: NaturalEvaluation, step: int
    ) -> ChainState:
        """Take an equal share of the way, in the memory of the state."""
        executor: Any = problem.network.executor
        values, layers = evaluation.inside, executor.chain.layers
        gradients = _gradients(problem, state, values, layers)
        directions, slope = [], torch.zeros_like(evaluation.score)
        for number, (gradient, inverse) in enumerate(zip(gradients, self.inverses, strict=True)):
            right, gain = through_inverse(gradient, inverse.outputs)
            if number == 0:
                left, reach = None, state.reach.repeat_interleave(state.change.shape[1])
            else:
                left, reach = through_inverse(values[number - 1], inverse.inputs)
            slope = slope + reach * gain
            directions.append((left, right))
        goal = state.goal
        if goal is None:
            goal = self.goals(problem, evaluation.score, slope)
        length = self.length(goal, evaluation.score, slope, step)[:, None]
        for number, (left, right) in enumerate(directions):
            moved = length * right
            if left is None:
                state.change.add_(moved.view_as(state.change))
                state.pulled.add_((length * gradients[0]).view_as(state.pulled))
                continue
            state.changes[number - 1].append((left, moved))
            weight, bias = state.weights[number - 1], state.biases[number - 1]
            left, moved = left.to(weight), moved.to(weight)
            weight.baddbmm_(moved[..., None], left[:, None, : weight.shape[-1]])
            if left.shape[-1] > weight.shape[-1]:
                bias.addcmul_(moved, left[:, -1:])
        return replace(state, goal=goal)

    def free(self, problem: Problem, state: ChainState, index: Tensor) -> Free:
        """Return the free parameters of some of the models."""
        executor: Any = problem.network.executor
        prefixes, layers, _ = executor.steps
        n_targets = state.change.shape[1]
        change, left = state.change.flatten(0, 1)[index], state.left[index // n_targets]
        n_in, first = layers[0].weight.shape[1], prefixes[0]
        change, left = change.to(layers[0].weight), left.to(layers[0].weight)
        weight = layers[0].weight + change[..., None] * left[:, None, :n_in]
        found = {f"{first}weight": weight}
        if layers[0].bias is not None:
            found[f"{first}bias"] = layers[0].bias + change * left[:, n_in:]
        for number, prefix in enumerate(prefixes[1:]):
            found[f"{prefix}weight"] = state.weights[number][index].clone()
            if layers[number + 1].bias is not None:
                found[f"{prefix}bias"] = state.biases[number][index].clone()
        return {name: found[name] for name in problem.network.free.start}

    # -- forward ---------------------------------------------------------------------------

    def _values_at_query(self, chain: Chain, state: ChainState) -> list[Tensor]:
        """Return what each layer makes of the rows themselves, (n_searches, n_out)."""
        value = state.at_first[:, None] + state.reach[:, None, None] * state.change
        values = [_activated(chain.layers[0].activation, value.flatten(0, 1))]
        for layer, changes in zip(chain.layers[1:], state.changes, strict=True):
            value = affine(layer, values[-1])
            for left, moved in changes:
                own = with_constant(values[-1], left[0])
                value += (own * left).sum(dim=-1, keepdim=True) * moved
            values.append(_activated(layer.activation, value))
        return values

    def _values_of_witnesses(self, chain: Chain, state: ChainState) -> Tensor:
        """Return what the chain makes of the training rows, (n_searches, n_out, n_witnesses)."""
        first, layers = state.witness_first, chain.layers
        (n_rows, n_targets), n_witnesses = state.change.shape[:2], first.shape[2]
        shape = (n_rows * n_targets, len(layers[-1].weight), n_witnesses)
        outputs = chain.memory.tensor(("natural", "outputs"), shape, first)
        # A few rows at a time: on a CPU, what a layer returns is still at hand for the next one.
        widest = max(len(layer.weight) for layer in layers)
        n_bytes = widest * n_witnesses * n_targets * first.element_size()
        size = n_rows if first.device.type != "cpu" else max(1, _CACHE_BYTES // n_bytes)
        for rows in slices(n_rows, size):
            searches = slice(rows.start * n_targets, min(rows.stop, n_rows) * n_targets)
            self._block_of_witnesses(chain, state, rows, searches, outputs[searches])
        return outputs

    def _block_of_witnesses(
        self, chain: Chain, state: ChainState, rows: slice, searches: slice, outputs: Tensor
    ) -> None:
        """Run the chain for the witnesses of some rows, and write what it returns."""
        change, reach = state.change[rows].to(outputs), state.witness_reach[rows]
        value = outputs
        for number, layer in enumerate(chain.layers):
            shape = (len(outputs), len(layer.weight), outputs.shape[2])
            last = number == len(chain.layers) - 1
            out = outputs if last else chain.memory.tensor(("natural", number), shape, outputs)
            if number == 0:
                of_targets = out.view(*change.shape, -1)
                torch.mul(change[..., None], reach[:, None, None], out=of_targets)
                of_targets += state.witness_first[rows, None]
            else:
                weight, bias = state.weights[number - 1], state.biases[number - 1]
                torch.baddbmm(bias[searches, :, None], weight[searches], value, out=out)
            value = _activated(layer.activation, out)

    def _prior(self, state: ChainState) -> Tensor:
        """Return what the prior around the given network says against the models, in nats."""
        lengths = state.left.square().sum(dim=-1)
        square = (lengths[:, None] * state.change.square().sum(dim=-1)).flatten()
        for changes in state.changes:
            for number, (left, moved) in enumerate(changes):
                for other, its_moved in changes[: number + 1]:
                    product = (left * other).sum(dim=-1) * (moved * its_moved).sum(dim=-1)
                    square = square + (product if other is left else 2 * product)
        return self.precision / 2 * square

    # -- a single layer of plain logits ----------------------------------------------------

    def _cost_of_head(self, problem: Problem, state: ChainState) -> Tensor:
        """Return what models cost where logits change by an outer product.

        With k the number by which a training row enters and c the change, the logits of the row
        change by k c, which costs log(sum of p exp(k (c - sum of p c))). To second order that is
        half the variance of k c, which the curvature knows for all rows together, with the prior:
        what remains to be looked at is the difference, on the rows that are moved most.
        """
        witnesses, reach = state.witnesses, state.witness_reach
        original: Any = witnesses.original
        log_proba, change = original.log_proba, state.change.to(reach)
        beyond = reach.new_empty(*reach.shape, change.shape[1])
        every = reach.shape[1] == len(problem.training)
        n_bytes = beyond[0].numel() * change.shape[-1] * change.element_size()
        size = len(change) if change.device.type != "cpu" else max(1, _CACHE_BYTES // n_bytes)
        for rows in slices(len(change), size):
            proba = log_proba[rows].exp()
            mean = proba @ change[rows].mT
            variance = (proba @ change[rows].square().mT - mean.square()).clamp(min=0)
            # In logarithms: a network may be surer than the smallest probability that is no zero.
            centred = change[rows, None] - mean[..., None]
            moved = torch.addcmul(log_proba[rows, :, None], reach[rows, :, None, None], centred)
            exact = torch.logsumexp(moved, dim=-1).clamp(min=0)
            beyond[rows] = exact - reach[rows, :, None].square() / 2 * variance * (not every)
        if every:
            return self.cost(problem, witnesses, beyond.mT, self._prior(state).to(beyond))
        quadratic = state.reach[:, None] * (state.change * state.pulled).sum(dim=-1) / 2
        # Rows that are not at hand are not moved as far as these: they do not count several times.
        beyond *= len(problem.training) / problem.n_training_rows
        return self.cost(problem, witnesses, beyond.mT, quadratic.flatten().to(beyond))


def chain_steps(
    network: FreeNetwork,
    training: TrainingSet,
    preconditioner: Preconditioner,
    *,
    n_steps: int,
    goal: float,
    n_rows: int,
    precision: float,
    start: float,
    sensitivity: Tensor | None,
) -> ChainSteps | None:
    """Return natural steps through a chain of linear layers, if that is what is searched.

    Parameters
    ----------
    network : FreeNetwork
        The network as a function of what may change.
    training : TrainingSet
        The training data at the cut.
    preconditioner : Preconditioner
        The inverse curvature.
    n_steps, goal, n_rows, precision
        See `NaturalSteps`.
    start, sensitivity
        See `Influence`.

    Returns
    -------
    ChainSteps or None
        The steps.
    """
    executor = network.executor
    if not isinstance(executor, ChainExecutor) or network.free.updates:
        return None
    prefixes, layers, _ = executor.steps
    needed = [f"{p}weight" for p in prefixes]
    needed += [
        f"{p}bias" for p, layer in zip(prefixes, layers, strict=True) if layer.bias is not None
    ]
    if sorted(needed) != sorted(network.free.start):
        return None
    try:
        inverses = [preconditioner.of_layer(f"{prefix}weight") for prefix in prefixes]
    except KeyError:
        return None
    if any(isinstance(inverse, EigenInverse) for inverse in inverses):
        # Only linear search inverts like this, which looks at no training row.
        return ChainSteps(n_steps, goal, n_rows, precision, None, inverses)
    (rows,) = training.rows
    # The first ones are the rows at the cut themselves: not another copy of them.
    widths = [layer.weight.shape[1] for layer in layers[1:]]
    features = [rows, *(rows.new_empty(len(rows), width) for width in widths)]
    for chunk in batches(rows):
        values = inputs_of_layers(executor.chain, rows[chunk])
        for whole, part in zip(features[1:], values[1:], strict=True):
            whole[chunk] = part
    influence = Influence(tuple(features), tuple(i.inputs for i in inverses), sensitivity, start)
    return ChainSteps(n_steps, goal, n_rows, precision, influence, inverses)


def _is_plain_head(executor: ChainExecutor) -> bool:
    """Tell whether all that is searched is a linear layer that returns logits."""
    _, layers, endings = executor.steps
    return len(layers) == 1 and not endings and executor.likelihood.link == "logits"


def inputs_of_layers(chain: Chain, rows: Tensor) -> list[Tensor]:
    """Return what each layer of the given chain takes."""
    inputs = [rows]
    for layer in chain.layers[:-1]:
        inputs.append(_activated(layer.activation, affine(layer, inputs[-1])))
    return inputs


def _gradients(
    problem: Problem, state: ChainState, values: list[Tensor], layers: list[Any]
) -> list[Tensor]:
    """Return derivatives of the scores by what each layer returns before its activation."""
    gradients = [output_gradients(problem, state.original, state.target, values[-1])]
    for number in reversed(range(1, len(layers))):
        gradient, weight = gradients[0], layers[number].weight
        back = gradient @ weight.to(gradient)
        for left, moved in state.changes[number - 1]:
            share = (gradient * moved).sum(dim=-1, keepdim=True)
            back += share * left[:, : weight.shape[1]]
        activation = layers[number - 1].activation
        gradients.insert(0, through_activation(activation, back, values[number - 1]))
    return gradients


def output_gradients(
    problem: Problem, original: Prediction, target: Tensor, outputs: Tensor
) -> Tensor:
    """Return derivatives of the scores of targets by what the last layer returns."""
    executor: Any = problem.network.executor
    targets: Any = problem.targets
    if executor.likelihood.link == "logits" and not executor.steps[2]:
        return targets.gradient(outputs, target)
    with torch.enable_grad():
        outputs = outputs.detach().requires_grad_()
        score = targets.score(executor.interpret(outputs[..., None])[:, 0], original, target)
        (gradient,) = torch.autograd.grad(score.sum(), outputs)
    return gradient


def _activated(activation: str | None, values: Tensor) -> Tensor:
    return values if activation is None else ACTIVATIONS[activation](values)


def affine(layer: Any, rows: Tensor) -> Tensor:
    """Return what a given layer makes of rows, before its activation, in their type."""
    bias = None if layer.bias is None else layer.bias.to(rows)
    return torch.nn.functional.linear(rows, layer.weight.to(rows), bias)


def through_inverse(values: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Return products with an inverse, and inner products of these with the values."""
    own = with_constant(values, inverse)
    product = own @ inverse.to(own)
    return product, (product * own).sum(dim=-1)


def _bias(layer: Any) -> Tensor:
    return layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias


def _copies(value: Tensor, number: int) -> Tensor:
    return value.detach().expand(number, *value.shape).clone()
