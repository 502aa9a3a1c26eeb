"""Uncertainty measures of categorical and Gaussian predictions.

The *given* setting asks how far other plausible models disagree with the given one, the
*expected* setting how far they disagree with their own average. Both split a total into an
aleatoric and an epistemic part:

=============  ================  ==========================  =================
setting        aleatoric         epistemic                   total
=============  ================  ==========================  =================
``given``      H(p_w)            E[KL(p_w || p_w')]          E[CE(p_w, p_w')]
``expected``   E[H(p_w')]        E[KL(p_w' || p_mean)]       H(p_mean)
=============  ================  ==========================  =================
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ._likelihood import Gaussian

if TYPE_CHECKING:
    import pandas as pd

MAX_MIXTURE_COMPONENTS = 64
# Edges of the quadrature panels around every mixture component, in its standard deviations.
_PANEL_EDGES = (-8.0, -3.0, -1.0, 1.0, 3.0, 8.0)
_PANEL_NODES = 8


class Uncertainty(NamedTuple):
    """Aleatoric, epistemic and total uncertainty of each row.

    Parameters
    ----------
    aleatoric : ndarray of shape (n_samples,)
        Uncertainty of the outcome itself, which no better model removes. An entropy (in nats) of a
        regressor may be negative; a variance (in squared units of the target) is not.
    epistemic : ndarray of shape (n_samples,)
        Uncertainty about the model: how far plausible models disagree. Never negative.
    total : ndarray of shape (n_samples,)
        Sum of the two.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_quam import Uncertainty
    >>> u = Uncertainty(np.array([0.5]), np.array([0.25]), np.array([0.75]))
    >>> u.to_frame(index=["first"])
           aleatoric  epistemic  total
    first        0.5       0.25   0.75
    """

    aleatoric: np.ndarray
    epistemic: np.ndarray
    total: np.ndarray

    def to_frame(self, index: Any = None) -> pd.DataFrame:
        """Return the arrays as columns of a DataFrame.

        Parameters
        ----------
        index : array-like of shape (n_samples,), default=None
            Row labels, such as ``X.index``.

        Returns
        -------
        pandas.DataFrame
            One column for each array.
        """
        import pandas as pd

        return pd.DataFrame(self._asdict(), index=index)


class Diagnostics(NamedTuple):
    """How an uncertainty estimate came about, row by row.

    Parameters
    ----------
    standard_error : ndarray of shape (n_samples,)
        Standard error of the epistemic uncertainty, from the spread of the sampled models; NaN in
        the expected setting with more than 64 classes, or 16 outputs.
    effective_sample_size : ndarray of shape (n_samples,)
        How many equally weighted models the sampled ones are worth.
    rival : ndarray of shape (n_samples,), dtype object
        What the cheapest model that disagrees says instead, of those that searches end with: a
        class, or "up" or "down" if it is off by a standard deviation; None where there is none.
    loss_increase : ndarray of shape (n_samples,)
        What that model costs in mean loss on up to 1024 training rows; NaN where there is none.
    feasible : ndarray of shape (n_samples,), dtype bool
        Whether it costs no more than the allowed slack.
    n_steps : ndarray of shape (n_samples,), dtype int
        Search steps spent on the row, all targets together.
    n_diverged : ndarray of shape (n_samples,), dtype int
        Searches that ran into infinite or undefined numbers and were left out from then on.
    cached : ndarray of shape (n_samples,), dtype bool
        Whether the part of the network that is not searched was computed only once.
    r_hat : ndarray of shape (n_samples,)
        How much several Markov chains disagree about the prediction (split R-hat, the largest of
        all outputs): close to 1 once they have converged; NaN for methods without chains.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_quam import ReferenceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> est = ReferenceClassifier(random_state=0).fit(X, y)
    >>> u, diagnostics = est.predict_uncertainty(X[:2], return_diagnostics=True)
    >>> diagnostics.effective_sample_size
    array([1., 1.])
    """

    standard_error: np.ndarray
    effective_sample_size: np.ndarray
    rival: np.ndarray
    loss_increase: np.ndarray
    feasible: np.ndarray
    n_steps: np.ndarray
    n_diverged: np.ndarray
    cached: np.ndarray
    r_hat: np.ndarray

    def to_frame(self, index: Any = None) -> pd.DataFrame:
        """Return the arrays as columns of a DataFrame.

        Parameters
        ----------
        index : array-like of shape (n_samples,), default=None
            Row labels, such as ``X.index``.

        Returns
        -------
        pandas.DataFrame
            One column for each array.
        """
        return Uncertainty.to_frame(self, index)  # type: ignore[arg-type]


def categorical_entropy(log_proba: Tensor) -> Tensor:
    """Return the entropy over the last axis, in nats; probabilities of zero count for nothing."""
    proba = log_proba.exp()
    return -torch.where(proba == 0, 0.0, proba * log_proba).sum(dim=-1)


def categorical_kl(log_proba: Tensor, other: Tensor) -> Tensor:
    """Return KL(p || q) over the last axis, in nats, from the log-probabilities of p and q."""
    proba = log_proba.exp()
    terms = torch.where(proba == 0, 0.0, proba * (log_proba - other))
    return terms.sum(dim=-1).clamp(min=0)


def gaussian_entropy(prediction: Gaussian) -> Tensor:
    """Return the differential entropy, summed over the (independent) outputs."""
    return 0.5 * (2 * math.pi * math.e * prediction.variance).log().sum(dim=-1)


def gaussian_kl(prediction: Gaussian, other: Gaussian) -> Tensor:
    """Return KL(p || q) of independent Gaussians, summed over the outputs."""
    ratio = prediction.variance / other.variance
    shift = (prediction.mean - other.mean) ** 2 / other.variance
    excess = (ratio - 1) - ratio.log()
    return 0.5 * (excess + shift).sum(dim=-1).clamp(min=0)


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
