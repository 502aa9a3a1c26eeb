"""Networks are cut in one thread while others run theirs."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import QUAMClassifier
from sklearn_quam._network import free

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
Y = np.arange(40) % 3


class Deciding(nn.Module):
    """Cannot be traced: it decides by its data."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = self.first(x)
        return self.head(torch.tanh(h) if h.sum() > -1e9 else h)


def networks():
    torch.manual_seed(0)
    traced = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3))
    return [traced.eval(), Deciding().eval()]


class Beside:
    """Calls an unrelated network all the time, in a thread of its own."""

    def __init__(self):
        self.error, self.n_calls, self._stop = None, 0, threading.Event()
        self._thread = threading.Thread(target=self._call)

    def _call(self):
        inner = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        other = nn.Sequential(inner, nn.Linear(3, 2))
        try:
            while not self._stop.is_set():
                other(torch.zeros(2, 3))
                self.n_calls += 1
        except Exception as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def estimator(net, **params):
    search = {"search__n_steps": 2}
    est = QUAMClassifier(net, parameters="last_layer", random_state=0, **params)
    return est.set_params(**search)


def test_eight_fits_in_four_threads_beside_another_network():
    nets = networks()
    expected = [estimator(net).fit(X, Y).predict_uncertainty(X[:3]).epistemic for net in nets]
    methods = dict(vars(nn.Module))

    def fit(number):
        est = estimator(nets[number % 2]).fit(X, Y)
        return est.predict_uncertainty(X[:3]).epistemic

    with Beside() as beside, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(fit, range(8)))
    assert beside.error is None
    assert beside.n_calls > 0
    for number, values in enumerate(found):
        np.testing.assert_allclose(values, expected[number % 2], rtol=1e-4)
    assert dict(vars(nn.Module)) == methods


@pytest.mark.parametrize("index", [0, 1])
def test_first_use_after_unpickling_in_four_threads(index, monkeypatch):
    est = estimator(networks()[index]).fit(X, Y)
    expected = est.predict_uncertainty(X[:3]).epistemic
    # What was traced once is stored.
    monkeypatch.setattr(free, "split_module", None)
    stored = pickle.loads(pickle.dumps(est))
    with Beside() as beside, ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: stored.predict_uncertainty(X[:3]).epistemic, range(4))
        for values in found:
            np.testing.assert_allclose(values, expected, rtol=1e-4)
    assert beside.error is None
