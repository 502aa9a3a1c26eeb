"""How long it will take: bars that appear by themselves, and a warning."""

import re
import warnings

import pytest
import torch
from torch import nn

from sklearn_quam import HMCClassifier, PenaltySearch, QUAMClassifier, ReferenceClassifier
from sklearn_quam._posterior import progress as module
from sklearn_quam._posterior.progress import Progress
from sklearn_quam.exceptions import SlowWarning

from ..test_contract import METHODS, make_data, make_estimator
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
def looking(monkeypatch):
    monkeypatch.setattr(module, "_someone_is_looking", lambda: True)


def run(clock, n_rows, seconds_each, verbose=None, **options):
    with Progress(n_rows, "Method", verbose, **options) as progress:
        for _ in range(n_rows):
            clock.now += seconds_each
            progress.advance(1)


def test_a_bar_appears_where_more_than_ten_seconds_are_ahead(clock, looking, capsys):
    run(clock, 20, 1.0)
    shown = capsys.readouterr().err
    assert "Method" in shown
    assert "20/20" in shown


def test_short_runs_show_none(clock, looking, capsys):
    run(clock, 8, 1.0)
    assert not capsys.readouterr().err


def test_none_is_shown_where_nobody_looks(clock, capsys):
    run(clock, 20, 1.0)
    assert not capsys.readouterr().err


def test_verbose_decides(clock, looking, capsys):
    run(clock, 20, 1.0, verbose=0)
    assert not capsys.readouterr().err
    run(clock, 2, 0.001, verbose=1)
    assert "2/2" in capsys.readouterr().err


def test_the_time_left_is_told_after_the_first_chunk(clock, looking):
    with Progress(100, "Method", 0) as progress:
        assert progress.seconds_left is None
        progress.begin(10)
        clock.now += 5
        progress.advance(10)
        assert progress.seconds_left == pytest.approx(45)


def test_what_was_done_before_takes_no_time(clock):
    with Progress(100, "Method", 0) as progress:
        progress.had_before(60)
        clock.now += 5
        progress.advance(10)
        assert progress.seconds_left == pytest.approx(15)


def test_progress_within_a_row(clock, looking, capsys):
    with Progress(8, "Method", None) as progress:
        progress.begin(1)
        clock.now += 4
        progress.report(0.1)
        assert progress.seconds_left == pytest.approx(4 / 0.1 * 7.9)
    assert "0.1/8" in capsys.readouterr().err


def test_long_runs_warn_once_with_three_remedies(clock):
    with pytest.warns(SlowWarning) as caught:
        run(clock, 30, 60.0, remedies=("a", "b", "c"))
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "will take 28 minutes more for 28 of 30 rows" in text
    assert "(1) a; (2) b; (3) c" in text
    assert caught[0].filename == __file__


def test_setting_up_does_not_count_as_the_time_of_the_first_rows(clock):
    with warnings.catch_warnings(), Progress(100, "Method", 0) as progress:
        warnings.simplefilter("error")
        clock.now += 60
        for _ in range(40):
            clock.now += 1
            progress.advance(1)
        assert progress.seconds_left == pytest.approx(60)


def test_one_long_chunk_warns_before_it_ends_but_not_at_once(clock):
    with Progress(1000, "Method", 0) as progress:
        progress.begin(1000)
        clock.now += 100
        progress.report(0.01)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # Ten seconds a row here say nothing yet.
            clock.now += 9
            progress.report(0.011)
        clock.now += 81
        with pytest.warns(SlowWarning, match="will take 48 minutes more"):
            progress.report(0.04)


def test_runs_of_less_than_ten_minutes_do_not(clock):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(clock, 10, 60.0)


@pytest.mark.parametrize("search", ["natural", "linear", "penalty"])
def test_every_search_has_three_remedies(search):
    est = QUAMClassifier(nn.Linear(4, 3), search=search).fit(X, Y)
    remedies = est._remedies()
    assert len(remedies) == 3
    assert not any(f"search='{search}'" in remedy for remedy in remedies)


@pytest.mark.parametrize(
    "method", [m for m in METHODS if not m.name.startswith("QUAM")], ids=lambda m: m.name
)
def test_every_method_has_remedies_of_its_own(method):
    est = make_estimator(method).fit(*make_data(method))
    *own, first_look = est._remedies()
    assert "sklearn_quam.ood" in first_look
    assert bool(own) != method.name.startswith("Reference")
    named = re.findall(r"(\w+)(?:, now|=')", " ".join(own))
    assert set(named) <= est.get_params().keys()
    assert len(named) == len(own) <= 2 or getattr(est, "estimators", None) is not None


def test_all_but_the_last_layer_is_a_remedy_where_more_is_sampled():
    est = HMCClassifier(nn.Linear(4, 3), n_samples=4, n_warmup=2, n_chains=1).fit(X, Y)
    texts = est._remedies()
    assert texts[0].startswith("fit with a smaller n_samples, now 4")
    assert texts[1].startswith("parameters='last_layer'")
    assert len(texts) == 3


def test_searches_report_how_far_they_are(monkeypatch):
    shares = []
    report = Progress.report
    monkeypatch.setattr(Progress, "report", lambda self, s: shares.append(s) or report(self, s))
    torch.manual_seed(0)
    est = QUAMClassifier(nn.Linear(4, 3), search=PenaltySearch(n_steps=10)).fit(X, Y)
    est.predict_uncertainty(X_NEW[:2])
    assert len(shares) > 10
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)


def test_displays_that_compute_show_progress(monkeypatch, looking, capsys):
    pytest.importorskip("matplotlib")
    from sklearn_quam.display import UncertaintyMapDisplay

    monkeypatch.setattr(module, "_WORTH_A_BAR", -1.0)
    est = ReferenceClassifier(nn.Linear(2, 3)).fit(X[:, :2], Y)
    UncertaintyMapDisplay.from_estimator(est, X[:, :2], grid_resolution=8)
    assert re.search(r"ReferenceClassifier.*64/64", capsys.readouterr().err)


@pytest.mark.parametrize("ask", ["adversarial_models", "search_traces", "rival_costs"])
def test_looks_into_searches_show_progress(ask, monkeypatch, looking, capsys):
    monkeypatch.setattr(module, "_WORTH_A_BAR", -1.0)
    est = QUAMClassifier(nn.Linear(4, 3)).fit(X, Y)
    getattr(est, ask)(X_NEW[:2])
    assert "QUAMClassifier" in capsys.readouterr().err


def test_a_slow_run_is_told_at_the_line_that_asked(clock, monkeypatch):
    est = QUAMClassifier(nn.Linear(4, 3), search=PenaltySearch(n_steps=10)).fit(X, Y)
    report = Progress.report

    def slow(self, share):
        clock.now += 3600
        report(self, share)

    monkeypatch.setattr(Progress, "report", slow)
    with pytest.warns(SlowWarning) as caught:
        est.predict_uncertainty(X_NEW[:2])
    assert [warning.filename for warning in caught] == [__file__]
