"""Data and closed forms that tests of samplers share."""

import math

import numpy as np
import torch
from torch import nn

FIVE = 5.0
PRIOR, NOISE = 0.7, 0.3

_rng = np.random.default_rng(0)
X = _rng.normal(size=(30, 2))
Y = X @ [1.0, -0.5] + 0.3 + math.sqrt(NOISE) * _rng.normal(size=30)
X_NEW = np.array([[0.0, 0.0], [1.0, -1.0], [4.0, 2.0]])
LABELS = (2 * X[:, 0] + _rng.logistic(size=30) > 0.5).astype(int)


def linear(n_in=2, **options):
    torch.manual_seed(0)
    return nn.Linear(n_in, 1, **options).double()


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def logistic_posterior(prior):
    """Return some rows and, by quadrature, mean, deviation and mutual information there."""
    x, grid = X[:, :1], np.linspace(-8, 8, 321)
    slope, bias = (axis.ravel()[:, None] for axis in np.meshgrid(grid, grid))
    log_posterior = -np.logaddexp(0, (1 - 2 * LABELS) * (slope * x[:, 0] + bias)).sum(axis=1)
    log_posterior -= 0.5 * prior * (slope**2 + bias**2)[:, 0]
    weight = np.exp(log_posterior - log_posterior.max())
    weight /= weight.sum()
    rows = np.array([[-3.0], [0.0], [1.0]])
    proba = 1 / (1 + np.exp(-(slope * rows[:, 0] + bias)))
    mean = weight @ proba

    def entropy(p):
        return -p * np.log(p) - (1 - p) * np.log1p(-p)

    epistemic = entropy(mean) - weight @ entropy(proba)
    return rows, mean, np.sqrt(weight @ proba**2 - mean**2), epistemic
