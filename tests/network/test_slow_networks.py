"""Nobody waits in silence: `fit` says once that every row will take long, and what is quicker."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import QUAMClassifier
from sklearn_quam.exceptions import SlowNetworkWarning

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
Y = np.arange(40) % 3


class Recurrent(nn.Module):
    """Has a layer that many models cannot run at once."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.first(x[..., None])[0][:, -1])


def without_linear(width):
    return lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, width, 2), nn.Tanh(), nn.Conv1d(width, 3, 3)
    ).append(nn.Flatten())


def large_chain():
    return nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 300)).append(
        nn.Sequential(nn.ReLU(), nn.Linear(300, 3))
    )


def said(make, **options):
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SlowNetworkWarning)
        est = QUAMClassifier(make().eval(), search="penalty", **options).fit(X, Y)
        est.predict(X)
    return est, [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("make", "parameters", "execution", "why"),
    [
        (Recurrent, "all", "loop", "models are run one after the other"),
        (without_linear(8000), "auto", "vmap", "parameters='auto' takes all parameters"),
        (without_linear(8000), "all", "vmap", "all of the network is run for every model"),
    ],
)
def test_slow_networks_are_named_once(make, parameters, execution, why):
    est, (message,) = said(make, parameters=parameters)
    assert est.execution_ == execution
    assert why in message
    assert "parameters='last_layer'" in message
    assert "the head of the network alone" in message


@pytest.mark.parametrize(
    ("make", "options"),
    [(large_chain, {}), (Recurrent, {}), (without_linear(8000), {"parameters": "last_layer"})],
)
def test_others_are_not(make, options):
    assert not said(make, **options)[1]
