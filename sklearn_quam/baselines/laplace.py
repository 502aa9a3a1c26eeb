"""Laplace's approximation: a Gaussian posterior around the given weights.

Predictions are linear in the weights around the given ones: exactly so for a last layer, and to
first order otherwise (MacKay, 1992; Daxberger et al., 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from .._arguments import allowed, arguments, integer
from .._curvature.measure import STRUCTURES, measure_curvature, view_by_layers
from .._curvature.prior import Evidence
from .._curvature.scores import View, score_view
from .._curvature.structures import Curvature, Full
from .._documented import CLASSIFIER, REGRESSOR, documented
from .._network.inputs.rows import Inputs, StoredRows
from .._network.limits import Limits, computing, in_units, rows_at_once, slices
from .._network.predictions import Prediction
from .._posterior.accumulate import Posterior
from .._posterior.fitted import FittedMethod, Question
from .._posterior.training_range import refuse_beyond_range
from .._typing import Parameters
from ..base._data import FitData
from ..base._estimator import BaseUncertaintyEstimator
from ._method import ClassifierMethod, RegressorMethod, WeightArguments


@dataclass(frozen=True)
class GaussianModels:
    """Models with Gaussian weights, seen through the scores that they give to samples."""

    view: View  # scores as a function of the free parameters
    curvature: Curvature  # of the loss at the given weights
    precision: float  # of the prior
    normal: Tensor  # (n_models, n_scores), evenly spread

    def bytes_per_row(self) -> int:
        """Return the memory for the scores of a sample, their design and their spread."""
        return self.view.bytes_per_row() + self.curvature.bytes_per_row(self.view.n_scores)

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:
        """Return how many samples are worked on together."""
        return min(rows_at_once(inputs), limits.number_that_fits(self.bytes_per_row()))

    def given(self, inputs: Inputs) -> tuple[Inputs, Prediction]:
        """Return the values of samples at the cut, and the given network's prediction."""
        return self.view.network.given(inputs)

    def sample(
        self,
        inputs: Inputs,
        original: Prediction,  # noqa: ARG002
        posterior: Posterior,
        question: Question,
    ) -> dict[str, np.ndarray]:
        """Add predictions of drawn scores to the accumulator; see `Models`."""
        scores, design = self.view.scores_and_design(inputs.parts)
        spread = self.curvature.spread(design, self.precision)
        size = question.limits.number_that_fits(8 * 8 * scores.numel())
        for models in slices(len(self.normal), size):
            drawn = scores + spread.deviations(self.normal[models].to(scores))
            posterior.update(self.view.likelihood.prediction(drawn))
        return {}


@arguments
class LaplaceArguments(WeightArguments):
    """Arguments of Laplace's approximation, and of mixtures of it."""

    parameters: Parameters = "last_layer"
    structure: str = allowed(StrOptions(set(STRUCTURES)), default="kron")
    prior_precision: float | str = allowed(
        Interval(Real, 0, np.inf, closed="right"),
        StrOptions({"marginal_likelihood"}),
        default="marginal_likelihood",
    )
    n_samples: int = integer(default=256, at_least=2)


class _Laplace(LaplaceArguments, BaseUncertaintyEstimator):
    _fitted_kind = FittedMethod[GaussianModels]
    _changes_weights = True

    def _fit_models(self, fit: FitData) -> GaussianModels:
        limits, network = self._limits(fit), fit.network
        needed = Full.bytes_needed(network.free.size)
        if self.structure == "full" and needed > limits.memory:
            raise ValueError(
                f"structure='full' needs {in_units(needed)} for {network.free.size} parameters, "
                f"more than the memory limit of {in_units(limits.memory)}. Use 'kron' or 'diag', "
                "or fewer parameters."
            )
        view = score_view(network, fit.original[:1])
        training = fit.training.behind_cut()
        normal = _normal_numbers(self.n_samples, view.n_scores, fit.seed)
        everything = torch.arange(len(training))
        curvature = measure_curvature(view, training, everything, self.structure, limits)
        curvature.finish()
        loss = self.reference_loss_ * len(training)
        evidence = Evidence(curvature.log_det, network.free.start, loss)
        precision = self.prior_precision
        precision = evidence.best() if isinstance(precision, str) else float(precision)
        self.prior_precision_ = precision
        self.log_marginal_likelihood_ = evidence(precision)
        faster = view_by_layers(view, curvature, training.rows_at(slice(0, 1)))
        return GaussianModels(faster, curvature, precision, normal.to(fit.reference.device))

    @computing()
    def score_distribution(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the Gaussian distribution of the network's scores.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Samples like the training data.

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


def _normal_numbers(n_models: int, n_scores: int, seed: int) -> Tensor:
    """Return evenly spread normal numbers, (n_models, n_scores), of mean zero and variance one."""
    engine = torch.quasirandom.SobolEngine(n_scores, scramble=True, seed=seed)
    uniform = engine.draw(n_models, dtype=torch.float64)
    edge = 0.5 / n_models
    normal = torch.special.ndtri(uniform.clamp(edge, 1 - edge))
    normal = normal - normal.mean(dim=0)
    return normal / normal.square().mean(dim=0).sqrt()


@documented(CLASSIFIER)
@arguments
class LaplaceClassifier(ClassifierMethod, _Laplace):
    """Uncertainty of a network's classification by Laplace's approximation.

    The posterior of the weights is taken for a Gaussian around the given ones. Its covariance is
    the inverse of the curvature of the loss (the generalised Gauss-Newton matrix) plus a prior
    precision. Scores (logits or means) are linear in the weights: exactly for the last layer, to
    first order for more.

    Parameters
    ----------
    parameters
        Low-rank updates have no Kronecker factors: not with ``structure="kron"``.
    structure : {"full", "kron", "diag"}
        What is kept of the curvature: all of it, with memory for the square of the number of
        parameters; a Kronecker product for each linear or convolutional layer (and the diagonal
        for other parameters); or the diagonal.
    prior_precision : float or "marginal_likelihood"
        Inverse variance of the Gaussian prior of each parameter, around zero: a number, or the one
        that makes the training data most likely.
    n_samples : int
        Draws of the scores around each network, evenly spread; the same for all samples.

    Attributes
    ----------
    parameter_names_
    n_parameters_searched_
    prior_precision_ : float
        The prior precision that is used.
    log_marginal_likelihood_ : float
        Logarithm of the marginal likelihood of the training data, approximately.

    References
    ----------
    D. J. C. MacKay, "A Practical Bayesian Framework for Backpropagation Networks", Neural
    Computation 1992. E. Daxberger, A. Kristiadi, A. Immer, R. Eschenhagen, M. Bauer, P. Hennig,
    "Laplace Redux: Effortless Bayesian Deep Learning", NeurIPS 2021. A. Immer, M. Korzepa, M.
    Bauer, "Improving Predictions of Bayesian Neural Nets via Local Linearization", AISTATS 2021.
    """


@documented(REGRESSOR, LaplaceClassifier)
@arguments
class LaplaceRegressor(RegressorMethod, _Laplace):
    """Uncertainty of a network's regression by Laplace's approximation."""
