"""Natural search through any network: parameters are copied, and gradients are automatic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._curvature.influence import make_influence
from ..._curvature.layers import features_of_layers
from ..._curvature.preconditioner import LayerInverse, Preconditioner
from ..._curvature.structures import damped_inverse
from ..._network.free import Free, FreeNetwork
from ..._network.limits import accumulation_dtype, rows_within, slices
from ..._network.outputs import NetworkErrors
from ..._network.reference import Rows
from ..problem import Problem
from ..searches import Searches
from .paths import Point
from .walk import NaturalSteps, TrainingSample, goals, length_of_step

_ROWS_AT_ONCE = 256
_TINY = 1e-30
# The longest correction, in units of the natural gradient.
_MAX_LENGTH = 1.5
# The share of its expected gain, and the change of the score in shares of a step, at which all of a
# correction is taken.
_GOOD_GAIN, _GOOD_DRIFT = 0.1, 0.25
# Damping of the second moments of features, relative to their mean eigenvalue.
_DAMPING_OF_FEATURES = 1e-3


@dataclass(frozen=True, eq=False)
class GeneralState:
    """Searches with a copy of the free parameters each."""

    # (n_searches, n_parameters): those of the model that each search has arrived at
    models: Tensor
    searches: Searches  # The searches, each with a sample of its own
    sample: Tensor  # (n_searches,): the number of the sample among those of the batch
    rows: TrainingSample  # Training samples on which the cost is measured
    goal: Tensor | None = None  # (n_searches,): where the searches go; known from the first step on


@dataclass(frozen=True, eq=False)
class GeneralSteps(NaturalSteps):
    """Natural steps through any network; see `NaturalSteps`."""

    preconditioner: Preconditioner  # The inverse curvature
    # Names of the layers whose inputs measure the influence on training samples
    layers: tuple[str, ...]
    n_corrections: int  # Steps that make each model cheaper before it is looked at
    drops_searches = True

    def init(self, problem: Problem, searches: Searches) -> GeneralState:
        """Return the state of searches that start at the given network."""
        features = _features(problem.network, self.layers, searches.query)
        every = torch.arange(len(searches.targets), device=searches.targets.device)
        return GeneralState(
            leaf(problem.given_models(len(searches))),
            searches.each(),
            every.repeat_interleave(searches.n_targets),
            self.training_sample(problem, features),
        )

    def evaluate(self, problem: Problem, state: GeneralState) -> tuple[Any, Tensor, None]:
        """Return predictions and scores of the models."""
        at_query, score = self._at_query(problem, state, state.models)
        return at_query.map(torch.Tensor.detach), score, None

    def cost(self, problem: Problem, state: GeneralState) -> Tensor:
        """Return costs of the models."""
        return self._cost(problem, state, state.models)

    def update(
        self, problem: Problem, state: GeneralState, point: Point, step: int
    ) -> GeneralState:
        """Take an equal share of the distance to the goal."""
        gradient = gradient_of(point.score, state.models)
        score = point.score.detach()
        with torch.no_grad():
            direction = self.preconditioner(gradient, problem.layout)
            slope = dot(gradient, direction)
            goal = goals(problem, self.goal, score, slope) if state.goal is None else state.goal
            length = length_of_step(goal, score, slope, self.n_steps - step)
            models = leaf(state.models + length[:, None] * direction)
        state = replace(state, models=models, goal=goal)
        for _ in range(self.n_corrections):
            state = self._corrected(problem, state)
        return state

    def _corrected(self, problem: Problem, state: GeneralState) -> GeneralState:
        """Make the models cheaper where they are: downhill, without a change of their scores."""
        assert state.goal is not None
        layout, start = problem.layout, state.models
        with torch.enable_grad():
            cost = self._cost(problem, state, start)
            downhill = gradient_of(cost, start)
            score = self._at_query(problem, state, start)[1]
            gradient = gradient_of(score, start)
        with torch.no_grad():
            direction = self.preconditioner(downhill, layout)
            own = self.preconditioner(gradient, layout)
            part = dot(gradient, direction) / dot(gradient, own).clamp(min=_TINY)
            direction = direction - part[:, None] * own
            # The lowest point of the parabola through the cost here, its slope, and the cost there.
            slope = dot(downhill, direction)
            there = self._cost(problem, state, start - direction)
            # Nothing here jumps: rounding must not lead searches of a sample to other places.
            bend = torch.maximum(2 * (there - cost + slope), slope / _MAX_LENGTH)
            length = torch.nan_to_num(slope / bend.clamp(min=_TINY), 0.0, 0.0, 0.0)
            models = start - length[:, None] * direction
            # Less of it where it gains little, or changes the score.
            gain = (cost - self._cost(problem, state, models)) / (slope * length)
            moved = self._at_query(problem, state, models)[1] - score
            drift = moved / (state.goal / self.n_steps)
            share = (gain / _GOOD_GAIN).clamp(0, 1) * (2 - drift.abs() / _GOOD_DRIFT).clamp(0, 1)
            length = length * torch.nan_to_num(share, 0.0)
            return replace(state, models=leaf(start - length[:, None] * direction))

    def _at_query(
        self, problem: Problem, state: GeneralState, models: Tensor
    ) -> tuple[Any, Tensor]:
        """Return predictions and scores of models."""
        at_query = problem.predict_at(models, state.searches.query)
        return at_query, problem.score(at_query, state.searches)

    def _cost(self, problem: Problem, state: GeneralState, models: Tensor) -> Tensor:
        """Return costs of models, in nats."""
        free = problem.layout.unflatten(models)
        on_rows = problem.predict_each(free, state.rows.index[state.sample])
        given: Any = state.rows.given[state.sample]
        divergence = given.kl(on_rows)
        change = models - problem.given_models(len(models))
        prior = self.precision / 2 * dot(change, change)
        return (divergence * state.rows.count[state.sample].to(divergence)).sum(dim=-1) + prior

    def keep(self, state: GeneralState, index: Tensor) -> GeneralState:
        """Return the state of some of the searches."""
        return replace(
            state,
            models=leaf(state.models[index]),
            searches=state.searches.at(index),
            sample=state.sample[index],
            goal=None if state.goal is None else state.goal[index],
        )

    def free(self, problem: Problem, state: GeneralState, index: Tensor) -> Free:
        """Return the free parameters of some of the models."""
        return problem.layout.unflatten(state.models.detach()[index])


def general_steps(
    problem: Problem,
    preconditioner: Preconditioner,
    n_corrections: int,
    start: float,
    sensitivity: Tensor | None,
    common: tuple[int, float, int, float],
) -> GeneralSteps:
    """Return natural steps through any network."""
    network, training = problem.network, problem.training
    layers = _searched_layers(network)
    parts = [
        _features(network, layers, training.rows_at(chunk))
        for chunk in slices(len(training), min(_ROWS_AT_ONCE, rows_within(network.bytes_per_row())))
    ]
    features = [torch.cat(layer) for layer in zip(*parts, strict=True)]
    inverses = _inverses_of_inputs(preconditioner, layers, features)
    influence = make_influence(features, inverses, sensitivity, start)
    return GeneralSteps(*common, influence, preconditioner, layers, n_corrections)


def is_linear_throughout(problem: Problem, preconditioner: Preconditioner) -> bool:
    """Return whether only linear layers are searched, as in a chain."""
    rest = problem.network.split.rest
    layers = [rest.get_submodule(name) for name in _searched_layers(problem.network)]
    blocks = preconditioner.blocks
    return all(type(layer) is torch.nn.Linear for layer in layers) and all(
        isinstance(block, LayerInverse) for block in blocks
    )


def _inverses_of_inputs(
    preconditioner: Preconditioner, layers: tuple[str, ...], features: list[Tensor]
) -> list[Tensor]:
    """Return inverse moments of features: as searches in chains take them, where all are linear."""
    blocks = [preconditioner.of_layer(f"{layer}.weight") for layer in layers]
    found = [block.inputs for block in blocks if isinstance(block, LayerInverse)]
    if len(found) == len(layers) == len(features) and all(
        len(inverse) - part.shape[1] in (0, 1)
        for inverse, part in zip(found, features, strict=True)
    ):
        return found
    return [_inverse_moment(part) for part in features]


def _searched_layers(network: FreeNetwork) -> tuple[str, ...]:
    """Return the layers behind the cut that hold a searched parameter, the whole part if none."""
    own = {name.rpartition(".")[0] for name in network.free.names} - {""}
    modules = dict(network.split.rest.named_modules())
    layers = tuple(name for name in modules if name in own)
    searched = {id(network.module.get_parameter(name)) for name in network.free.names}
    holders = tuple(
        name
        for name, part in modules.items()
        if any(id(p) in searched for p in part.parameters(recurse=False))
    )
    return layers or holders or ("",)


def _features(network: FreeNetwork, layers: tuple[str, ...], rows: Rows) -> list[Tensor]:
    """Return the inputs of the searched layers; values at the cut where there are none."""
    found = features_of_layers(network.split.rest, layers, rows)
    if found:
        return found
    return [
        part.reshape(len(part), -1).to(next(iter(network.free.start.values()))) for part in rows
    ]


def _inverse_moment(features: Tensor) -> Tensor:
    # In single precision, rounding in the inverse would choose the training samples.
    dtype = accumulation_dtype(features.device)
    parts = (part.to(dtype) for part in features.split(_ROWS_AT_ONCE))
    moment: Any = sum(part.T @ part for part in parts) / len(features)
    size = moment.diagonal().mean()
    # Features that are all zero have no size; theirs must not be lost among the smallest numbers.
    size = torch.where(size > torch.finfo(moment.dtype).tiny ** 0.5, size, 1.0)
    return damped_inverse(moment, _DAMPING_OF_FEATURES * float(size)).to(features.dtype)


def leaf(models: Tensor) -> Tensor:
    """Return a copy of models that gradients can be taken by."""
    return models.detach().clone().requires_grad_()


def gradient_of(values: Tensor, models: Tensor, retain_graph: bool = False) -> Tensor:
    """Return the gradient of a value of each model by its parameters."""
    with NetworkErrors():
        (found,) = torch.autograd.grad(
            values.sum(), models, retain_graph=retain_graph, materialize_grads=True
        )
    return found.detach()


def dot(first: Tensor, second: Tensor) -> Tensor:
    """Return the inner product of parameters, one for each model."""
    return (first * second).sum(dim=1)
