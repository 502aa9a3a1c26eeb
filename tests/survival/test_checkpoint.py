"""Runs that were ended go on where they were."""

import io
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from sklearn_quam import QUAMClassifier, ReferenceClassifier, load
from sklearn_quam._network import limits
from sklearn_quam._posterior import checkpoint
from sklearn_quam._posterior.fitted import FittedMethod
from sklearn_quam._storing import files
from sklearn_quam.exceptions import UnreadableFileError

from ..test_contract import FEW, METHODS, fitted_once, make_data
from .processes import finish, start
from .run import N_ROWS, X_NEW, Slow, X, Y, make


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(checkpoint, "ROWS_PER_CHUNK", 1)


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


# Some methods, and one of them at all moments.
CASES = [(method, 2) for method in FEW] + [(METHODS[0], n_chunks) for n_chunks in (0, 1, 3)]


@pytest.mark.parametrize(
    ("method", "n_chunks"), CASES, ids=lambda case: getattr(case, "name", case)
)
def test_every_method_goes_on_where_it_was(method, n_chunks, tmp_path, monkeypatch, small_chunks):
    est, X = fitted_once(method), make_data(method)[0][:4]
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
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"chunk-{number:07d}.safetensors" for number in range(9)}


def test_other_runs_are_refused_with_words(tmp_path):
    est = make()
    est.predict_uncertainty(X_NEW, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="holds a run of other rows of X"):
        est.predict_uncertainty(X_NEW[1:], checkpoint=tmp_path)
    torch.manual_seed(0)
    others = [
        make(n_steps=11),
        QUAMClassifier(nn.Linear(4, 3), random_state=0).fit(X, Y),
        make().set_params(random_state=1).fit(X, Y),
        make().fit(X + np.float32(0.1) * (X[9] == X), Y),
    ]
    for other in others:
        with pytest.raises(ValueError, match=r"another fitted estimator.*Choose another folder"):
            other.predict_uncertainty(X_NEW, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="another setting"):
        est.set_params(setting="expected").predict_uncertainty(X_NEW, checkpoint=tmp_path)
    # What changes no answer may change.
    est.set_params(setting="given", memory_limit="10MB", verbose=1)
    est.predict_uncertainty(X_NEW, checkpoint=tmp_path)


def test_a_network_that_computes_something_else_with_the_same_weights_is_another(tmp_path):
    layer = nn.Linear(4, 3)
    relu, tanh = (
        ReferenceClassifier(nn.Sequential(function, layer)).fit(X, Y)
        for function in (nn.ReLU(), nn.Tanh())
    )
    relu.predict_uncertainty(X_NEW, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="another fitted estimator"):
        tanh.predict_uncertainty(X_NEW, checkpoint=tmp_path)


def test_a_chunk_knows_its_run(tmp_path, small_chunks):
    """However a folder came about, it never answers with numbers of something else."""
    est, other = make(), make(n_steps=11)
    own, chunk = tmp_path / "own", "chunk-0000002.safetensors"
    whole = est.predict_uncertainty(X_NEW[:4], checkpoint=own)
    other.predict_uncertainty(X_NEW[:4], checkpoint=tmp_path / "other")
    # A chunk of this run in another place is computed again.
    shutil.copy(own / "chunk-0000001.safetensors", own / chunk)
    assert_identical(est.predict_uncertainty(X_NEW[:4], checkpoint=own), whole)
    # One of another run is refused, whether this run has such a chunk or not.
    for name in (chunk, "chunk-0000009.safetensors"):
        mixed = shutil.copytree(own, tmp_path / name)
        shutil.copy(tmp_path / "other" / chunk, mixed / name)
        if name != chunk:
            for path in own.iterdir():
                (mixed / path.name).unlink()
        with pytest.raises(ValueError, match="holds a run of another fitted estimator"):
            est.predict_uncertainty(X_NEW[:4], checkpoint=mixed)


def forged_chunks(file):
    """Yield chunks that say something else, with the digest that belongs to it."""
    header, arrays = files.read_file(file)
    for name, array in arrays.items():
        others = {key: value for key, value in arrays.items() if key != name}
        yield header, others
        yield header, {**others, name: array[:0]}
        yield header, {**others, name: torch.cat([array, array])}
        yield header, {**others, name: array[:, None]}
        if name in ("prediction", "uncertainty.epistemic", "uncertainty.aleatoric"):
            yield header, {**others, name: torch.full_like(array, torch.nan)}
            yield header, {**others, name: torch.full_like(array, torch.inf)}
    yield header, {**arrays, "uncertainty.epistemic": -1 - arrays["uncertainty.epistemic"]}
    yield header, {**arrays, "more": torch.zeros(1)}
    for key in header:
        yield {name: value for name, value in header.items() if name != key}, arrays
    for key in ("rows", "results"):
        for value in (None, [], 0, "x", {}, [0, 2], [True, False]):
            yield {**header, key: value}, arrays
    for value in (None, [], 0, "x"):
        yield value, arrays


def test_a_damaged_chunk_is_computed_again(tmp_path, small_chunks):
    est = make()
    first = est.predict_uncertainty(X_NEW[:2], checkpoint=tmp_path)
    file = sorted(tmp_path.iterdir())[1]
    content = file.read_bytes()
    cases = [content[:n] for n in (0, 5, 100, len(content) - 1)]
    cases += [content[:n] + bytes([content[n] ^ 1]) + content[n + 1 :] for n in (3, 90, -9)]
    for header, arrays in forged_chunks(file):
        made_up = io.BytesIO()
        files.write(made_up, header, arrays)
        cases.append(made_up.getvalue())
    for case in cases:
        file.write_bytes(case)
        assert_identical(est.predict_uncertainty(X_NEW[:2], checkpoint=tmp_path), first)
        assert file.read_bytes() == content


def test_what_is_no_folder_is_refused(tmp_path):
    for folder in ("", -0.1, 0, True):
        with pytest.raises((TypeError, ValueError), match="no folder"):
            make().predict_uncertainty(X_NEW, checkpoint=folder)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file: pass the name of a folder"):
        make().predict_uncertainty(X_NEW, checkpoint=tmp_path / "file")
    # Behind a chunk that is in order, too.
    make().predict_uncertainty(X_NEW, checkpoint=tmp_path)
    (tmp_path / "chunk-0000099.safetensors").mkdir()
    with pytest.raises(UnreadableFileError, match="is a folder, where a file should be"):
        make().predict_uncertainty(X_NEW, checkpoint=tmp_path)


def test_no_file_outside_of_the_folder_is_written(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("not to be written")
    folder.mkdir()
    for name in (".chunk-0000000.part", "chunk-0000000.safetensors"):
        (folder / name).symlink_to(victim)
        make().predict_uncertainty(X_NEW, checkpoint=folder)
        assert victim.read_text() == "not to be written"
        assert not any(path.is_symlink() for path in folder.iterdir())
        shutil.rmtree(folder)
        folder.mkdir()


def test_what_killed_runs_leave_is_removed(tmp_path, small_chunks):
    est = make()
    first = est.predict_uncertainty(X_NEW[:4], checkpoint=tmp_path)
    # A process was killed while it wrote a chunk that another one has done, and one that is not.
    for number in (1, 2):
        (tmp_path / f".chunk-{number:07d}.part").write_bytes(b"x" * 10**5)
    (tmp_path / "chunk-0000002.safetensors").unlink()
    assert_identical(est.predict_uncertainty(X_NEW[:4], checkpoint=tmp_path), first)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_file_that_is_being_written_is_not_lost(tmp_path, small_chunks, monkeypatch):
    est = make()
    first = est.predict_uncertainty(X_NEW[:2], checkpoint=tmp_path / "alone")
    flush, calls = os.fsync, []

    def meanwhile(number):
        flush(number)
        calls.append(1)
        if len(calls) == 1:
            # Another process does the same chunk, from its beginning to its end.
            assert_identical(est.predict_uncertainty(X_NEW[:2], checkpoint=tmp_path / "f"), first)
            assert_identical(est.predict_uncertainty(X_NEW[:2], checkpoint=tmp_path / "f"), first)

    monkeypatch.setattr(os, "fsync", meanwhile)
    assert_identical(est.predict_uncertainty(X_NEW[:2], checkpoint=tmp_path / "f"), first)
    assert len(list((tmp_path / "f").iterdir())) == 2


def test_memory_is_no_part_of_a_run(tmp_path, monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    answers = []
    for free in (2**34, 2**24):
        monkeypatch.setattr(limits, "_free_bytes", lambda _, free=free: free)
        est = QUAMClassifier(net, parameters="all", random_state=0).fit(X, Y)
        answers.append(est.predict_uncertainty(X_NEW, checkpoint=tmp_path))
    assert_identical(*answers)
    est = QUAMClassifier(net, parameters="all", random_state=0, memory_limit="4MB").fit(X, Y)
    assert_identical(est.predict_uncertainty(X_NEW, checkpoint=tmp_path), answers[0])


def test_chunks_do_not_depend_on_the_clock(tmp_path, monkeypatch):
    est, clock, answers = make(), [0.0], []
    for number, seconds in enumerate((1e-3, 1e3)):

        def now(seconds=seconds):
            clock[0] += seconds
            return clock[0]

        monkeypatch.setattr(time, "monotonic", now)
        folder = tmp_path / str(number)
        answers.append(est.predict_uncertainty(X_NEW, checkpoint=folder))
    assert_identical(*answers)
    first, second = (sorted((tmp_path / name).iterdir()) for name in "01")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert len(first) == -(-N_ROWS // checkpoint.ROWS_PER_CHUNK)


def test_a_chunk_is_worked_on_in_pieces_where_memory_is_short(tmp_path, monkeypatch):
    est, sizes = make(), []
    results = FittedMethod.results
    monkeypatch.setattr(
        FittedMethod,
        "results",
        lambda self, inputs, asked: sizes.append(len(inputs)) or results(self, inputs, asked),
    )
    plenty = est.predict_uncertainty(X_NEW, checkpoint=tmp_path / "a")
    assert sizes == [32, 8]
    sizes.clear()
    monkeypatch.setattr(type(est._fitted.models), "rows_at_once", lambda *_: 5)
    little = est.predict_uncertainty(X_NEW, checkpoint=tmp_path / "b")
    assert sizes == [5, 5, 5, 5, 5, 5, 2, 5, 3]
    for a, b in zip(plenty, little, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_loaded_estimator_goes_on_with_the_run(tmp_path, small_chunks):
    est = make()
    first = est.predict_uncertainty(X_NEW[:3], checkpoint=tmp_path / "run")
    est.save(tmp_path / "est")
    again = load(tmp_path / "est", estimator=Slow())
    assert_identical(again.predict_uncertainty(X_NEW[:3], checkpoint=tmp_path / "run"), first)
    assert_identical(again.predict_uncertainty(X_NEW[:3]), est.predict_uncertainty(X_NEW[:3]))


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
def test_a_run_survives_twenty_kills(tmp_path):
    survives(tmp_path, 20, seed=0)


@pytest.mark.slow
def test_two_processes_share_a_folder(tmp_path):
    together = [start(tmp_path / "f", tmp_path / f"{n}.npy", seconds=0.002) for n in range(2)]
    for process in together:
        finish(process)
    first, second = (np.load(tmp_path / f"{number}.npy") for number in range(2))
    np.testing.assert_array_equal(first, second)
