"""Laplace's approximation: a Gaussian posterior around the given weights.

Predictions are linear in the weights around the given ones: exactly so for a last layer, and to
first order otherwise (MacKay, 1992; Daxberger et al., 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from .._curvature.measure import STRUCTURES, measure_curvature, view_by_layers
from .._curvature.prior import GRID, Evidence
from .._curvature.scores import Design, View, score_view
from .._curvature.structures import Curvature, Full, ScoreSpread
from .._network.inputs.rows import Inputs, StoredRows
from .._network.likelihood import CategoricalLikelihood
from .._network.limits import Limits, batches, computing, in_units, rows_at_once, slices
from .._network.predictions import Categorical, Gaussian, Prediction
from .._network.reference import TrainingSet
from .._posterior.accumulate import CategoricalPosterior, Posterior, make_posterior
from .._posterior.fitted import FittedMethod, Question
from .._posterior.training_range import refuse_beyond_range
from ..base._data import FitData
from ..base._weights import WeightChanging

# Share of the training rows that judge the precisions of the grid.
_HELD_OUT = 0.2


@dataclass(frozen=True)
class GaussianModels:
    """Models with Gaussian weights, seen through the scores that they give to rows.

    Parameters
    ----------
    view : Head or WholeNetwork
        How scores depend on the free parameters.
    curvature : Curvature
        Of the loss at the given weights.
    precision : float
        Prior precision.
    normal : Tensor of shape (n_models, n_scores)
        Normal numbers that draws are made of.
    predictive : {"monte_carlo", "probit"}
        How predictions are averaged.
    """

    view: View
    curvature: Curvature
    precision: float
    normal: Tensor
    predictive: str

    def bytes_per_row(self) -> int:
        """Return the memory for the scores of a row, their design and their spread."""
        return self.view.bytes_per_row() + self.curvature.bytes_per_row(self.view.n_scores)

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:
        """Return how many rows are worked on together."""
        return min(rows_at_once(inputs), limits.number_that_fits(self.bytes_per_row()))

    def given(self, inputs: Inputs) -> tuple[Inputs, Prediction]:
        """Return the values of rows at the cut, and what the given network predicts for them."""
        return self.view.network.given(inputs)

    def sample(
        self,
        inputs: Inputs,
        original: Prediction,  # noqa: ARG002
        posterior: Posterior,
        question: Question,
    ) -> dict[str, np.ndarray]:
        """Hand draws of the scores to the accumulator; see `Models`."""
        scores, design = self.view.scores_and_design(inputs.parts)
        self.update(posterior, scores, design, question.limits)
        return {}

    def update(self, posterior: Posterior, scores: Tensor, design: Design, limits: Limits) -> None:
        """Hand draws of scores to an accumulator."""
        likelihood = self.view.likelihood
        spread = self.curvature.spread(design, self.precision)
        size = limits.number_that_fits(8 * 8 * scores.numel())
        for models in slices(len(self.normal), size):
            deviations = spread.deviations(self.normal[models].to(scores))
            posterior.update(likelihood.prediction(scores + deviations))
        if self.predictive == "probit":
            matrices = scores[:, :, None].expand(-1, -1, scores.shape[1])
            parts = [_probit(scores[rows], spread.of_rows(rows)) for rows in batches(matrices)]
            assert isinstance(posterior, CategoricalPosterior)
            posterior.add_average(Categorical.cat(parts))


class LaplaceMethod(WeightChanging):
    """Fits the Gaussian: its curvature, and its prior precision."""

    _fitted_kind = FittedMethod[GaussianModels]
    _counts_models = "n_samples"

    _laplace_constraints: ClassVar[dict] = {
        **WeightChanging._weight_constraints,
        "structure": [StrOptions(set(STRUCTURES))],
        "prior_precision": [
            Interval(Real, 0, np.inf, closed="right"),
            StrOptions({"marginal_likelihood", "grid"}),
        ],
        "n_samples": [Interval(Integral, 2, None, closed="left")],
    }

    structure: str
    prior_precision: float | str
    n_samples: int
    predictive = "monte_carlo"

    def _fit_models(self, fit: FitData) -> GaussianModels:
        limits, network = self._limits(fit), self._free_network(fit)
        if self.structure == "full":
            _check_memory(network.free.size, limits)
        view = score_view(network, fit.original[:1])
        training = network.training_at_cut(fit.training)
        normal = _normal_numbers(self.n_samples, view.n_scores, fit.seed)
        normal = normal.to(fit.reference.device)
        everything = torch.arange(len(training))
        precision = None
        if self.prior_precision == "grid":
            precision = self._best_of_grid(fit, training, view, normal, limits)
        curvature = self._curvature(training, view, everything, limits)
        start = network.free.start.values()
        norm = sum(float(value.double().square().sum()) for value in start)
        evidence = Evidence(curvature.log_det, norm, self.reference_loss_ * len(fit.training))
        if self.prior_precision == "marginal_likelihood":
            precision = evidence.best()
        elif precision is None:
            precision = float(self.prior_precision)
        self.prior_precision_ = precision
        self.log_marginal_likelihood_ = evidence(precision)
        faster = view_by_layers(view, curvature, training.rows_at(slice(0, 1)))
        return GaussianModels(faster, curvature, precision, normal, self.predictive)

    def _curvature(
        self, training: TrainingSet, view: View, index: Tensor, limits: Limits
    ) -> Curvature:
        groups = slices(len(index), limits.number_that_fits(view.bytes_per_row()))
        return measure_curvature(view, training, index, self.structure, groups)

    def _best_of_grid(
        self, fit: FitData, training: TrainingSet, view: View, normal: Tensor, limits: Limits
    ) -> float:
        """Return the prior precision with the best log score on held-out training rows."""
        if len(training) < 2:
            raise ValueError("prior_precision='grid' needs at least two training rows.")
        generator = torch.Generator().manual_seed(fit.seed)
        order = torch.randperm(len(training), generator=generator)
        n_out = max(1, round(_HELD_OUT * len(order)))
        curvature = self._curvature(training, view, order[n_out:], limits)
        faster = view_by_layers(view, curvature, training.rows_at(slice(0, 1)))
        models = GaussianModels(faster, curvature, math.nan, normal, self.predictive)
        held_out = order[:n_out].to(fit.reference.device)
        size = limits.number_that_fits(models.bytes_per_row())
        scores = np.sum(
            [
                _log_scores(training, fit.original, models, held_out[rows], limits)
                for rows in slices(len(held_out), size)
            ],
            axis=0,
        )
        return float(GRID[int(np.argmax(scores))])

    @computing()
    def score_distribution(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the Gaussian distribution of the network's scores.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.

        Returns
        -------
        mean : ndarray of shape (n_samples, n_scores)
            What the given network returns: logits (or the one logit of two classes) or means for
            a linear last layer, followed by logarithms of variances if it predicts them; otherwise
            log-probabilities in place of logits.
        covariance : ndarray of shape (n_samples, n_scores, n_scores)
            Covariance under the posterior of the free parameters.
        """
        inputs, fitted = self._check_inputs(X), self._fitted
        models, means, covariances, lost = fitted.models, [], [], []
        for chunk in fitted.chunks(inputs, self._question(inputs).limits):
            rows, _, beyond = fitted.seen(inputs[chunk], chunk.start)
            lost.append(beyond)
            refuse_beyond_range(np.concatenate(lost))
            scores, design = models.view.scores_and_design(rows.parts)
            means.append(scores)
            covariances.append(models.curvature.spread(design, models.precision).covariance())
        return torch.cat(means).cpu().numpy(), torch.cat(covariances).cpu().numpy()


def _check_memory(n_parameters: int, limits: Limits) -> None:
    """Refuse a full matrix that does not fit."""
    needed = Full.bytes_needed(n_parameters)
    if needed > limits.memory:
        raise ValueError(
            f"structure='full' needs {in_units(needed)} for {n_parameters} parameters, more "
            f"than the memory limit of {in_units(limits.memory)}. Use 'kron' or 'diag', or "
            "fewer parameters."
        )


def _log_scores(
    training: TrainingSet,
    original: Prediction,
    models: GaussianModels,
    rows: Tensor,
    limits: Limits,
) -> list[float]:
    """Return the log score of some training rows for each precision of the grid."""
    likelihood: Any = models.view.network.executor.likelihood
    scores, design = models.view.scores_and_design(training.rows_at(rows))
    # The average prediction is the same whatever the measure; that of variances is the cheapest.
    measure = "variance" if isinstance(original, Gaussian) else "entropy"
    found = []
    for precision in GRID:
        posterior = make_posterior(
            original[rows], measure, setting="expected", standard_error=False
        )
        replace(models, precision=float(precision)).update(posterior, scores, design, limits)
        average: Any = posterior.prediction("expected")
        losses = likelihood.negative_log_likelihood(average, training.target[rows])
        found.append(-float(training.weighted(losses, rows).sum()))
    return found


def _normal_numbers(n_models: int, n_scores: int, seed: int) -> Tensor:
    """Return evenly spread normal numbers, (n_models, n_scores), of mean zero and variance one."""
    engine = torch.quasirandom.SobolEngine(n_scores, scramble=True, seed=seed)
    uniform = engine.draw(n_models, dtype=torch.float64)
    edge = 0.5 / n_models
    normal = torch.special.ndtri(uniform.clamp(edge, 1 - edge))
    normal = normal - normal.mean(dim=0)
    return normal / normal.square().mean(dim=0).sqrt()


def _probit(scores: Tensor, spread: ScoreSpread) -> Categorical:
    """Return probabilities averaged over Gaussian scores, by MacKay's approximation."""
    if scores.shape[1] == 1:
        logit = scores / _widening(spread.variance())
        return CategoricalLikelihood("binary_logit").prediction(logit)
    # By the differences of scores: what moves all of them alike changes no probability.
    covariance = spread.covariance()
    variance = covariance.diagonal(dim1=1, dim2=2)
    of_difference = variance[:, :, None] + variance[:, None] - 2 * covariance
    difference = (scores[:, None] - scores[:, :, None]) / _widening(of_difference.clamp(min=0))
    return Categorical(torch.log_softmax(-torch.logsumexp(difference, dim=2), dim=1))


def _widening(variance: Tensor) -> Tensor:
    return (1 + math.pi / 8 * variance).sqrt()
