"""Values at the cut are remembered for the clones of an estimator, and for nothing else."""

import copy
import pickle

import numpy as np
import pytest
import torch
from joblib import parallel_config
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import nn

from sklearn_quam import LaplaceClassifier, PenaltySearch, QUAMClassifier, QUAMRegressor
from sklearn_quam._network import executors, free
from sklearn_quam._network.cut import remembered, split
from sklearn_quam._network.cut.remembered import RememberedRows, module_digest
from sklearn_quam._network.cut.split import split_module
from sklearn_quam.model_selection import make_ood_scorer

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3


class CountingRows(RememberedRows):
    """Counts how often the frozen part had to be run, and how often it had not."""

    def __init__(self):
        super().__init__()
        self.n_missing = self.n_found = 0

    def find(self, key):
        found = super().find(key)
        self.n_missing += found is None
        self.n_found += found is not None
        return found


@pytest.fixture
def memory():
    return CountingRows()


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()


HEAD = ("3.weight",)


def remembering(memory, module, names, probe):
    return split_module(module, names, probe).remembering(memory)


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.SeenRowsWarning")
@pytest.mark.parametrize(
    ("kind", "argument"),
    [("penalty", "search__learning_rate"), ("natural", "search__prior_precision")],
)
def test_a_grid_search_runs_the_frozen_part_as_often_as_a_single_candidate(memory, kind, argument):
    est = QUAMClassifier(network(), parameters="last_layer", search=kind, random_state=0)
    est._remembered = memory
    scorer = make_ood_scorer(3 * X[:9])
    for grid in (
        {"search__n_steps": [2]},
        {"search__n_steps": [2, 3], argument: [1e-3, 1e-2]},
    ):
        search = GridSearchCV(est, grid, scoring=scorer, cv=2, refit=False).fit(X, Y)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        if len(grid) == 1:
            assert memory.n_missing > 0
            memory.n_missing = 0
    assert memory.n_missing == 0


def test_what_is_remembered_is_what_would_be_computed(memory):
    est = LaplaceClassifier(network(), random_state=0)
    est._remembered = memory
    first = clone(est).fit(X, Y).predict_uncertainty(X)
    missing, found = memory.n_missing, memory.n_found
    second = clone(est).fit(X, Y).predict_uncertainty(X)
    assert memory.n_missing == missing > 0
    assert memory.n_found > found
    np.testing.assert_array_equal(first.epistemic, second.epistemic)
    alone = LaplaceClassifier(network(), random_state=0).fit(X, Y).predict_uncertainty(X)
    np.testing.assert_array_equal(first.epistemic, alone.epistemic)


def test_an_estimator_shares_its_memory_with_its_clones_only():
    first, other = (LaplaceClassifier(network(), random_state=0) for _ in range(2))
    copies = [clone(first), clone(first)]
    copies.append(clone(copies[0]).fit(X, Y))
    assert all(duplicate._remembered is first._remembered for duplicate in copies)
    assert clone(other)._remembered is not first._remembered
    models = copies[-1]._fitted.models
    assert models.view.network.split.remembered is first._remembered


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda est: pickle.loads(pickle.dumps(est))])
def test_what_is_remembered_is_never_stored(duplicate):
    est = clone(LaplaceClassifier(network(), random_state=0)).fit(X, Y)
    expected = est.predict_uncertainty(X).epistemic
    stored = duplicate(est)
    assert not hasattr(stored, "_remembered")
    assert stored._fitted.models.view.network.split.remembered is None
    np.testing.assert_array_equal(stored.predict_uncertainty(X).epistemic, expected)


def test_other_weights_rows_and_types_are_not_mixed_up(memory):
    splits = [remembering(memory, network(seed), HEAD, torch.tensor(X[:4])) for seed in (0, 1)]
    values = [split.at_cut(torch.tensor(X))[0] for split in splits]
    assert not torch.equal(*values)
    assert not torch.equal(values[0], splits[0].at_cut(torch.tensor(X + 1))[0])
    double = remembering(memory, network().double(), HEAD, torch.tensor(X[:4]).double())
    assert double.at_cut(torch.tensor(X).double())[0].dtype == torch.float64


def test_other_layers_with_the_same_weights_are_not_mixed_up(memory):
    torch.manual_seed(0)
    layer, head = nn.Linear(4, 8), nn.Linear(8, 3)
    values = []
    for activation in (nn.ReLU(), nn.Tanh(), nn.LeakyReLU(0.1), nn.LeakyReLU(0.5)):
        net = nn.Sequential(layer, activation, nn.Flatten(), head).eval()
        cut = remembering(memory, net, HEAD, torch.tensor(X[:4]))
        values.append(cut.at_cut(torch.tensor(X))[0])
    assert memory.n_found == 0
    for i, first in enumerate(values):
        assert not any(torch.equal(first, other) for other in values[:i])


def test_writing_into_the_values_changes_no_other(memory):
    cut = remembering(memory, network(), HEAD, torch.tensor(X[:4]))
    first = cut.at_cut(torch.tensor(X))[0]
    expected = first.clone()
    first.zero_()
    second = cut.at_cut(torch.tensor(X))[0]
    assert torch.equal(second, expected)
    second.zero_()
    assert torch.equal(cut.at_cut(torch.tensor(X))[0], expected)
    assert (memory.n_missing, memory.n_found) == (1, 2)


def test_memory_is_bounded(monkeypatch, memory):
    monkeypatch.setattr(remembered, "_MAX_BYTES_REMEMBERED", 4000)
    cut = remembering(memory, network(), HEAD, torch.tensor(X[:4]))
    for number in range(20):
        cut.at_cut(torch.tensor(X[:10]) + number)
    assert memory._bytes == sum(map(remembered._size, memory._values.values())) <= 4000
    assert len(memory._values) > 1
    cut.at_cut(torch.tensor(np.tile(X, (5, 1))))  # larger than all of it
    assert memory._bytes <= 4000


def test_weights_are_digested_only_where_values_are_remembered(monkeypatch):
    monkeypatch.setattr(split, "_digest", None)
    est = LaplaceClassifier(network(), random_state=0).fit(X, Y)
    assert est._fitted.models.view.network.split.place == "inside"
    with pytest.raises(TypeError):
        clone(est).fit(X, Y)


def test_buffers_count_as_weights():
    first = nn.BatchNorm1d(3)
    second = copy.deepcopy(first)
    assert module_digest(first) == module_digest(second)
    second.running_mean += 1
    assert module_digest(first) != module_digest(second)


def test_threads_do_not_trace_the_network_again(monkeypatch):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    search = PenaltySearch(n_steps=3)
    est = QUAMRegressor(net, search=search, n_jobs=2, random_state=0).fit(X, X[:, 0])
    alone = clone(est).set_params(n_jobs=1).fit(X, X[:, 0]).predict_uncertainty(X)
    monkeypatch.setattr(free, "split_module", None)
    monkeypatch.setattr(free, "choose_executor", None)
    monkeypatch.setattr(executors, "_read_chain", None)
    with parallel_config(backend="threading"):
        threads = est.predict_uncertainty(X)
    np.testing.assert_allclose(threads.epistemic, alone.epistemic, rtol=1e-4)


def test_other_settings_with_the_same_weights_are_not_mixed_up(memory):
    values = []
    for n_heads in (1, 4):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, n_heads, 16, dropout=0.0, batch_first=True)
        net = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)).eval()
        rows = torch.randn(6, 3, 8, generator=torch.Generator().manual_seed(1))
        cut = remembering(memory, net, ("2.weight",), rows[:4])
        values.append(cut.at_cut(rows)[0])
    assert memory.n_found == 0
    assert not torch.allclose(*values)
