"""What the result pages are made of: judged scores, tables that are current, and their digests."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

from benchmarks import digests, results, summary
from benchmarks.scale import judge, run
from benchmarks.scale.case import Case, Family, Members
from benchmarks.scale.judge import auroc, judged
from sklearn_quam import LinearSearch, QUAMClassifier
from sklearn_quam.metrics import augrc, failure_auroc

ROOT = Path(__file__).parents[1]
MARK = "python -m benchmarks.results --mark"


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "benchmark_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_of_an_earlier_version_are_listed():
    """A result that the present code would not give is listed, and so marked where it is shown."""
    found = digests.stale(results.present())
    assert digests.earlier() == found, f"measure them again (make results), or run {MARK}"


def test_every_table_of_an_earlier_version_is_marked(tables):
    page, old = tables.PAGE.read_text(), digests.earlier()
    for name in {name for _, _, names in tables.SECTIONS for name in names}:
        own = tables.file_of(name)
        rows = tables.TABLES[name]()
        if own in old and rows:
            assert f"{tables.OLD}\n\n{tables.as_text(rows)}" in page
    for family in summary.FAMILIES.values():
        every = old.get(family.name, [])
        for method in summary.entries_of(family):
            is_old = every == "all" or method in every
            assert summary.label(family, method, "given").endswith("†") == is_old


def test_digest_is_of_numbers_and_settings(monkeypatch):
    own = digests.digest(["QUAM"], {"rows": 3})
    assert own == digests.digest(["QUAM"], {"rows": 3})
    assert own != digests.digest(["QUAM"], {"rows": 4})
    assert own != digests.digest(["Reference"], {"rows": 3})
    plain, relative = (digests.digest([n], {}) for n in ("Mahalanobis", "Mahalanobis, relative"))
    assert plain != relative
    energy = digests.digest(["Energy"], {})
    changed = {**digests.pinned(), "QUAMClassifier": {"given, total": ["1.0"]}}
    monkeypatch.setattr(digests, "pinned", lambda: changed)
    assert own != digests.digest(["QUAM"], {"rows": 3})
    assert energy == digests.digest(["Energy"], {})


def test_every_measured_method_is_pinned():
    for family in summary.FAMILIES.values():
        for method in family.methods:
            names, _ = digests.names_of(method)
            assert not names or names[0] in digests.pinned(), method


def test_results_page_is_current(tables):
    assert tables.PAGE.read_text() == tables.results_page(), (
        "benchmarks/results has changed: run python docs/benchmark_tables.py"
    )


def test_table_of_the_readme_is_current(tables):
    text = tables.README.read_text()
    assert tables.with_table(text) == text, "run python docs/benchmark_tables.py"


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
def family():
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)

    def load(folder, case):
        networks = [
            MLPClassifier([16], solver="lbfgs", max_iter=30, random_state=k).fit(X[:300], y[:300])
            for k in (0, 1)
        ]
        return Case(
            network=networks[0],
            X=X[:300],
            y=y[:300],
            X_test=X[300:400],
            y_test=y[300:400],
            others={"noise": np.random.default_rng(0).random((20, 64), dtype=np.float32)},
            members=Members(lambda: networks),
            disagreement=np.linspace(0, 1, 100),
        )

    return Family(
        name="small",
        title="small",
        load=load,
        cases=("a",),
        near=("noise",),
        far=(),
        rows=(30, 40, 20),
        settings={},
        arguments={"MCDropout": {"p": 0.2, "n_samples": 8}, "QUAM": {"search__targets": 2}},
        methods=("Reference", "MCDropout", "DeepEnsemble", "QUAM", "QUAM, linear search", "Energy"),
    )


@pytest.fixture(scope="module")
def case(family):
    return family.load(None, "a").split(*family.rows)


def test_every_kind_of_method_is_judged(family, tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "N_RESAMPLES", 20)
    monkeypatch.setattr(judge, "MIN_FOR_INTERVALS", 10)
    for name, digest in run.stale(family, tmp_path).items():
        run.measure(family, None, tmp_path, name, digest)
    assert not run.stale(family, tmp_path)
    changed = replace(family, arguments={"QUAM": {"search__targets": 3}})
    methods = {name.rpartition(": ")[2] for name in run.stale(changed, tmp_path)}
    assert methods == {"MCDropout", "QUAM", "QUAM, linear search"}
    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    rows = summary.questions(family)
    assert [row["method"] for row in rows] == [
        "Reference",
        "MCDropout",
        "MCDropout, expected",
        "DeepEnsemble",
        "DeepEnsemble, expected",
        "DeepEnsemble, pairwise",
        "QUAM",
        "QUAM, expected",
        "QUAM, pairwise",
        "QUAM, linear search",
        "QUAM, linear search, expected",
        "QUAM, linear search, pairwise",
        "Energy",
    ]
    columns = {"method", "near", "FPR95", "mistakes", "AUGRC, %", "ms a sample"}
    assert all(set(row) == columns for row in rows)
    assert [row["method"] for row in summary.forecast(family)][:2] == [
        "Reference",
        "MCDropout, expected",
    ]
    assert {row["score"] for row in summary.scores(family, ["QUAM"])} == {
        "epistemic",
        "total",
        "1 - max p",
        "doubt",
    }
    assert "human, aleatoric" in summary.parts(family)[0]


def test_answers_are_those_of_the_package(family, case, monkeypatch):
    """Doubt, and what is made of it, agree with `predict_doubt` and the metrics of the package."""
    monkeypatch.setattr(judge, "N_RESAMPLES", 20)
    for name in ("QUAM", "Energy"):
        found = judged(case, family.make(case, name), name)["given"]
        est = family.make(case, name).fit(case.X, case.y, X_val=case.X_val, y_val=case.y_val)
        known, unknown = est.predict_doubt(case.X_test), est.predict_doubt(case.others["noise"])
        right = case.network.predict(case.X_test) == case.y_test
        assert found["mistakes"]["doubt"]["value"] == pytest.approx(failure_auroc(right, known))
        failed, doubt = np.r_[~right, np.ones(20, bool)], np.r_[known, unknown]
        assert found["both"]["doubt"]["noise"]["value"] == pytest.approx(augrc(failed, doubt))


def test_a_variant_has_the_arguments_of_its_method_and_its_own(family, case):
    linear = family.make(case, "QUAM, linear search")
    assert isinstance(linear, QUAMClassifier)
    assert isinstance(linear.search, LinearSearch)
    assert linear.search.targets == 2


def test_results_are_stored_one_a_line(tmp_path):
    run.write(tmp_path / "a.json", {"x": {"value": np.float64(0.1234567)}, "y": {"digest": "z"}})
    assert len((tmp_path / "a.json").read_text().splitlines()) == 4
    assert json.loads((tmp_path / "a.json").read_text())["entries"]["x"] == {"value": 0.12346}
