"""What the result pages are made of: judged scores, ranks, and tables that are current."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

from benchmarks import ranks
from benchmarks.scale import judge
from benchmarks.scale.case import FEW, Case, Members
from benchmarks.scale.judge import auroc, judged, scores_of
from benchmarks.scale.run import speeds, summarise
from sklearn_quam import LinearSearch

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "benchmark_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_page_is_current(tables):
    assert tables.PAGE.read_text() == tables.results_page(), (
        "benchmarks/results has changed: run python docs/benchmark_tables.py"
    )


def test_table_of_the_readme_is_current(tables):
    assert tables.readme_table() in (ROOT / "README.rst").read_text(), tables.readme_table()


def test_every_kept_result_is_shown(tables):
    shown = {name for _, _, names in tables.SECTIONS for name in names}
    assert shown <= set(tables.TABLES)
    files = {path.stem for path in tables.RESULTS.glob("*.json")}
    # Of these only figures are shown, or a comparison that passes or fails.
    without_table = {"budget", "importance", "memory", "peers", "mnist_tuning", "mnist_300"}
    # These stand in the guide.
    without_table |= {"detector_defaults"}
    started = {file for file in files if any(name.startswith(file) for name in shown)}
    assert files - started <= without_table


@settings(max_examples=50)
@given(
    known=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    unknown=st.lists(st.integers(0, 9), min_size=1, max_size=20),
)
def test_auroc_is_that_of_scikit_learn(known, unknown):
    is_unknown = np.repeat([0, 1], [len(known), len(unknown)])
    doubt = np.array(known + unknown, dtype=float)
    assert auroc(is_unknown, doubt) == pytest.approx(roc_auc_score(is_unknown, doubt))


@pytest.fixture(scope="module")
def case():
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    network = MLPClassifier([16], solver="lbfgs", max_iter=30, random_state=0).fit(X[:300], y[:300])
    other = MLPClassifier([16], solver="lbfgs", max_iter=30, random_state=1).fit(X[:300], y[:300])
    noise = np.random.default_rng(0).random((20, 64), dtype=np.float32)
    return Case(
        network=network,
        X=X[:300],
        y=y[:300],
        X_test=X[300:360],
        y_test=y[300:360],
        others={"noise": noise},
        members=Members(lambda: [network, other]),
        arguments={"MCDropout": {"p": 0.2, "n_samples": 8}, "QUAM": {"search__targets": 2}},
        disagreement=np.linspace(0, 1, 60),
    )


def test_every_kind_of_method_is_judged(case, monkeypatch):
    monkeypatch.setattr(judge, "N_RESAMPLES", 20)
    proba = scores_of(case, "Reference")["given/test/proba"]
    results = {}
    for name in ("Reference", "MCDropout", "DeepEnsemble", "QUAM", "QUAM, linear search", "Energy"):
        arrays = scores_of(case, name)
        cost = {key: float(arrays[key]) for key in ("fit_seconds", "seconds_per_row")}
        results[f"digits: {name}"] = {"cost": cost, **judged(arrays, case, proba)}
    given = results["digits: QUAM"]["given"]
    assert given["noise"]["low"] <= given["noise"]["value"] <= given["noise"]["high"]
    assert "expected" not in results["digits: Energy"]
    assert "ece" not in results["digits: Energy"]["given"]
    # A detector leaves the prediction to the network.
    energy, reference = (results[f"digits: {name}"]["given"] for name in ("Energy", "Reference"))
    assert energy["accuracy"] == reference["accuracy"]
    rows = summarise(results, None)
    assert [row["method"] for row in rows][-3:] == [
        "QUAM, linear search",
        "QUAM, linear search, expected",
        "Energy",
    ]
    assert all(set(row) == {"method", "noise", "noise_low", "noise_high"} for row in rows)
    assert {row["method"] for row in speeds(results)} == {
        name.partition(": ")[2] for name in results
    }


def test_a_variant_has_the_arguments_of_its_method_and_its_own(case):
    linear = case.make("QUAM, linear search" + FEW)
    assert isinstance(linear.search, LinearSearch)
    assert linear.search.targets == 2
    assert case.with_arguments("QUAM", {"search__targets": 3}).make("QUAM").search.targets == 3
    assert len(case.few(7).X_test) == len(case.few(7).disagreement) == 7


def test_families_count_alike_and_only_common_methods_are_ranked():
    families = {
        "one": {"task": {"a": 0.9, "b": 0.8, "only here": 1.0}},
        "many": {f"task {i}": {"a": 0.6, "b": 0.7} for i in range(9)},
    }
    mistakes = {"one": {"a": 0.5, "b": 0.9}}
    speed = {"a": 100.0, "b": 1.0}
    rows = ranks.summarise(families, mistakes, {"one": speed, "many": {"a": 1.0, "b": 1.0}})
    assert [row["method"] for row in rows] == ["a", "b"]
    assert [row["mean rank"] for row in rows] == [1.5, 1.5]
    assert rows[0]["mean AUROC"] == pytest.approx((0.9 + 0.6) / 2)
    assert rows[0]["rank for mistakes"] == 2
    assert rows[0]["rows a second"] == pytest.approx(10)
