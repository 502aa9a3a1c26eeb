"""Self-normalised weighted means, accumulated in a streaming way.

A method hands over batches of sampled models with log weights, batch after batch; memory holds
running sums only, so it does not grow with the number of samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._network.limits import accumulation_dtype


class WeightedMean:
    """Weighted means of several statistics, one set of weights for each row.

    Weights are given as logarithms of any scale: a running maximum keeps the sums finite, and
    the normalisation happens when a mean is read.
    """

    def __init__(self, n_rows: int, device: torch.device) -> None:
        dtype = accumulation_dtype(device)
        self._max = torch.full((n_rows,), -torch.inf, dtype=dtype, device=device)
        self._weight = torch.zeros(n_rows, dtype=dtype, device=device)
        self._squared_weight = torch.zeros_like(self._weight)
        self._batch = self._decay = self._weight
        self._sums: dict[str, Tensor] = {}
        # For the standard error of a scalar statistic f: the sums of w^2 f and of w^2 f^2.
        self._error_sums: dict[str, tuple[Tensor, Tensor]] = {}

    def add_weights(self, log_weights: Tensor) -> None:
        """Begin a batch of samples; `add` then takes their statistics."""
        log_weights = log_weights.to(self._max.dtype)
        new_max = torch.maximum(self._max, log_weights.amax(dim=0))
        # Rows without any weight so far keep the reference point at zero: -inf - -inf is NaN.
        shift = torch.where(new_max == -torch.inf, 0.0, new_max)
        self._batch = (log_weights - shift).exp()
        self._decay = (self._max - shift).exp()
        self._max = new_max
        self._weight = self._decay * self._weight + self._batch.sum(dim=0)
        self._squared_weight = self._decay**2 * self._squared_weight + (self._batch**2).sum(dim=0)

    def add(self, name: str, value: Tensor, *, error: bool = False) -> None:
        """Add a statistic of the current batch."""
        value = value.to(self._max.dtype)
        self._sums[name] = _add(self._sums.get(name), self._decay, self._batch, value)
        if error:
            decay, weights = self._decay**2, self._batch**2
            first, second = self._error_sums.get(name, (None, None))
            self._error_sums[name] = (
                _add(first, decay, weights, value),
                _add(second, decay, weights, value**2)
                if value.ndim == 2
                else _add_products(second, decay, weights, value),
            )

    def mean(self, name: str) -> Tensor:
        """Return the weighted mean of a statistic, NaN for rows without any weight."""
        total = self._sums[name]
        return total / self._weight.reshape(-1, *[1] * (total.ndim - 1))

    def standard_error(self, name: str, coefficients: Tensor | None = None) -> Tensor:
        """Return the standard error of a weighted mean, from the spread of the samples."""
        mean = self.mean(name)
        first, second = self._error_sums[name]
        if coefficients is not None:
            mean, first = (mean * coefficients).sum(-1), (first * coefficients).sum(-1)
            second = torch.einsum("ri,rij,rj->r", coefficients, second, coefficients)
        spread = second - 2 * mean * first + mean**2 * self._squared_weight
        return spread.clamp(min=0).sqrt() / self._weight

    def effective_sample_size(self) -> Tensor:
        """Return how many equally weighted samples would be worth as much (Kish)."""
        return self._weight**2 / self._squared_weight


def _add(total: Tensor | None, decay: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """Return the running sum with a batch added; samples of weight zero count for nothing."""
    extra = [1] * (value.ndim - weights.ndim)
    weights = weights.reshape(*weights.shape, *extra)
    added = torch.where(weights > 0, weights * value, 0.0).sum(dim=0)
    if total is None:
        return added
    decay = decay.reshape(-1, *extra)
    return torch.where(decay > 0, decay * total, 0.0) + added


def _add_products(total: Tensor | None, decay: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """Return the running sum (n_rows, n_features, n_features) of products of features."""
    value = torch.where(weights[..., None] > 0, value, 0.0)
    added = torch.einsum("mr,mri,mrj->rij", weights, value, value)
    if total is None:
        return added
    decay = decay[:, None, None]
    return torch.where(decay > 0, decay * total, 0.0) + added


def split_r_hat(draws: Tensor) -> Tensor:
    """Return how much Markov chains disagree: close to 1 once they have converged.

    Each chain is cut into halves, so that a chain that still drifts disagrees with itself.
    """
    half = draws.shape[1] // 2
    halves = torch.cat([draws[:, :half], draws[:, -half:]])
    within = halves.var(dim=1).mean(dim=0)
    between = halves.mean(dim=1).var(dim=0)
    pooled = (half - 1) / half * within + between
    ratio = (pooled / within).sqrt()
    return torch.where(_varies(draws), ratio, 1.0)


def chain_effective_sample_size(draws: Tensor) -> Tensor:
    """Return how many independent draws the draws of Markov chains are worth.

    Autocorrelations of all chains are added up as long as the sums of neighbours are positive and
    falling (Geyer's initial monotone sequence).
    """
    n_chains, n_draws = draws.shape[:2]
    centred = draws - draws.mean(dim=1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * n_draws, dim=1)
    covariance = torch.fft.irfft(spectrum.abs() ** 2, n=2 * n_draws, dim=1)[:, :n_draws]
    covariance = covariance.mean(dim=0) / n_draws
    within = covariance[0] * n_draws / (n_draws - 1)
    pooled = covariance[0]
    if n_chains > 1:
        pooled = pooled + draws.mean(dim=1).var(dim=0)
    correlation = 1 - (within - covariance * n_draws / (n_draws - 1)) / pooled
    correlation[0] = 1.0
    pairs = correlation[: n_draws // 2 * 2].unflatten(0, (-1, 2)).sum(dim=1)
    positive = (pairs > 0).cumprod(dim=0)
    falling = pairs.cummin(dim=0).values
    time = 2 * (positive * falling).sum(dim=0) - 1
    total = n_chains * n_draws
    size = (total / time.clamp(min=1.0)).clamp(min=1.0)
    return torch.where(_varies(draws), size, float(total))


def _varies(draws: Tensor) -> Tensor:
    spread = draws.amax(dim=(0, 1)) - draws.amin(dim=(0, 1))
    return spread > 1e-6 * draws.abs().amax(dim=(0, 1)).clamp(min=1e-30)
