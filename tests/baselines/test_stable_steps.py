"""Steps of SG-HMC and SWAG are never so long that they diverge."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import CyclicalSGHMCRegressor, SWAGClassifier, SWAGRegressor
from sklearn_quam.baselines._gradient import stable_step_size

X = np.random.default_rng(0).normal(size=(40, 3)) * [1.0, 3.0, 0.2]
Y = X @ [1.0, -0.5, 2.0]


class Recording(SWAGRegressor):
    """Keeps what it draws weights from."""

    def _draw(self, loss, seed, limits):
        self.loss = loss
        return super()._draw(loss, seed, limits)


def fitted(noise_variance=0.5, **params):
    torch.manual_seed(0)
    net = nn.Linear(3, 1).double()
    params = {"noise_variance": noise_variance, "learning_rate": 1e-6, "random_state": 0, **params}
    return Recording(net, **params).fit(X, Y)


@pytest.mark.parametrize("noise_variance", [1e-6, 0.5])
def test_the_bound_is_the_inverse_of_the_largest_curvature(noise_variance):
    est = fitted(noise_variance)
    design = np.column_stack([X, np.ones(len(X))])
    largest = np.linalg.eigvalsh(design.T @ design / len(X) / noise_variance)[-1]
    bound = stable_step_size(est.loss, 1e9 / noise_variance, seed=0)
    assert bound == pytest.approx(1 / largest, rel=0.02)
    # Learning rates are for half the squared error.
    wanted = bound / noise_variance / 3
    assert stable_step_size(est.loss, wanted, seed=0) == pytest.approx(bound / 3)


@pytest.mark.slow
@pytest.mark.parametrize("method", [SWAGRegressor, CyclicalSGHMCRegressor])
def test_a_learning_rate_that_is_far_too_large_makes_nothing_diverge(method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    est = method(net, learning_rate=10.0, random_state=0).fit(X, Y)
    assert np.isfinite(est.predict_uncertainty(X).total).all()


def test_a_flat_loss_leaves_the_step_as_it_is():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return torch.zeros(len(x), 2) + 0 * self.unused

    est = SWAGClassifier(Constant(), random_state=0).fit(X, np.arange(40) % 2)
    assert (est.predict_uncertainty(X).epistemic == 0).all()
