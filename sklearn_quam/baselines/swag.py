"""SWAG: a Gaussian around the path of stochastic gradient descent (Maddox et al., 2019)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._arguments import arguments, integer, real
from .._documented import CLASSIFIER, REGRESSOR, documented
from .._network.free import draw_batches
from .._network.limits import Limits
from .._posterior.progress import tracked
from ._gradient import init, mean_gradient, stable_step_size, update
from ._method import ClassifierMethod, RegressorMethod
from ._weights import SampledWeights, TrainingLoss


class WeightMoments:
    """Mean, variance and last deviations of the weights that a descent meets."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._count = 0
        self._last: list[Tensor] = []

    def add(self, weights: Tensor) -> None:
        """Add the weights (n_parameters,) of one epoch, by Welford's recursion."""
        self._count += 1
        if self._count == 1:
            self.mean, self._squares = weights, torch.zeros_like(weights)
        change = weights - self.mean
        self.mean = self.mean + change / self._count
        self._squares = self._squares + change * (weights - self.mean)
        self._last = [*self._last, weights][-self._rank :]

    def draw(self, n_models: int, generator: torch.Generator) -> Tensor:
        """Draw weights (n_models, n_parameters): half of the covariance diagonal, half low-rank."""
        deviations = torch.stack(self._last) - self.mean
        scale = (self._squares / (self._count - 1)).sqrt()
        first = torch.randn(n_models, len(scale), generator=generator).to(scale)
        second = torch.randn(n_models, len(deviations), generator=generator).to(scale)
        low_rank = second @ deviations / math.sqrt(max(1, len(deviations) - 1))
        return self.mean + (scale * first + low_rank) / math.sqrt(2)


@arguments
class _SWAG(SampledWeights):
    n_samples: int = integer(default=64)
    n_epochs: int = integer(default=20, at_least=2)
    rank: int = integer(default=20, at_least=2)
    learning_rate: float = real(default=0.01)
    momentum: float = real(default=0.9, below=1, closed="left")
    weight_decay: float = real(default=1e-4, closed="left")
    batch_size: int = integer(default=64)

    def _draw(self, loss: TrainingLoss, seed: int, limits: Limits) -> Tensor:  # noqa: ARG002
        n_rows = len(loss.training)
        per_epoch = n_rows // min(self.batch_size, n_rows)
        generator = torch.Generator().manual_seed(seed)
        batches = draw_batches(n_rows, self.batch_size, self.n_epochs * per_epoch, generator)
        batches = batches.to(loss.start.device)
        step_size = stable_step_size(loss, self.learning_rate, seed)
        state, moments = init(loss.start), WeightMoments(self.rank)
        for epoch in tracked(range(self.n_epochs), "SWAG", self.verbose, unit="epoch"):
            for index in batches[epoch * per_epoch : (epoch + 1) * per_epoch]:
                gradient = mean_gradient(loss, state.position, index, self.weight_decay)
                state = update(state, gradient, step_size=step_size, friction=1 - self.momentum)
            moments.add(state.position[0])
        models = moments.draw(self.n_samples, generator)
        if not bool(torch.isfinite(models).all()):
            raise ValueError("The descent diverged. Lower learning_rate, or scale the data.")
        return models


@documented(CLASSIFIER)
@arguments
class SWAGClassifier(ClassifierMethod, _SWAG):
    """Uncertainty of a network's classification by SWAG.

    Stochastic gradient descent goes on from the given network with a constant step size; the
    weights that it meets make up a Gaussian, half of whose covariance is diagonal and half of low
    rank. How wide it is depends on step size and batch size, not on a prior. Dropout is off and
    batch normalisation keeps its statistics.

    Parameters
    ----------
    n_samples : int
        Models to draw from the Gaussian.
    n_epochs : int
        Epochs of the descent; the weights at the end of each count.
    rank : int
        Number of last epochs whose deviations make up the low-rank half of the covariance.
    learning_rate : float
        Constant step size of the descent, for the gradient of the mean loss (of half the mean
        squared error for networks that predict the mean only), never more than the inverse of the
        loss's largest curvature at the given network. The larger it is, the wider is the Gaussian.
    momentum : float
        Momentum of the descent.
    weight_decay : float
        Pull of the parameters towards zero.
    batch_size : int
        Training samples of a step.
    memory_limit
        The descent takes what a mini-batch needs, whatever this is.

    Attributes
    ----------
    parameter_names_
    n_parameters_searched_

    References
    ----------
    W. J. Maddox, T. Garipov, P. Izmailov, D. Vetrov, A. G. Wilson, "A Simple Baseline for Bayesian
    Uncertainty in Deep Learning", NeurIPS 2019.
    """


@documented(REGRESSOR, SWAGClassifier)
@arguments
class SWAGRegressor(RegressorMethod, _SWAG):
    """Uncertainty of a network's regression by SWAG."""
