"""The contract of all detectors: the network stays as it is, and each row is judged alone."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_outliers_fit_predict, check_outliers_train
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_quam import load
from sklearn_quam.ood import NearestNeighborDetector

from ..networks import fitted as fit_quietly
from ..networks import module_state
from .common import EACH, N_FEATURES, make_data, make_detector, make_module

OTHER_VALUES = {
    "layer": "0",
    "output": 1,
    "temperature": 2.0,
    "relative": None,
    "guided": None,
    "normalize": None,
    "shrinkage": 0.5,
    "n_neighbors": 2,
    "metric": "manhattan",
    "n_jobs": 1,
    "gamma": 0.5,
    "n_largest": 2,
    "alpha": 0.3,
    "n_components": 2,
    "contamination": 0.3,
    "link": "log_probabilities",
    "device": torch.device("cpu"),
    "random_state": 5,
}


# One that reads logits, one with moments of features, one with training samples and two layers.
SOME = ["EnergyDetector", "MahalanobisDetector", "NearestNeighborDetector, inputs"]
SOME += ["ViMDetector, two layers"]
some = pytest.mark.parametrize("name", SOME)


@pytest.fixture(scope="module", params=[*EACH, "ViMDetector, two layers"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def once(name):
    return make_detector(name).fit(*make_data())


@pytest.fixture
def fitted(once):
    return copy.deepcopy(once)


@pytest.fixture
def X_new():
    return make_data(n_samples=9, seed=1)[0]


def assert_same(first, second, rtol=1e-5):
    np.testing.assert_allclose(first, second, rtol=rtol, atol=1e-6)


def test_scores_decisions_and_labels_agree(fitted, X_new):
    scores = fitted.score_samples(X_new)
    assert scores.shape == (len(X_new),)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
    decision = fitted.decision_function(X_new)
    np.testing.assert_array_equal(decision, scores - fitted.offset_)
    np.testing.assert_array_equal(fitted.predict(X_new), np.where(decision < 0, -1, 1))


def test_contamination_is_the_share_of_held_out_rows_that_are_flagged(name):
    X, y = make_data()
    X_val = make_data(n_samples=40, seed=2)[0]
    detector = make_detector(name, contamination=0.25).fit(X, y, X_val=X_val)
    assert (detector.predict(X_val) == -1).sum() == 10


@pytest.mark.parametrize("check", [check_outliers_train, check_outliers_fit_predict])
@pytest.mark.parametrize("name", ["EnergyDetector", "GENDetector"])
def test_checks_of_scikit_learn_that_pass_no_labels(name, check):
    X, _ = make_blobs(n_samples=300, random_state=0)
    net = MLPClassifier((8,), solver="lbfgs", random_state=0)
    net = fit_quietly(net, X, np.digitize(X[:, 0], [0, 2]))
    check(name, make_detector(name, net))


@some
def test_without_labels_the_networks_own_are_taken(name, X_new):
    X, _ = make_data()
    with torch.no_grad():
        own = make_module()(torch.tensor(X)).argmax(dim=1).numpy()
    assert_same(
        make_detector(name).fit(X).score_samples(X_new),
        make_detector(name).fit(X, own).score_samples(X_new),
    )
    with pytest.raises(ValueError, match="requires y"):
        make_detector(name, MLPClassifier()).fit(X)


def test_a_row_does_not_depend_on_the_others(fitted, X_new):
    together = fitted.score_samples(X_new)
    alone = np.concatenate([fitted.score_samples(X_new[i : i + 1]) for i in range(len(X_new))])
    assert_same(together, alone)
    order = np.random.default_rng(0).permutation(len(X_new))
    assert_same(together[order], fitted.score_samples(X_new[order]))


def test_the_given_module_is_untouched(name, X_new):
    module = make_module().train()
    module[0].weight.requires_grad_(False)
    before = module_state(module)
    make_detector(name, module).fit(*make_data()).score_samples(X_new)
    assert module_state(module) == before


def test_clone_keeps_the_network_and_forgets_the_fit(fitted, X_new):
    duplicate = clone(fitted)
    assert duplicate.estimator is fitted.estimator
    with pytest.raises(NotFittedError):
        duplicate.score_samples(X_new)
    assert_same(duplicate.fit(*make_data()).score_samples(X_new), fitted.score_samples(X_new))


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_fitted_detectors_can_be_stored(fitted, how, X_new):
    restored = pickle.loads(pickle.dumps(fitted)) if how == "pickle" else copy.deepcopy(fitted)
    np.testing.assert_array_equal(restored.score_samples(X_new), fitted.score_samples(X_new))
    assert restored.offset_ == fitted.offset_


def test_an_argument_that_was_fitted_cannot_be_changed_silently(fitted, X_new):
    before = fitted.score_samples(X_new)
    for argument, value in fitted.get_params().items():
        if argument == "estimator":
            other = make_module(seed=1)
        else:
            other = OTHER_VALUES[argument]
            other = not value if other is None else other
        fitted.set_params(**{argument: other})
        with pytest.raises(ValueError, match=rf"{argument}.* changed after fit"):
            fitted.score_samples(X_new)
        fitted.set_params(**{argument: value})
    np.testing.assert_array_equal(fitted.score_samples(X_new), before)


def test_a_fit_that_fails_leaves_nothing_that_answers(fitted, X_new):
    X, y = make_data()
    with pytest.raises(ValueError, match="NaN"):
        fitted.fit(X * np.nan, y)
    with pytest.raises(NotFittedError):
        fitted.score_samples(X_new)


@some
def test_pipelines_inside_and_outside(name, X_new):
    X, y = make_data()
    scaler = StandardScaler().fit(X)
    alone = make_detector(name).fit(scaler.transform(X), y)
    expected = alone.score_samples(scaler.transform(X_new))
    outside = make_pipeline(StandardScaler(), make_detector(name)).fit(X, y)
    assert_same(outside.score_samples(X_new), expected)
    np.testing.assert_array_equal(outside.predict(X_new), np.where(expected < alone.offset_, -1, 1))
    inside = make_detector(name, Pipeline([("scale", scaler), ("net", make_module())]))
    assert_same(inside.fit(X, y).score_samples(X_new), expected)


def test_inputs_of_all_kinds(name, fitted, X_new):
    X, y = make_data()
    expected = fitted.score_samples(X_new)
    assert_same(fitted.score_samples(torch.tensor(X_new)), expected)
    columns = [f"x{i}" for i in range(N_FEATURES)]
    words = np.array(["ant", "bee", "cat"])
    framed = make_detector(name).fit(pd.DataFrame(X, columns=columns), words[y])
    assert_same(framed.score_samples(pd.DataFrame(X_new, columns=columns)), expected)
    np.testing.assert_array_equal(framed.classes_, words)
    with pytest.raises(ValueError, match="features"):
        fitted.score_samples(X_new[:, :2])


@pytest.mark.parametrize("name", SOME[:2])
@pytest.mark.parametrize("kind", ["frozen", "skorch", "softmax"])
def test_networks_of_all_kinds(name, kind, X_new):
    X, y = make_data()
    if kind == "frozen":
        net = MLPClassifier((8,), solver="lbfgs", max_iter=30, random_state=0)
        net = FrozenEstimator(fit_quietly(net, X, y))
    else:
        module = make_module()
        criterion = nn.CrossEntropyLoss
        if kind == "softmax":
            module, criterion = nn.Sequential(*module, nn.Softmax(dim=1)), nn.NLLLoss
        net = NeuralNetClassifier(module, criterion=criterion, max_epochs=2, verbose=0).fit(X, y)
    detector = make_detector(name, net).fit(X, y)
    assert np.isfinite(detector.score_samples(X_new)).all()


@pytest.mark.parametrize("name", SOME[:2])
def test_grid_search_trains_a_given_network_never(name):
    X, y = make_data()
    X_ood = make_data(n_samples=10, seed=3)[0] + 4

    def scorer(estimator, X, y=None):
        return estimator.score_samples(X).mean() - estimator.score_samples(X_ood).mean()

    module = make_module()
    before = module_state(module)
    held_out = PredefinedSplit([-1] * 40 + [0] * 20)
    search = GridSearchCV(
        make_detector(name, module), {"contamination": [0.1, 0.2]}, scoring=scorer, cv=held_out
    )
    assert search.fit(X, y).best_estimator_.estimator is module
    assert module_state(module) == before
    tuned = GridSearchCV(
        make_detector(name, MLPClassifier((8,), solver="lbfgs", max_iter=20)),
        {"estimator__alpha": [1e-3, 1.0]},
        scoring=scorer,
        cv=held_out,
    )
    assert "estimator__alpha" in fit_quietly(tuned, X, y).best_params_


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.BeyondRangeWarning")
@pytest.mark.parametrize(("dtype", "activation"), [(np.float32, nn.ReLU), (np.float64, nn.Tanh)])
def test_absurd_values_never_look_safe(name, dtype, activation):
    X, y = make_data()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(N_FEATURES, 16), activation(), nn.Linear(16, 3))
    module = module.double() if dtype is np.float64 else module
    params = {"layer": ["0", "penultimate"]} if "two layers" in name else {}
    detector = make_detector(name, module, **params).fit(X.astype(dtype), y)
    normal = detector.score_samples(X.astype(dtype))
    exponents = [4, 8, 20, 30, 36, 38.5] + ([100, 300] if dtype is np.float64 else [])
    rows = np.repeat(X[:1].astype(dtype), 2 * len(exponents), axis=0)
    rows[: len(exponents), 1] = 10.0 ** np.array(exponents)
    rows[len(exponents) :, 1] = -(10.0 ** np.array(exponents))
    scores = detector.score_samples(rows)
    assert not np.isnan(scores).any()
    assert (scores <= normal.min()).all()
    assert (detector.predict(rows) == -1).all()


@some
def test_threads_do_not_see_each_others_rows(name):
    detector = make_detector(name).fit(*make_data())
    parts = [make_data(n_samples=50, seed=seed)[0] for seed in range(8)]
    expected = [detector.score_samples(part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(detector.score_samples, parts * 3))
    for number, scores in enumerate(found):
        np.testing.assert_array_equal(scores, expected[number % len(parts)])


def test_fit_arguments_reach_a_network_that_is_trained():
    X, y = make_data()
    with pytest.raises(TypeError, match="not trained again"):
        make_detector("EnergyDetector").fit(X, y, epochs=3)
    weight = np.linspace(0.1, 3, len(y))
    net = MLPClassifier((8,), solver="lbfgs", max_iter=20, random_state=0)
    detector = make_detector("EnergyDetector", net)
    fit_quietly(_WithWeight(detector, weight), X, y)
    expected = fit_quietly(_WithWeight(clone(net), weight), X, y)
    np.testing.assert_array_equal(detector.estimator_.coefs_[0], expected.coefs_[0])


class _WithWeight:
    """Passes sample weights on to a fit."""

    def __init__(self, estimator, weight):
        self.estimator, self.weight = estimator, weight

    def fit(self, X, y):
        return self.estimator.fit(X, y, sample_weight=self.weight)


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.BeyondRangeWarning")
def test_every_detector_comes_back_from_a_file(name, fitted, X_new, tmp_path):
    fitted.save(tmp_path / "detector")
    again = load(tmp_path / "detector", estimator=make_module(seed=7))
    assert type(again) is type(fitted)
    np.testing.assert_allclose(again.score_samples(X_new), fitted.score_samples(X_new), rtol=1e-9)
    np.testing.assert_array_equal(again.predict(X_new), fitted.predict(X_new))
    assert again.offset_ == fitted.offset_
    same = {key: value for key, value in fitted.get_params().items() if key != "estimator"}
    assert {key: again.get_params()[key] for key in same} == same
    assert fitted.score_samples(X_new * 1e9)[0] == again.score_samples(X_new * 1e9)[0] == -np.inf


def test_a_detector_behind_a_scaler_comes_back(X_new, tmp_path):
    X, y = make_data()
    pipe = fit_quietly(make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=5)), X, y)
    detector = make_detector("MahalanobisDetector", pipe)
    detector.fit(X, y).save(tmp_path / "detector")
    again = load(tmp_path / "detector", estimator=pipe)
    np.testing.assert_allclose(again.score_samples(X_new), detector.score_samples(X_new))


def test_a_metric_that_is_a_function_cannot_be_saved(tmp_path):
    X, y = make_data()
    metric = lambda a, b: float(np.abs(a - b).sum())  # noqa: E731
    detector = NearestNeighborDetector(make_module(), metric=metric).fit(X, y)
    with pytest.raises(TypeError, match="metric="):
        detector.save(tmp_path / "detector")


def test_rows_that_are_no_numbers_are_refused_without_labels_too():
    detector = NearestNeighborDetector(make_module())
    for labels in (None, [0]):
        with pytest.raises(TypeError, match="X must hold numbers"):
            detector.fit([[object()] * N_FEATURES], labels)
