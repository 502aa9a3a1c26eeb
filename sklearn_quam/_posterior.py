"""What weighted samples of models say about some rows, as running sums."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ._estimate import WeightedMean, accumulation_dtype
from ._likelihood import Gaussian
from ._measures import (
    Uncertainty,
    categorical_entropy,
    categorical_kl,
    gaussian_entropy,
    gaussian_kl,
    gaussian_mixture_entropy,
    merge_components,
)

# Second moments of more features than this would take more memory than they are worth.
_MAX_FEATURES = 65
# What a difference of two entropies may be off by, in units of the last place.
_ROUNDING = 8


class _Posterior:
    """Weighted samples of models for some rows, as running sums.

    The distance of a sample from the average prediction, whose mean is the epistemic uncertainty
    of the expected setting, is linear in some features of the sample. Their second moments give
    its standard error, whatever order the samples come in; they are left out where there are many.
    """

    def __init__(self, n_rows: int, n_features: int, device: torch.device) -> None:
        self._means = WeightedMean(n_rows, device)
        self._has_features = n_features <= _MAX_FEATURES

    def standard_error(self, setting: str) -> np.ndarray:
        """Return the standard error of the epistemic uncertainty."""
        if setting == "given":
            return _to_numpy(self._means.standard_error("divergence"))
        if not self._has_features:
            return np.full(len(self.effective_sample_size()), np.nan)
        return _to_numpy(self._means.standard_error("features", self._spread_coefficients()))

    def _spread_coefficients(self) -> Tensor:
        """Return how the distance from the average prediction depends on the features."""
        raise NotImplementedError

    def effective_sample_size(self) -> np.ndarray:
        """Return how many equally weighted samples the weighted ones are worth."""
        return _to_numpy(self._means.effective_sample_size())


class CategoricalPosterior(_Posterior):
    """What weighted samples of models say about the classes of some rows.

    Parameters
    ----------
    given : Tensor of shape (n_rows, n_classes)
        Log-probabilities predicted by the given model.
    """

    def __init__(self, given: Tensor) -> None:
        self._given = _normalised(given)
        self._averages: list[Tensor] = []
        super().__init__(len(given), 1 + given.shape[-1], given.device)

    def add_average(self, log_proba: Tensor) -> None:
        """Take the average prediction in closed form instead of from the samples.

        Parameters
        ----------
        log_proba : Tensor of shape (n_rows, n_classes)
            Log-probabilities; several averages are averaged.
        """
        self._averages.append(_normalised(log_proba))

    def update(self, log_proba: Tensor, log_weights: Tensor | None = None) -> None:
        """Add sampled models.

        Parameters
        ----------
        log_proba : Tensor of shape (n_models, n_rows, n_classes)
            Log-probabilities predicted by the sampled models.
        log_weights : Tensor of shape (n_models, n_rows), default=None
            Logarithms of their unnormalised weights; None weighs them all alike.
        """
        log_proba = _normalised(log_proba)
        self._means.add_weights(_or_equal(log_weights, log_proba))
        entropy, proba = categorical_entropy(log_proba), log_proba.exp()
        self._means.add("entropy", entropy)
        self._means.add("proba", proba)
        self._means.add("divergence", categorical_kl(self._given, log_proba), error=True)
        if self._has_features:
            self._means.add("features", torch.cat([entropy[..., None], proba], -1), error=True)

    def _spread_coefficients(self) -> Tensor:
        # KL(p || mean) is minus the entropy of p, minus the sum of p log mean.
        mean = self._means.mean("proba").nan_to_num(1.0)
        log_mean = mean.clamp(min=torch.finfo(mean.dtype).tiny).log()
        return torch.cat([-torch.ones_like(log_mean[:, :1]), -log_mean], dim=-1)

    def prediction(self, setting: str) -> Tensor:
        """Return the log-probabilities of the setting's prediction, (n_rows, n_classes)."""
        if setting == "given":
            return self._given
        if self._averages:
            averages = torch.stack(self._averages)
            return torch.logsumexp(averages, dim=0) - math.log(len(averages))
        return self._means.mean("proba").log()

    def variance(self, setting: str) -> np.ndarray:  # noqa: ARG002
        """Return an array without columns: classes have no variance."""
        return np.empty((len(self._given), 0))

    def uncertainty(self, setting: str) -> Uncertainty:
        """Return the measures of a setting."""
        if setting == "given":
            aleatoric = categorical_entropy(self._given)
            return _additive(aleatoric, self._means.mean("divergence"))
        aleatoric = self._means.mean("entropy")
        epistemic = categorical_entropy(self.prediction("expected")) - aleatoric
        # Where all models agree, rounding alone would rank rows.
        noise = _ROUNDING * torch.finfo(epistemic.dtype).eps * (1 + aleatoric)
        return _additive(aleatoric, torch.where(epistemic < noise, 0.0, epistemic))


class GaussianPosterior(_Posterior):
    """What weighted samples of models say about the real-valued outputs of some rows.

    Several outputs are treated as independent: entropies and variances are summed over them.

    Parameters
    ----------
    given : Gaussian with tensors of shape (n_rows, n_outputs)
        Prediction of the given model.
    measure : {"entropy", "variance"}
        Measures in nats, or the split of the variance in squared units of the target.
    """

    def __init__(self, given: Gaussian, measure: str = "entropy") -> None:
        self._given = given.to(accumulation_dtype(given.mean.device))
        self._measure = measure
        super().__init__(len(given.mean), 4 * given.mean.shape[-1], given.mean.device)
        self._components: tuple[Tensor, Tensor, Tensor] | None = None

    def update(self, prediction: Gaussian, log_weights: Tensor | None = None) -> None:
        """Add sampled models.

        Parameters
        ----------
        prediction : Gaussian with tensors of shape (n_models, n_rows, n_outputs)
            Predictions of the sampled models.
        log_weights : Tensor of shape (n_models, n_rows), default=None
            Logarithms of their unnormalised weights; None weighs them all alike.
        """
        prediction = prediction.to(self._given.mean.dtype)
        log_weights = _or_equal(log_weights, prediction.mean)
        # Means are kept as distances from the given one: their variance does not cancel.
        shift = prediction.mean - self._given.mean
        if self._measure == "variance":
            divergence = (shift**2).sum(dim=-1)
        else:
            divergence = gaussian_kl(self._given, prediction)
        self._means.add_weights(log_weights)
        self._means.add("entropy", gaussian_entropy(prediction))
        self._means.add("shift", shift)
        self._means.add("squared_shift", shift**2)
        self._means.add("variance", prediction.variance)
        self._means.add("divergence", divergence, error=True)
        if self._has_features:
            variance = prediction.variance
            features = torch.cat([variance.log(), variance, shift, shift**2], dim=-1)
            self._means.add("features", features, error=True)
        if self._measure == "entropy":
            self._keep_components(prediction, log_weights)

    def _spread_coefficients(self) -> Tensor:
        shift = self._means.mean("shift")
        zero, one = torch.zeros_like(shift), torch.ones_like(shift)
        if self._measure == "variance":
            return torch.cat([zero, zero, -2 * shift, one], dim=-1)
        half_precision = 0.5 / self.prediction("expected").variance
        return torch.cat(
            [-0.5 * one, half_precision, -2 * half_precision * shift, half_precision], dim=-1
        )

    def _keep_components(self, prediction: Gaussian, log_weights: Tensor) -> None:
        """Remember the mixture of predictions, a column for each row and output."""
        n_outputs = prediction.mean.shape[-1]
        left_out = (log_weights == -torch.inf)[..., None]
        new = (
            torch.where(left_out, self._given.mean, prediction.mean).flatten(1),
            torch.where(left_out, self._given.variance, prediction.variance).flatten(1),
            log_weights.to(prediction.mean.dtype).repeat_interleave(n_outputs, dim=1),
        )
        if self._components is not None:
            mean, variance, weights = zip(self._components, new, strict=True)
            new = (torch.cat(mean), torch.cat(variance), torch.cat(weights))
        self._components = merge_components(*new)

    def prediction(self, setting: str) -> Gaussian:
        """Return mean and variance of the setting's prediction, (n_rows, n_outputs)."""
        if setting == "given":
            return self._given
        shift = self._means.mean("shift")
        between = (self._means.mean("squared_shift") - shift**2).clamp(min=0)
        return Gaussian(self._given.mean + shift, self._means.mean("variance") + between)

    def variance(self, setting: str) -> np.ndarray:
        """Return the total variance of each output, (n_rows, n_outputs)."""
        variance = self.prediction(setting).variance
        if setting == "given":
            variance = variance + self._means.mean("squared_shift")
        return _to_numpy(variance)

    def uncertainty(self, setting: str) -> Uncertainty:
        """Return the measures of a setting."""
        if setting == "given":
            if self._measure == "variance":
                aleatoric = self._given.variance.sum(dim=-1)
            else:
                aleatoric = gaussian_entropy(self._given)
            return _additive(aleatoric, self._means.mean("divergence"))
        if self._measure == "variance":
            aleatoric = self._means.mean("variance")
            total = self.prediction("expected").variance
            return _additive(aleatoric.sum(dim=-1), (total - aleatoric).sum(dim=-1))
        aleatoric = self._means.mean("entropy")
        return _additive(aleatoric, self._mixture_entropy() - aleatoric)

    def _mixture_entropy(self) -> Tensor:
        assert self._components is not None
        if len(self._components[0]) == 1:
            return self._means.mean("entropy")
        entropies = gaussian_mixture_entropy(*self._components)
        return entropies.reshape(self._given.mean.shape).sum(dim=-1)


def _normalised(log_proba: Tensor) -> Tensor:
    """Return log-probabilities in the accumulation type that sum to one there, too."""
    return torch.log_softmax(log_proba.to(accumulation_dtype(log_proba.device)), dim=-1)


def _or_equal(log_weights: Tensor | None, samples: Tensor) -> Tensor:
    return samples.new_zeros(samples.shape[:2]) if log_weights is None else log_weights


def _to_numpy(values: Tensor) -> np.ndarray:
    return values.cpu().to(torch.float64).numpy()


def _additive(aleatoric: Tensor, epistemic: Tensor) -> Uncertainty:
    """Return the parts and their sum; rounding must not make the epistemic part negative."""
    aleatoric_, epistemic_ = _to_numpy(aleatoric), _to_numpy(epistemic.clamp(min=0))
    return Uncertainty(aleatoric_, epistemic_, aleatoric_ + epistemic_)
