"""What weighted samples of models say about some rows, as running sums.

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

import math
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
# What a difference of two entropies may be off by, in units of the last place.
_ROUNDING = 8
_IN_NATS = LOSSES["entropy"]


class Posterior:
    """Weighted samples of models for some rows, as running sums.

    The distance of a sample from the average prediction, whose mean is the epistemic uncertainty
    of the expected setting, is linear in some features of the sample. Their second moments give
    its standard error, whatever order the samples come in; they are left out where there are many.

    Only what is asked for is summed up; see `make_posterior`.
    """

    _original: Any

    def __init__(
        self,
        original: Any,
        n_features: int,
        setting: str | None,
        predictive: bool,
        standard_error: bool,
    ) -> None:
        n_rows, device = len(original), original.device
        self._means = WeightedMean(n_rows, device)
        self._given, self._expected = setting in ("given", None), setting != "given"
        self._pairwise = setting in ("pairwise", None)
        self._between_average = setting in ("expected", None)
        self._predictive = predictive
        self._error = standard_error
        self._has_features = (
            standard_error and self._between_average and n_features <= _MAX_FEATURES
        )
        self._n_diverged = torch.zeros(n_rows, dtype=torch.long, device=device)

    def update(self, prediction: Any, log_weights: Tensor | None = None) -> None:
        """Add sampled models.

        Parameters
        ----------
        prediction : Prediction
            What the sampled models predict, (n_models, n_rows).
        log_weights : Tensor of shape (n_models, n_rows), default=None
            Logarithms of their unnormalised weights; None weighs them all alike.
        """
        raise NotImplementedError

    def prediction(self, setting: str) -> Prediction:
        """Return the setting's prediction for the rows."""
        raise NotImplementedError

    def uncertainty(self, setting: str) -> Uncertainty:
        """Return the measures of a setting."""
        raise NotImplementedError

    def all_agree(self, setting: str) -> np.ndarray:
        """Tell for which rows no model says anything else."""
        return self.uncertainty(setting).epistemic == 0

    def variance(self, setting: str) -> np.ndarray:
        """Return the total variance of each output, (n_rows, n_outputs)."""
        raise NotImplementedError

    def predictive(self) -> np.ndarray:
        """Return what all models predict together, as `RowResults` has it."""
        raise NotImplementedError

    def standard_error(self, setting: str) -> np.ndarray:
        """Return the standard error of the epistemic uncertainty."""
        if setting == "given":
            return _to_numpy(self._means.standard_error("divergence"))
        if setting == "pairwise" or not self._has_features:
            return np.full(len(self.effective_sample_size()), np.nan)
        return _to_numpy(self._means.standard_error("features", self._spread_coefficients()))

    def _spread_coefficients(self) -> Tensor:
        """Return how the distance from the average prediction depends on the features."""
        raise NotImplementedError

    def _left_out(self, prediction: Any, log_weights: Tensor | None) -> tuple[Any, Tensor]:
        """Return models without those whose numbers are not finite, which count for nothing."""
        if log_weights is None:
            first = prediction.parts[0]
            log_weights = first.new_zeros(first.shape[:2])
        fine = prediction.is_defined()
        if bool(fine.all()):
            return prediction, log_weights
        self._n_diverged += (~fine & (log_weights > -torch.inf)).sum(dim=0)

        def replaced(part: Tensor, original: Tensor) -> Tensor:
            return torch.where(fine[..., None], part, original.to(part))

        return prediction.map(replaced, self._original), log_weights.masked_fill(~fine, -torch.inf)

    def n_diverged(self) -> np.ndarray:
        """Return how many models were left out because their numbers were not finite."""
        return self._n_diverged.cpu().numpy()

    def effective_sample_size(self) -> np.ndarray:
        """Return how many equally weighted samples the weighted ones are worth."""
        return _to_numpy(self._means.effective_sample_size())


class CategoricalPosterior(Posterior):
    """What weighted samples of models say about the classes of some rows.

    Parameters
    ----------
    original : Categorical
        What the given model predicts for the rows.
    measure : {"entropy", "brier", "zero_one"}, default="entropy"
        The loss that uncertainties are expectations of.
    setting, predictive, standard_error
        What is asked for; see `make_posterior`.
    """

    def __init__(
        self,
        original: Categorical,
        measure: str = "entropy",
        setting: str | None = None,
        predictive: bool = False,
        standard_error: bool = True,
    ) -> None:
        self._original = _normalised(original)
        self._loss = LOSSES[measure]
        self._averages: list[Tensor] = []
        super().__init__(original, 1 + original.n_outputs, setting, predictive, standard_error)

    def add_average(self, average: Categorical) -> None:
        """Take the average prediction in closed form instead of from the samples.

        Parameters
        ----------
        average : Categorical
            Average prediction for the rows; several averages are averaged.
        """
        self._averages.append(_normalised(average).log_proba)

    def update(self, prediction: Categorical, log_weights: Tensor | None = None) -> None:
        """Add sampled models; see `Posterior.update`."""
        prediction, log_weights = self._left_out(prediction, log_weights)
        prediction = _normalised(prediction)
        self._means.add_weights(log_weights)
        proba = prediction.expected()
        if self._given:
            divergence = self._loss.excess(self._original, prediction, proba)
            self._means.add("divergence", divergence, error=self._error)
            if self._loss is not _IN_NATS:
                in_nats = _IN_NATS.excess(self._original, prediction, proba)
                self._means.add("divergence in nats", in_nats)
        if self._expected or self._predictive:
            self._means.add("proba", proba)
        if self._expected:
            own = self._loss.own(prediction)
            self._means.add("own", own)
            if self._pairwise:
                self._means.add("loss of classes", self._loss.of_classes(proba))
            if self._loss is not _IN_NATS:
                self._means.add("entropy", prediction.entropy())
            if self._has_features:
                self._means.add("features", torch.cat([own[..., None], proba], -1), error=True)

    def _spread_coefficients(self) -> Tensor:
        # What the mean loses if p is right, less what p expects to lose itself.
        loss = self._loss.of_classes(self._means.mean("proba").nan_to_num(1.0))
        return torch.cat([-torch.ones_like(loss[:, :1]), loss], dim=-1)

    def prediction(self, setting: str) -> Categorical:
        """Return the setting's prediction for the rows."""
        if setting == "given":
            return self._original
        if self._averages:
            averages = torch.stack(self._averages)
            return Categorical(torch.logsumexp(averages, dim=0) - math.log(len(averages)))
        return Categorical(self._means.mean("proba").log())

    def predictive(self) -> np.ndarray:
        """Return what all models predict together, as `RowResults` has it."""
        return self.prediction("expected").to_array()

    def variance(self, setting: str) -> np.ndarray:  # noqa: ARG002
        """Return an array without columns: classes have no variance."""
        return np.empty((len(self._original), 0))

    def all_agree(self, setting: str) -> np.ndarray:
        """Tell for which rows no model says anything else."""
        if self._loss is _IN_NATS:
            return super().all_agree(setting)
        # Models may decide alike, and yet differ.
        if setting == "given":
            return _to_numpy(self._means.mean("divergence in nats")) == 0
        return _to_numpy(self._between(_IN_NATS, self._means.mean("entropy"))) == 0

    def uncertainty(self, setting: str) -> Uncertainty:
        """Return the measures of a setting."""
        if setting == "given":
            aleatoric = self._loss.own(self._original)
            return _additive(aleatoric, self._means.mean("divergence"))
        aleatoric = self._means.mean("own")
        if setting == "pairwise":
            # What each model expects of the others' predictions: losses are linear in the truth.
            crossed = self._means.mean("proba") * self._means.mean("loss of classes")
            return _additive(aleatoric, _without_noise(crossed.sum(dim=-1) - aleatoric, aleatoric))
        return _additive(aleatoric, self._between(self._loss, aleatoric))

    def _between(self, loss: Loss, own: Tensor) -> Tensor:
        """Return what the average loses more than the models expect to lose themselves."""
        return _without_noise(loss.own(self.prediction("expected")) - own, own)


class GaussianPosterior(Posterior):
    """What weighted samples of models say about the real-valued outputs of some rows.

    Several outputs are treated as independent: entropies and variances are summed over them.

    Parameters
    ----------
    original : Gaussian
        What the given model predicts for the rows.
    measure : {"entropy", "variance"}
        Measures in nats, or the split of the variance in squared units of the target.
    setting, predictive, standard_error
        What is asked for; see `make_posterior`.
    """

    def __init__(
        self,
        original: Gaussian,
        measure: str = "entropy",
        setting: str | None = None,
        predictive: bool = False,
        standard_error: bool = True,
    ) -> None:
        self._original = original.to(accumulation_dtype(original.device))
        self._measure = measure
        super().__init__(original, 4 * original.n_outputs, setting, predictive, standard_error)
        self._keeps_components = predictive or (self._between_average and measure == "entropy")
        self._components: tuple[Tensor, Tensor, Tensor] | None = None

    def update(self, prediction: Gaussian, log_weights: Tensor | None = None) -> None:
        """Add sampled models; see `Posterior.update`."""
        prediction, log_weights = self._left_out(prediction, log_weights)
        prediction = prediction.to(self._original.mean.dtype)
        # Means are kept as distances from the given one: their variance does not cancel.
        shift = prediction.mean - self._original.mean
        self._means.add_weights(log_weights)
        self._means.add("squared_shift", shift**2)
        if self._given:
            if self._measure == "variance":
                divergence = (shift**2).sum(dim=-1)
            else:
                divergence = self._original.kl(prediction)
            self._means.add("divergence", divergence, error=self._error)
        if self._expected:
            self._means.add("shift", shift)
            self._means.add("variance", prediction.variance)
            if self._measure == "entropy":
                self._means.add("entropy", prediction.entropy())
        if self._pairwise and self._measure == "entropy":
            self._add_precisions(shift, prediction.variance)
        if self._has_features:
            variance = prediction.variance
            features = torch.cat([variance.log(), variance, shift, shift**2], dim=-1)
            self._means.add("features", features, error=True)
        if self._keeps_components:
            self._keep_components(prediction, log_weights)

    def _add_precisions(self, shift: Tensor, variance: Tensor) -> None:
        """Add what the divergence from one model to another is made of."""
        self._means.add("precision", 1 / variance)
        self._means.add("precise_shift", shift / variance)
        self._means.add("precise_squared_shift", shift**2 / variance)

    def _divergence_of_pairs(self) -> Tensor:
        """Return the expected KL divergence from one model to another, a column for each output."""
        mean = self._means.mean
        distance = mean("squared_shift") * mean("precision") + mean("precise_squared_shift")
        distance = distance - 2 * mean("shift") * mean("precise_shift")
        return 0.5 * (mean("variance") * mean("precision") - 1 + distance)

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
            torch.where(left_out, self._original.mean, prediction.mean).flatten(1),
            torch.where(left_out, self._original.variance, prediction.variance).flatten(1),
            log_weights.to(prediction.mean.dtype).repeat_interleave(n_outputs, dim=1),
        )
        if self._components is not None:
            mean, variance, weights = zip(self._components, new, strict=True)
            new = (torch.cat(mean), torch.cat(variance), torch.cat(weights))
        self._components = merge_components(*new)

    def prediction(self, setting: str) -> Gaussian:
        """Return the setting's prediction for the rows."""
        if setting == "given":
            return self._original
        shift = self._means.mean("shift")
        between = (self._means.mean("squared_shift") - shift**2).clamp(min=0)
        return Gaussian(self._original.mean + shift, self._means.mean("variance") + between)

    def variance(self, setting: str) -> np.ndarray:
        """Return the total variance of each output, (n_rows, n_outputs)."""
        variance = self.prediction(setting).variance
        if setting == "given":
            variance = variance + self._means.mean("squared_shift")
        return _to_numpy(variance)

    def predictive(self) -> np.ndarray:
        """Return what all models predict together, as `RowResults` has it."""
        assert self._components is not None
        mean, variance, log_weights = self._components
        parts = (torch.softmax(log_weights, dim=0), mean, variance.sqrt())
        mixture = torch.stack(parts, dim=-1).movedim(0, 1)
        return _to_numpy(mixture.unflatten(0, self._original.mean.shape))

    def uncertainty(self, setting: str) -> Uncertainty:
        """Return the measures of a setting."""
        if setting == "given":
            if self._measure == "variance":
                aleatoric = self._original.variance.sum(dim=-1)
            else:
                aleatoric = self._original.entropy()
            return _additive(aleatoric, self._means.mean("divergence"))
        if self._measure == "variance":
            aleatoric = self._means.mean("variance")
            between = self.prediction("expected").variance - aleatoric
            if setting == "pairwise":  # two models are twice as far apart as from their mean
                between = 2 * between
            return _additive(aleatoric.sum(dim=-1), between.sum(dim=-1))
        aleatoric = self._means.mean("entropy")
        if setting == "pairwise":
            return _additive(aleatoric, self._divergence_of_pairs().sum(dim=-1))
        return _additive(aleatoric, self._mixture_entropy() - aleatoric)

    def _mixture_entropy(self) -> Tensor:
        assert self._components is not None
        if len(self._components[0]) == 1:
            return self._means.mean("entropy")
        entropies = gaussian_mixture_entropy(*self._components)
        return entropies.reshape(self._original.mean.shape).sum(dim=-1)


def make_posterior(
    original: Prediction,
    measure: str,
    *,
    setting: str | None = None,
    predictive: bool = False,
    standard_error: bool = True,
) -> Posterior:
    """Return an accumulator of the kind that suits a prediction.

    Parameters
    ----------
    original : Prediction
        What the given model predicts for some rows.
    measure : str
        What uncertainties are measured as: "entropy", "brier" or "zero_one" of classes, "entropy"
        or "variance" of values.
    setting : {"given", "expected", "pairwise"}, default=None
        Which setting is asked for; None is all of them.
    predictive : bool, default=False
        Whether the mixture of all predictions is wanted.
    standard_error : bool, default=True
        Whether the standard error of the epistemic uncertainty is wanted.

    Returns
    -------
    Posterior
        The accumulator, empty.
    """
    if isinstance(original, Gaussian):
        return GaussianPosterior(original, measure, setting, predictive, standard_error)
    assert isinstance(original, Categorical)
    return CategoricalPosterior(original, measure, setting, predictive, standard_error)


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
