"""The same numbers for any chunks, order, workers and memory limit."""

import warnings
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joblib import parallel_config
from torch import nn

from sklearn_quam import NaturalSearch, PenaltySearch, QUAMClassifier

from ..networks import train

N_ROWS = 9
_rng = np.random.default_rng(0)
IMAGES = _rng.normal(size=(50, 1, 6, 6))
LABELS = (IMAGES[:, 0, :3].mean((1, 2)) > 0).astype(int) + (IMAGES[:, 0, 3:].mean((1, 2)) > 0)
NEW = 1.5 * _rng.normal(size=(N_ROWS, 1, 6, 6))
SEARCHES = {"natural": NaturalSearch(n_rows=16, n_steps=5), "penalty": PenaltySearch(n_steps=12)}
NETWORKS = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    ),
}


@cache
def asked(search, network, dtype):
    """Return a fitted estimator and what it says about all rows at once."""
    torch.manual_seed(0)
    net = train(NETWORKS[network]().to(dtype), IMAGES, LABELS, n_epochs=30)
    parameters = "all" if network == "cnn" else "auto"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        est = QUAMClassifier(net, search=SEARCHES[search], parameters=parameters, random_state=0)
        est.fit(IMAGES, LABELS)
        return est, np.stack(est.predict_uncertainty(NEW))


def ask(est, order, cuts, n_jobs, memory_limit):
    """Return the same rows in another order, in chunks, by workers, with less memory."""
    found = np.empty((3, N_ROWS))
    est.set_params(n_jobs=n_jobs, memory_limit=memory_limit)
    with parallel_config(backend="threading"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in np.split(np.array(order), sorted(cuts)):
            if len(rows):
                found[:, rows] = np.stack(est.predict_uncertainty(NEW[rows]))
    return found


ways = given(
    order=st.permutations(range(N_ROWS)),
    cuts=st.lists(st.integers(1, N_ROWS - 1), max_size=4, unique=True),
    n_jobs=st.sampled_from([1, 2, 3]),
    memory_limit=st.sampled_from([None, "0.6MB", "2MB"]),
)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("network", NETWORKS)
@settings(max_examples=5, deadline=None, derandomize=True)
@ways
def test_double_precision(search, network, order, cuts, n_jobs, memory_limit):
    est, expected = asked(search, network, torch.float64)
    found = ask(est, order, cuts, n_jobs, memory_limit)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("search", SEARCHES)
@settings(max_examples=5, deadline=None, derandomize=True)
@ways
def test_single_precision_but_for_rounding(search, order, cuts, n_jobs, memory_limit):
    est, expected = asked(search, "mlp", torch.float32)
    found = ask(est, order, cuts, n_jobs, memory_limit)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
