"""How the learning rate and the penalty of a search change on the way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """How learning rate and penalty change from step to step.

    The penalty weight (c in the paper) grows and the learning rate falls by a factor every so many
    steps: first the model is led away, then it has to explain the training data again.

    Parameters
    ----------
    learning_rate, learning_rate_decay : float
        Where the learning rate starts, and what it is divided by.
    penalty, penalty_growth : float
        Where the penalty weight starts, and what it is multiplied by.
    every : int
        Steps from one change to the next.
    """

    learning_rate: float
    learning_rate_decay: float
    penalty: float
    penalty_growth: float
    every: int

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.learning_rate / self.learning_rate_decay ** (step // self.every)

    def penalty_at(self, step: int) -> float:
        """Return the penalty weight of a step."""
        return self.penalty * self.penalty_growth ** (step // self.every)
