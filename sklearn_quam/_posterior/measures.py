"""Entropies of mixtures of Gaussians, which have no closed form."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

MAX_MIXTURE_COMPONENTS = 64
# Edges of the quadrature panels around every mixture component, in its standard deviations.
_PANEL_EDGES = (-8.0, -3.0, -1.0, 1.0, 3.0, 8.0)
_PANEL_NODES = 8


def gaussian_mixture_entropy(
    mean: Tensor, variance: Tensor, log_weights: Tensor, *, max_elements: int = 2**24
) -> Tensor:
    """Return the entropy of one-dimensional Gaussian mixtures by quadrature.

    Every component contributes panel edges at its own scale, so that narrow and wide components
    are resolved alike; Gauss-Legendre nodes are laid between neighbouring edges.

    Parameters
    ----------
    mean, variance, log_weights : Tensor of shape (n_components, n_mixtures)
        The components of each mixture; weights need not be normalised.
    max_elements : int, default=2**24
        Bounds the memory: largest number of density values held at once.

    Returns
    -------
    Tensor of shape (n_mixtures,)
        Entropies in nats.
    """
    n_components, n_mixtures = mean.shape
    nodes, node_weights = np.polynomial.legendre.leggauss(_PANEL_NODES)
    unit = torch.as_tensor((nodes + 1) / 2).to(mean)
    unit_weights = torch.as_tensor(node_weights / 2).to(mean)
    edges_of_one = torch.tensor(_PANEL_EDGES).to(mean)
    n_nodes = n_components * len(_PANEL_EDGES) * _PANEL_NODES
    rows = max(1, max_elements // (n_nodes * n_components))
    entropies = []
    for start in range(0, n_mixtures, rows):
        part = slice(start, start + rows)
        mu, scale = mean[:, part].T, variance[:, part].T.sqrt()
        log_w = torch.log_softmax(log_weights[:, part].T, dim=-1)
        edges = (mu[..., None] + scale[..., None] * edges_of_one).flatten(1).sort(dim=-1).values
        width = edges.diff(dim=-1)
        x = (edges[:, :-1, None] + width[..., None] * unit).flatten(1)
        x_weights = (width[..., None] * unit_weights).flatten(1)
        z = (x[:, :, None] - mu[:, None, :]) / scale[:, None, :]
        log_parts = (log_w - scale.log() - 0.5 * math.log(2 * math.pi))[:, None, :] - 0.5 * z**2
        log_density = torch.logsumexp(log_parts, dim=-1)
        entropies.append(-(x_weights * log_density.exp() * log_density).sum(dim=-1))
    return torch.cat(entropies)


def merge_components(
    mean: Tensor, variance: Tensor, log_weights: Tensor, limit: int = MAX_MIXTURE_COMPONENTS
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge mixture components until there are at most ``limit``.

    Neighbours of similar scale and mean are replaced by one component of the same weight, mean
    and variance, those first that change the density the least.

    Parameters
    ----------
    mean, variance, log_weights : Tensor of shape (n_components, n_mixtures)
        The components.
    limit : int
        How many to keep at most.

    Returns
    -------
    tuple of Tensor
        Means, variances and log weights of the remaining components.
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
