"""The seam between a search and the way it goes: what a kind of step has to offer.

A kind of step is a frozen object with pure functions of a small state, ``init``, ``evaluate``,
``update`` and ``keep``. Whatever it needs besides, from mini-batches to curvature, it holds itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .._network.free import Free, draw_batches
from .._network.predictions import Prediction
from .._network.reference import Rows
from .problem import Problem


@dataclass(frozen=True, eq=False)
class State:
    """Searches in memory: where each of them is, and what it is about.

    Parameters
    ----------
    free : dict of Tensor of shape (n_searches, ...)
        The free parameters of the model that each search has arrived at.
    query : tuple of Tensor of shape (n_searches, ...)
        Values at the cut of the row that each search is about.
    original : Prediction
        What the given network predicts for it.
    target : Tensor of shape (n_searches,)
        What each search is after.
    """

    free: Free
    query: Rows
    original: Prediction
    target: Tensor


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the models that searches have arrived at predict and cost.

    Parameters
    ----------
    at_query : Prediction
        What they predict at the query row of each.
    loss_increase : Tensor of shape (n_searches,)
        Mean training loss minus the given network's on the same rows.
    expected_increase : Tensor of shape (n_searches,) or None
        The loss increase to be expected if the given network is right, where it is asked for.
    """

    at_query: Prediction
    loss_increase: Tensor
    expected_increase: Tensor | None


class Steps(Protocol):
    """A kind of step."""

    n_steps: int
    # Steps from one close look at the searches to the next, and the change of a prediction between
    # two of them below which a feasible search has converged.
    every: int
    tolerance: float
    # Training rows of one pass, which the memory of a search is measured with.
    rows_at_once: int
    # Number of the last steps that an average over steps goes back.
    window: int
    # Whether the increases of every model on the way are as exact as they will ever be.
    measures_all: bool
    # More searches at once than this do not pay on a CPU.
    at_once_on_cpu: int
    # Whether searches that have ended may be dropped while others go on.
    drops_ended: bool

    def init(
        self, problem: Problem, query: Rows, original: Any, target: Tensor, n_targets: int
    ) -> Any:
        """Return the state of searches that start at the given network.

        The `n_targets` searches of a row stand side by side.
        """

    def evaluate(self, problem: Problem, state: Any, step: int) -> Any:
        """Return what the models of a state predict and cost."""

    def update(self, problem: Problem, state: Any, evaluation: Any, step: int) -> Any:
        """Return the state after a step; the old one must not be used again."""

    def keep(self, state: Any, index: Tensor) -> Any:
        """Return the state of some of the searches."""

    def free(self, problem: Problem, state: Any, index: Tensor) -> Free:
        """Return the free parameters of some of the models."""

    def shortened(self) -> Any:
        """Return the same kind with a single step, to find out how much memory it takes."""


class Drawn(NamedTuple):
    """What mini-batches were drawn with; see `draw_batches`."""

    n_rows: int
    batch_size: int
    n_batches: int
    generator_state: Tensor


@dataclass(frozen=True, eq=False)
class BatchedSteps:
    """Steps that see mini-batches; these are drawn again, not stored: there may be thousands.

    Parameters
    ----------
    batches : Tensor of shape (n_batches, batch_size)
        Numbers of the training rows of each mini-batch.
    drawn : Drawn
        What they were drawn with.
    """

    batches: Tensor
    drawn: Drawn

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "batches": self.batches.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        drawn, generator = state["drawn"], torch.Generator()
        generator.set_state(drawn.generator_state)
        batches = draw_batches(drawn.n_rows, drawn.batch_size, drawn.n_batches, generator)
        self.__dict__.update({**state, "batches": batches.to(state["batches"])})
