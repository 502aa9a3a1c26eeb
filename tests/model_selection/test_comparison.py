"""The table of methods, against numbers computed by hand."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_quam import (
    LaplaceClassifier,
    PenaltySearch,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    ReferenceRegressor,
)
from sklearn_quam.exceptions import UncertaintyWarning
from sklearn_quam.metrics import (
    accuracy_rejection_auc,
    augrc,
    aupr,
    bootstrap_interval,
    excess_augrc,
    expected_calibration_error,
    failure_auroc,
    fpr_at_tpr,
    risk_coverage_auc,
)
from sklearn_quam.model_selection import (
    compare_uncertainty,
    log_score_scorer,
    make_failure_scorer,
    make_ood_scorer,
)
from sklearn_quam.ood import EnergyDetector

from ..networks import TARGET, X64, X64_NEW
from .common import (
    FRAME,
    FRAME_OOD,
    NAMED,
    NOISY,
    TEST,
    TRAIN,
    X_OOD,
    CountingMLP,
    network,
    quam,
    unfitted,
)

DATA = (X64[TRAIN], NOISY[TRAIN], X64[TEST], NOISY[TEST])
REAL = (X64[TRAIN], TARGET[TRAIN], X64[TEST], TARGET[TEST])
FAST = {"n_resamples": 4, "random_state": 0}
ENTROPY = "entropy of the network"
CONFIDENCE = "1 - max p of the network"


def row(frame, method, task):
    (found,) = frame[(frame.method == method) & (frame.task == task)].to_dict("records")
    return found


def assert_interval(found, column, metric, *arrays, **options):
    expected = bootstrap_interval(metric, *arrays, n_resamples=4, random_state=seed(), **options)
    values = [found[f"{column}{end}"] for end in ("", "_low", "_high")]
    assert values == pytest.approx(list(expected))


def seed():
    return np.random.RandomState(0).randint(np.iinfo(np.int32).max)


@pytest.mark.slow
def test_table_of_classifiers_equals_numbers_by_hand():
    net = network()
    sets = {"far": X_OOD, "wide": 3 * X64_NEW}
    methods = {"QUAM": quam(net), "Laplace": LaplaceClassifier(net, random_state=0)}
    frame = compare_uncertainty(methods, *DATA, sets, **FAST).details
    assert frame.shape == (4 * 5, 3 + 13 * 3 + 4)
    assert frame.error.eq("").all()
    assert list(frame.method.unique()) == ["QUAM", "Laplace", CONFIDENCE, ENTROPY]
    tasks = ["ood:far", "ood:wide", "misclassification", "failures", "rejection"]
    assert list(frame.task[:5]) == tasks
    assert (frame.rows_per_second > 0).all()
    assert (frame.fit_seconds > 0).all()
    references = {**methods, ENTROPY: ReferenceClassifier(net)}
    for name, est in references.items():
        part = "total" if name == ENTROPY else "epistemic"
        est.fit(X64[TRAIN], NOISY[TRAIN])
        u = getattr(est.predict_uncertainty(X64[TEST]), part)
        far = getattr(est.predict_uncertainty(X_OOD), part)
        detection = (np.repeat([0, 1], [20, 25]), np.concatenate([u, far]))
        correct, proba = est.predict(X64[TEST]) == NOISY[TEST], est.predict_proba(X64[TEST])
        found = row(frame, name, "ood:far")
        assert found["component"] == part
        assert np.isnan([found["ece"], found["accuracy_rejection_auc"], found["log_score"]]).all()
        for task, arrays in (("ood:far", detection), ("misclassification", (~correct, u))):
            found = row(frame, name, task)
            assert_interval(found, "roc_auc", roc_auc_score, *arrays, stratify=arrays[0])
            assert_interval(found, "aupr", aupr, *arrays, stratify=arrays[0])
            assert_interval(found, "fpr95", fpr_at_tpr, *arrays, stratify=arrays[0])
        found = row(frame, name, "rejection")
        assert_interval(found, "accuracy_rejection_auc", accuracy_rejection_auc, correct, u)
        labels = {"labels": [0, 1, 2]}
        assert_interval(found, "ece", expected_calibration_error, NOISY[TEST], proba, **labels)
        expected = -log_loss(NOISY[TEST], proba, **labels)
        assert found["log_score"] == pytest.approx(expected)
        assert np.isnan([found["roc_auc"], found["risk_coverage_auc"]]).all()


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["entropy", "variance"])
def test_table_of_regressors_equals_numbers_by_hand(measure):
    net = network(y=TARGET, kind=MLPRegressor)
    est = QUAMRegressor(net, search=PenaltySearch(n_steps=4), measure=measure, random_state=0)
    frame = compare_uncertainty([est], *REAL, X_OOD, component="total", **FAST).details
    assert frame.error.eq("").all()
    assert list(frame.task) == ["ood", "rejection"] * 2
    for name, method in (
        ("QUAMRegressor", est),
        (ENTROPY, ReferenceRegressor(net, measure=measure)),
    ):
        method = clone(method).fit(*REAL[:2])
        u, far = (method.predict_uncertainty(X).total for X in (X64[TEST], X_OOD))
        detection = (np.repeat([0, 1], [20, 25]), np.concatenate([u, far]))
        found = row(frame, name, "ood")
        assert_interval(found, "roc_auc", roc_auc_score, *detection, stratify=detection[0])
        found = row(frame, name, "rejection")
        loss = (method.predict(X64[TEST]) - TARGET[TEST]) ** 2
        assert_interval(found, "risk_coverage_auc", risk_coverage_auc, loss, u)
        expected = log_score_scorer(method, X64[TEST], TARGET[TEST])
        assert found["log_score"] == pytest.approx(expected)
        assert found["log_score_low"] <= expected <= found["log_score_high"]
        assert np.isnan([found["ece"], found["accuracy_rejection_auc"]]).all()


def test_each_method_is_asked_once_about_each_data_set(monkeypatch):
    asked = []
    original = QUAMClassifier._results

    def results(self, X):
        asked.append(len(X))
        return original(self, X)

    monkeypatch.setattr(QUAMClassifier, "_results", results)
    est = quam(network(), setting="expected").fit(*DATA[:2])
    compare_uncertainty([est], *DATA, {"a": X_OOD, "b": X_OOD[:7]}, **FAST)
    assert asked == [20, 25, 7]


def test_fitted_methods_are_taken_as_they_are_and_others_are_not_changed(monkeypatch):
    net = network(kind=CountingMLP)
    n_fits = CountingMLP.n_fits
    ready, raw = quam(net).fit(*DATA[:2]), quam(net).set_params(search__learning_rate=1e-2)
    frame = compare_uncertainty({"ready": ready, "raw": raw}, *DATA, **FAST).details
    assert CountingMLP.n_fits == n_fits
    assert frame[frame.method == "ready"].fit_seconds.isna().all()
    assert frame[frame.method == "raw"].fit_seconds.notna().all()
    assert not hasattr(raw, "classes_")
    assert list(frame.task.unique()) == ["misclassification", "failures", "rejection"]
    unfit = quam(unfitted(CountingMLP))
    frame = compare_uncertainty([unfit], *DATA, **FAST).details
    assert CountingMLP.n_fits == n_fits + 1
    assert row(frame, ENTROPY, "rejection")["error"] == ""


def test_failing_methods_leave_the_others_alone():
    class Broken(QUAMClassifier):
        def _question(self, inputs):
            raise RuntimeError("out of luck")

    net = network()
    methods = {
        "broken": Broken(net),
        "unknown parameter": quam(net, n_steps=-1),
        "no method": net,
        "no estimator": "QUAM",
        "regressor": QUAMRegressor(network(y=TARGET, kind=MLPRegressor)),
        "fine": quam(net),
    }
    sets = {"far": X_OOD, "thin": X_OOD[:, :2]}
    with pytest.raises(RuntimeError, match="out of luck") as raised:
        compare_uncertainty(methods, *DATA, sets, **FAST)
    assert "broken. With errors='warn'" in raised.value.__notes__[0]
    words = r"'broken', 'unknown parameter'.*'error'.*The first: RuntimeError: out of luck"
    with pytest.warns(UncertaintyWarning, match=words) as told:
        frame = compare_uncertainty(methods, *DATA, sets, errors="warn", **FAST).details
    assert len([one for one in told if one.category is UncertaintyWarning]) == 1
    assert {one.filename for one in told if one.category is UncertaintyWarning} == {__file__}
    assert len(frame) == (6 + 4) * 5
    errors = frame.groupby("method", sort=False).error.first()
    assert errors["broken"] == "RuntimeError: out of luck"
    assert "'n_steps' parameter" in errors["unknown parameter"]
    assert "MLPClassifier has no predict_uncertainty" in errors["no method"]
    assert "str has no predict_uncertainty" in errors["no estimator"]
    assert "cannot be compared" in errors["regressor"]
    fine = frame[frame.method == "fine"].set_index("task")
    assert "2 features" in fine.error["ood:thin"]
    assert np.isnan(fine.roc_auc["ood:thin"])
    assert (fine.error.drop("ood:thin") == "").all()
    assert np.isfinite(fine.roc_auc["ood:far"])
    assert row(frame, ENTROPY, "ood:far")["error"] == ""


def test_the_entropy_is_there_even_if_every_method_fails():
    options = {**FAST, "errors": "warn"}
    with pytest.warns(UncertaintyWarning, match="'QUAMClassifier' failed in 4 row"):
        frame = compare_uncertainty([quam(network(), n_steps=-1)], *DATA, X_OOD, **options).details
    assert np.isfinite(row(frame, ENTROPY, "ood")["roc_auc"])
    with pytest.warns(UncertaintyWarning, match="'QUAMClassifier' failed in 4 row"):
        frame = compare_uncertainty([quam(unfitted(), n_steps=-1)], *DATA, X_OOD, **options).details
    assert "no network" in row(frame, ENTROPY, "ood")["error"]


@pytest.mark.slow
def test_several_networks_have_an_entropy_each():
    nets = [network(), network(slice(0, 30))]
    methods = {"a": quam(nets[0]), "b": quam(nets[1]), "c": quam(copy.deepcopy(nets[0]))}
    frame = compare_uncertainty(methods, *DATA, X_OOD, **FAST).details
    names = ["a", "b", "c", CONFIDENCE, ENTROPY, f"{CONFIDENCE} of b", f"{ENTROPY} of b"]
    assert list(frame.method.unique()) == names
    est = ReferenceClassifier(nets[1]).fit(*DATA[:2])
    expected = make_ood_scorer(X_OOD, component="total")(est, X64[TEST])
    assert row(frame, f"{ENTROPY} of b", "ood")["roc_auc"] == expected


def test_undefined_tasks_say_why():
    net = network()
    y_test = net.predict(X64[TEST])
    frame = compare_uncertainty([quam(net)], *DATA[:3], y_test, X_OOD, **FAST).details
    found = row(frame, "QUAMClassifier", "misclassification")
    assert found["error"] == "No predictions are mistakes."
    assert np.isnan(found["roc_auc"])
    assert row(frame, "QUAMClassifier", "rejection")["accuracy_rejection_auc"] == 1


@pytest.mark.slow
def test_pipelines_frames_and_text_labels_are_compared():
    data = (FRAME[TRAIN], pd.Series(NAMED[TRAIN]), FRAME[TEST], pd.Series(NAMED[TEST]))
    net = make_pipeline(StandardScaler(), unfitted()).fit(*data[:2])
    outside = make_pipeline(StandardScaler(), quam(unfitted()))
    search = GridSearchCV(quam(net), {"search__n_steps": [2]}, scoring="accuracy", cv=2)
    methods = [quam(net), outside, quam(net, n_steps=2), search]
    frame = compare_uncertainty(methods, *data, {"far": FRAME_OOD}, **FAST).details
    assert frame.error.eq("").all(), frame.error.tolist()
    names = ["QUAMClassifier", *(f"QUAMClassifier {n}" for n in (2, 3, 4)), CONFIDENCE, ENTROPY]
    assert list(frame.method.unique()) == names  # both networks are the same but for who holds them
    # The same network, seed and rows.
    columns = ["roc_auc", "aupr", "fpr95"]
    first, second = (row(frame, name, "ood:far") for name in names[:2])
    assert [first[c] for c in columns] == pytest.approx([second[c] for c in columns])


@pytest.mark.slow
def test_a_pipeline_brings_its_transformers_to_the_entropy():
    outside = make_pipeline(StandardScaler(), quam(unfitted())).fit(*DATA[:2])
    frame = compare_uncertainty([outside], *DATA, X_OOD, **FAST).details
    rows = outside[:-1].transform(X64[TEST])
    u = ReferenceClassifier(outside[-1].estimator_).fit(rows, NOISY[TEST]).predict_uncertainty
    scores = np.concatenate([u(rows).total, u(outside[:-1].transform(X_OOD)).total])
    found = row(frame, ENTROPY, "ood")
    assert found["roc_auc"] == roc_auc_score(np.repeat([0, 1], [20, 25]), scores)


def test_comparisons_are_repeatable_and_paired():
    est = LaplaceClassifier(network(), random_state=0)
    first, second = (
        compare_uncertainty({"a": est, "b": est}, *DATA, X_OOD, **FAST).details for _ in range(2)
    )
    timing = ["rows_per_second", "fit_seconds"]
    pd.testing.assert_frame_equal(first.drop(columns=timing), second.drop(columns=timing))
    a, b = (first[first.method == name].filter(regex="roc_auc").to_numpy() for name in "ab")
    # Three tasks have a value and the ends of its interval.
    assert np.isfinite(a).sum() == 3 * 3
    np.testing.assert_array_equal(a, b)


def test_progress_is_shown_only_when_asked_for(capsys):
    compare_uncertainty([ReferenceClassifier(network())], *DATA, **FAST)
    assert capsys.readouterr().err == ""
    compare_uncertainty([ReferenceClassifier(network())], *DATA, **FAST, verbose=1)
    assert "method" in capsys.readouterr().err


def test_bad_arguments_of_a_comparison_are_named():
    est = [quam(network())]
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_uncertainty({}, *DATA)
    with pytest.raises(ValueError, match="'estimators' parameter"):
        compare_uncertainty(est[0], *DATA)
    for bad in ({"component": "both"}, {"n_resamples": 0}, {"confidence": 1.0}):
        with pytest.raises(ValueError, match=f"'{next(iter(bad))}' parameter"):
            compare_uncertainty(est, *DATA, **bad)


def test_the_summary_has_a_line_for_each_method_and_few_columns():
    net = network()
    held_out = {"X_val": X64_NEW, "y_val": NOISY[TRAIN][:25]}
    methods = [LaplaceClassifier(net, random_state=0), EnergyDetector(net)]
    sets = {"far": X_OOD, "wide": 3 * X64_NEW}
    found = compare_uncertainty(methods, *DATA, sets, **held_out, **FAST)
    table, details = found.to_frame(), found.details
    assert table.shape == (4, 9)
    assert list(table.columns[:4]) == ["far", "wide", "mistakes", "both"]
    assert (table.both.diff().dropna() <= 0).all()
    est = methods[0].fit(*DATA[:2], **held_out)
    doubt = [est.predict_doubt(X) for X in (X64[TEST], X_OOD, 3 * X64_NEW)]
    correct = est.predict(X64[TEST]) == NOISY[TEST]
    expected = failure_auroc(correct, doubt[0], np.concatenate(doubt[1:]))
    assert table.both["LaplaceClassifier"] == pytest.approx(expected)
    losses = np.r_[~correct, np.ones(len(doubt[1]) + len(doubt[2]))]
    pool = losses, np.concatenate(doubt)
    failures = row(details, "LaplaceClassifier", "failures")
    assert failures["excess_augrc"] == pytest.approx(excess_augrc(*pool))
    assert table.augrc["LaplaceClassifier"] == pytest.approx(augrc(*pool))
    scorer = make_failure_scorer(np.concatenate(list(sets.values())), metric="neg_excess_augrc")
    assert scorer(est, X64[TEST], NOISY[TEST]) == pytest.approx(-excess_augrc(*pool))
    risk = 1 - est.predict_proba(X64[TEST]).max(axis=1)
    assert table.mistakes[CONFIDENCE] == pytest.approx(roc_auc_score(~correct, risk))
    kinds = details.groupby("method").component.first()
    assert kinds.to_dict() == {
        "LaplaceClassifier": "doubt",
        "EnergyDetector": "score",
        CONFIDENCE: "1 - max p",
        ENTROPY: "total",
    }
    assert "LaplaceClassifier" in repr(found)
    assert "<table" in found._repr_html_()
    many = compare_uncertainty(methods[1:], *DATA, dict.fromkeys("abcd", X_OOD), **FAST)
    first = many.to_frame().loc["EnergyDetector"]
    assert first.unknown == table.far["EnergyDetector"]
    assert len(first) == 8
    with pytest.raises(ValueError, match="X_val and y_val go together"):
        compare_uncertainty(methods, *DATA, X_val=X_OOD)
