"""Searches looked at one by one: the models that they find, and every step on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from .._network.inputs.rows import Inputs
from .._network.limits import Limits, slices
from .._network.predictions import Prediction
from .adversarial import AdversarialModels
from .natural.path import NaturalSteps
from .rivals import RivalKeeper
from .run import Visit
from .sampling import BestSampler, Sampler

# Training rows of one pass over all of them.
_ROWS_AT_ONCE = 512
# Steps of a search whose first model with another answer is looked at closely.
_CLOSE_STEPS = 20


class _ModelKeeper(BestSampler):
    """Keeps the parameters of the most divergent feasible model of each search."""

    keeps_models = True

    def finish(self) -> None:
        """Hand over nothing: the models themselves are wanted.

        What was estimated on the way is measured on all training rows.
        """
        if self.steps.measures_all:
            problem = self.problem
            every = torch.arange(len(problem.training), device=self.target.device)
            _, increase = problem.measure(self.models, self.query, _ROWS_AT_ONCE, every)
            self.best_increase = torch.where(self.found, increase, self.best_increase)
            self.found &= increase <= problem.slack


class _TraceKeeper(Sampler):
    """Keeps every model that the searches meet: what it predicts, and what it costs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.visits: list[Visit] = []

    def on_visit(self, visit: Visit) -> None:
        """Keep the models of a step."""
        self.visits.append(visit)


def found_models(
    models: AdversarialModels,
    module: nn.Module,
    inputs: Inputs,
    original: Prediction,
    limits: Limits,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the models that were found for each row, the most divergent first.

    Parameters
    ----------
    models : AdversarialModels
        Prepared searches.
    module : torch.nn.Module
        The given network.
    inputs : Inputs
        Values of rows at the cut.
    original : Prediction
        What the given network predicts for them.
    limits : Limits
        How many searches may run together.

    Yields
    ------
    list of dict
        What `QUAMClassifier.adversarial_models` describes.
    """
    for row in slices(len(inputs), 1):
        searches = models.searches_of_row(inputs[row], original[row], _ModelKeeper, limits)
        found = [_describe(models, module, *search) for search in searches]
        yield sorted(found, key=lambda model: -model["divergence"])


def _describe(
    models: AdversarialModels, module: nn.Module, keeper: _ModelKeeper, number: int, target: int
) -> dict[str, Any]:
    free = {name: value[number] for name, value in keeper.models.items()}
    weights = models.problem.network.free.weights(free)
    state = {k: v.detach().clone() for k, v in module.state_dict().items()}
    # Tied weights have several names.
    named = dict(module.named_parameters(remove_duplicate=False))
    for name, weight in weights.items():
        for alias, parameter in named.items():
            if parameter is named[name]:
                state[alias] = weight.detach().to(parameter.dtype).clone()
    return {
        "state_dict": state,
        "prediction": _as_array(keeper.best[number]),
        "target": models.problem.targets.name(target),
        "divergence": float(keeper.best_divergence[number]),
        "loss_increase": float(keeper.best_increase[number]),
        "feasible": bool(keeper.found[number]),
    }


def costs_of_rivals(
    models: AdversarialModels, inputs: Inputs, original: Prediction, limits: Limits
) -> dict[Any, np.ndarray]:
    """Return what each training row pays for the first model that gives another answer for a row.

    Parameters
    ----------
    models, limits
        See `found_models`.
    inputs : Inputs
        Values of a single row at the cut.
    original : Prediction
        What the given network predicts for it.

    Returns
    -------
    dict of ndarray of shape (n_training_rows,)
        Loss increases of the training rows, by the names of the answers that were reached and
        that the given network does not give itself.
    """
    problem, found = models.problem, dict[Any, np.ndarray]()
    if isinstance(models.steps, NaturalSteps):
        # The first model beyond the answer should not be far beyond it.
        n_steps = max(models.steps.n_steps, _CLOSE_STEPS)
        models = replace(models, steps=replace(models.steps, n_steps=n_steps))
    targets: Any = problem.targets
    for keeper, number, target in models.searches_of_row(inputs, original, RivalKeeper, limits):
        own = targets.is_original(original, keeper.target[number : number + 1][None])
        if not keeper.found[number] or own.any():
            continue
        free = {name: value[number : number + 1] for name, value in keeper.models.items()}
        parts = [
            problem.network.losses(free, problem.training, rows)[0]
            - problem.training.weighted(problem.training.losses[rows], rows)
            for rows in slices(len(problem.training), _ROWS_AT_ONCE)
        ]
        found.setdefault(targets.name(target), torch.cat(parts).cpu().double().numpy())
    return found


def search_traces(
    models: AdversarialModels, inputs: Inputs, original: Prediction, limits: Limits
) -> Iterator[list[dict[str, Any]]]:
    """Yield every step of the searches of each row; see `found_models`.

    Parameters
    ----------
    models, inputs, original, limits
        See `found_models`.

    Yields
    ------
    list of dict
        What `QUAMClassifier.search_traces` describes.
    """
    for row in slices(len(inputs), 1):
        searches = models.searches_of_row(inputs[row], original[row], _TraceKeeper, limits)
        yield [_trace(models, *search) for search in searches]


def _trace(
    models: AdversarialModels, keeper: _TraceKeeper, number: int, target: int
) -> dict[str, Any]:
    one = slice(number, number + 1)
    predictions = [visit.prediction[one] for visit in keeper.visits]
    original = keeper.original[one]
    # What weighs the model.
    which = "expected_increase" if models.steps.measures_all else "loss_increase"
    return {
        "target": models.problem.targets.name(target),
        "prediction": np.concatenate([_as_array(p) for p in predictions]),
        "divergence": np.array([float(original.kl(p)) for p in predictions]),
        "loss_increase": np.array([float(getattr(v, which)[number]) for v in keeper.visits]),
    }


def _as_array(prediction: Any) -> np.ndarray:
    return prediction.expected().cpu().double().numpy()
