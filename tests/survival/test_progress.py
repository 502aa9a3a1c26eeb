"""How long it will take: bars that appear by themselves, and a warning."""

import re
import warnings

import pytest
from torch import nn

from sklearn_quam import QUAMClassifier, ReferenceClassifier
from sklearn_quam._posterior import progress as module
from sklearn_quam._posterior.progress import Progress
from sklearn_quam.exceptions import SlowWarning

from .run import X_NEW, X, Y


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def at_once(monkeypatch):
    """A terminal, and bars that appear without delay."""
    monkeypatch.setattr(module, "_is_interactive", lambda: True)
    monkeypatch.setattr(module, "_DELAY", 0)


def run(clock, n_rows, seconds_each, verbose=None, **options):
    with Progress(n_rows, "Method", verbose, **options) as progress:
        for _ in range(n_rows):
            clock.now += seconds_each
            progress.advance(1)


def test_a_bar_is_shown_to_those_who_look(clock, at_once, capsys):
    run(clock, 20, 1.0)
    shown = capsys.readouterr().err
    assert "Method" in shown
    assert "20/20" in shown


def test_no_bar_where_it_is_short_or_nobody_looks_or_it_is_unwanted(clock, monkeypatch, capsys):
    run(clock, 8, 1.0)
    monkeypatch.setattr(module, "_is_interactive", lambda: True)
    run(clock, 8, 1.0)
    monkeypatch.setattr(module, "_DELAY", 0)
    run(clock, 8, 1.0, verbose=0)
    assert not capsys.readouterr().err
    run(clock, 2, 0.001, verbose=1)
    assert "2/2" in capsys.readouterr().err


def test_what_was_done_before_is_counted_but_has_taken_no_time(clock, capsys):
    with warnings.catch_warnings(), Progress(100, "Method", 1) as progress:
        warnings.simplefilter("error")
        progress.had_before(60)
        for _ in range(4):
            clock.now += 5
            progress.advance(10)
    assert "100/100" in capsys.readouterr().err


def test_long_runs_warn_once(clock):
    with pytest.warns(SlowWarning) as caught:
        run(clock, 30, 60.0)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "will take 28 minutes more for 28 of 30 rows" in text
    assert "guide/time.html" in text
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("set_up", "n_rows", "seconds"), [(6000, 40, 1), (0, 10, 60)])
def test_shorter_runs_do_not_warn_whatever_setting_up_takes(clock, set_up, n_rows, seconds):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clock.now += set_up
        run(clock, n_rows, seconds)


def test_displays_that_compute_show_progress(at_once, capsys):
    pytest.importorskip("matplotlib")
    from sklearn_quam.display import UncertaintyMapDisplay

    est = ReferenceClassifier(nn.Linear(2, 3)).fit(X[:, :2], Y)
    UncertaintyMapDisplay.from_estimator(est, X[:, :2], grid_resolution=8)
    assert re.search(r"ReferenceClassifier.*64/64", capsys.readouterr().err)


@pytest.mark.parametrize("ask", ["adversarial_models", "search_traces", "rival_costs"])
def test_looks_into_searches_show_progress(ask, at_once, capsys):
    est = QUAMClassifier(nn.Linear(4, 3)).fit(X, Y)
    getattr(est, ask)(X_NEW[:2])
    assert "QUAMClassifier" in capsys.readouterr().err


def test_a_slow_run_is_told_at_the_line_that_asked(clock, monkeypatch):
    est = QUAMClassifier(nn.Linear(4, 3), memory_limit="1MB").fit(X, Y)
    advance = Progress.advance

    def slow(self, count):
        clock.now += 3600
        advance(self, count)

    monkeypatch.setattr(Progress, "advance", slow)
    monkeypatch.setattr(type(est._fitted.models), "rows_at_once", lambda *_: 1)
    with pytest.warns(SlowWarning) as caught:
        est.predict_uncertainty(X_NEW[:4])
    assert [warning.filename for warning in caught] == [__file__]
