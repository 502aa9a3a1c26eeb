"""Linear search: the network taken as linear in its parameters, so that no steps are needed.

A rival costs half the squared distance of its score over the variance of the score, and what the
network predicts on the way to it is known in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._curvature.preconditioner import Preconditioner
from ..._curvature.scores import WholeNetwork
from ..._network.chain import through_activation
from ..._network.free import Free
from ..._network.limits import accumulation_dtype
from ..._network.outputs import NetworkErrors
from ..._network.predictions import Prediction
from ..._network.reference import Rows
from ..problem import Problem
from ..steps import Evaluation, State
from .chains import (
    ChainSteps,
    affine,
    inputs_of_layers,
    output_gradients,
)
from .general import GeneralSteps, leaves, predict_at_query

# Points on the way that the integral over the score is made of.
N_POINTS = 10


@dataclass(frozen=True, eq=False)
class LinearState(State):
    """Straight ways in the space of scores (logits, or means); see `State`.

    Parameters
    ----------
    free, query, original, target
        See `State`; nothing is kept as free parameters.
    scores : Tensor of shape (n_searches, n_scores)
        What the given network returns.
    change : Tensor of shape (n_searches, n_scores)
        How that changes for a unit of the way.
    variance : Tensor of shape (n_searches,)
        How the score of the target changes for it, which is its variance.
    end : Tensor of shape (n_searches,)
        Length of the way.
    at : Tensor of shape (n_searches,)
        How much of it has been gone.
    """

    scores: Tensor
    change: Tensor
    variance: Tensor
    end: Tensor
    at: Tensor


@dataclass(frozen=True, eq=False)
class LinearSteps:
    """Points on straight ways; nothing is searched.

    Parameters
    ----------
    path : NaturalSteps
        How natural search would go.
    preconditioner : Preconditioner
        The inverse curvature.
    n_training_rows : int
        Rows that the curvature is the sum of.
    """

    path: ChainSteps | GeneralSteps
    preconditioner: Preconditioner
    n_training_rows: int
    n_steps = N_POINTS
    every = 1
    tolerance = 0.0
    window = 1
    rows_at_once = 1
    measures_all = True
    drops_ended = False
    at_once_on_cpu = 8192

    def init(
        self, problem: Problem, query: Rows, original: Prediction, target: Tensor, n_targets: int
    ) -> LinearState:
        """Return where the ways begin, and where they lead."""
        if isinstance(self.path, ChainSteps):
            scores, change, gradient = self._through_chain(
                problem, query, original, target, n_targets
            )
        else:
            scores, change, gradient = self._through_any(problem, query, original, target)
        variance = (gradient * change).sum(dim=-1).clamp(min=0)
        targets: Any = problem.targets
        at_start = targets.score(self._interpreted(problem, scores), original, target)
        goal = self.path.goals(problem, at_start, variance)
        end = self.path.length(goal, at_start, variance, self.path.n_steps - 1)
        zero = torch.zeros_like(end)
        return LinearState({}, query, original, target, scores, change, variance, end, zero)

    @torch.no_grad()
    def evaluate(self, problem: Problem, state: LinearState, step: int) -> Evaluation:
        """Return what the models of a point on the way predict and cost."""
        part = state.end * (step / self.n_steps)
        scores = state.scores + part[:, None] * state.change
        dtype = state.original.parts[0].dtype
        at_query = self._interpreted(problem, scores).to(dtype)
        cost = (0.5 * part**2 * state.variance / self.n_training_rows).to(dtype)
        return Evaluation(at_query, cost, cost)

    def _interpreted(self, problem: Problem, scores: Tensor) -> Any:
        """Return what scores mean."""
        if isinstance(self.path, ChainSteps):
            executor: Any = problem.network.executor
            return executor.interpret(scores[..., None])[:, 0]
        view = WholeNetwork(problem.network, scores.shape[-1])
        return view.likelihood.prediction(scores)

    def update(
        self,
        problem: Problem,  # noqa: ARG002
        state: LinearState,
        evaluation: Evaluation,  # noqa: ARG002
        step: int,
    ) -> LinearState:
        """Return the same ways, one point on."""
        state.at.copy_(state.end * ((step + 1) / self.n_steps))
        return state

    def keep(self, state: LinearState, index: Tensor) -> LinearState:
        """Return nothing: searches end together."""
        raise NotImplementedError("Linear searches end together.")

    def free(self, problem: Problem, state: LinearState, index: Tensor) -> Free:
        """Return the free parameters of some of the models."""
        network, start = problem.network, problem.network.free.start
        free = leaves({name: v.expand(len(index), *v.shape) for name, v in start.items()})
        query = tuple(part[index] for part in state.query)
        targets: Any = problem.targets
        with torch.enable_grad():
            prediction = predict_at_query(network, network.free.weights(free), query)
            score = targets.score(prediction, state.original[index], state.target[index])
            with NetworkErrors():
                gradients = torch.autograd.grad(
                    score.sum(), list(free.values()), materialize_grads=True
                )
        direction = self.preconditioner(dict(zip(free, gradients, strict=True)))
        at = state.at[index]
        return {
            name: value.detach() + at.reshape(-1, *[1] * (value.ndim - 1)) * direction[name]
            for name, value in free.items()
        }

    def shortened(self) -> LinearSteps:
        """Return the same: there are no steps."""
        return self

    # -- what changes ----------------------------------------------------------------------

    @torch.no_grad()
    def _through_chain(
        self, problem: Problem, query: Rows, original: Prediction, target: Tensor, n_targets: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs, their change, and the gradient of the target's score by them."""
        assert isinstance(self.path, ChainSteps)
        executor: Any = problem.network.executor
        layers, inverses = executor.chain.layers, self.path.inverses
        rows = query[0][::n_targets]
        # An inverse curvature amplifies rounding.
        inputs = inputs_of_layers(executor.chain, rows.to(accumulation_dtype(rows.device)))
        scores = affine(layers[-1], inputs[-1]).repeat_interleave(n_targets, dim=0)
        gradients = [output_gradients(problem, original, target, scores)]
        repeated = [part.repeat_interleave(n_targets, dim=0) for part in inputs]
        for number in reversed(range(1, len(layers))):
            back = gradients[0] @ layers[number].weight.to(gradients[0])
            activation = layers[number - 1].activation
            gradients.insert(0, through_activation(activation, back, repeated[number]))
        change = torch.zeros_like(gradients[0])
        for number, inverse in enumerate(inverses):
            if number:
                activation = layers[number - 1].activation
                change = through_activation(activation, change, repeated[number])
                change = change @ layers[number].weight.T.to(change)
            change = change + inverse.change(inputs[number], gradients[number])
        return scores, change, gradients[-1]

    def _through_any(
        self, problem: Problem, query: Rows, original: Prediction, target: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same by automatic derivatives, through copies of the parameters."""
        network, targets = problem.network, problem.targets
        start = network.free.start
        free = leaves({name: v.expand(len(target), *v.shape) for name, v in start.items()})
        prediction = predict_at_query(network, network.free.weights(free), query)
        view = WholeNetwork(network, 0)
        scores = view.scores(prediction)
        given = scores.detach().requires_grad_()
        score: Any = targets.score(view.likelihood.prediction(given), original, target)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(score.sum(), given)
        # The derivative along the direction, as that of a product which is linear in `dummy`.
        dummy = torch.zeros_like(scores, requires_grad=True)
        values = list(free.values())
        with NetworkErrors():
            products = torch.autograd.grad(
                scores, values, dummy, create_graph=True, materialize_grads=True
            )
            own = torch.autograd.grad(
                scores, values, gradient, retain_graph=True, materialize_grads=True
            )
        with torch.no_grad():
            direction = self.preconditioner(dict(zip(free, own, strict=True)))
        terms = zip(free, products, strict=True)
        along = torch.stack([(product * direction[name]).sum() for name, product in terms]).sum()
        with NetworkErrors():
            (change,) = torch.autograd.grad(along, dummy)
        return scores.detach(), change, gradient
