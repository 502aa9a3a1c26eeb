"""What a search minimises: the loss of its target, and a penalty on the training loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._likelihood import Gaussian
from ._measures import categorical_kl, gaussian_kl


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


class ClassTargets:
    """Classification: one search for each class, which lowers the cross-entropy of that class."""

    def choose(self, given: Tensor, targets: str | int) -> Tensor:
        """Return the classes to search for, (n_rows, n_targets): all, or the most probable."""
        n_classes = given.shape[-1]
        if isinstance(targets, str):
            return torch.arange(n_classes, device=given.device).expand(len(given), -1)
        return given.topk(min(targets, n_classes), dim=-1).indices

    def loss(self, prediction: Tensor, given: Tensor, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return the loss of each search's target at its own row, (n_searches,)."""
        return -prediction.gather(-1, target[:, None])[:, 0]

    def divergence(self, given: Tensor, prediction: Tensor) -> Tensor:
        """Return KL(given || found), (n_searches,)."""
        return categorical_kl(given, prediction)

    def position(self, prediction: Tensor, given: Tensor) -> Tensor:  # noqa: ARG002
        """Return where a prediction is, in coordinates that are comparable between data sets."""
        return prediction.exp()

    def disagrees(self, given: Tensor, prediction: Tensor) -> Tensor:
        """Tell whether the found model predicts another class."""
        return given.argmax(dim=-1) != prediction.argmax(dim=-1)


class DirectionTargets:
    """Regression: two searches for each output, which move its mean up and down.

    The loss is linear in the mean, in units of the given standard deviation. It has a gradient at
    the given network, where the divergence itself is flat, and leads each search along the
    direction in which the training data resist the least.
    """

    def choose(self, given: Gaussian, targets: str | int) -> Tensor:  # noqa: ARG002
        """Return the numbers of the directions, (n_rows, 2 * n_outputs): up, down, up, ..."""
        n_rows, n_outputs = given.mean.shape
        return torch.arange(2 * n_outputs, device=given.mean.device).expand(n_rows, -1)

    def loss(self, prediction: Gaussian, given: Gaussian, target: Tensor) -> Tensor:
        """Return the loss of each search's target at its own row, (n_searches,)."""
        return -self.progress(prediction, given, target)

    def progress(self, prediction: Gaussian, given: Gaussian, target: Tensor) -> Tensor:
        """Return how far each search has come in its direction, (n_searches,)."""
        shift = self.position(prediction, given)
        sign = 1.0 - 2.0 * (target % 2)
        return sign * shift.gather(-1, (target // 2)[:, None])[:, 0]

    def divergence(self, given: Gaussian, prediction: Gaussian) -> Tensor:
        """Return KL(given || found), (n_searches,)."""
        return gaussian_kl(given, prediction)

    def position(self, prediction: Gaussian, given: Gaussian) -> Tensor:
        """Return where a prediction is, in coordinates that are comparable between data sets."""
        return (prediction.mean - given.mean) / given.variance.sqrt()

    def disagrees(self, given: Gaussian, prediction: Gaussian) -> Tensor:
        """Tell whether the found model is off by at least one standard deviation."""
        return self.position(prediction, given).abs().amax(dim=-1) >= 1


class UntargetedClasses(ClassTargets):
    """Classification with a single search that raises the divergence itself."""

    def choose(self, given: Tensor, targets: str | int) -> Tensor:  # noqa: ARG002
        """Return one nameless target for each row."""
        return torch.zeros(len(given), 1, dtype=torch.long, device=given.device)

    def loss(self, prediction: Tensor, given: Tensor, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return minus the divergence."""
        return -self.divergence(given, prediction)


class UntargetedOutputs(DirectionTargets):
    """Regression with a single search that raises the divergence itself."""

    def choose(self, given: Gaussian, targets: str | int) -> Tensor:  # noqa: ARG002
        """Return one nameless target for each row."""
        rows = len(given.mean)
        return torch.zeros(rows, 1, dtype=torch.long, device=given.mean.device)

    def loss(self, prediction: Gaussian, given: Gaussian, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return minus the divergence."""
        return -self.divergence(given, prediction)

    def progress(self, prediction: Gaussian, given: Gaussian, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return how far each search has come, in whatever direction, (n_searches,)."""
        return self.position(prediction, given).norm(dim=-1)


Targets = ClassTargets | DirectionTargets


def choose_targets(given: Any, targets: str | int) -> Targets:
    """Return the kind of targets for a prediction.

    Parameters
    ----------
    given : Tensor or Gaussian
        What the given network predicts.
    targets : str or int
        What the user asks for.

    Returns
    -------
    ClassTargets or DirectionTargets
        The targets.
    """
    untargeted = targets == "untargeted"
    if isinstance(given, Gaussian):
        return UntargetedOutputs() if untargeted else DirectionTargets()
    return UntargetedClasses() if untargeted else ClassTargets()
