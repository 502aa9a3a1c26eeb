"""Hamiltonian Monte Carlo: the ground truth for small networks, all chains in one batch."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import Interval
from torch import Tensor

from .._documented import CLASSIFIER, REGRESSOR, documented
from .._network.free import Free, FreeNetwork
from .._network.inputs.rows import Inputs
from .._network.limits import Limits, slices
from .._network.reference import TrainingSet
from .._posterior.fitted import FittedMethod
from .._posterior.progress import tracked
from .._posterior.results import ChainDiagnostics
from .._typing import Device, MemoryLimit, NoiseVariance, Parameters, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._data import FitData
from ..base._regressor import BaseUncertaintyRegressor
from ._sampling.chains import ChainSamples, warn_about_r_hat
from ._sampling.hamiltonian import HMCState, Potential, StepSize, first_step_size, init, update
from ._sampling.weights import SampledWeights, unflatten

# Training rows on which the chains are compared after fitting.
_MAX_ROWS_COMPARED = 512
# Where the chains start around the given weights, in units of the spread of each tensor.
_START_SPREAD = 0.5


class _HamiltonianMonteCarlo(SampledWeights):
    """Fills in the hooks: draws of several chains."""

    _counts_models = "n_samples"

    _chain_constraints: ClassVar[dict] = {
        **SampledWeights._weight_constraints,
        "n_chains": [Interval(Integral, 1, None, closed="left")],
        "n_samples": [Interval(Integral, 4, None, closed="left")],
        "n_warmup": [Interval(Integral, 0, None, closed="left")],
        "n_leapfrog": [Interval(Integral, 1, None, closed="left")],
        "target_acceptance": [Interval(Real, 0, 1, closed="neither")],
        "prior_precision": [Interval(Real, 0, None, closed="neither")],
    }

    n_chains: int
    n_samples: int
    n_warmup: int
    n_leapfrog: int
    target_acceptance: float
    prior_precision: float

    _diagnostics = ChainDiagnostics
    _fitted_kind = FittedMethod[ChainSamples]

    def _fit_models(self, fit: FitData) -> ChainSamples:
        samples = super()._fit_models(fit)
        models = ChainSamples(**vars(samples), shape=(self.n_chains, self.n_samples))
        limits, inputs = self._limits(fit), fit.training.inputs
        rows = Inputs(models.network.at_cut(inputs[:: -(-len(inputs) // _MAX_ROWS_COMPARED)]))
        worst = [
            models.compare_chains(models.predictions(rows[part].parts, limits))[0].max()
            for part in slices(len(rows), models.rows_at_once(rows, limits))
        ]
        self.r_hat_ = float(max(worst))
        warn_about_r_hat(self.r_hat_, "the training data")
        return models

    def _draw_weights(
        self,
        network: FreeNetwork,
        training: TrainingSet,
        seed: int,
        limits: Limits,
    ) -> Free:
        generator = torch.Generator().manual_seed(seed)
        potential = self._potential(network, training, limits)
        state = init(self._start(network.free.start, generator), potential)
        if not bool(torch.isfinite(state.potential).all()):
            raise ValueError("The loss is not finite near the given weights: is the data scaled?")

        def move(state: HMCState, step_size: float, n_leapfrog: int) -> tuple[HMCState, float]:
            momentum = torch.randn(state.position.shape, generator=generator)
            uniform = torch.rand(len(state.position), generator=generator)
            state, acceptance = update(
                state,
                potential,
                momentum.to(state.position),
                uniform.to(state.position),
                step_size=step_size,
                n_leapfrog=n_leapfrog,
            )
            return state, float(acceptance.mean())

        step = StepSize(first_step_size(state, move), self.target_acceptance)
        draws, rates = [], []
        total = self.n_warmup + self.n_samples
        for index in tracked(range(total), "HMC", self.verbose, unit="draw"):
            if index == self.n_warmup:
                step.settle()
            # Trajectories of a single length may come back to where they began, again and again.
            share = float(torch.rand(1, generator=generator)) + 0.5
            state, rate = move(state, step.value, max(1, round(share * self.n_leapfrog)))
            if index < self.n_warmup:
                step.adapt(rate)
            else:
                draws.append(state.position)
                rates.append(rate)
        self.step_size_, self.acceptance_rate_ = step.value, float(np.mean(rates))
        # All draws of a chain are neighbours.
        return unflatten(torch.stack(draws, dim=1).flatten(0, 1), network.free.start)

    def _start(self, start: Free, generator: torch.Generator) -> Tensor:
        """Return starting points around the given weights, wide enough for chains to disagree."""
        parts = []
        for value in start.values():
            noise = torch.randn(self.n_chains, value.numel(), generator=generator).to(value)
            spread = value.square().mean().sqrt().clamp(max=self.prior_precision**-0.5)
            parts.append(value.flatten() + _START_SPREAD * spread * noise)
        return torch.cat(parts, dim=1)

    def _potential(self, network: FreeNetwork, training: TrainingSet, limits: Limits) -> Potential:
        size = limits.number_that_fits(self.n_chains * network.bytes_per_row())
        groups = list(slices(len(training), size))

        def potential(position: Tensor) -> tuple[Tensor, Tensor]:
            value = 0.5 * self.prior_precision * position.square().sum(dim=1)
            gradient = self.prior_precision * position
            for rows in groups:
                leaf = position.detach().requires_grad_()
                values = unflatten(leaf, network.free.start)
                losses = network.losses(values, training, rows).sum(dim=1)
                gradient = gradient + torch.autograd.grad(losses.sum(), leaf)[0]
                value = value + losses.detach()
            return value, gradient

        return potential


@documented(CLASSIFIER)
class HMCClassifier(_HamiltonianMonteCarlo, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by Hamiltonian Monte Carlo.

    Samples the posterior of the weights without approximation, given enough time: the ground truth
    for small networks and data sets. Every step takes the gradient of the loss on all training
    rows; all chains run as one batch. The diagnostics tell for each row how much the chains
    disagree (``r_hat``) and how many independent draws theirs are worth
    (``effective_sample_size``); a `~sklearn.exceptions.ConvergenceWarning` says when ``r_hat``
    exceeds 1.1.

    Parameters
    ----------
    n_chains : int, default=4
        Chains that run at the same time, from different points around the given network.
    n_samples : int, default=200
        Draws of each chain that count.
    n_warmup : int, default=100
        Draws of each chain before those, in which the step size is adapted.
    n_leapfrog : int, default=100
        Leapfrog steps of a trajectory on average; each is between half and one and a half times as
        long.
    target_acceptance : float, default=0.8
        Share of the trajectories that the step size is adapted to have accepted.
    prior_precision : float, default=1.0
        Inverse variance of the Gaussian prior of each parameter, around zero.
    random_state : int, RandomState instance or None, default=None
        Seeds the chains and the training of an unfitted estimator.

    Attributes
    ----------
    parameter_names_
    n_parameters_searched_
    r_hat_ : float
        Largest split R-hat of the predictions of (up to 512) training rows.
    step_size_ : float
        Length of the leapfrog steps.
    acceptance_rate_ : float
        Mean probability with which trajectories were accepted after the warm-up.

    References
    ----------
    R. M. Neal, "MCMC Using Hamiltonian Dynamics", Handbook of Markov Chain Monte Carlo, 2011. M. D.
    Hoffman, A. Gelman, "The No-U-Turn Sampler: Adaptively Setting Path Lengths in Hamiltonian Monte
    Carlo", JMLR 2014 (adaptation of the step size).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import HMCClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier((10,), solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> est = HMCClassifier(net, n_samples=50, n_leapfrog=20, random_state=0).fit(X, y)
    >>> far_away = [[0.0, 9.0, 0.0, 9.0]]
    >>> est.score_samples(far_away) < est.score_samples(X).mean()
    array([ True])
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyClassifier._parameter_constraints,
        **_HamiltonianMonteCarlo._chain_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        parameters: Parameters = "all",
        n_chains: int = 4,
        n_samples: int = 200,
        n_warmup: int = 100,
        n_leapfrog: int = 100,
        target_acceptance: float = 0.8,
        prior_precision: float = 1.0,
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
        self.n_samples = n_samples
        self.n_warmup = n_warmup
        self.n_leapfrog = n_leapfrog
        self.target_acceptance = target_acceptance
        self.prior_precision = prior_precision
        self.memory_limit = memory_limit
        self.setting = setting
        self.measure = measure
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state
        self.verbose = verbose


@documented(REGRESSOR, HMCClassifier)
class HMCRegressor(_HamiltonianMonteCarlo, BaseUncertaintyRegressor):
    """Uncertainty of a network's regression by Hamiltonian Monte Carlo.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn_quam import HMCRegressor
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> y = 2 * X[:, 0] + np.random.default_rng(0).normal(scale=0.1, size=50)
    >>> net = Ridge(0.01).fit(X, y)
    >>> est = HMCRegressor(net, n_samples=50, n_leapfrog=20, random_state=0).fit(X, y)
    >>> inside, outside = est.predict_uncertainty([[0.0], [5.0]]).epistemic
    >>> bool(outside > inside)
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyRegressor._parameter_constraints,
        **_HamiltonianMonteCarlo._chain_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        parameters: Parameters = "all",
        n_chains: int = 4,
        n_samples: int = 200,
        n_warmup: int = 100,
        n_leapfrog: int = 100,
        target_acceptance: float = 0.8,
        prior_precision: float = 1.0,
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
        self.n_samples = n_samples
        self.n_warmup = n_warmup
        self.n_leapfrog = n_leapfrog
        self.target_acceptance = target_acceptance
        self.prior_precision = prior_precision
        self.memory_limit = memory_limit
        self.setting = setting
        self.measure = measure
        self.noise_variance = noise_variance
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
