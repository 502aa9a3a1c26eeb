"""SWAG: a Gaussian around the path of stochastic gradient descent (Maddox et al., 2019)."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval
from torch import Tensor

from .._documented import CLASSIFIER, REGRESSOR, documented
from .._network.free import Free, FreeNetwork, draw_batches
from .._network.limits import Limits
from .._network.reference import TrainingSet
from .._posterior.progress import tracked
from .._typing import Device, MemoryLimit, NoiseVariance, Parameters, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._regressor import BaseUncertaintyRegressor
from ._sampling.gradient import init, loss_scale, mean_gradient, stable_step_size, update
from ._sampling.weights import SampledWeights, flatten, unflatten


class WeightMoments:
    """Mean, variance and last deviations of the weights that a descent meets.

    Parameters
    ----------
    rank : int
        Number of deviations to keep.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._count = 0
        self._last: list[Tensor] = []

    def add(self, weights: Tensor) -> None:
        """Take over the weights (n_parameters,) of one moment, by Welford's recursion."""
        self._count += 1
        if self._count == 1:
            self.mean, self._squares = weights, torch.zeros_like(weights)
        change = weights - self.mean
        self.mean = self.mean + change / self._count
        self._squares = self._squares + change * (weights - self.mean)
        self._last = [*self._last, weights][-self._rank :]

    def draw(self, n_models: int, generator: torch.Generator) -> Tensor:
        """Return weights (n_models, n_parameters) from the Gaussian of these moments.

        Half of its covariance is diagonal, half is that of the last deviations.
        """
        deviations = torch.stack(self._last) - self.mean
        scale = (self._squares / (self._count - 1)).sqrt()
        first = torch.randn(n_models, len(scale), generator=generator).to(scale)
        second = torch.randn(n_models, len(deviations), generator=generator).to(scale)
        low_rank = second @ deviations / math.sqrt(max(1, len(deviations) - 1))
        return self.mean + (scale * first + low_rank) / math.sqrt(2)


class _SWAG(SampledWeights):
    """Fills in the hook: draws from the Gaussian around the path of a descent."""

    _counts_models = "n_samples"

    _swag_constraints: ClassVar[dict] = {
        **SampledWeights._weight_constraints,
        "n_samples": [Interval(Integral, 1, None, closed="left")],
        "n_epochs": [Interval(Integral, 2, None, closed="left")],
        "rank": [Interval(Integral, 2, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "momentum": [Interval(Real, 0, 1, closed="left")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    n_samples: int
    n_epochs: int
    rank: int
    learning_rate: float
    momentum: float
    weight_decay: float
    batch_size: int

    def _draw_weights(
        self,
        network: FreeNetwork,
        training: TrainingSet,
        seed: int,
        limits: Limits,  # noqa: ARG002
    ) -> Free:
        n_rows = len(training)
        per_epoch = n_rows // min(self.batch_size, n_rows)
        generator = torch.Generator().manual_seed(seed)
        batches = draw_batches(n_rows, self.batch_size, self.n_epochs * per_epoch, generator)
        batches = batches.to(training.target.device)
        state = init(flatten({k: v[None] for k, v in network.free.start.items()}))
        moments = WeightMoments(self.rank)
        step_size = stable_step_size(
            network, training, loss_scale(network) * self.learning_rate, seed
        )
        for epoch in tracked(range(self.n_epochs), "SWAG", self.verbose, unit="epoch"):
            for index in batches[epoch * per_epoch : (epoch + 1) * per_epoch]:
                gradient = mean_gradient(
                    network, training, state.position, index, self.weight_decay
                )
                state = update(state, gradient, step_size=step_size, friction=1 - self.momentum)
            moments.add(state.position[0])
        models = moments.draw(self.n_samples, generator)
        if not bool(torch.isfinite(models).all()):
            raise ValueError("The descent diverged. Lower learning_rate, or scale the data.")
        return unflatten(models, network.free.start)


@documented(CLASSIFIER)
class SWAGClassifier(_SWAG, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by SWAG.

    Stochastic gradient descent goes on from the given network with a constant step size; the
    weights that it meets make up a Gaussian, half of whose covariance is diagonal and half of low
    rank. How wide it is depends on step size and batch size, not on a prior. Dropout is off and
    batch normalisation keeps its statistics.

    Parameters
    ----------
    n_samples : int, default=64
        Models to draw from the Gaussian.
    n_epochs : int, default=20
        Epochs of the descent; the weights at the end of each count.
    rank : int, default=20
        Number of last epochs whose deviations make up the low-rank half of the covariance.
    learning_rate : float, default=0.01
        Constant step size of the descent, never more than the inverse of the loss's largest
        curvature at the given network. The larger it is, the wider is the Gaussian.
    momentum : float, default=0.9
        Momentum of the descent.
    weight_decay : float, default=1e-4
        Pull of the parameters towards zero.
    batch_size : int, default=64
        Training rows that a step sees.
    memory_limit
        The descent takes what a mini-batch needs, whatever this is.
    random_state : int, RandomState instance or None, default=None
        Seeds mini-batches and draws, and the training of an unfitted estimator.

    Attributes
    ----------
    parameter_names_
    n_parameters_searched_

    References
    ----------
    W. J. Maddox, T. Garipov, P. Izmailov, D. Vetrov, A. G. Wilson, "A Simple Baseline for Bayesian
    Uncertainty in Deep Learning", NeurIPS 2019.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import SWAGClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier((10,), solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> est = SWAGClassifier(net, random_state=0).fit(X, y)
    >>> far_away = [[0.0, 9.0, 0.0, 9.0]]
    >>> est.score_samples(far_away) < est.score_samples(X).mean()
    array([ True])
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyClassifier._parameter_constraints,
        **_SWAG._swag_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        parameters: Parameters = "all",
        n_samples: int = 64,
        n_epochs: int = 20,
        rank: int = 20,
        learning_rate: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        batch_size: int = 64,
        memory_limit: MemoryLimit = None,
        setting: str = "given",
        measure: str = "entropy",
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        random_state: RandomState = None,
        verbose: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.parameters = parameters
        self.n_samples = n_samples
        self.n_epochs = n_epochs
        self.rank = rank
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.memory_limit = memory_limit
        self.setting = setting
        self.measure = measure
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state
        self.verbose = verbose


@documented(REGRESSOR, SWAGClassifier)
class SWAGRegressor(_SWAG, BaseUncertaintyRegressor):
    """Uncertainty of a network's regression by SWAG.

    Parameters
    ----------
    learning_rate : float, default=0.01
        Constant step size of the descent, for the gradient of the mean loss (of half the mean
        squared error for networks that predict the mean only), never more than the inverse of the
        loss's largest curvature at the given network. The larger it is, the wider is the Gaussian.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn_quam import SWAGRegressor
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> y = 2 * X[:, 0] + np.random.default_rng(0).normal(scale=0.1, size=50)
    >>> est = SWAGRegressor(Ridge(0.01).fit(X, y), random_state=0).fit(X, y)
    >>> inside, outside = est.predict_uncertainty([[0.0], [5.0]]).epistemic
    >>> bool(outside > inside)
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyRegressor._parameter_constraints,
        **_SWAG._swag_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        parameters: Parameters = "all",
        n_samples: int = 64,
        n_epochs: int = 20,
        rank: int = 20,
        learning_rate: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        batch_size: int = 64,
        memory_limit: MemoryLimit = None,
        setting: str = "given",
        measure: str = "entropy",
        noise_variance: NoiseVariance = None,
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        random_state: RandomState = None,
        verbose: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.parameters = parameters
        self.n_samples = n_samples
        self.n_epochs = n_epochs
        self.rank = rank
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.memory_limit = memory_limit
        self.setting = setting
        self.measure = measure
        self.noise_variance = noise_variance
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
