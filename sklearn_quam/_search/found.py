"""Single models and every step of searches, for a few samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from .._network.inputs.rows import Inputs
from .._network.limits import Limits, slices
from .._network.predictions import Prediction
from .models import AdversarialModels
from .searches import FoundModels, models_at

# Training samples of one pass over all of them.
_ROWS_AT_ONCE = 512


def found_models(
    models: AdversarialModels,
    module: nn.Module,
    inputs: Inputs,
    original: Prediction,
    limits: Limits,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the models that were found for each sample, the most divergent first."""
    for row in slices(len(inputs), 1):
        found = []
        for searches in models.searches(inputs[row], original[row], limits):
            best = models.engine.best_models(models.problem, searches)
            for number, target in enumerate(searches.target.tolist()):
                found.append(_describe(models, module, best, number, target))
        yield sorted(found, key=lambda model: -model["divergence"])


def _describe(
    models: AdversarialModels, module: nn.Module, best: FoundModels, number: int, target: int
) -> dict[str, Any]:
    free = {name: value[number] for name, value in best.free.items()}
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
        "prediction": _as_array(best.prediction[number]),
        "target": models.problem.targets.name(target),
        "divergence": float(best.divergence[number]),
        "loss_increase": float(best.cost[number]) / models.problem.n_training_rows,
        "feasible": bool(best.found[number]),
    }


def costs_of_rivals(
    models: AdversarialModels, inputs: Inputs, original: Prediction, limits: Limits
) -> dict[Any, np.ndarray]:
    """Return the cost of the first model of each other answer on each training sample."""
    problem, found = models.problem, dict[Any, np.ndarray]()
    targets: Any = problem.targets
    for searches in models.searches(inputs, original, limits):
        rivals = models.engine.first_rivals(problem, searches, close=True)
        own = targets.is_original(original, searches.targets)[0]
        for number, target in enumerate(searches.target.tolist()):
            if not rivals.found[number] or own[number]:
                continue
            free = models_at(rivals.free, slice(number, number + 1))
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
    """Yield every step of the searches of each sample."""
    problem = models.problem
    for row in slices(len(inputs), 1):
        given: Any = original[row]
        found = []
        for searches in models.searches(inputs[row], given, limits):
            predictions, costs = zip(*models.engine.trace(problem, searches), strict=True)
            prediction = given.stack(predictions)
            nats = torch.stack(costs).cpu().double().numpy()
            divergence = given[:, None].kl(prediction).cpu().double().numpy()
            for number, target in enumerate(searches.target.tolist()):
                trace = {
                    "prediction": _as_array(prediction[:, number]),
                    "divergence": divergence[:, number],
                    "loss_increase": nats[:, number] / problem.n_training_rows,
                }
                found.append({"target": problem.targets.name(target), **trace})
        yield found


def _as_array(prediction: Any) -> np.ndarray:
    return prediction.expected().cpu().double().numpy()
