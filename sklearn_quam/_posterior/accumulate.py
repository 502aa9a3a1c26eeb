"""Measures of weighted samples of models, accumulated as running sums.

The *given* setting asks how far other plausible models disagree with the given one, the
*expected* setting how far they disagree with their own average, the *pairwise* setting how far
they disagree with each other. All split a total into an aleatoric and an epistemic part:

=============  ================  ==========================  =================
setting        aleatoric         epistemic                   total
=============  ================  ==========================  =================
``given``      H(p_w)            E[KL(p_w || p_w')]          E[CE(p_w, p_w')]
``expected``   E[H(p_w')]        E[KL(p_w' || p_mean)]       H(p_mean)
``pairwise``   E[H(p_w')]        E[KL(p_w' || p_w'')]        E[CE(p_w', p_w'')]
=============  ================  ==========================  =================

Other measures of classes have another loss in place of the logarithm; see `measures`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._network.limits import accumulation_dtype
from .._network.predictions import Categorical, Gaussian, Prediction
from .estimate import WeightedMean
from .measures import LOSSES, Loss, gaussian_mixture_entropy, merge_components
from .results import Uncertainty

# Second moments of more features than this would take more memory than they are worth.
_MAX_FEATURES = 65
# Largest rounding error of a difference of two entropies, in units of the last place.
_ROUNDING = 8
_IN_NATS = LOSSES["entropy"]


class Posterior:
    """Weighted samples of models for some rows: only the sums that a setting needs.

    The distance of a sample from the average prediction, whose mean is the epistemic uncertainty
    of the expected setting, is linear in some features of the sample. Their second moments give
    its standard error, whatever order the samples come in; they are left out where there are many.
    """

    # What subclasses fill in: add a batch, the average prediction, the measures, the variance of
    # each output, what all models predict together (as in `RowResults`), and how the distance from
    # the average prediction depends on the features.
    _add: Callable[[Any, Tensor], None]
    average: Callable[[], Prediction]
    uncertainty: Callable[[], Uncertainty]
    variance: Callable[[], np.ndarray]
    predictive: Callable[[], np.ndarray]
    _spread_coefficients: Callable[[], Tensor]

    def __init__(
        self, given: Any, setting: str, n_features: int, predictive: bool, standard_error: bool
    ) -> None:
        self.given, self._setting = given, setting
        self._predictive, self._has_error = predictive, standard_error
        self._has_features = (
            standard_error and setting == "expected" and n_features <= _MAX_FEATURES
        )
        self._means = WeightedMean(len(given), given.device)
        self._n_diverged = torch.zeros(len(given), dtype=torch.long, device=given.device)

    def update(self, prediction: Any, log_weights: Tensor | None = None) -> None:
        """Add the predictions (n_models, n_rows) of models, with equal weights by default."""
        if log_weights is None:
            first = prediction.parts[0]
            log_weights = first.new_zeros(first.shape[:2])
        finite = prediction.is_defined()
        if not bool(finite.all()):
            # Models whose numbers are not finite have no weight.
            self._n_diverged += (~finite & (log_weights > -torch.inf)).sum(dim=0)
            log_weights = log_weights.masked_fill(~finite, -torch.inf)

            def replaced(part: Tensor, given: Tensor) -> Tensor:
                return torch.where(finite[..., None], part, given.to(part))

            prediction = prediction.map(replaced, self.given)
        self._means.add_weights(log_weights)
        self._add(prediction, log_weights)

    def prediction(self) -> Prediction:
        """Return the setting's prediction for the rows."""
        return self.given if self._setting == "given" else self.average()

    def all_agree(self) -> np.ndarray:
        """Return for which rows no model predicts anything else."""
        return self.uncertainty().epistemic == 0

    def standard_error(self) -> np.ndarray:
        """Return the standard error of the epistemic uncertainty, NaN where it is not known."""
        if self._setting == "given":
            return _to_numpy(self._means.standard_error("divergence"))
        if not self._has_features:
            return np.full(len(self.given), np.nan)
        return _to_numpy(self._means.standard_error("features", self._spread_coefficients()))

    def n_diverged(self) -> np.ndarray:
        """Return how many models were left out because their numbers were not finite."""
        return self._n_diverged.cpu().numpy()

    def effective_sample_size(self) -> np.ndarray:
        """Return how many equally weighted samples the weighted ones are worth."""
        return _to_numpy(self._means.effective_sample_size())


class CategoricalPosterior(Posterior):
    """Weighted samples of models that classify some rows."""

    def __init__(
        self,
        given: Categorical,
        setting: str,
        measure: str = "entropy",
        predictive: bool = False,
        standard_error: bool = True,
    ) -> None:
        self._loss = LOSSES[measure]
        n_features = 1 + given.n_outputs
        super().__init__(_normalised(given), setting, n_features, predictive, standard_error)

    def _add(self, prediction: Categorical, log_weights: Tensor) -> None:  # noqa: ARG002
        prediction = _normalised(prediction)
        proba, is_given = prediction.expected(), self._setting == "given"
        if is_given:
            divergence = self._loss.excess(self.given, prediction, proba)
            self._means.add("divergence", divergence, error=self._has_error)
            if self._loss is not _IN_NATS:
                in_nats = _IN_NATS.excess(self.given, prediction, proba)
                self._means.add("divergence in nats", in_nats)
        if not is_given or self._predictive:
            self._means.add("proba", proba)
        if not is_given:
            own = self._loss.own(prediction)
            self._means.add("own", own)
            if self._setting == "pairwise":
                self._means.add("loss of classes", self._loss.of_classes(proba))
            if self._loss is not _IN_NATS:
                self._means.add("entropy", prediction.entropy())
            if self._has_features:
                self._means.add("features", torch.cat([own[..., None], proba], -1), error=True)

    def _spread_coefficients(self) -> Tensor:
        # The loss of the average if p is right, less the loss that p expects of itself.
        loss = self._loss.of_classes(self._means.mean("proba").nan_to_num(1.0))
        return torch.cat([-torch.ones_like(loss[:, :1]), loss], dim=-1)

    def average(self) -> Categorical:
        """Return the average prediction of all models."""
        return Categorical(self._means.mean("proba").log())

    def predictive(self) -> np.ndarray:
        """Return the average probabilities."""
        return self.average().to_array()

    def variance(self) -> np.ndarray:
        """Return an array without columns: classes have no variance."""
        return np.empty((len(self.given), 0))

    def all_agree(self) -> np.ndarray:
        """Return for which rows no model predicts anything else."""
        if self._loss is _IN_NATS:
            return super().all_agree()
        # Models may decide for the same class, and yet differ.
        if self._setting == "given":
            return _to_numpy(self._means.mean("divergence in nats")) == 0
        return _to_numpy(self._between(_IN_NATS, self._means.mean("entropy"))) == 0

    def uncertainty(self) -> Uncertainty:
        """Return the measures."""
        if self._setting == "given":
            return _additive(self._loss.own(self.given), self._means.mean("divergence"))
        aleatoric = self._means.mean("own")
        if self._setting == "pairwise":
            # The loss that each model expects of the others: losses are linear in the truth.
            crossed = self._means.mean("proba") * self._means.mean("loss of classes")
            return _additive(aleatoric, _without_noise(crossed.sum(dim=-1) - aleatoric, aleatoric))
        return _additive(aleatoric, self._between(self._loss, aleatoric))

    def _between(self, loss: Loss, own: Tensor) -> Tensor:
        """Return what the average loses more than the models expect to lose themselves."""
        return _without_noise(loss.own(self.average()) - own, own)


class GaussianPosterior(Posterior):
    """Weighted samples of models that predict real values for some rows.

    Several outputs are treated as independent: entropies and variances are summed over them.
    """

    def __init__(
        self,
        given: Gaussian,
        setting: str,
        measure: str = "entropy",
        predictive: bool = False,
        standard_error: bool = True,
    ) -> None:
        wide = given.to(accumulation_dtype(given.device))
        super().__init__(wide, setting, 4 * given.n_outputs, predictive, standard_error)
        self._of_variance = measure == "variance"
        self._keeps_components = predictive or (setting == "expected" and not self._of_variance)
        self._components: tuple[Tensor, Tensor, Tensor] | None = None

    def _add(self, prediction: Gaussian, log_weights: Tensor) -> None:
        prediction = prediction.to(self.given.mean.dtype)
        # Means are kept as distances from the given one: their variance does not cancel.
        shift, variance, add = (
            prediction.mean - self.given.mean,
            prediction.variance,
            self._means.add,
        )
        add("squared_shift", shift**2)
        if self._setting == "given":
            divergence = (shift**2).sum(dim=-1) if self._of_variance else self.given.kl(prediction)
            add("divergence", divergence, error=self._has_error)
        else:
            add("shift", shift)
            add("variance", variance)
            if not self._of_variance:
                add("entropy", prediction.entropy())
        if self._setting == "pairwise" and not self._of_variance:
            add("precision", 1 / variance)
            add("precise_shift", shift / variance)
            add("precise_squared_shift", shift**2 / variance)
        if self._has_features:
            add("features", torch.cat([variance.log(), variance, shift, shift**2], -1), error=True)
        if self._keeps_components:
            self._keep_components(prediction, log_weights)

    def _divergence_of_pairs(self) -> Tensor:
        """Return the expected KL divergence from one model to another, a column for each output."""
        mean = self._means.mean
        distance = mean("squared_shift") * mean("precision") + mean("precise_squared_shift")
        distance = distance - 2 * mean("shift") * mean("precise_shift")
        return 0.5 * (mean("variance") * mean("precision") - 1 + distance)

    def _spread_coefficients(self) -> Tensor:
        shift = self._means.mean("shift")
        zero, one = torch.zeros_like(shift), torch.ones_like(shift)
        if self._of_variance:
            return torch.cat([zero, zero, -2 * shift, one], dim=-1)
        precision = 0.5 / self.average().variance
        return torch.cat([-0.5 * one, precision, -2 * precision * shift, precision], dim=-1)

    def _keep_components(self, prediction: Gaussian, log_weights: Tensor) -> None:
        """Remember the mixture of predictions, a column for each row and output."""
        n_outputs = prediction.mean.shape[-1]
        left_out = (log_weights == -torch.inf)[..., None]
        new = (
            torch.where(left_out, self.given.mean, prediction.mean).flatten(1),
            torch.where(left_out, self.given.variance, prediction.variance).flatten(1),
            log_weights.to(prediction.mean.dtype).repeat_interleave(n_outputs, dim=1),
        )
        if self._components is not None:
            mean, variance, weights = zip(self._components, new, strict=True)
            new = (torch.cat(mean), torch.cat(variance), torch.cat(weights))
        self._components = merge_components(*new)

    def average(self) -> Gaussian:
        """Return mean and variance of the mixture of all models."""
        shift = self._means.mean("shift")
        between = (self._means.mean("squared_shift") - shift**2).clamp(min=0)
        return Gaussian(self.given.mean + shift, self._means.mean("variance") + between)

    def variance(self) -> np.ndarray:
        """Return the total variance of each output, (n_rows, n_outputs)."""
        if self._setting == "given":
            return _to_numpy(self.given.variance + self._means.mean("squared_shift"))
        return _to_numpy(self.average().variance)

    def predictive(self) -> np.ndarray:
        """Return the components of the mixtures."""
        assert self._components is not None
        mean, variance, log_weights = self._components
        parts = (torch.softmax(log_weights, dim=0), mean, variance.sqrt())
        mixture = torch.stack(parts, dim=-1).movedim(0, 1)
        return _to_numpy(mixture.unflatten(0, self.given.mean.shape))

    def uncertainty(self) -> Uncertainty:
        """Return the measures."""
        if self._setting == "given":
            own = self.given.variance.sum(dim=-1) if self._of_variance else self.given.entropy()
            return _additive(own, self._means.mean("divergence"))
        if self._of_variance:
            aleatoric = self._means.mean("variance")
            between = self.average().variance - aleatoric
            if self._setting == "pairwise":  # two models are twice as far apart as from their mean
                between = 2 * between
            return _additive(aleatoric.sum(dim=-1), between.sum(dim=-1))
        aleatoric = self._means.mean("entropy")
        if self._setting == "pairwise":
            return _additive(aleatoric, self._divergence_of_pairs().sum(dim=-1))
        return _additive(aleatoric, self._mixture_entropy() - aleatoric)

    def _mixture_entropy(self) -> Tensor:
        assert self._components is not None
        if len(self._components[0]) == 1:
            return self._means.mean("entropy")
        entropies = gaussian_mixture_entropy(*self._components)
        return entropies.reshape(self.given.mean.shape).sum(dim=-1)


def make_posterior(given: Prediction, *question: str, **options: bool) -> Posterior:
    """Return an empty accumulator of the kind of a prediction, for a setting and a measure."""
    kind: Any = GaussianPosterior if isinstance(given, Gaussian) else CategoricalPosterior
    return kind(given, *question, **options)


def _normalised(prediction: Categorical) -> Categorical:
    """Return probabilities in the accumulation type that sum to one there, too."""
    wide = prediction.to(accumulation_dtype(prediction.device))
    return wide.map(lambda part: torch.log_softmax(part, dim=-1))


def _to_numpy(values: Tensor) -> np.ndarray:
    return values.cpu().to(torch.float64).numpy()


def _without_noise(more: Tensor, own: Tensor) -> Tensor:
    """Return a difference of losses, or zero: where models agree, rounding would rank rows."""
    noise = _ROUNDING * torch.finfo(more.dtype).eps * (1 + own)
    return torch.where(more < noise, 0.0, more)


def _additive(aleatoric: Tensor, epistemic: Tensor) -> Uncertainty:
    """Return the parts and their sum; rounding must not make the epistemic part negative."""
    aleatoric_, epistemic_ = _to_numpy(aleatoric), _to_numpy(epistemic.clamp(min=0))
    return Uncertainty(aleatoric_, epistemic_, aleatoric_ + epistemic_)
