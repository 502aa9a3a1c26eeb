"""Cyclical stochastic gradient Hamiltonian Monte Carlo (Zhang et al., 2020)."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.exceptions import ConvergenceWarning
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
from ..exceptions import warn
from ._sampling.gradient import init, loss_scale, mean_gradient, stable_step_size, update
from ._sampling.weights import SampledWeights, flatten, unflatten

# A mean loss above this is no model of the data any more.
_LARGEST_LOSS = 1e8


class _CyclicalSGHMC(SampledWeights):
    """Fills in the hook: what the chains meet at the end of each cycle."""

    _counts_models = "samples_per_cycle"

    _cycle_constraints: ClassVar[dict] = {
        **SampledWeights._weight_constraints,
        "n_chains": [Interval(Integral, 1, None, closed="left")],
        "n_cycles": [Interval(Integral, 1, None, closed="left")],
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "samples_per_cycle": [Interval(Integral, 1, None, closed="left")],
        "exploration": [Interval(Real, 0, 1, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "friction": [Interval(Real, 0, 1, closed="right")],
        "temperature": [Interval(Real, 0, None, closed="left")],
        "prior_precision": [Interval(Real, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    n_chains: int
    n_cycles: int
    n_steps: int
    samples_per_cycle: int
    exploration: float
    learning_rate: float
    friction: float
    temperature: float
    prior_precision: float
    batch_size: int

    def _draw_weights(
        self,
        network: FreeNetwork,
        training: TrainingSet,
        seed: int,
        limits: Limits,  # noqa: ARG002
    ) -> Free:
        n_rows, device = len(training), training.target.device
        generator = torch.Generator().manual_seed(seed)
        batches = draw_batches(n_rows, self.batch_size, self.n_cycles * self.n_steps, generator)
        batches = batches.to(device)
        start = flatten(
            {k: v.expand(self.n_chains, *v.shape) for k, v in network.free.start.items()}
        )
        state, kept, draws = init(start), self._kept_steps(), []
        largest = stable_step_size(
            network, training, loss_scale(network) * self.learning_rate, seed
        )
        steps = range(len(batches))
        for step in tracked(steps, "Cyclical SG-HMC", self.verbose, unit="step"):
            phase = step % self.n_steps / self.n_steps
            noise = None
            if phase >= self.exploration:
                noise = torch.randn(state.position.shape, generator=generator).to(start)
            gradient = mean_gradient(
                network, training, state.position, batches[step], self.prior_precision / n_rows
            )
            state = update(
                state,
                gradient,
                noise,
                step_size=largest / 2 * (math.cos(math.pi * phase) + 1),
                friction=self.friction,
                temperature=self.temperature / n_rows,
            )
            if step % self.n_steps in kept:
                draws.append(state.position)
        kept_chains = self._converged_chains(network, training, draws[-1])
        return unflatten(torch.stack(draws)[:, kept_chains].flatten(0, 1), network.free.start)

    @torch.no_grad()
    def _converged_chains(
        self, network: FreeNetwork, training: TrainingSet, last: Tensor
    ) -> Tensor:
        """Return which chains did not diverge, by where they ended; say so where some did."""
        rows = slice(0, self.batch_size)
        losses = network.losses(unflatten(last, network.free.start), training, rows).mean(dim=1)
        # Not a number is not below the bound either.
        fine = losses < _LARGEST_LOSS
        if not bool(fine.any()):
            raise ValueError("All chains diverged. Lower learning_rate, or scale the data.")
        if not bool(fine.all()):
            warn(
                f"{int((~fine).sum())} of {len(fine)} chains diverged and were left out. Lower "
                "learning_rate, or scale the data.",
                ConvergenceWarning,
            )
        return fine

    def _kept_steps(self) -> set[int]:
        """Return the steps of a cycle after which samples are taken, spread over its last part."""
        noisy = sum(step / self.n_steps >= self.exploration for step in range(self.n_steps))
        if self.samples_per_cycle > noisy:
            raise ValueError(
                f"A cycle of n_steps={self.n_steps} has only {noisy} steps behind its exploration, "
                f"too few for samples_per_cycle={self.samples_per_cycle}."
            )
        return {
            self.n_steps - 1 - round(number * noisy / self.samples_per_cycle)
            for number in range(self.samples_per_cycle)
        }


@documented(CLASSIFIER)
class CyclicalSGHMCClassifier(_CyclicalSGHMC, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by cyclical stochastic gradient HMC.

    Chains start at the given network. In each cycle the step size falls from large to zero: a chain
    first moves on, then samples the weights around where it has arrived, with noise in each step.
    Dropout is off and batch normalisation keeps its statistics.

    Parameters
    ----------
    n_chains : int, default=4
        Chains that run at the same time, all from the given network.
    n_cycles : int, default=4
        Cycles of the step size.
    n_steps : int, default=500
        Steps of each cycle.
    samples_per_cycle : int, default=4
        Models to take from the noisy part of each cycle of each chain.
    exploration : float, default=0.8
        Share of a cycle without noise, in which the chain moves on to another minimum of the loss.
    learning_rate : float, default=0.02
        Step size at the beginning of a cycle, for the gradient of the mean loss; it falls to zero
        along half a cosine. It is never more than the inverse of the loss's largest curvature at
        the given network.
    friction : float, default=0.1
        Share of the momentum that is lost in a step.
    temperature : float, default=1.0
        1 samples the posterior; less, a sharpened one.
    prior_precision : float, default=1.0
        Inverse variance of the Gaussian prior of each parameter, around zero.
    batch_size : int, default=64
        Training rows that a step sees; the same for all chains.
    memory_limit
        The chains take what a mini-batch of all of them needs, whatever this is.
    random_state : int, RandomState instance or None, default=None
        Seeds mini-batches and noise, and the training of an unfitted estimator.

    Attributes
    ----------
    parameter_names_
    n_parameters_searched_

    References
    ----------
    R. Zhang, C. Li, J. Zhang, C. Chen, A. G. Wilson, "Cyclical Stochastic Gradient MCMC for
    Bayesian Deep Learning", ICLR 2020.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import CyclicalSGHMCClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier((10,), solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> est = CyclicalSGHMCClassifier(net, n_steps=200, random_state=0).fit(X, y)
    >>> far_away = [[0.0, 9.0, 0.0, 9.0]]
    >>> est.score_samples(far_away) < est.score_samples(X).mean()
    array([ True])
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyClassifier._parameter_constraints,
        **_CyclicalSGHMC._cycle_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        parameters: Parameters = "all",
        n_chains: int = 4,
        n_cycles: int = 4,
        n_steps: int = 500,
        samples_per_cycle: int = 4,
        exploration: float = 0.8,
        learning_rate: float = 0.02,
        friction: float = 0.1,
        temperature: float = 1.0,
        prior_precision: float = 1.0,
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
        self.n_chains = n_chains
        self.n_cycles = n_cycles
        self.n_steps = n_steps
        self.samples_per_cycle = samples_per_cycle
        self.exploration = exploration
        self.learning_rate = learning_rate
        self.friction = friction
        self.temperature = temperature
        self.prior_precision = prior_precision
        self.batch_size = batch_size
        self.memory_limit = memory_limit
        self.setting = setting
        self.measure = measure
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state
        self.verbose = verbose


@documented(REGRESSOR, CyclicalSGHMCClassifier)
class CyclicalSGHMCRegressor(_CyclicalSGHMC, BaseUncertaintyRegressor):
    """Uncertainty of a network's regression by cyclical stochastic gradient HMC.

    Parameters
    ----------
    learning_rate : float, default=0.02
        Step size at the beginning of a cycle, for the gradient of the mean loss (of half the mean
        squared error for networks that predict the mean only); it falls to zero along half a
        cosine. It is never more than the inverse of the loss's largest curvature at the given
        network.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn_quam import CyclicalSGHMCRegressor
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> y = 2 * X[:, 0] + np.random.default_rng(0).normal(scale=0.1, size=50)
    >>> est = CyclicalSGHMCRegressor(Ridge(0.01).fit(X, y), n_steps=200, random_state=0).fit(X, y)
    >>> inside, outside = est.predict_uncertainty([[0.0], [5.0]]).epistemic
    >>> bool(outside > inside)
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyRegressor._parameter_constraints,
        **_CyclicalSGHMC._cycle_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        parameters: Parameters = "all",
        n_chains: int = 4,
        n_cycles: int = 4,
        n_steps: int = 500,
        samples_per_cycle: int = 4,
        exploration: float = 0.8,
        learning_rate: float = 0.02,
        friction: float = 0.1,
        temperature: float = 1.0,
        prior_precision: float = 1.0,
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
        self.n_chains = n_chains
        self.n_cycles = n_cycles
        self.n_steps = n_steps
        self.samples_per_cycle = samples_per_cycle
        self.exploration = exploration
        self.learning_rate = learning_rate
        self.friction = friction
        self.temperature = temperature
        self.prior_precision = prior_precision
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
