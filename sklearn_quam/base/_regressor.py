"""Regressors: real targets, the noise around the mean, intervals."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import ndtri
from sklearn.base import RegressorMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._documented import QUERY, documented
from .._network.adapters import Network
from .._network.inputs.sources import View, some_rows
from .._network.likelihood import REGRESSOR_LINKS
from .._network.predictions import Gaussian, Prediction
from .._network.reference import ReferenceModel
from .._posterior.measures import mixture_quantiles, mixture_scores
from .._posterior.results import RowResults
from .._typing import NoiseVariance
from ._conformal import check_coverage, conformal_threshold, noise_and_calibration_rows
from ._estimator import BaseUncertaintyEstimator, ScoresUnseen


@documented(QUERY)
class BaseUncertaintyRegressor(ScoresUnseen, RegressorMixin, BaseUncertaintyEstimator):
    """Base of all regressors of the package."""

    _task = "regressor"
    _risk_is_probability = False
    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyEstimator._parameter_constraints,
        "link": [StrOptions(set(REGRESSOR_LINKS)), None],
        "measure": [StrOptions({"entropy", "variance"})],
        "noise_variance": [Interval(Real, 0, None, closed="neither"), "array-like", None],
    }

    measure: str
    noise_variance: NoiseVariance

    def _encode_target(
        self,
        y: np.ndarray,
        network: Network,  # noqa: ARG002
        n_outputs: int,
        reference: ReferenceModel,
    ) -> Tensor:
        target = y.reshape(len(y), -1)
        if target.shape[1] != n_outputs:
            wide = n_outputs == 2 * target.shape[1] and reference.likelihood.link == "mean"
            raise ValueError(
                f"The network predicts {n_outputs} value(s) a row, but y has {target.shape[1]}. "
                + (
                    "If half of them are variances, pass link='mean_variance'; if they are log "
                    "variances, link='mean_log_variance'."
                    if wide
                    else "If they are quantiles, pass a module whose forward returns the median "
                    "alone, output[:, [k]]; if X or y is not the network's, pass its own."
                )
            )
        self.n_outputs_ = n_outputs
        self._single_output = y.ndim == 1
        # A copy: a frame may hand out memory that must not be written to.
        return torch.tensor(target).to(reference.dtype)

    def _check_held_out(self, y_val: np.ndarray) -> None:
        n_values = y_val.reshape(len(y_val), -1).shape[1]
        if n_values != self.n_outputs_:
            raise ValueError(f"y_val has {n_values} value(s) a row, but y has {self.n_outputs_}.")

    def _with_noise(
        self,
        reference: ReferenceModel,
        original: Gaussian,
        target: Tensor,
        weight: Tensor | None,
        X_val: Any,
        y_val: Any,
    ) -> tuple[ReferenceModel, Prediction]:
        if reference.likelihood.link != "mean":
            if self.noise_variance is not None:
                raise ValueError(
                    "The network predicts variances itself: leave noise_variance=None."
                )
            return reference, original
        if self.noise_variance is not None:
            noise = np.broadcast_to(np.asarray(self.noise_variance, float), (self.n_outputs_,))
            if not (np.isfinite(noise).all() and (noise > 0).all()):
                raise ValueError("noise_variance must be positive and finite.")
        elif X_val is None:
            noise = _residual_variance(original, target, weight)
        else:
            rows = self._check_rows(X_val, reference)
            if len(rows) != len(y_val):
                raise ValueError(f"X_val has {len(rows)} rows, but y_val has {len(y_val)}.")
            part, _ = noise_and_calibration_rows(len(rows))
            some = replace(rows, source=View(rows.source, part))
            held_out = torch.tensor(y_val.reshape(len(y_val), -1)[part]).to(target)
            noise = _residual_variance(reference.predict(some), held_out)
        self.noise_variance_ = np.array(noise, dtype=float)
        tensor = torch.as_tensor(self.noise_variance_).to(target)
        likelihood: Any = reference.likelihood
        likelihood = replace(likelihood, noise_variance=tensor)
        noisy = Gaussian(original.mean, tensor.to(original.mean).expand_as(original.mean))
        return replace(reference, likelihood=likelihood), noisy

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0] if self._single_output else outputs

    def predict(self, X: Any, *, return_uncertainty: bool = False, return_std: bool = False) -> Any:
        """Predict the target of each sample.

        Parameters
        ----------
        return_std : bool, default=False
            Whether to return the standard deviation, too, as ``GaussianProcessRegressor`` does.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Values: the given model's in ``setting="given"``, those of the average prediction of all
            plausible models in ``setting="expected"``.
        uncertainty : Uncertainty
            Only with ``return_uncertainty=True``.
        std : ndarray of the shape of y
            Only with ``return_std=True``: standard deviation of a new target around y, by all
            plausible models and their noise; 1e150, which stands for infinite, for samples beyond
            the range of the training data.
        """
        if not return_std:
            return super().predict(X, return_uncertainty=return_uncertainty)
        if return_uncertainty:
            raise ValueError("Pass return_std=True or return_uncertainty=True, not both.")
        results = self._results(X)
        std = np.sqrt(results.variance)
        return self._decide(results.prediction), self._decide(std)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Predict an interval for the target of each sample.

        Its ends are quantiles of the average prediction of all plausible models, a mixture of
        Gaussians, in any ``setting``. If held-out samples were passed to ``fit``, they are
        calibrated by split conformal prediction: the target of a new sample from the same
        distribution lies in its interval with a probability of at least ``coverage``, for any
        network and method, on average over samples and over draws of the held-out ones. Otherwise
        they are as good as network, noise variance and method, without a guarantee.

        Parameters
        ----------
        coverage : float, default=0.9
            Share of targets that are to lie in their intervals, of each output by itself. A share
            of c takes at least c / (1 - c) held-out samples that calibrate; where half of ``X_val``
            measures the noise, twice as many.

        Returns
        -------
        ndarray of shape (n_samples, 2) or (n_samples, n_outputs, 2)
            Lower and upper ends, in units of the target; about 1e150 away for samples beyond the
            range of the training data.
        """
        coverage = check_coverage(coverage)
        check_is_fitted(self)
        if hasattr(self, "conformal_scores_"):
            measured = self._measures_noise(self._fitted.reference)
            which = " and that do not measure the noise" if measured else ""
            score = conformal_threshold(self.conformal_scores_, coverage, which=which)
        else:
            score = np.full(self.n_outputs_, -ndtri((1 - coverage) / 2))
        mixture = self._predictive(X)
        ends = np.stack([mixture_quantiles(mixture, side * score) for side in (-1, 1)], axis=-1)
        return self._decide(ends)

    def _measures_noise(self, reference: ReferenceModel) -> bool:
        """Return whether the noise variance is measured, and neither given nor predicted."""
        return reference.likelihood.link == "mean" and self.noise_variance is None

    def _calibrate(self, X_val: Any, y_val: Any) -> None:
        if self._measures_noise(self._fitted.reference):
            _, part = noise_and_calibration_rows(len(y_val))
            X_val, y_val = some_rows(X_val, part), y_val[part]
        super()._calibrate(X_val, y_val)

    def _risk(self, results: RowResults) -> np.ndarray:
        # In units of the noise, outputs add up.
        noise = getattr(self, "noise_variance_", 1.0)
        return np.sqrt(results.variance / noise).mean(axis=1)

    def _conformal_scores(self, predictive: Any, y_val: Any) -> np.ndarray:
        return np.abs(mixture_scores(predictive, y_val.reshape(len(y_val), -1)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


def _residual_variance(
    prediction: Prediction, target: Tensor, weight: Tensor | None = None
) -> np.ndarray:
    """Return the mean squared residual of each output."""
    assert isinstance(prediction, Gaussian)
    squares = (prediction.mean - target).cpu().double() ** 2
    if weight is not None:
        squares = squares * weight.cpu().double()[:, None]
    # Smaller residuals are rounding, and a variance of zero is not possible.
    rounding = torch.finfo(target.dtype).eps * max(1.0, float(target.abs().max()))
    return np.maximum(squares.mean(dim=0).numpy(), rounding**2)
