"""Cyclical stochastic gradient Hamiltonian Monte Carlo (Zhang et al., 2020)."""

from __future__ import annotations

import math

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from .._arguments import arguments, integer, real
from .._documented import CLASSIFIER, REGRESSOR, documented
from .._network.free import draw_batches
from .._network.limits import Limits
from .._posterior.progress import tracked
from ..exceptions import warn
from ._gradient import init, mean_gradient, stable_step_size, update
from ._method import ClassifierMethod, RegressorMethod
from ._weights import SampledWeights, TrainingLoss

# A chain with a mean loss above this has diverged.
_LARGEST_LOSS = 1e8


@arguments
class _CyclicalSGHMC(SampledWeights):
    n_chains: int = integer(default=4)
    n_cycles: int = integer(default=4)
    n_steps: int = integer(default=500)
    samples_per_cycle: int = integer(default=4)
    exploration: float = real(default=0.8, below=1, closed="left")
    learning_rate: float = real(default=0.02)
    friction: float = real(default=0.1, below=1, closed="right")
    temperature: float = real(default=1.0, closed="left")
    prior_precision: float = real(default=1.0, closed="left")
    batch_size: int = integer(default=64)

    def _draw(self, loss: TrainingLoss, seed: int, limits: Limits) -> Tensor:  # noqa: ARG002
        n_rows, kept, draws = len(loss.training), self._kept_steps(), []
        generator = torch.Generator().manual_seed(seed)
        n_steps = self.n_cycles * self.n_steps
        batches = draw_batches(n_rows, self.batch_size, n_steps, generator)
        batches = batches.to(loss.start.device)
        largest = stable_step_size(loss, self.learning_rate, seed)
        state = init(loss.start.repeat(self.n_chains, 1))
        for step in tracked(range(n_steps), "Cyclical SG-HMC", self.verbose, unit="step"):
            phase = step % self.n_steps / self.n_steps
            noise = None
            if phase >= self.exploration:
                noise = torch.randn(state.position.shape, generator=generator).to(state.position)
            weight_decay = self.prior_precision / n_rows
            state = update(
                state,
                mean_gradient(loss, state.position, batches[step], weight_decay),
                noise,
                step_size=largest / 2 * (math.cos(math.pi * phase) + 1),
                friction=self.friction,
                temperature=self.temperature / n_rows,
            )
            if step % self.n_steps in kept:
                draws.append(state.position)
        return torch.stack(draws)[:, self._converged(loss, draws[-1])].flatten(0, 1)

    @torch.no_grad()
    def _converged(self, loss: TrainingLoss, last: Tensor) -> Tensor:
        """Return which chains did not diverge, by where they ended; warn of those that did."""
        # NaN is not below the bound either.
        fine = loss.losses(last, slice(0, self.batch_size)).mean(dim=1) < _LARGEST_LOSS
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


@documented(CLASSIFIER, example="n_steps=200, ")
@arguments
class CyclicalSGHMCClassifier(ClassifierMethod, _CyclicalSGHMC):
    """Uncertainty of a network's classification by cyclical stochastic gradient HMC.

    Chains start at the given network. In each cycle the step size falls from large to zero: a chain
    first moves on, then samples the weights around where it has arrived, with noise in each step.
    Dropout is off and batch normalisation keeps its statistics.

    Parameters
    ----------
    n_chains : int
        Chains that run at the same time, all from the given network.
    n_cycles : int
        Cycles of the step size.
    n_steps : int
        Steps of each cycle.
    samples_per_cycle : int
        Models to take from the noisy part of each cycle of each chain.
    exploration : float
        Share of a cycle without noise, in which the chain moves on to another minimum of the loss.
    learning_rate : float
        Step size at the beginning of a cycle, for the gradient of the mean loss (of half the mean
        squared error for networks that predict the mean only); it falls to zero along half a
        cosine. It is never more than the inverse of the loss's largest curvature at the given
        network.
    friction : float
        Share of the momentum that is lost in a step.
    temperature : float
        1 samples the posterior; less, a sharpened one.
    prior_precision : float
        Inverse variance of the Gaussian prior of each parameter, around zero.
    batch_size : int
        Training samples of a step; the same for all chains.
    memory_limit
        The chains take what a mini-batch of all of them needs, whatever this is.

    Attributes
    ----------
    parameter_names_
    n_parameters_searched_

    References
    ----------
    R. Zhang, C. Li, J. Zhang, C. Chen, A. G. Wilson, "Cyclical Stochastic Gradient MCMC for
    Bayesian Deep Learning", ICLR 2020.
    """


@documented(REGRESSOR, CyclicalSGHMCClassifier, example="n_steps=200, ")
@arguments
class CyclicalSGHMCRegressor(RegressorMethod, _CyclicalSGHMC):
    """Uncertainty of a network's regression by cyclical stochastic gradient HMC."""
