"""What is particular to regressors: real targets, the noise around the mean."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import RegressorMixin, _fit_context
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from ._adapters import Network
from ._likelihood import REGRESSOR_LINKS, GaussianLikelihood
from ._posterior import GaussianPosterior
from ._rows import from_tensor
from .base import BaseUncertaintyEstimator


class BaseUncertaintyRegressor(RegressorMixin, BaseUncertaintyEstimator):
    """Base of all regressors of the package."""

    _task = "regressor"
    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyEstimator._parameter_constraints,
        "link": [StrOptions(set(REGRESSOR_LINKS)), None],
        "measure": [StrOptions({"entropy", "variance"})],
        "noise_variance": [Interval(Real, 0, None, closed="neither"), "array-like", None],
    }

    measure: str
    noise_variance: Any

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        **fit_params: Any,
    ) -> Any:
        """Take over the network and its training data; train the network if it is not fitted.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data: of the given network, or to train it on.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Real-valued targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows in the loss on the training data, handed on to the wrapped
            estimator if it is trained. In that loss they are scaled to mean one over all rows:
            only ratios count, and beside rows of weight zero the others count for more. To leave
            rows out, do not pass them.
        X_val : array-like of shape (n_val, ...), default=None
            Held-out rows to measure the noise variance on, for networks that predict the mean
            only. None measures it on the training data, where an overfitted network hides it.
        y_val : array-like of shape (n_val,) or (n_val, n_outputs), default=None
            Their targets.
        **fit_params : dict
            Further arguments for the ``fit`` of the wrapped estimator.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val and y_val go together: pass both or neither.")
        self._fit(X, y, sample_weight, fit_params)
        self._set_noise_variance(X_val, y_val)
        self._measure_reference_loss()
        self._finish_fit()
        return self

    def _encode_target(self, y: np.ndarray, network: Network, n_outputs: int) -> Tensor:  # noqa: ARG002
        target = y.reshape(len(y), -1)
        if target.shape[1] != n_outputs:
            raise ValueError(
                f"The network predicts {n_outputs} value(s) a row, but y has {target.shape[1]}. "
                "If half of them are variances, pass link='mean_variance'."
            )
        self.n_outputs_ = n_outputs
        self._single_output = y.ndim == 1
        # A copy: a frame may hand out memory that must not be written to.
        return torch.tensor(target).to(self._reference.dtype)

    def _set_noise_variance(self, X_val: Any, y_val: Any) -> None:
        """Find the variance around the mean that the network does not predict itself."""
        likelihood = self._reference.likelihood
        if likelihood.link != "mean":
            if self.noise_variance is not None:
                raise ValueError(
                    "The network predicts variances itself: leave noise_variance=None."
                )
            return
        if self.noise_variance is not None:
            noise = np.broadcast_to(np.asarray(self.noise_variance, float), (self.n_outputs_,))
            if not (np.isfinite(noise).all() and (noise > 0).all()):
                raise ValueError("noise_variance must be positive and finite.")
        elif X_val is None:
            noise = self._residual_variance(self._inputs, self._target, self._sample_weight)
        else:
            y_val = check_array(from_tensor(y_val), ensure_2d=False, input_name="y_val")
            target = torch.as_tensor(y_val.reshape(len(y_val), -1)).to(self._target)
            if target.shape[1] != self.n_outputs_:
                raise ValueError(
                    f"y_val has {target.shape[1]} value(s) a row, but y has {self.n_outputs_}."
                )
            noise = self._residual_variance(self._check_inputs(X_val), target, None)
        self.noise_variance_ = np.array(noise, dtype=float)
        tensor = torch.as_tensor(self.noise_variance_).to(self._target)
        likelihood = GaussianLikelihood("mean", noise_variance=tensor)
        self._reference = replace(self._reference, likelihood=likelihood)

    def _residual_variance(
        self, inputs: Tensor, target: Tensor, weight: Tensor | None
    ) -> np.ndarray:
        check_consistent_length(inputs, target)
        squares = (self._reference.predict(inputs).mean - target).cpu().double() ** 2
        if weight is not None:
            squares = squares * weight.cpu().double()[:, None]
        # Residuals below the rounding of the outputs say nothing; zero would be a division by it.
        rounding = torch.finfo(target.dtype).eps * max(1.0, float(target.abs().max()))
        return np.maximum(squares.mean(dim=0).numpy(), rounding**2)

    def _posterior(self, given: Any) -> GaussianPosterior:
        return GaussianPosterior(given, self.measure)

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0] if self._single_output else outputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags
