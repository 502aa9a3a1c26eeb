"""Linear search: the network taken as linear in its parameters, so that no steps are needed.

A rival costs half the squared distance of its score over the variance of the score, and the
predictions between are known in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._curvature.preconditioner import EigenInverse, LayerInverse, Preconditioner
from ..._curvature.scores import WholeNetwork
from ..._network.free import Free
from ..._network.limits import accumulation_dtype
from ..._network.outputs import NetworkErrors
from ..problem import Problem
from ..searches import Searches
from .chain import affine, gradients_of_layers, output_gradients, outputs_and_slopes
from .general import gradient_of, leaf
from .paths import Paths, Point
from .walk import Record, Watch, goals, length_of_step

# Points on a path that the integral over the score is made of.
N_POINTS = 10


@dataclass(frozen=True, eq=False)
class LinearSteps:
    """Points on straight paths in the space of logits or means; nothing is searched."""

    goal: float  # Log-odds up to which models count
    preconditioner: Preconditioner  # The inverse curvature
    # That of each layer of a chain; None for other networks
    inverses: list[LayerInverse | EigenInverse] | None
    rows_at_once = 1
    at_once_on_cpu = 8192

    def paths(
        self,
        problem: Problem,
        searches: Searches,
        until: float = math.inf,  # noqa: ARG002
        watch: Watch | None = None,
    ) -> Paths:
        """Return the points between the given network and the goals."""
        find = self._through_any if self.inverses is None else self._through_chain
        scores, change, gradient = find(problem, searches)
        original = searches.original
        with torch.no_grad():
            variance = (gradient * change).sum(dim=-1).clamp(min=0)
            dtype, record = original.parts[0].dtype, Record(searches)
            at_start = problem.score(self._interpreted(problem, scores), searches)
            goal = goals(problem, self.goal, at_start, variance)
            end = length_of_step(goal, at_start, variance, 1)
            number = torch.arange(len(searches), device=original.device)
            for step in range(N_POINTS + 1):
                at = end * (step / N_POINTS)
                exact = self._interpreted(problem, scores + at[:, None] * change)
                score = problem.score(exact, searches)
                point = Point(exact.to(dtype), 0.5 * at**2 * variance, score)
                record.add(number, point)
                if watch is not None:
                    watch(number, point, partial(self._free, problem, searches, at))
        return record.paths()

    def shortened(self) -> LinearSteps:
        """Return the same: there are no steps."""
        return self

    def _interpreted(self, problem: Problem, scores: Tensor) -> Any:
        """Return the predictions that scores make."""
        if self.inverses is not None:
            executor: Any = problem.network.executor
            return executor.interpret(scores[..., None])[:, 0]
        view = WholeNetwork(problem.network, scores.shape[-1])
        return view.likelihood.prediction(scores)

    def _free(self, problem: Problem, searches: Searches, at: Tensor, index: Tensor) -> Free:
        """Return the free parameters of some of the models."""
        some, layout = searches.at(index), problem.layout
        models = leaf(problem.given_models(len(index)))
        with torch.enable_grad():
            score = problem.score(problem.predict_at(models, some.query), some)
            direction = self.preconditioner(gradient_of(score, models), layout)
        return layout.unflatten(models.detach() + at[index, None] * direction)

    # -- changes of scores ---------------------------------------------------------------------

    @torch.no_grad()
    def _through_chain(self, problem: Problem, searches: Searches) -> tuple[Tensor, ...]:
        """Return outputs, their change, and the gradient of the target's score by them."""
        assert self.inverses is not None
        executor: Any = problem.network.executor
        layers, (rows,), n_targets = executor.chain.layers, searches.query, searches.n_targets
        # An inverse curvature amplifies rounding.
        exact = rows.to(accumulation_dtype(rows.device))
        unchanged: list[Any] = [[] for _ in layers[1:]]
        values, slopes = outputs_and_slopes(layers, affine(layers[0], exact), unchanged)
        inputs, scores = [exact, *values], values[-1].repeat_interleave(n_targets, dim=0)
        gradient = output_gradients(problem, searches, scores)
        slopes = [part.repeat_interleave(n_targets, dim=0) for part in slopes]
        gradients = gradients_of_layers(layers, slopes, unchanged, gradient)
        change = torch.zeros_like(gradients[0])
        for number, inverse in enumerate(self.inverses):
            if number:
                change = layers[number - 1].back(change, slopes[number - 1])
                change = change @ layers[number].weight.T.to(change)
            change = change + inverse.change(inputs[number], gradients[number])
        return scores, change, gradients[-1]

    def _through_any(self, problem: Problem, searches: Searches) -> tuple[Tensor, ...]:
        """Return the same by automatic derivatives, through copies of the parameters."""
        models = leaf(problem.given_models(len(searches)))
        prediction = problem.predict_at(models, searches.each().query)
        view = WholeNetwork(problem.network, 0)
        scores = view.scores(prediction)
        given = scores.detach().requires_grad_()
        score = problem.score(view.likelihood.prediction(given), searches)
        (gradient,) = torch.autograd.grad(score.sum(), given)
        # The derivative along the direction, as that of a product which is linear in `dummy`.
        dummy = torch.zeros_like(scores, requires_grad=True)
        options: Any = {"materialize_grads": True, "retain_graph": True}
        with NetworkErrors():
            (product,) = torch.autograd.grad(scores, models, dummy, create_graph=True, **options)
            (own,) = torch.autograd.grad(scores, models, gradient, **options)
        direction = self.preconditioner(own, problem.layout)
        with NetworkErrors():
            (change,) = torch.autograd.grad((product * direction).sum(), dummy)
        return scores.detach(), change, gradient
