"""A batch of searches, and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from .._network.free import Free
from .._network.reference import Rows


class Accumulator(Protocol):
    """Takes weighted models."""

    def update(self, prediction: Any, log_weights: Tensor) -> None:
        """Add models (n_models, n_samples) with logarithms of their weights."""


@dataclass(frozen=True, eq=False)
class Searches:
    """Searches for some targets of some samples; those of a sample stand side by side."""

    query: Rows  # (n_samples, ...): values of the samples at the cut of the network
    given: Any  # The given network's predictions for them
    targets: Tensor  # (n_samples, n_targets): their targets
    is_first: bool = True  # Whether no other targets of these samples were searched for before

    def __len__(self) -> int:
        return self.targets.numel()

    @property
    def n_targets(self) -> int:
        """Number of searches for each sample."""
        return self.targets.shape[1]

    @property
    def target(self) -> Tensor:
        """The target of each search."""
        return self.targets.flatten()

    @cached_property
    def original(self) -> Any:
        """The given network's prediction for the sample of each search."""
        return self.given.map(lambda part: part.repeat_interleave(self.n_targets, dim=0))

    def at(self, number: Tensor) -> Searches:
        """Return some of the searches by their numbers, each with a sample of its own."""
        sample = number // self.n_targets
        query = tuple(part[sample] for part in self.query)
        return Searches(query, self.given[sample], self.target[number, None])

    def each(self) -> Searches:
        """Return all searches, each with a sample of its own."""
        return self.at(torch.arange(len(self), device=self.targets.device))

    def hand_over(self, posterior: Accumulator, prediction: Any, log_weights: Tensor) -> None:
        """Give models (n_models, n_searches) with their weights to an accumulator."""

        def by_sample(part: Tensor) -> Tensor:
            # (n_models, n_samples, n_targets, ...) as (n_models * n_targets, n_samples, ...).
            return part.unflatten(1, (-1, self.n_targets)).transpose(1, 2).flatten(0, 1)

        posterior.update(prediction.map(by_sample), by_sample(log_weights))


@dataclass(frozen=True, eq=False)
class Outcome:
    """Costs of the answers that searches go to."""

    cost: Tensor  # (n_searches,): in nats; infinite if unknown
    rival: Any  # The prediction of a model with this answer, or close to it
    n_steps: Tensor  # (n_searches,)
    diverged: Tensor  # (n_searches,): which searches have left the range of numbers


def models_at(free: Free, index: Tensor | slice) -> Free:
    """Return the free parameters of some models, given those of all."""
    return {name: value.detach()[index] for name, value in free.items()}


class FoundModels:
    """One model of each search: the given network's until another one is found."""

    def __init__(self, start: Free, searches: Searches) -> None:
        n_searches = len(searches)
        # Free parameters, predictions for the sample, costs in nats, KL(given || model)
        self.free = {
            name: value.expand(n_searches, *value.shape).clone() for name, value in start.items()
        }
        self.prediction = self._original = searches.original
        self.cost = searches.targets.new_zeros(n_searches, dtype=torch.float64)
        self.divergence = torch.zeros_like(self.cost)
        self.found = torch.zeros_like(self.cost, dtype=torch.bool)

    def is_surpassed(self, number: Tensor, prediction: Any) -> Tensor:
        """Return where models of searches with these numbers are more divergent."""
        return self._original[number].kl(prediction) > self.divergence[number]

    def take(
        self,
        number: Tensor,
        which: Tensor,
        prediction: Any,
        cost: Tensor,
        free: Callable[[Tensor], Free],
    ) -> None:
        """Replace the models of some of the searches with these numbers."""
        places = which.nonzero()[:, 0]
        if not len(places):
            return
        kept, found = number[places], free(places)
        for name, own in self.free.items():
            own.index_copy_(0, kept, found[name].detach().to(own))
        divergence = self._original[kept].kl(prediction[places])
        self.prediction = self.prediction.replaced(number, which, prediction)
        self.cost.index_copy_(0, kept, cost[places].to(self.cost))
        self.divergence.index_copy_(0, kept, divergence.to(self.divergence))
        self.found[kept] = True
