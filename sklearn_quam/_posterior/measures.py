"""Losses of probabilities, and entropies and quantiles of mixtures of Gaussians.

The loss that a model expects of its own prediction is its aleatoric uncertainty; the excess of
another prediction is epistemic.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import log_ndtr, ndtri_exp
from torch import Tensor

from .._network.predictions import Categorical

MAX_MIXTURE_COMPONENTS = 64
# Edges of the quadrature panels around every mixture component, in its standard deviations.
_PANEL_EDGES = (-8.0, -3.0, -1.0, 1.0, 3.0, 8.0)
_PANEL_NODES = 8
# Widest panels of a component, in its standard deviations: next to it, and further out.
_INNER_WIDTH, _OUTER_WIDTH = 2.0, 5.0
_ROUNDING_OF_WIDTHS = 1e-9
# Halvings of an interval around a quantile, and its relative precision.
_MAX_HALVINGS = 200
_PRECISION = 1e-13
# Values of the distribution function that are held at once.
_MAX_VALUES = 2**20


class LogLoss:
    """Minus the logarithm of the probability: entropies and KL divergences, in nats."""

    def own(self, p: Categorical) -> Tensor:
        """Return entropies."""
        return p.entropy()

    def excess(self, p: Categorical, q: Categorical, q_proba: Tensor) -> Tensor:
        """Return KL(p || q), as a sum of terms that are never negative: small ones are not lost."""
        own = p.expected()
        terms = own * (p.log_proba - q.log_proba) - own + q_proba
        return torch.where(own == 0, q_proba, terms).clamp(min=0).sum(dim=-1)

    def of_classes(self, proba: Tensor) -> Tensor:
        """Return minus logarithms."""
        return -proba.clamp(min=torch.finfo(proba.dtype).tiny).log()


class BrierLoss:
    """The squared distance between probabilities and what came true, from 0 to 2."""

    def own(self, p: Categorical) -> Tensor:
        """Return one minus the sum of squares, term by term so that nothing cancels."""
        proba = p.expected()
        return (proba * (1 - proba)).sum(dim=-1)

    def excess(self, p: Categorical, q: Categorical, q_proba: Tensor) -> Tensor:  # noqa: ARG002
        """Return the squared distance of p and q."""
        return (p.expected() - q_proba).square().sum(dim=-1)

    def of_classes(self, proba: Tensor) -> Tensor:
        """Return squared distances from certainties."""
        return 1 - 2 * proba + proba.square().sum(dim=-1, keepdim=True)


class ZeroOneLoss:
    """Whether the most probable class is not what came true."""

    def own(self, p: Categorical) -> Tensor:
        """Return the probability of a mistake."""
        return 1 - p.expected().amax(dim=-1)

    def excess(self, p: Categorical, q: Categorical, q_proba: Tensor) -> Tensor:  # noqa: ARG002
        """Return how much more often the class that q decides for is a mistake."""
        proba = p.expected().expand_as(q_proba)
        decided = q_proba.argmax(dim=-1, keepdim=True)
        return proba.amax(dim=-1) - proba.gather(-1, decided)[..., 0]

    def of_classes(self, proba: Tensor) -> Tensor:
        """Return zero for the most probable class, and one for the others."""
        return torch.ones_like(proba).scatter(-1, proba.argmax(dim=-1, keepdim=True), 0.0)


# `own` is what a prediction expects to lose itself, `excess` what q loses more than p if p is
# right, `of_classes` what probabilities lose if each of the classes comes true.
Loss = LogLoss | BrierLoss | ZeroOneLoss
# Measures of classifiers.
LOSSES: dict[str, Loss] = {"entropy": LogLoss(), "brier": BrierLoss(), "zero_one": ZeroOneLoss()}


def gaussian_mixture_entropy(
    mean: Tensor, variance: Tensor, log_weights: Tensor, *, max_elements: int = 2**22
) -> Tensor:
    """Return the entropy of one-dimensional Gaussian mixtures by quadrature.

    Every component adds panel edges at its own scale. Panels are joined as far as each component
    allows, so that close components share them; each panel has Gauss-Legendre nodes.
    """
    n_components, n_mixtures = mean.shape
    log_w = torch.log_softmax(log_weights.T, dim=-1)
    # Where all mixtures leave the same components out, these take no time.
    counts = (log_w > -torch.inf).any(dim=0)
    mu, scale, log_w = mean.T[:, counts], variance.T.sqrt()[:, counts], log_w[:, counts]
    rows = max(1, max_elements // (n_components**2 * len(_PANEL_EDGES)))
    entropies = torch.empty_like(mu[:, 0])
    for start in range(0, n_mixtures, rows):
        part = slice(start, start + rows)
        edges = _panel_edges(mu[part], scale[part])
        # Mixtures that need about as many panels go together.
        n_panels = (edges.diff(dim=-1) > 0).sum(dim=-1)
        order = n_panels.argsort()
        size = max(1, max_elements // (int(n_panels.max()) * _PANEL_NODES * n_components))
        for some in order.split(size):
            panels = edges[some, : int(n_panels[some[-1]]) + 1]
            columns = (values[part][some] for values in (mu, scale, log_w))
            entropies[start + some] = _integrated_entropy(panels, *columns)
    return entropies


def _panel_edges(mu: Tensor, scale: Tensor) -> Tensor:
    """Return edges of panels, (n_mixtures, n_edges), as few as will do; the last one is repeated.

    A panel is no wider than what each component that reaches into it allows.
    """
    offsets = torch.tensor(_PANEL_EDGES).to(mu)
    edges = (mu[..., None] + scale[..., None] * offsets).flatten(1).sort(dim=-1).values
    middle = (edges[:, 1:] + edges[:, :-1]) / 2
    allowed = torch.full_like(middle, torch.inf)
    for number in range(mu.shape[1]):
        own = scale[:, number, None]
        distance = (middle - mu[:, number, None]).abs() / own
        inner = torch.where(distance < -_PANEL_EDGES[1], _INNER_WIDTH, _OUTER_WIDTH) * own
        allowed = torch.where(distance < -_PANEL_EDGES[0], allowed.minimum(inner), allowed)
    start, narrowest = edges[:, 0].clone(), allowed[:, 0].clone()
    kept = torch.zeros_like(edges, dtype=torch.bool)
    kept[:, 0] = kept[:, -1] = True
    for number in range(1, middle.shape[1]):
        joint = narrowest.minimum(allowed[:, number])
        # Rounding must not split what is just as wide as it may be.
        ends = edges[:, number + 1] - start > joint * (1 + _ROUNDING_OF_WIDTHS)
        kept[:, number] = ends
        start = torch.where(ends, edges[:, number], start)
        narrowest = torch.where(ends, allowed[:, number], joint)
    return torch.where(kept, edges, edges[:, -1:]).sort(dim=-1).values


def _integrated_entropy(edges: Tensor, mu: Tensor, scale: Tensor, log_w: Tensor) -> Tensor:
    """Return minus the integral of the density times its logarithm over panels."""
    nodes, node_weights = np.polynomial.legendre.leggauss(_PANEL_NODES)
    unit = torch.as_tensor((nodes + 1) / 2).to(mu)
    unit_weights = torch.as_tensor(node_weights / 2).to(mu)
    width = edges.diff(dim=-1)[..., None]
    x = (edges[:, :-1, None] + width * unit).flatten(1)
    z = (x[:, :, None] - mu[:, None, :]) / scale[:, None, :]
    constant = log_w - scale.log() - 0.5 * math.log(2 * math.pi)
    log_density = torch.logsumexp(constant[:, None, :] - 0.5 * z**2, dim=-1)
    weights = (width * unit_weights).flatten(1)
    return -(weights * log_density.exp() * log_density).sum(dim=-1)


def merge_components(
    mean: Tensor, variance: Tensor, log_weights: Tensor, limit: int = MAX_MIXTURE_COMPONENTS
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge mixture components (n_components, n_mixtures) until there are at most ``limit``.

    Neighbours of similar scale and mean become one component of the same weight, mean and variance,
    beginning with the pairs that change the density the least.
    """
    while len(mean) > limit:
        mean, variance, log_weights = _merge_some(mean, variance, log_weights, limit)
    return mean, variance, log_weights


def _merge_some(
    mean: Tensor, variance: Tensor, log_weights: Tensor, limit: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the cheapest pairs of neighbours, at most half of all pairs."""
    parts = [mean, variance, log_weights]
    for key in (0, 1):  # by mean within a power of two of the variance
        values = parts[1].log2().floor() if key else parts[0]
        order = values.argsort(dim=0, stable=True)
        parts = [part.gather(0, order) for part in parts]
    n_pairs = len(mean) // 2
    first, second = slice(0, 2 * n_pairs, 2), slice(1, 2 * n_pairs, 2)
    mean, variance, log_weights = (part[: 2 * n_pairs].unflatten(0, (-1, 2)) for part in parts)
    pair_weights = torch.logsumexp(log_weights, dim=1)
    empty = (pair_weights == -torch.inf)[:, None]
    share = torch.where(empty, 0.5, (log_weights - pair_weights[:, None]).exp())
    centre = (share * mean).sum(dim=1)
    spread = (share * (variance + (mean - centre[:, None]) ** 2)).sum(dim=1)
    weight = (pair_weights - pair_weights.amax(dim=0).nan_to_num(neginf=0.0)).exp()
    cost = weight * (spread.log() - (share * variance.log()).sum(dim=1))
    n_merged = min(len(parts[0]) - limit, max(1, n_pairs // 2))
    merged = torch.zeros_like(cost, dtype=torch.bool)
    merged.scatter_(0, cost.argsort(dim=0)[:n_merged], True)
    for part, new in zip(parts, (centre, spread, pair_weights), strict=True):
        part[first] = torch.where(merged, new, part[first])
    dropped = torch.zeros_like(parts[0], dtype=torch.uint8)
    dropped[second] = merged.to(torch.uint8)
    kept = dropped.argsort(dim=0, stable=True)[: len(dropped) - n_merged]
    mean, variance, log_weights = (part.gather(0, kept) for part in parts)
    return mean, variance, log_weights


def mixture_quantiles(mixture: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Return quantiles of one-dimensional Gaussian mixtures, by bisection."""
    weight, mean, scale = np.moveaxis(mixture, -1, 0)
    # The upper tail is the lower one of the mirror image, where small shares have their digits.
    side = np.where(score > 0, -1.0, 1.0)
    rows = max(1, _MAX_VALUES // max(1, weight[0].size))
    parts = [
        _lower_quantiles(
            weight[part], side[:, None] * mean[part], scale[part], -np.abs(np.asarray(score, float))
        )
        for part in (slice(start, start + rows) for start in range(0, len(weight), rows))
    ]
    return side * np.concatenate(parts)


def _lower_quantiles(
    weight: np.ndarray, mean: np.ndarray, scale: np.ndarray, score: np.ndarray
) -> np.ndarray:
    # A quantile of a mixture lies between those of its components.
    with np.errstate(over="ignore"):
        ends = mean + score[:, None] * scale
    low = np.where(weight > 0, ends, np.inf).min(axis=-1)
    high = np.where(weight > 0, ends, -np.inf).max(axis=-1)
    endless = np.isinf(low)
    low, high = np.where(endless, 0.0, low), np.where(endless, 0.0, high)
    finest = np.where(weight > 0, scale, np.inf).min(axis=-1)
    share = log_ndtr(score)
    for _ in range(_MAX_HALVINGS):
        size = np.maximum(np.maximum(np.abs(low), np.abs(high)), finest)
        if not (high - low > _PRECISION * size).any():
            break
        middle = low + (high - low) / 2
        below = _log_share_below(weight, mean, scale, middle) < share
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(endless, -np.inf, low + (high - low) / 2)


def mixture_scores(mixture: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return where values lie in Gaussian mixtures, as quantiles of a standard normal.

    Of a single Gaussian it is the distance from the mean in standard deviations. It is the inverse
    of `mixture_quantiles`.
    """
    weight, mean, scale = np.moveaxis(mixture, -1, 0)
    below = _log_share_below(weight, mean, scale, value)
    above = _log_share_below(weight, -mean, scale, -value)
    # Of the two shares, the smaller one has its digits.
    score = ndtri_exp(np.minimum(np.minimum(below, above), 0.0))
    return np.where(below < above, score, -score)


def _log_share_below(
    weight: np.ndarray, mean: np.ndarray, scale: np.ndarray, value: np.ndarray
) -> np.ndarray:
    """Return the logarithm of the share of each mixture that lies below a value."""
    with np.errstate(over="ignore", divide="ignore"):
        logs = log_ndtr((value[..., None] - mean) / scale)
        largest = np.where(weight > 0, logs, -np.inf).max(axis=-1)
        # Infinitely far from all components nothing is left to be scaled.
        shift = np.where(np.isfinite(largest), largest, 0.0)
        return shift + np.log((weight * np.exp(np.minimum(logs - shift[..., None], 0))).sum(-1))
