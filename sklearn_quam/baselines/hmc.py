"""Hamiltonian Monte Carlo: the ground truth for small networks, all chains in one batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from .._arguments import arguments, integer, real
from .._documented import CLASSIFIER, REGRESSOR, documented
from .._network.inputs.rows import Inputs, StoredRows
from .._network.limits import Limits, accumulation_dtype, slices
from .._network.predictions import Prediction
from .._posterior.accumulate import Posterior
from .._posterior.estimate import chain_effective_sample_size, split_r_hat
from .._posterior.fitted import FittedMethod, Question
from .._posterior.progress import tracked
from ..base._data import FitData
from ..exceptions import warn
from ._hamiltonian import Potential, StepSize, draw, first_step_size, init, update
from ._method import ClassifierMethod, RegressorMethod
from ._weights import SampledWeights, TrainingLoss, WeightSamples

# Chains with a larger R-hat have not found the same distribution.
_MAX_R_HAT = 1.1
_BYTES_OF_DRAWS = 2**26
# How often predictions are held, and their spectra, while the chains are compared.
_COPIES_OF_DRAWS = 16
# Training samples on which the chains are compared after fitting.
_MAX_ROWS_COMPARED = 512
# Where the chains start around the given weights, in units of the spread of each tensor.
_START_SPREAD = 0.5


@dataclass(frozen=True)
class ChainSamples(WeightSamples):
    """Draws of Markov chains, those of a chain behind each other; see `WeightSamples`."""

    shape: tuple[int, int]  # number of chains, and of draws of each

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:  # noqa: ARG002
        """Return how many samples are worked on together."""
        with torch.no_grad():
            start = {name: value[None] for name, value in self.network.free.start.items()}
            row = self.network.at_cut(self.network.probe[:1])
            columns = self.network.predict(start, row).n_outputs
        memory = min(limits.memory // _COPIES_OF_DRAWS, _BYTES_OF_DRAWS)
        needed = max(math.prod(self.shape) * columns * 8, self.bytes_per_row)
        return max(1, memory // needed)

    def sample(
        self,
        inputs: Inputs,
        original: Prediction,  # noqa: ARG002
        posterior: Posterior,
        question: Question,
    ) -> dict[str, np.ndarray]:
        """Add the draws' predictions to the accumulator, and compare the chains."""

        def added() -> Iterator[Prediction]:
            for prediction in self.predictions(inputs.parts, question.limits):
                posterior.update(prediction)
                yield prediction

        r_hat, size = self.compare(added())
        _warn_about_r_hat(float(r_hat.max()), "the predicted rows")
        # Draws of a chain are correlated: the effective number is smaller.
        inflation = np.sqrt(math.prod(self.shape) / size)
        return {
            "r_hat": r_hat,
            "effective_sample_size": size,
            "standard_error": posterior.standard_error() * inflation,
        }

    def compare(self, predictions: Iterable[Prediction]) -> tuple[np.ndarray, np.ndarray]:
        """Return R-hat and the effective sample size of the predictions of each sample."""
        draws = torch.cat([prediction.expected() for prediction in predictions])
        values = draws.to(accumulation_dtype(draws.device)).unflatten(0, self.shape)
        # The epistemic uncertainty is a mean of squared deviations, which may be correlated along a
        # chain where the predictions are not.
        squares = (values - values.mean(dim=(0, 1))) ** 2
        size = chain_effective_sample_size(torch.cat([values, squares], dim=-1)).amin(dim=-1)
        r_hat = split_r_hat(values).amax(dim=-1)
        return r_hat.cpu().double().numpy(), size.cpu().double().numpy()


def _warn_about_r_hat(r_hat: float, where: str) -> None:
    if r_hat > _MAX_R_HAT:
        warn(
            f"The chains have not converged: R-hat of the predictions is {r_hat:.2f} on {where}, "
            f"above {_MAX_R_HAT}. Raise n_warmup, n_samples or n_leapfrog.",
            ConvergenceWarning,
        )


@arguments
class _HMC(SampledWeights):
    n_chains: int = integer(default=4)
    n_samples: int = integer(default=200, at_least=4)
    n_warmup: int = integer(default=100, at_least=0)
    n_leapfrog: int = integer(default=100)
    target_acceptance: float = real(default=0.8, below=1)
    prior_precision: float = real(default=1.0)

    _diagnostics = ("standard_error", "r_hat")
    _fitted_kind = FittedMethod[ChainSamples]

    def _fit_models(self, fit: FitData) -> ChainSamples:
        samples = super()._fit_models(fit)
        models = ChainSamples(**vars(samples), shape=(self.n_chains, self.n_samples))
        limits, inputs = self._limits(fit), fit.training.inputs
        rows = Inputs(models.network.at_cut(inputs[:: -(-len(inputs) // _MAX_ROWS_COMPARED)]))
        worst = [
            models.compare(models.predictions(rows[part].parts, limits))[0].max()
            for part in slices(len(rows), models.rows_at_once(rows, limits))
        ]
        self.r_hat_ = float(max(worst))
        _warn_about_r_hat(self.r_hat_, "the training data")
        return models

    def _draw(self, loss: TrainingLoss, seed: int, limits: Limits) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        potential = self._potential(loss, limits)
        state = init(self._start(loss, generator), potential)
        if not bool(torch.isfinite(state.potential).all()):
            raise ValueError("The loss is not finite near the given weights: is the data scaled?")
        step = StepSize(first_step_size(state, potential, generator), self.target_acceptance)
        draws, rates = [], []
        total = self.n_warmup + self.n_samples
        for index in tracked(range(total), "HMC", self.verbose, unit="draw"):
            if index == self.n_warmup:
                step.settle()
            # Trajectories of a single length may return to where they began, again and again.
            length = max(
                1, round((float(torch.rand(1, generator=generator)) + 0.5) * self.n_leapfrog)
            )
            drawn = draw(state, generator)
            state, acceptance = update(
                state, potential, *drawn, step_size=step.value, n_leapfrog=length
            )
            rate = float(acceptance.mean())
            if index < self.n_warmup:
                step.adapt(rate)
            else:
                draws.append(state.position)
                rates.append(rate)
        self.step_size_, self.acceptance_rate_ = step.value, float(np.mean(rates))
        return torch.stack(draws, dim=1).flatten(0, 1)

    def _start(self, loss: TrainingLoss, generator: torch.Generator) -> Tensor:
        """Return starting points around the given weights, wide enough for chains to disagree."""
        parts = []
        for value in loss.network.free.start.values():
            noise = torch.randn(self.n_chains, value.numel(), generator=generator).to(value)
            spread = value.square().mean().sqrt().clamp(max=self.prior_precision**-0.5)
            parts.append(value.flatten() + _START_SPREAD * spread * noise)
        return torch.cat(parts, dim=1)

    def _potential(self, loss: TrainingLoss, limits: Limits) -> Potential:
        """Return minus the log posterior as a function, summed over groups of training samples."""
        size = limits.number_that_fits(self.n_chains * loss.network.bytes_per_row())
        groups = list(slices(len(loss.training), size))

        def potential(position: Tensor) -> tuple[Tensor, Tensor]:
            value = 0.5 * self.prior_precision * position.square().sum(dim=1)
            gradient = self.prior_precision * position
            for rows in groups:
                of_rows, slope = loss.sum_and_gradient(position, rows)
                value, gradient = value + of_rows, gradient + slope
            return value, gradient

        return potential


@documented(CLASSIFIER, example="n_samples=50, n_leapfrog=20, ")
@arguments
class HMCClassifier(ClassifierMethod, _HMC):
    """Uncertainty of a network's classification by Hamiltonian Monte Carlo.

    Samples the posterior of the weights without approximation, given enough time: the ground truth
    for small networks and data sets. Every step takes the gradient of the loss on all training
    samples; all chains run as one batch. Diagnostics hold for each sample how much the chains
    disagree (``r_hat``) and how many independent draws theirs are worth
    (``effective_sample_size``); a `~sklearn.exceptions.ConvergenceWarning` is given where ``r_hat``
    exceeds 1.1.

    Parameters
    ----------
    n_chains : int
        Chains that run at the same time, from different points around the given network.
    n_samples : int
        Draws of each chain that count.
    n_warmup : int
        Draws of each chain before those, in which the step size is adapted.
    n_leapfrog : int
        Leapfrog steps of a trajectory on average; each is between half and one and a half times as
        long.
    target_acceptance : float
        Share of the trajectories that the step size is adapted to have accepted.
    prior_precision : float
        Inverse variance of the Gaussian prior of each parameter, around zero.

    Attributes
    ----------
    parameter_names_
    n_parameters_searched_
    r_hat_ : float
        Largest split R-hat of the predictions of (up to 512) training samples.
    step_size_ : float
        Length of the leapfrog steps.
    acceptance_rate_ : float
        Mean probability with which trajectories were accepted after the warm-up.

    References
    ----------
    R. M. Neal, "MCMC Using Hamiltonian Dynamics", Handbook of Markov Chain Monte Carlo, 2011. M. D.
    Hoffman, A. Gelman, "The No-U-Turn Sampler: Adaptively Setting Path Lengths in Hamiltonian Monte
    Carlo", JMLR 2014 (adaptation of the step size).
    """


@documented(REGRESSOR, HMCClassifier, example="n_samples=50, n_leapfrog=20, ")
@arguments
class HMCRegressor(RegressorMethod, _HMC):
    """Uncertainty of a network's regression by Hamiltonian Monte Carlo."""
