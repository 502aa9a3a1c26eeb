"""What searches are after: a class, a direction, or just to disagree."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from .._network.predictions import Categorical, Gaussian

# "auto": with more classes than this, searches for the given class and its ten likeliest rivals.
_MANY_CLASSES, _FEW_TARGETS = 20, 11


@dataclass(frozen=True, eq=False)
class ClassTargets:
    """Classification: one search for each class, which lowers the cross-entropy of that class."""

    # (n_classes,): names of the classes
    labels: np.ndarray
    # How many of the most probable classes are searched for; None means all
    limit: int | None = None
    untargeted = False

    @property
    def n_answers(self) -> int:
        """Number of answers that can be asked for."""
        return len(self.labels)

    def is_original(self, original: Categorical, target: Tensor) -> Tensor:
        """Tell for targets (n_rows, n_targets) which are what the given network says."""
        return target == original.log_proba.argmax(dim=-1, keepdim=True)

    @property
    def count(self) -> int:
        """Number of searches for each row."""
        n_classes = len(self.labels)
        return n_classes if self.limit is None else min(self.limit, n_classes)

    def choose(self, original: Categorical) -> Tensor:
        """Return the classes to search for, (n_rows, n_targets): all, or the most probable."""
        if self.limit is None:
            return torch.arange(self.count, device=original.device).expand(len(original), -1)
        return original.log_proba.topk(self.count, dim=-1).indices

    def loss(self, prediction: Categorical, original: Categorical, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return the loss of each search's target at its query row, (n_searches,)."""
        return -prediction.log_proba.gather(-1, target[:, None])[:, 0]

    # The score at which a search has come to another answer: as likely as not. What it costs to get
    # further than a search went cannot be told.
    level = 0.0
    continues = False

    def score(self, prediction: Categorical, original: Categorical, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return the log-odds of each search's class, (n_searches,)."""
        log_proba, index = prediction.log_proba, target[..., None]
        own = log_proba.gather(-1, index)
        others = log_proba.scatter(-1, index, -torch.inf).logsumexp(dim=-1)
        return own[..., 0] - others

    def gradient(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return derivatives of the log-odds of each search's class by logits."""
        index = target[:, None]
        others = logits.scatter(-1, index, -torch.inf).softmax(dim=-1)
        return (-others).scatter(-1, index, 1.0)

    def position(self, prediction: Categorical, original: Categorical) -> Tensor:  # noqa: ARG002
        """Return where a prediction is, in coordinates that are comparable between data sets."""
        return prediction.expected()

    def name(self, target: int) -> Any:
        """Return what a target is called."""
        return self.labels[target]

    def rival_names(self, rivals: Categorical, original: Categorical) -> np.ndarray:
        """Return what models that disagree say instead."""
        own = original.log_proba.argmax(dim=-1, keepdim=True)
        others = rivals.log_proba.scatter(-1, own, -torch.inf)
        return self.labels[others.argmax(dim=-1).cpu().numpy()].astype(object)


@dataclass(frozen=True, eq=False)
class DirectionTargets:
    """Regression: two searches for each output, which move its mean up and down.

    The loss is linear in the mean, in units of the given standard deviation. It has a gradient at
    the given network, where the divergence itself is flat, and leads each search along the
    direction in which the training data resist the least.
    """

    # Number of outputs
    n_outputs: int
    untargeted = False

    @property
    def n_answers(self) -> int:
        """Number of answers that can be asked for: up and down for each output."""
        return 2 * self.n_outputs

    def is_original(self, original: Gaussian, target: Tensor) -> Tensor:  # noqa: ARG002
        """Tell that no direction is what the given network says."""
        return torch.zeros_like(target, dtype=torch.bool)

    @property
    def count(self) -> int:
        """Number of searches for each row."""
        return 2 * self.n_outputs

    def choose(self, original: Gaussian) -> Tensor:
        """Return the numbers of the directions, (n_rows, 2 * n_outputs): up, down, up, ..."""
        return torch.arange(self.count, device=original.device).expand(len(original), -1)

    def loss(self, prediction: Gaussian, original: Gaussian, target: Tensor) -> Tensor:
        """Return the loss of each search's target at its query row, (n_searches,)."""
        return -self.shift(prediction, original, target)

    # The score at which a search has come to another answer: a standard deviation away. Costs rise
    # with the square of the distance, also where a search did not go.
    level = 1.0
    continues = True

    def score(self, prediction: Gaussian, original: Gaussian, target: Tensor) -> Tensor:
        """Return how far each search has moved the mean in its direction, (n_searches,)."""
        return self.shift(prediction, original, target)

    def shift(self, prediction: Gaussian, original: Gaussian, target: Tensor) -> Tensor:
        """Return how far each search has moved the mean in its direction, (n_searches,)."""
        shift = self.position(prediction, original)
        sign = 1.0 - 2.0 * (target % 2)
        return sign * shift.gather(-1, (target // 2)[:, None])[:, 0]

    def position(self, prediction: Gaussian, original: Gaussian) -> Tensor:
        """Return where a prediction is, in coordinates that are comparable between data sets."""
        return (prediction.mean - original.mean) / original.variance.sqrt()

    def name(self, target: int) -> str | None:
        """Return what a target is called."""
        return ("up", "down")[target % 2]

    def rival_names(self, rivals: Gaussian, original: Gaussian) -> np.ndarray:
        """Return in which direction models that disagree are off the most."""
        shift = self.position(rivals, original)
        output = shift.abs().argmax(dim=-1, keepdim=True)
        up = (shift.gather(-1, output)[:, 0] > 0).cpu().numpy()
        return np.where(up, "up", "down").astype(object)


class UntargetedClasses(ClassTargets):
    """Classification with a single search that raises the divergence itself."""

    untargeted = True
    count = 1

    def choose(self, original: Categorical) -> Tensor:
        """Return one nameless target for each row."""
        return torch.zeros(len(original), 1, dtype=torch.long, device=original.device)

    def is_original(self, original: Categorical, target: Tensor) -> Tensor:  # noqa: ARG002
        """Tell that no target is what the given network says."""
        return torch.zeros_like(target, dtype=torch.bool)

    def loss(self, prediction: Categorical, original: Categorical, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return minus the divergence."""
        return -original.kl(prediction)

    def score(self, prediction: Categorical, original: Categorical, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return the log-odds of all classes but the one that the given network says."""
        return -super().score(prediction, original, original.log_proba.argmax(dim=-1))

    def name(self, target: int) -> None:
        """Return None: the target has no name."""


class UntargetedOutputs(DirectionTargets):
    """Regression with a single search that raises the divergence itself."""

    untargeted = True
    count = 1

    def choose(self, original: Gaussian) -> Tensor:
        """Return one nameless target for each row."""
        return torch.zeros(len(original), 1, dtype=torch.long, device=original.device)

    def loss(self, prediction: Gaussian, original: Gaussian, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return minus the divergence."""
        return -original.kl(prediction)

    def shift(self, prediction: Gaussian, original: Gaussian, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return how far each search has moved the mean, in whatever direction, (n_searches,)."""
        return self.position(prediction, original).norm(dim=-1)

    def name(self, target: int) -> None:
        """Return None: the target has no name."""


# What users may ask for; penalty search has "untargeted" besides.
TARGETS = [StrOptions({"auto", "all"}), Interval(Integral, 1, None, closed="left")]

Targets = ClassTargets | DirectionTargets | UntargetedClasses | UntargetedOutputs


def class_targets(labels: np.ndarray, targets: str | int) -> ClassTargets:
    """Return the targets among classes that a user asks for: a number, or in words."""
    if targets == "untargeted":
        return UntargetedClasses(labels)
    if targets == "auto":
        targets = "all" if len(labels) <= _MANY_CLASSES else _FEW_TARGETS
    return ClassTargets(labels, None if isinstance(targets, str) else int(targets))


def direction_targets(n_outputs: int, targets: str | int) -> DirectionTargets:
    """Return the targets among directions that a user asks for, in words."""
    if not isinstance(targets, str):
        raise ValueError(
            f"targets={targets} is a number of classes, but regressors have directions: pass "
            "'auto', which is up and down for each output."
        )
    kind = UntargetedOutputs if targets == "untargeted" else DirectionTargets
    return kind(n_outputs)
