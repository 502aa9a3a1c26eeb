"""Values at the cut are remembered for other estimators of the same network."""

import copy

import numpy as np
import pytest
import torch
from joblib import parallel_config
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import nn

from sklearn_quam import LaplaceClassifier, QUAMClassifier, QUAMRegressor, _cache
from sklearn_quam._network.split import module_digest, split_module
from sklearn_quam.model_selection import make_ood_scorer

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """Count how often the frozen part had to be run."""
    memory = _cache._Memory()
    memory.n_missing = 0

    def find(key, find=memory.find):
        found = find(key)
        memory.n_missing += found is None
        return found

    memory.find = find
    monkeypatch.setattr(_cache, "_remembered", memory)
    return memory


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()


HEAD = ("3.weight",)


@pytest.mark.filterwarnings("ignore::sklearn_quam.model_selection.SeenDataWarning")
def test_a_grid_search_runs_the_frozen_part_as_often_as_a_single_candidate(memory):
    est = QUAMClassifier(network(), parameters="last_layer", random_state=0)
    scorer = make_ood_scorer(3 * X[:9])
    for grid in ({"n_steps": [2]}, {"n_steps": [2, 3], "learning_rate": [1e-3, 1e-2]}):
        search = GridSearchCV(est, grid, scoring=scorer, cv=2, refit=False).fit(X, Y)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        if len(grid) == 1:
            assert memory.n_missing > 0
            memory.n_missing = 0
    assert memory.n_missing == 0


def test_what_is_remembered_is_what_would_be_computed():
    est = LaplaceClassifier(network(), random_state=0)
    first = clone(est).fit(X, Y).predict_uncertainty(X)
    second = clone(est).fit(X, Y).predict_uncertainty(X)
    np.testing.assert_array_equal(first.epistemic, second.epistemic)


def test_other_weights_rows_and_types_are_not_mixed_up():
    splits = [split_module(network(seed), HEAD, torch.tensor(X[:4])) for seed in (0, 1)]
    values = [split.at_cut(torch.tensor(X))[0] for split in splits]
    assert not torch.equal(*values)
    assert not torch.equal(values[0], splits[0].at_cut(torch.tensor(X + 1))[0])
    double = split_module(network().double(), HEAD, torch.tensor(X[:4]).double())
    assert double.at_cut(torch.tensor(X).double())[0].dtype == torch.float64


def test_other_layers_with_the_same_weights_are_not_mixed_up():
    torch.manual_seed(0)
    layer, head = nn.Linear(4, 8), nn.Linear(8, 3)
    values = []
    for activation in (nn.ReLU(), nn.Tanh(), nn.LeakyReLU(0.1), nn.LeakyReLU(0.5)):
        net = nn.Sequential(layer, activation, nn.Flatten(), head).eval()
        split = split_module(net, HEAD, torch.tensor(X[:4]))
        values.append(split.at_cut(torch.tensor(X))[0])
    for i, first in enumerate(values):
        assert not any(torch.equal(first, other) for other in values[:i])


def test_writing_into_the_values_changes_no_other():
    split = split_module(network(), HEAD, torch.tensor(X[:4]))
    first = split.at_cut(torch.tensor(X))[0]
    expected = first.clone()
    first.zero_()
    second = split.at_cut(torch.tensor(X))[0]
    assert torch.equal(second, expected)
    second.zero_()
    assert torch.equal(split.at_cut(torch.tensor(X))[0], expected)


def test_memory_is_bounded(monkeypatch, memory):
    monkeypatch.setattr(_cache, "_MAX_BYTES_REMEMBERED", 4000)
    split = split_module(network(), HEAD, torch.tensor(X[:4]))
    for number in range(20):
        split.at_cut(torch.tensor(X[:10]) + number)
    assert memory._bytes == sum(map(_cache._size, memory._values.values())) <= 4000
    assert len(memory._values) > 1
    split.at_cut(torch.tensor(np.tile(X, (5, 1))))  # larger than all of it
    assert memory._bytes <= 4000


def test_buffers_count_as_weights():
    first = nn.BatchNorm1d(3)
    second = copy.deepcopy(first)
    assert module_digest(first) == module_digest(second)
    second.running_mean += 1
    assert module_digest(first) != module_digest(second)


def test_threads_do_not_trace_the_network_again(monkeypatch):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    est = QUAMRegressor(net, n_steps=3, n_jobs=2, random_state=0).fit(X, X[:, 0])
    alone = clone(est).set_params(n_jobs=1).fit(X, X[:, 0]).predict_uncertainty(X)
    monkeypatch.setattr(QUAMRegressor, "_make_network", None)
    with parallel_config(backend="threading"):
        threads = est.predict_uncertainty(X)
    np.testing.assert_allclose(threads.epistemic, alone.epistemic, rtol=1e-4)


def test_other_settings_with_the_same_weights_are_not_mixed_up():
    values = []
    for n_heads in (1, 4):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, n_heads, 16, dropout=0.0, batch_first=True)
        net = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)).eval()
        rows = torch.randn(6, 3, 8, generator=torch.Generator().manual_seed(1))
        values.append(split_module(net, ("2.weight",), rows[:4]).at_cut(rows)[0])
    assert not torch.allclose(*values)
