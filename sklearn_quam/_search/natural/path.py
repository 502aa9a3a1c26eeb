"""What the searches of natural steps share: the way to the goal, and what the models on it cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._curvature.influence import Influence
from ..._network.predictions import Categorical, Prediction
from ..problem import Problem
from ..steps import Evaluation, State

# For values: how far a search goes, in standard deviations of the mean in a linear model.
_GOAL_OF_VALUES = 5.0
# Precision of the prior around the given network: for each class, and for real-valued outputs.
_PRECISION_OF_CLASS, _PRECISION_OF_VALUES = 0.01, 0.1


def default_precision(problem: Problem) -> float:
    """Return the precision tau of the prior around the given network."""
    if problem.network.executor.likelihood.kind is Categorical:
        return _PRECISION_OF_CLASS * problem.targets.n_answers
    return _PRECISION_OF_VALUES


@dataclass(frozen=True, eq=False)
class Witnesses:
    """The training rows that tell what a change for each of some rows costs.

    Parameters
    ----------
    index : Tensor of shape (n_rows, n_witnesses)
        Their numbers.
    count : Tensor of shape (n_rows, n_witnesses)
        How many training rows each of them stands for, sample weights included.
    original : Prediction
        What the given network predicts for them, (n_rows, n_witnesses).
    """

    index: Tensor
    count: Tensor
    original: Prediction


@dataclass(frozen=True, eq=False)
class NaturalEvaluation(Evaluation):
    """What the models cost, and where they are on their way; see `Evaluation`.

    Parameters
    ----------
    at_query, loss_increase, expected_increase
        See `Evaluation`.
    score : Tensor of shape (n_searches,)
        Log-odds of the target, or the shift of the mean.
    inside : object
        What the step needs of the forward pass.
    """

    score: Tensor
    inside: Any


@dataclass(frozen=True, eq=False)
class NaturalSteps:
    """Equal shares of the way to a goal, each by the cheapest change of the parameters.

    Parameters
    ----------
    n_steps : int
        Number of steps.
    goal : float
        Log-odds that the searches go to.
    n_rows : int
        Training rows that tell what a model costs.
    precision : float
        The precision of the prior around the given network.
    influence : Influence or None
        Finds the training rows; None where nothing is searched.
    """

    n_steps: int
    goal: float
    n_rows: int
    precision: float
    influence: Influence | None
    every = 1
    tolerance = 0.0
    window = 1
    measures_all = True
    drops_ended = False
    at_once_on_cpu = 1024

    @property
    def rows_at_once(self) -> int:
        """Training rows of one pass."""
        return self.n_rows

    def witnesses(
        self, problem: Problem, features: list[Tensor], *, drawn: bool = True
    ) -> Witnesses:
        """Return the training rows that tell what changes for some rows cost."""
        assert self.influence is not None
        index, count = self.influence.rows_for(features, self.n_rows, drawn=drawn)
        training = problem.training
        assert problem.original_on_training is not None
        if training.weight is not None:
            count = count * training.weight[index]
        return Witnesses(
            index,
            count,
            problem.original_on_training[index],
        )

    def cost(
        self,
        problem: Problem,
        witnesses: Witnesses,
        divergence: Tensor,
        everywhere: Tensor | float = 0.0,
    ) -> Tensor:
        """Return what models cost, as an increase of the mean loss.

        It is what the training data lose if the given network is right: the sum of KL(given ||
        model) over all training rows, and the prior around the given network.

        Parameters
        ----------
        problem : Problem
            What the searches have in common.
        witnesses : Witnesses
            Training rows, (n_rows, n_witnesses).
        divergence : Tensor of shape (n_rows, n_targets, n_witnesses)
            What the models cost on each of them, or what ``everywhere`` does not know of it.
        everywhere : Tensor of shape (n_searches,), default=0.0
            What is known about all rows, and the prior, in nats of the whole training set.

        Returns
        -------
        Tensor of shape (n_searches,)
            Increases of the mean loss; never negative.
        """
        total = torch.einsum("ptr,pr->pt", divergence, witnesses.count.to(divergence))
        mean = total.flatten() / len(problem.training)
        return (mean + everywhere / problem.n_training_rows).clamp(min=0)

    def goals(self, problem: Problem, score: Tensor, slope: Tensor) -> Tensor:
        """Return where each search goes, given where it starts and how fast its score can rise."""
        if problem.network.executor.likelihood.kind is Categorical:
            return torch.full_like(score, self.goal)
        return score + _GOAL_OF_VALUES * slope.clamp(min=0).sqrt()

    def length(self, goal: Tensor, score: Tensor, slope: Tensor, step: int) -> Tensor:
        """Return how far to go along the cheapest direction; not at all where nothing moves."""
        share = (goal - score).clamp(min=0) / (self.n_steps - step)
        moves = slope > torch.finfo(slope.dtype).tiny
        return torch.where(moves, share / torch.where(moves, slope, 1.0), 0.0)

    def shortened(self) -> NaturalSteps:
        """Return the same with a single step, to find out how much memory it takes."""
        return replace(self, n_steps=1)

    def keep(self, state: State, index: Tensor) -> State:
        """Return the same state: searches end together."""
        raise NotImplementedError("Natural searches end together.")
