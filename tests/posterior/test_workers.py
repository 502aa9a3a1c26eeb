"""Rows spread over workers, and chunks that have to fit the memory."""

import pickle
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from joblib import _memmapping_reducer, parallel_config
from joblib.externals.loky.process_executor import BrokenProcessPool
from torch import nn

from sklearn_quam import QUAMClassifier
from sklearn_quam._posterior import workers
from sklearn_quam._search.penalty import engine

from ..networks import Dense
from ..searches import quam


class Unsendable(nn.Module):
    """Holds something that cannot be pickled."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.fields = {}

    def forward(self, x):
        return self.linear(x)

    def __deepcopy__(self, memo):
        duplicate = Unsendable()
        duplicate.load_state_dict(self.state_dict())
        duplicate.fields["lock"] = threading.Lock()
        return duplicate


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)).astype(np.float32)
    return X, np.digitize(X[:, 0], [-0.5, 0.5])


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return Dense(3).double()


def make(module, **params):
    return quam(QUAMClassifier, module, n_steps=8, random_state=0, **params)


def searches_at_once(est, X):
    limits = est._question(est._check_inputs(X)).limits
    models = est._fitted.models
    n_rows = models.rows_at_once(X, limits)
    return n_rows * models._targets_at_once(n_rows, limits)


def per_search(est):
    """Return the memory of a single search, whatever else there is."""
    return est._fitted.models.needs.of(1, 1)


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("backend", "setting"), [("loky", "given"), ("threading", "expected")])
def test_workers_give_the_same_result(data, module, backend, setting):
    X, y = data
    est = make(module, setting=setting).fit(X, y)
    alone, diagnostics = est.predict_uncertainty(X[:11], return_diagnostics=True)
    with parallel_config(backend=backend):
        est.set_params(n_jobs=2, verbose=1)
        together, found = est.predict_uncertainty(X[:11], return_diagnostics=True)
    assert_same(together, alone)
    pd.testing.assert_frame_equal(found.to_frame(), diagnostics.to_frame(), rtol=1e-8)


def test_training_data_are_written_for_processes_once(data, module, monkeypatch):
    X, y = data
    est = make(module, n_jobs=2).fit(X, y)
    written, write = [], _memmapping_reducer.dump

    def noted(array, *others):
        written.append(array.tobytes())
        return write(array, *others)

    monkeypatch.setattr(_memmapping_reducer, "dump", noted)
    est.set_params(memory_limit=2 * per_search(est))
    with parallel_config(backend="loky", max_nbytes=200):
        est.predict_uncertainty(X[:16])  # in eight tasks
    rows = est._fitted.models.problem.training.rows[0].numpy().tobytes()
    assert written.count(rows) == 1


def test_threads_do_not_share_a_module_that_is_run_by_vmap(data):
    X, y = data
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).double()
    alone = make(net).fit(X, y)
    assert alone.execution_ == "vmap"
    with parallel_config(backend="threading"):
        workers = make(net, n_jobs=2).fit(X, y)
        assert_same(workers.predict_uncertainty(X[:20]), alone.predict_uncertainty(X[:20]))


class Counted(Dense):
    """Counts how often it is pickled."""

    pickled = 0

    def __getstate__(self):
        Counted.pickled += 1
        return super().__getstate__()


@pytest.mark.slow
def test_a_cluster_of_processes_gives_the_same_result_and_is_sent_the_network_once(data):
    distributed = pytest.importorskip("distributed")
    X, y = data
    torch.manual_seed(0)
    module = Counted(3).double()
    est = make(module).fit(X, y)
    alone = est.predict_uncertainty(X[:16])
    Counted.pickled = 0
    pickle.dumps(est._fitted)
    once = Counted.pickled
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
        parallel_config(backend="dask"),
    ):
        est.set_params(n_jobs=2, memory_limit=2 * per_search(est))
        Counted.pickled = 0
        together = est.predict_uncertainty(X[:16])  # in eight tasks
    assert_same(together, alone)
    assert 0 < Counted.pickled <= 2 * once


def test_a_network_that_cannot_be_sent_says_what_to_do(data):
    X, y = data
    est = make(Unsendable(), n_jobs=2).fit(X, y)
    with pytest.raises(TypeError, match=r"cannot be sent to worker processes.*threading"):
        est.predict_uncertainty(X[:6])
    with parallel_config(backend="threading"):
        est.predict_uncertainty(X[:6])


def test_a_worker_that_cannot_read_its_task_says_why(data, module, monkeypatch):
    def broken(tasks):
        try:
            raise ImportError('"""\nTraceback\nModuleNotFoundError: No module named \'mine\'\n"""')
        except ImportError as why:
            # The words of loky.
            raise BrokenProcessPool(
                "A task has failed to un-serialize. Please ensure that the arguments of the "
                "function are all picklable."
            ) from why

    X, y = data
    est = make(module, n_jobs=2).fit(X, y)
    monkeypatch.setattr(workers, "Parallel", lambda **kwargs: broken)
    with pytest.raises(
        TypeError, match=r"worker processes \(ModuleNotFoundError: .*'mine'\)\. Def"
    ):
        est.predict_uncertainty(X[:6])


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["60KB", "1GB"])
def test_the_memory_limit_changes_nothing_but_the_memory(data, module, limit):
    X, y = data
    free = make(module).fit(X, y).predict_uncertainty(X[:7])
    est = make(module, memory_limit=limit).fit(X, y)
    assert_same(est.predict_uncertainty(X[:7]), free)


def test_searches_at_once_follow_the_memory_limit(data, module):
    X, y = data
    est = make(module).fit(X, y)
    assert searches_at_once(est.set_params(memory_limit=per_search(est)), X) == 1
    assert searches_at_once(est.set_params(memory_limit=6 * per_search(est)), X) == 6
    assert searches_at_once(est.set_params(memory_limit=2 * per_search(est)), X) == 2


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 4000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    MemoryError("Unable to allocate 3.7 GiB for an array"),
]
each_error = pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda e: type(e).__name__)


@each_error
def test_running_out_of_memory_halves_the_searches(data, module, monkeypatch, error):
    X, y = data
    expected = make(module).fit(X, y).predict_uncertainty(X[:9])
    sizes = []
    search = engine.run_searches

    def limited(problem, steps, searches, *others):
        sizes.append(len(searches))
        if len(searches) > 4:
            raise error
        return search(problem, steps, searches, *others)

    est = make(module).fit(X, y)
    monkeypatch.setattr(engine, "run_searches", limited)
    assert_same(est.predict_uncertainty(X[:9]), expected)
    assert max(sizes) > 4
    assert sizes[-1] <= 4
    # What was too much for one chunk of rows is not tried again for the next.
    sizes.clear()
    est.set_params(memory_limit=6 * per_search(est)).predict_uncertainty(X[:9])
    assert [size for size in sizes if size > 4] == [6]


@each_error
def test_running_out_of_memory_with_a_single_search_is_an_error(data, module, monkeypatch, error):
    X, y = data

    def never(*_, **__):
        raise error

    est = make(module).fit(X, y)
    monkeypatch.setattr(engine, "run_searches", never)
    with pytest.raises(type(error), match=r"memory|allocate"):
        est.predict_uncertainty(X[:3])
