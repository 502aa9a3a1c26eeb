"""Targets of searches: a class, a direction, or any disagreement."""

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

    labels: np.ndarray  # (n_classes,): names of the classes
    # How many of the most probable classes are searched for; None means all
    limit: int | None = None
    untargeted = False
    # The log-odds at which an answer is reached. A cost beyond the end of a search is unknown.
    level = 0.0
    continues = False

    @property
    def n_answers(self) -> int:
        """Number of possible answers."""
        return len(self.labels)

    @property
    def count(self) -> int:
        """Number of searches for each sample."""
        n_classes = len(self.labels)
        return n_classes if self.limit is None else min(self.limit, n_classes)

    def choose(self, original: Categorical) -> Tensor:
        """Return the classes to search for, (n_samples, n_targets): all, or the most probable."""
        if self.limit is None:
            return torch.arange(self.count, device=original.device).expand(len(original), -1)
        return original.log_proba.topk(self.count, dim=-1).indices

    def is_original(self, original: Categorical, target: Tensor) -> Tensor:
        """Return which targets (n_samples, n_targets) are the given network's answer."""
        return target == original.log_proba.argmax(dim=-1, keepdim=True)

    def loss(self, prediction: Categorical, original: Categorical, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return the loss of each search's target at its sample, (n_searches,)."""
        return -prediction.log_proba.gather(-1, target[:, None])[:, 0]

    def score(self, prediction: Categorical, original: Categorical, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return the log-odds of each search's class, (n_searches,)."""
        log_proba, index = prediction.log_proba, target[..., None]
        own = log_proba.gather(-1, index)
        others = log_proba.scatter(-1, index, -torch.inf).logsumexp(dim=-1)
        return own[..., 0] - others

    def gradient(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return derivatives of the log-odds of each search's class by logits."""
        index = target[..., None]
        others = logits.scatter(-1, index, -torch.inf).softmax(dim=-1)
        return (-others).scatter(-1, index, 1.0)

    def position(self, prediction: Categorical, original: Categorical) -> Tensor:  # noqa: ARG002
        """Return a prediction in coordinates that are comparable between data sets."""
        return prediction.expected()

    def name(self, target: int) -> Any:
        """Return the name of a target."""
        return self.labels[target]

    def rival_names(self, rivals: Categorical, original: Categorical) -> np.ndarray:
        """Return the likeliest other class in the predictions of models."""
        own = original.log_proba.argmax(dim=-1, keepdim=True)
        others = rivals.log_proba.scatter(-1, own, -torch.inf)
        return self.labels[others.argmax(dim=-1).cpu().numpy()].astype(object)


@dataclass(frozen=True, eq=False)
class DirectionTargets:
    """Regression: two searches for each output, which move its mean up and down.

    The loss is linear in the mean, in units of the given standard deviation: it has a gradient at
    the given network, where the divergence itself is flat.
    """

    n_outputs: int
    untargeted = False
    # The shift at which an answer is reached, in standard deviations. Costs rise with the square of
    # the shift, also beyond the end of a search.
    level = 1.0
    continues = True

    @property
    def n_answers(self) -> int:
        """Number of possible answers: up and down for each output."""
        return 2 * self.n_outputs

    @property
    def count(self) -> int:
        """Number of searches for each sample."""
        return 2 * self.n_outputs

    def choose(self, original: Gaussian) -> Tensor:
        """Return the numbers of the directions, (n_samples, 2 * n_outputs): up, down, up, ..."""
        return torch.arange(self.count, device=original.device).expand(len(original), -1)

    def is_original(self, original: Gaussian, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return that no direction is the given network's answer."""
        return torch.zeros_like(target, dtype=torch.bool)

    def loss(self, prediction: Gaussian, original: Gaussian, target: Tensor) -> Tensor:
        """Return the loss of each search's target at its sample, (n_searches,)."""
        return -self.score(prediction, original, target)

    def score(self, prediction: Gaussian, original: Gaussian, target: Tensor) -> Tensor:
        """Return how far each search has moved the mean in its direction, (n_searches,)."""
        shift = self.position(prediction, original)
        sign = 1.0 - 2.0 * (target % 2)
        return sign * shift.gather(-1, (target // 2)[:, None])[:, 0]

    def position(self, prediction: Gaussian, original: Gaussian) -> Tensor:
        """Return a prediction in coordinates that are comparable between data sets."""
        return (prediction.mean - original.mean) / original.variance.sqrt()

    def name(self, target: int) -> str | None:
        """Return the name of a target."""
        return ("up", "down")[target % 2]

    def rival_names(self, rivals: Gaussian, original: Gaussian) -> np.ndarray:
        """Return the direction of the largest shift in the predictions of models."""
        shift = self.position(rivals, original)
        output = shift.abs().argmax(dim=-1, keepdim=True)
        up = (shift.gather(-1, output)[:, 0] > 0).cpu().numpy()
        return np.where(up, "up", "down").astype(object)


class _Untargeted:
    """A single search for each sample, which raises the divergence itself."""

    untargeted = True
    count = 1

    def choose(self, original: Any) -> Tensor:
        """Return one nameless target for each sample."""
        return torch.zeros(len(original), 1, dtype=torch.long, device=original.device)

    def is_original(self, original: Any, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return that the target is not the given network's answer."""
        return torch.zeros_like(target, dtype=torch.bool)

    def loss(self, prediction: Any, original: Any, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return minus the divergence."""
        return -original.kl(prediction)

    def name(self, target: int) -> None:
        """Return None: the target has no name."""


class UntargetedClasses(_Untargeted, ClassTargets):
    """Untargeted search of a classifier."""

    def score(self, prediction: Categorical, original: Categorical, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return the log-odds of all classes except the given network's answer."""
        return -super().score(prediction, original, original.log_proba.argmax(dim=-1))


class UntargetedOutputs(_Untargeted, DirectionTargets):
    """Untargeted search of a regressor."""

    def score(self, prediction: Gaussian, original: Gaussian, target: Tensor) -> Tensor:  # noqa: ARG002
        """Return how far each search has moved the mean in any direction, (n_searches,)."""
        return self.position(prediction, original).norm(dim=-1)


# The values of users; penalty search has "untargeted" besides.
TARGETS = [StrOptions({"auto", "all"}), Interval(Integral, 1, None, closed="left")]

Targets = ClassTargets | DirectionTargets | UntargetedClasses | UntargetedOutputs


def class_targets(labels: np.ndarray, targets: str | int) -> ClassTargets:
    """Return the targets among classes that a user asks for, by a number or a word."""
    if targets == "untargeted":
        return UntargetedClasses(labels)
    if targets == "auto":
        targets = "all" if len(labels) <= _MANY_CLASSES else _FEW_TARGETS
    return ClassTargets(labels, None if isinstance(targets, str) else int(targets))


def direction_targets(n_outputs: int, targets: str | int) -> DirectionTargets:
    """Return the targets among directions that a user asks for, by a word."""
    if not isinstance(targets, str):
        raise ValueError(
            f"targets={targets} is a number of classes, but regressors have directions: pass "
            "'auto', which is up and down for each output."
        )
    kind = UntargetedOutputs if targets == "untargeted" else DirectionTargets
    return kind(n_outputs)
