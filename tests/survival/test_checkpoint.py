"""Runs that were ended go on where they were."""

import json
import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from sklearn_quam import QUAMClassifier, ReferenceClassifier
from sklearn_quam._posterior import answering
from sklearn_quam._posterior.fitted import FittedMethod

from ..test_contract import METHODS, make_data, make_estimator
from .processes import finish, start
from .run import N_ROWS, X_NEW, X, Y, make


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(answering, "_SECONDS_PER_CHUNK", 1e-9)


def ended_after(monkeypatch, n_chunks):
    """Let ctrl-C be pressed after some chunks."""
    results, count = FittedMethod.results, []

    def limited(self, inputs, question):
        if len(count) == n_chunks:
            raise KeyboardInterrupt
        count.append(1)
        return results(self, inputs, question)

    context = monkeypatch.context()
    patch = context.__enter__()
    patch.setattr(FittedMethod, "results", limited)
    return context, count


def assert_identical(first, second):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


# All methods, and one of them at all moments. Regressors' default is the penalty search, which is
# among them with fewer steps.
CASES = [(method, 2) for method in METHODS if method.name != "QUAMRegressor"]
CASES += [(METHODS[0], n_chunks) for n_chunks in (0, 1, 3)]


@pytest.mark.parametrize(
    ("method", "n_chunks"), CASES, ids=lambda case: getattr(case, "name", case)
)
def test_every_method_goes_on_where_it_was(method, n_chunks, tmp_path, monkeypatch, small_chunks):
    est, X = make_estimator(method).fit(*make_data(method)), make_data(method)[0][:4]
    whole, diagnostics = est.predict_uncertainty(
        X, checkpoint=tmp_path / "whole", return_diagnostics=True
    )
    context, _ = ended_after(monkeypatch, n_chunks)
    with pytest.raises(KeyboardInterrupt):
        est.predict_uncertainty(X, checkpoint=tmp_path / "ended")
    context.__exit__(None, None, None)
    context, count = ended_after(monkeypatch, 99)
    again, found = est.predict_uncertainty(
        X, checkpoint=tmp_path / "ended", return_diagnostics=True
    )
    context.__exit__(None, None, None)
    assert len(count) == 4 - n_chunks
    assert_identical(again, whole)
    assert found.to_frame().equals(diagnostics.to_frame())
    free = est.predict_uncertainty(X)
    for a, b in zip(again, free, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_finished_folder_needs_no_work(tmp_path, monkeypatch, small_chunks):
    est = make()
    first = est.predict_uncertainty(X_NEW, checkpoint=tmp_path)
    context, count = ended_after(monkeypatch, 0)
    assert_identical(est.predict_uncertainty(X_NEW, checkpoint=str(tmp_path)), first)
    context.__exit__(None, None, None)
    assert not count


def test_folders_hold_no_pickles(tmp_path, small_chunks):
    labels = np.array(["a", "b", "c"], dtype=object)[Y]
    net = LogisticRegression().fit(X, labels)
    est = QUAMClassifier(net).fit(X, labels)
    _, fresh = est.predict_uncertainty(X_NEW[:9], return_diagnostics=True)
    est.predict_uncertainty(X_NEW[:9], checkpoint=tmp_path)
    _, stored = est.predict_uncertainty(X_NEW[:9], checkpoint=tmp_path, return_diagnostics=True)
    assert stored.rival.tolist() == fresh.rival.tolist()
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".npz"}
    for path in tmp_path.glob("*.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            assert all(arrays[name].dtype != object for name in arrays.files)
    assert json.loads((tmp_path / "run.json").read_text())["n_rows"] == 9


def test_other_runs_are_refused_with_words(tmp_path):
    est = make()
    est.predict_uncertainty(X_NEW, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="holds a run of other rows of X"):
        est.predict_uncertainty(X_NEW[1:], checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"another fitted estimator.*Choose another folder"):
        make(n_steps=11).predict_uncertainty(X_NEW, checkpoint=tmp_path)
    other = QUAMClassifier(nn.Linear(4, 3), random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match="another fitted estimator"):
        other.predict_uncertainty(X_NEW, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="another setting"):
        est.set_params(setting="expected").predict_uncertainty(X_NEW, checkpoint=tmp_path)
    # What changes no answer may change.
    est.set_params(setting="given", memory_limit="10MB", verbose=1)
    est.predict_uncertainty(X_NEW, checkpoint=tmp_path)


def test_a_network_that_computes_something_else_with_the_same_weights_is_another(tmp_path):
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    relu, tanh = (
        ReferenceClassifier(nn.Sequential(function, layer)).fit(X, Y)
        for function in (nn.ReLU(), nn.Tanh())
    )
    relu.predict_uncertainty(X_NEW, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="another fitted estimator"):
        tanh.predict_uncertainty(X_NEW, checkpoint=tmp_path)


def test_a_broken_file_is_computed_again(tmp_path, small_chunks):
    est = make()
    first = est.predict_uncertainty(X_NEW[:4], checkpoint=tmp_path)
    damaged = sorted(tmp_path.glob("*.npz"))[2]
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert_identical(est.predict_uncertainty(X_NEW[:4], checkpoint=tmp_path), first)


@pytest.mark.slow
def test_rows_behind_a_pipeline_and_workers(tmp_path, small_chunks):
    net = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    est = QUAMClassifier(net, n_jobs=2).fit(X, Y)
    alone = est.predict_uncertainty(X_NEW[:6])
    shared = est.predict_uncertainty(X_NEW[:6], checkpoint=tmp_path)
    for a, b in zip(shared, alone, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    assert len(list(tmp_path.glob("*.npz"))) == 6


def test_one_row(tmp_path):
    est = make()
    first = est.predict_uncertainty(X_NEW[:1], checkpoint=tmp_path)
    assert_identical(est.predict_uncertainty(X_NEW[:1], checkpoint=tmp_path), first)


def survives(tmp_path, n_kills, seed):
    """Kill a run at random moments, and compare what comes of it with a run that was left alone."""
    finish(start(tmp_path / "whole", tmp_path / "whole.npy", n_steps=100))
    expected = np.load(tmp_path / "whole.npy")
    assert expected.shape == (3, N_ROWS)
    generator, folder, finished = random.Random(seed), tmp_path / "killed", 0
    for number in range(n_kills):
        process = start(folder, tmp_path / "killed.npy", n_steps=100, n_jobs=1 + number % 2)
        time.sleep(generator.uniform(0, 0.5))
        os.kill(process.pid, signal.SIGKILL)
        finish(process)
        if process.returncode == 0:
            np.testing.assert_array_equal(np.load(tmp_path / "killed.npy"), expected)
            folder, finished = tmp_path / f"killed{number}", finished + 1
    finish(start(folder, tmp_path / "killed.npy", n_steps=100))
    np.testing.assert_array_equal(np.load(tmp_path / "killed.npy"), expected)
    assert finished < n_kills


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path):
    survives(tmp_path, 1, seed=1)


@pytest.mark.slow
def test_a_run_survives_twenty_kills(tmp_path):
    survives(tmp_path, 20, seed=0)


@pytest.mark.slow
def test_two_processes_share_a_folder(tmp_path):
    together = [start(tmp_path / "f", tmp_path / f"{n}.npy", seconds=0.002) for n in range(2)]
    for process in together:
        finish(process)
    first, second = (np.load(tmp_path / f"{number}.npy") for number in range(2))
    np.testing.assert_array_equal(first, second)


def test_regressors_too(tmp_path, small_chunks):
    from sklearn_quam import LaplaceRegressor

    est = LaplaceRegressor(LinearRegression().fit(X, X[:, 0])).fit(X, X[:, 0])
    first = est.predict_uncertainty(X_NEW[:5], checkpoint=tmp_path)
    assert_identical(est.predict_uncertainty(X_NEW[:5], checkpoint=tmp_path), first)
