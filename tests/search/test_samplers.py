"""Which models count and how much; what the diagnostics say about them."""

import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from sklearn_quam import QUAMClassifier, QUAMRegressor
from sklearn_quam._search.penalty import samplers
from sklearn_quam._search.problem import Problem

from ..networks import LABELS, TARGET, TWO_TARGETS, X_NEW, X, dense, fitted, train
from ..searches import quam

# Searches that cannot move, and posteriors that are as cold as can be, are what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.CollapsedWeightsWarning")

SHORT = {"n_steps": 20, "penalty_every": 5, "learning_rate": 0.02, "tol": 0.0, "random_state": 0}
each_sampling = pytest.mark.parametrize("sampling", ["trajectory", "best", "gaussian"])
each_task = pytest.mark.parametrize(
    ("kind", "n_out", "y"),
    [
        pytest.param(QUAMClassifier, 3, LABELS, id="classes"),
        pytest.param(QUAMRegressor, 2, TWO_TARGETS, id="two values"),
    ],
)


def trained(n_out, y, n_epochs=60):
    """Return a network that has learnt something, in double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(dense(n_out).double(), X, y, n_epochs)


@pytest.fixture(scope="module")
def classifier():
    return trained(3, LABELS)


def result(estimator, rows=X_NEW[:8], y=LABELS):
    return estimator.fit(X, y).predict_uncertainty(rows, return_diagnostics=True)


# -- trajectory ----------------------------------------------------------------------------


@pytest.fixture
def live_tensor_bytes():
    """Return a function that returns the size of all tensors made from now on."""
    gc.collect()
    gc.freeze()

    def count():
        gc.collect()
        tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return sum(storages.values())

    yield count
    gc.unfreeze()


@pytest.mark.slow
@each_task
def test_memory_does_not_grow_with_the_steps(kind, n_out, y, monkeypatch, live_tensor_bytes):
    early, late = [], []
    est = quam(kind, trained(n_out, y, 5), **{**SHORT, "n_steps": 140}).fit(X, y)
    sampler = samplers.Trajectory if kind is QUAMClassifier else samplers.Profile
    on_visit = sampler.on_visit

    def counting(self, visit):
        on_visit(self, visit)
        if 60 <= visit.step < 80:
            early.append(live_tensor_bytes())
        if 120 <= visit.step < 140:
            late.append(live_tensor_bytes())

    monkeypatch.setattr(sampler, "on_visit", counting)
    est.predict_uncertainty(X_NEW)
    assert max(late) <= max(early)
    assert min(early) > 1000  # something was counted


# -- profile -------------------------------------------------------------------------------


def test_a_profile_of_searches_that_cannot_move_is_the_given_network():
    est = quam(QUAMRegressor, trained(1, TARGET), **SHORT, max_change=1e-30, setting="expected")
    u, diagnostics = result(est, y=TARGET)
    np.testing.assert_allclose(u.epistemic, 0, atol=1e-7)  # an entropy found by quadrature
    assert np.isfinite(u.total).all()
    assert (diagnostics.n_diverged == 0).all()


def test_a_classifier_has_no_profile_of_penalty_searches(classifier):
    with pytest.raises(ValueError, match="sampling='profile' of penalty search is for regressors"):
        quam(QUAMClassifier, classifier, **SHORT, sampling="profile").fit(X, LABELS)


# -- best and gaussian ---------------------------------------------------------------------


def test_a_larger_slack_finds_models_at_least_as_divergent(classifier):
    divergences = []
    for slack in (0.003, 0.03, 0.3):
        est = quam(QUAMClassifier, classifier, **SHORT, slack=slack, temperature=0.1).fit(X, LABELS)
        by_target = [
            sorted(models, key=lambda m: m["target"])
            for models in est.adversarial_models(X_NEW[:4])
        ]
        divergences.append([[m["divergence"] for m in models] for models in by_target])
    assert (np.diff(divergences, axis=0) >= 0).all()
    assert np.max(np.diff(divergences, axis=0)) > 0


@each_task
def test_gaussian_without_spread_repeats_the_best_models(kind, n_out, y, monkeypatch):
    monkeypatch.setattr(samplers, "_SPREAD", 0.0)
    options = {**SHORT, "slack": 0.2, "temperature": 0.1, "sampling": "gaussian"}
    est = quam(kind, trained(n_out, y), **options).fit(X, y)
    u, diagnostics = est.predict_uncertainty(X_NEW[:4], return_diagnostics=True)
    copies = 1 + samplers._N_DRAWS
    for row, models in enumerate(est.adversarial_models(X_NEW[:4])):
        weights = np.exp([-max(m["loss_increase"], 0.0) / 0.1 for m in models])
        weights = weights * [m["feasible"] for m in models]
        divergence = np.array([m["divergence"] for m in models])
        total = len(models) + copies * weights.sum()
        np.testing.assert_allclose(
            u.epistemic[row], copies * (weights @ divergence) / total, rtol=1e-6
        )
        size = total**2 / (len(models) + copies * (weights**2).sum())
        np.testing.assert_allclose(diagnostics.effective_sample_size[row], size, rtol=1e-6)


# With these every search of a few rows finds a feasible model.
FINDING = {**SHORT, "slack": 0.5, "temperature": 0.2, "penalty": 6.0}


def test_gaussian_draws_vary_by_a_quarter_of_the_change_that_was_found(classifier, monkeypatch):
    measured = []
    measure = Problem.at_query_and_increase

    def recording(self, free, *rest):
        measured.append(free)
        return measure(self, free, *rest)

    est = quam(QUAMClassifier, classifier, **FINDING, sampling="gaussian").fit(X, LABELS)
    monkeypatch.setattr(Problem, "at_query_and_increase", recording)
    est.predict_uncertainty(X_NEW[:1])
    monkeypatch.undo()
    draws = measured[-samplers._N_DRAWS :]
    found = {model["target"]: model for model in est.adversarial_models(X_NEW[:1])[0]}
    relative = []
    for search, target in enumerate([0, 1, 2]):
        assert found[target]["feasible"]
        for name, start in classifier.named_parameters():
            mode = found[target]["state_dict"][name]
            around = torch.stack([free[name][search] for free in draws])
            relative.append(((around - mode) / (mode - start.detach())).flatten())
    relative = torch.cat(relative)
    assert abs(float(relative.mean())) < 0.03
    np.testing.assert_allclose(float(relative.std()), 0.25, rtol=0.1)


@pytest.fixture(scope="module")
def optimum():
    """The most likely logistic regression: whatever is changed, the training loss grows."""
    rng = np.random.default_rng(0)
    y = (rng.random(60) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
    return fitted(LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000), X.astype(float), y), y


@each_sampling
def test_nothing_but_the_given_network_remains_at_the_optimum_without_slack(optimum, sampling):
    net, y = optimum
    options = {**SHORT, "batch_size": 60, "temperature": 1e-12, "slack": 0.0}
    u, diagnostics = result(quam(QUAMClassifier, net, **options, sampling=sampling), X_NEW, y)
    np.testing.assert_allclose(u.epistemic, 0, atol=1e-9)
    np.testing.assert_allclose(diagnostics.effective_sample_size, 2, rtol=1e-3)
    assert not diagnostics.feasible.any()


# -- untargeted ----------------------------------------------------------------------------


@each_task
def test_an_untargeted_search_is_a_single_one(kind, n_out, y):
    options = {**SHORT, "slack": 0.5, "sampling": "trajectory"}
    est = quam(kind, trained(n_out, y), targets="untargeted", **options)
    u, diagnostics = result(est, y=y)
    assert (u.epistemic > 0).all()
    assert (diagnostics.effective_sample_size <= 21).all()
    (model,) = est.adversarial_models(X_NEW[:1])[0]
    assert model["target"] is None


# -- all of them ---------------------------------------------------------------------------


@settings(deadline=None, max_examples=12)
@given(
    sampling=st.sampled_from(["trajectory", "best", "gaussian"]),
    setting=st.sampled_from(["given", "expected"]),
    temperature=st.floats(1e-6, 1e3),
    slack=st.floats(0, 2),
    n_steps=st.integers(1, 12),
    targets=st.sampled_from(["all", 1, 2, "untargeted"]),
    seed=st.integers(0, 5),
)
def test_measures_and_diagnostics_are_within_bounds(
    sampling, setting, temperature, slack, n_steps, targets, seed
):
    est = quam(
        QUAMClassifier,
        NET,
        sampling=sampling,
        setting=setting,
        temperature=temperature,
        slack=slack,
        n_steps=n_steps,
        targets=targets,
        learning_rate=0.05,
        random_state=seed,
        penalty_every=3,
    )
    u, d = result(est, X_NEW[:4])
    n_targets = {"all": 3, "untargeted": 1}.get(targets, targets)
    per_target = {"trajectory": n_steps + 1, "best": 2, "gaussian": 10}[sampling]
    assert all(np.isfinite(part).all() for part in u)
    assert (u.epistemic >= 0).all()
    assert (u.aleatoric >= 0).all()
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-15)
    assert (d.effective_sample_size >= 1 - 1e-9).all()
    assert (d.effective_sample_size <= n_targets * per_target * (1 + 1e-9)).all()
    assert (d.n_steps <= n_targets * n_steps).all()
    assert (d.n_diverged == 0).all()
    found = np.array([rival is not None for rival in d.rival])
    np.testing.assert_array_equal(np.isfinite(d.rival_cost), found)
    np.testing.assert_array_equal(d.feasible, d.rival_cost <= est.slack_)


NET = trained(3, LABELS)
