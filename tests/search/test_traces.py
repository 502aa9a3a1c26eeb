"""Every step of the searches of a few points."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import QUAMClassifier, QUAMRegressor

from ..searches import quam

N_STEPS = 12


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4))
    return X, np.digitize(X[:, 0], [-0.5, 0.5])


def network(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, width)).double()


@pytest.mark.parametrize("memory_limit", [None, "40KB"])
def test_a_trace_gives_the_estimate_back(data, memory_limit):
    X, y = data
    options = {"n_steps": N_STEPS, "tol": 0, "random_state": 0, "memory_limit": memory_limit}
    est = quam(QUAMClassifier, network(3), **options).fit(X, y)
    epistemic = est.predict_uncertainty(X[:2]).epistemic
    for traces, expected in zip(est.search_traces(X[:2]), epistemic, strict=True):
        assert [trace["target"] for trace in traces] == [0, 1, 2]
        increase = np.array([trace["loss_increase"] for trace in traces])
        divergence = np.array([trace["divergence"] for trace in traces])
        assert increase.shape == (3, N_STEPS + 1)
        weights = np.exp(-increase.clip(min=0) / (est.temperature_ / len(X)))
        np.testing.assert_allclose(np.average(divergence, weights=weights), expected, rtol=1e-8)


def test_a_trace_starts_at_the_given_network(data):
    X, y = data
    est = quam(QUAMClassifier, network(3), n_steps=N_STEPS, random_state=0).fit(X, y)
    for trace in est.search_traces(X[:1])[0]:
        np.testing.assert_allclose(trace["prediction"][0], est.predict_proba(X[:1])[0])
        assert trace["divergence"][0] == pytest.approx(0, abs=1e-12)
        assert trace["loss_increase"][0] == pytest.approx(0, abs=1e-12)


def test_traces_of_a_regressor_go_up_and_down(data):
    X, _ = data
    est = quam(QUAMRegressor, network(1), n_steps=N_STEPS, random_state=0).fit(X, X[:, 0])
    up, down = est.search_traces(X[:1])[0]
    assert (up["target"], down["target"]) == ("up", "down")
    assert up["prediction"].shape == (N_STEPS + 1, 1)
    assert up["prediction"].max() > up["prediction"][0] > down["prediction"].min()
