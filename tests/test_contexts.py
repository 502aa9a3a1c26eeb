"""Gradients, and numbers too small to be normal: set for the time of a computation only."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import HMCClassifier, QUAMClassifier, SWAGClassifier
from sklearn_quam._network.contexts import _flushes, computing

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = np.arange(20) % 2


@pytest.fixture(params=[True, False])
def flushing(request):
    torch.set_flush_denormal(request.param)
    yield request.param
    torch.set_flush_denormal(False)


def test_what_the_caller_has_set_is_put_back(flushing):
    assert _flushes() == flushing
    with computing():
        assert _flushes()
        with computing():
            assert _flushes()
        assert _flushes()
    assert _flushes() == flushing


def test_it_is_put_back_after_an_error(flushing):
    with pytest.raises(KeyboardInterrupt), computing():
        raise KeyboardInterrupt
    assert _flushes() == flushing


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_allowed(mode):
    with mode(), computing():
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    "method",
    [
        lambda net: QUAMClassifier(net, n_steps=3),
        lambda net: SWAGClassifier(net, n_epochs=2),
        lambda net: HMCClassifier(net, n_samples=4, n_warmup=1, n_leapfrog=2),
    ],
)
def test_estimators_leave_the_setting_alone(method, flushing):
    torch.manual_seed(0)
    est = method(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))).fit(X, Y)
    est.predict_uncertainty(X)
    assert _flushes() == flushing
