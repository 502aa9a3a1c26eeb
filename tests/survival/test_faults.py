"""Networks that fail for some rows, and processes that are killed."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from joblib import parallel_config
from torch import nn

from sklearn_quam import (
    LaplaceRegressor,
    PenaltySearch,
    QUAMClassifier,
    ReferenceClassifier,
)
from sklearn_quam._posterior import checkpoint
from sklearn_quam.exceptions import FailedRowsWarning

from .processes import apart, finish, line_of, session_of, start, wait_until_gone
from .run import X_NEW, X, Y

BAD = 7.0


class Choosy(nn.Module):
    """Refuses rows whose first value is seven, or worse."""

    def __init__(self, n_outputs=3, deadly=False):
        super().__init__()
        torch.manual_seed(0)
        self.deadly = deadly
        self.layer = nn.Linear(4, n_outputs)

    def forward(self, x):
        if bool((x[..., 0] == BAD).any()):
            if self.deadly and os.path.exists(self.deadly):
                os.remove(self.deadly)
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.deadly is False:
                raise RuntimeError("seven is too much")
        return self.layer(x)


def some_bad(*rows):
    X_bad = X_NEW[:9].copy()
    X_bad[list(rows), 0] = BAD
    return X_bad


@pytest.mark.parametrize("kind", [QUAMClassifier, ReferenceClassifier])
def test_a_row_that_the_network_refuses_is_named_and_the_others_are_answered(kind):
    est = kind(Choosy(), random_state=0).fit(X, Y)
    with pytest.warns(FailedRowsWarning, match=r"2 of 9 rows of X \(2, 5\).*seven is too much"):
        u, diagnostics = est.predict_uncertainty(some_bad(2, 5), return_diagnostics=True)
    good = [0, 1, 3, 4, 6, 7, 8]
    expected = est.predict_uncertainty(X_NEW[:9][good])
    for found, alone in zip(u, expected, strict=True):
        np.testing.assert_allclose(found[good], alone, rtol=1e-5, atol=1e-7)
    assert (u.epistemic[[2, 5]] == 1e300).all()
    assert (u.total[[2, 5]] == 1e300).all()
    assert not any(np.isnan(part).any() for part in u)
    assert [error is not None for error in diagnostics.error] == [i in (2, 5) for i in range(9)]
    assert "seven is too much" in diagnostics.error[2]
    with pytest.warns(FailedRowsWarning):
        proba = est.predict_proba(some_bad(2), return_uncertainty=True)[0]
    np.testing.assert_allclose(proba[2], np.bincount(Y) / len(Y))


def test_errors_may_be_raised_instead():
    est = ReferenceClassifier(Choosy()).fit(X, Y)
    with pytest.raises(ValueError, match=r"cannot process row 5 of X.*seven is too much"):
        est.predict_uncertainty(some_bad(5, 7), errors="raise")
    with pytest.raises(ValueError, match="errors='ignore' is not understood"):
        est.predict_uncertainty(X_NEW, errors="ignore")


def test_a_prediction_without_uncertainty_names_the_row():
    est = ReferenceClassifier(Choosy()).fit(X, Y)
    with pytest.raises(ValueError, match=r"cannot process row 4 of X.*seven is too much"):
        est.predict(some_bad(4))


def test_when_no_row_can_be_processed_the_error_itself_is_raised():
    est = ReferenceClassifier(Choosy()).fit(X, Y)
    with pytest.raises(ValueError, match="seven is too much"):
        est.predict_uncertainty(some_bad(*range(9)))


def test_regressors_answer_such_rows_as_unknown():
    est = LaplaceRegressor(Choosy(1)).fit(X, X[:, 1])
    with pytest.warns(FailedRowsWarning):
        mean, u = est.predict(some_bad(0), return_uncertainty=True)
    assert mean[0] == pytest.approx(X[:, 1].mean(), rel=1e-4)
    assert np.isfinite(mean[1:]).all()
    assert u.epistemic[0] == 1e300
    assert (u.epistemic[1:] < 1e10).all()


def test_what_was_refused_is_kept_in_a_folder(tmp_path):
    est = ReferenceClassifier(Choosy()).fit(X, Y)
    for _ in range(2):
        with pytest.warns(FailedRowsWarning, match=r"\(3\)"):
            u = est.predict_uncertainty(some_bad(3), checkpoint=tmp_path)
        assert u.epistemic[3] == 1e300


def test_workers_name_rows_too():
    est = QUAMClassifier(Choosy(), random_state=0, n_jobs=2).fit(X, Y)
    with (
        parallel_config(backend="threading"),
        pytest.warns(FailedRowsWarning, match=r"1 of 9 rows of X \(6\)"),
    ):
        u = est.predict_uncertainty(some_bad(6))
    assert u.epistemic[6] == 1e300


def deadly(tmp_path, n_jobs=2):
    """Return a method whose network kills its process, as long as there is a certain file."""
    trap = tmp_path / "trap"
    net = Choosy(deadly=str(trap))
    est = QUAMClassifier(net, search=PenaltySearch(n_steps=5), random_state=0, n_jobs=n_jobs)
    return est.fit(X, Y), trap


@pytest.mark.slow
def test_chunks_of_a_killed_worker_are_tried_again(tmp_path):
    apart(killed_once, tmp_path)


def killed_once(tmp_path):
    est, trap = deadly(tmp_path)
    expected = est.set_params(n_jobs=1).predict_uncertainty(some_bad(4))
    trap.touch()
    found = est.set_params(n_jobs=2).predict_uncertainty(some_bad(4))
    assert not trap.exists()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


class Fatal(Choosy):
    """Kills its process for some rows, always."""

    def forward(self, x):
        if bool((x[..., 0] == BAD).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(x)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False])
def test_workers_that_are_killed_again_and_again_end_with_a_clear_error(tmp_path, keep):
    apart(always_killed, tmp_path, keep)


def always_killed(tmp_path, keep):
    # A single chunk would need no workers.
    checkpoint.ROWS_PER_CHUNK = 2
    est = QUAMClassifier(Fatal(), random_state=0, n_jobs=2).fit(X, Y)
    folder, words = (tmp_path, "kept in") if keep else (None, "not kept: pass checkpoint=")
    with pytest.raises(RuntimeError, match=rf"[0-8] of 9 rows are done.*{words}"):
        est.predict_uncertainty(some_bad(4), checkpoint=folder)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_its_parent(tmp_path, how):
    process = start("", tmp_path / "never.npy", n_jobs=2, n_steps=2000, seconds=0.01)
    while len(session_of(process)) < 3 and process.poll() is None:
        time.sleep(0.1)
    os.kill(process.pid, how)
    process.wait(10)
    left = wait_until_gone(process, 30)
    finish(process)
    assert not left


@pytest.mark.slow
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_ctrl_c_stops_soon_and_loses_nothing(tmp_path, n_jobs):
    folder = tmp_path / "folder"
    process = start(folder, tmp_path / "never.npy", n_jobs=n_jobs, n_steps=300, seconds=0.01)
    try:
        # The first chunk is done before there are workers.
        end = time.monotonic() + 120
        while len(list(folder.glob("chunk-*"))) < n_jobs and process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.1)
        done = len(list(folder.glob("chunk-*")))
        begin = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        assert line_of(process) == "stopped\n"
        took = time.monotonic() - begin
        process.wait(30)
        left = wait_until_gone(process, 20)
    finally:
        finish(process)
    # About two seconds; a busy machine takes its time to start and end processes.
    assert took < 20
    assert not left
    assert len(list(folder.glob("chunk-*"))) >= done
    assert not (tmp_path / "never.npy").exists()
