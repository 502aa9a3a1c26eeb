"""Steps of another kind run through the same searches; some of the searches go on as all did."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator

from sklearn_quam import QUAMClassifier, QUAMRegressor
from sklearn_quam._network.inputs.rows import Inputs
from sklearn_quam._posterior.accumulate import make_posterior
from sklearn_quam._search.profile import SAMPLERS, choose_sampler
from sklearn_quam._search.run import run_searches
from sklearn_quam._search.steps import Evaluation, State

from ..networks import LABELS, TARGET, X_NEW, X, dense, train
from ..searches import N_ROWS, quam

each_task = pytest.mark.parametrize(
    ("kind", "n_out", "y"),
    [(QUAMClassifier, 3, LABELS), (QUAMRegressor, 1, TARGET)],
    ids=["classes", "values"],
)
each_sampling = pytest.mark.parametrize(
    ("kind", "n_out", "y", "sampling"),
    [
        *((QUAMClassifier, 3, LABELS, name) for name in SAMPLERS),
        *((QUAMRegressor, 1, TARGET, name) for name in SAMPLERS),
    ],
)
# No penalty holds the plain steps back: whatever they find is to count.
ANYTHING_GOES = {"slack": 1e6 * N_ROWS, "temperature": 1e3 * N_ROWS}


def trained(n_out, y):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(dense(n_out).double(), X, y, 60)


@dataclass(frozen=True)
class PlainSteps:
    """Gradient descent on the loss of the target alone, measured on all training rows."""

    n_steps: int = 12
    every: int = 4
    tolerance: float = 0.0
    rows_at_once: int = 16
    window: int = 1
    learning_rate: float = 1e-3
    measures_all: bool = False
    drops_ended: bool = True
    at_once_on_cpu: int = 160

    def init(self, problem, query, original, target, n_targets):
        start = problem.network.free.start.items()
        free = {name: value.expand(len(target), *value.shape) for name, value in start}
        return self._leaves(State(free, query, original, target))

    def evaluate(self, problem, state, step):
        index = torch.arange(len(problem.training))
        on_training, at_query = problem.predict(state.free, index, state.query)
        change = problem.losses(on_training, index).detach() - problem.training.losses
        increase = problem.training.mean_loss(change, index)
        return Evaluation(at_query, increase, problem.expected_increase(on_training, index))

    def update(self, problem, state, evaluation, step):
        loss = problem.targets.loss(evaluation.at_query, state.original, state.target)
        gradients = torch.autograd.grad(loss.sum(), list(state.free.values()))
        pairs = zip(state.free.items(), gradients, strict=True)
        return self._leaves(
            replace(state, free={name: v - self.learning_rate * g for (name, v), g in pairs})
        )

    def keep(self, state, index):
        free = {name: value[index] for name, value in state.free.items()}
        query = tuple(part[index] for part in state.query)
        return self._leaves(State(free, query, state.original[index], state.target[index]))

    def free(self, problem, state, index):
        return {name: value.detach()[index] for name, value in state.free.items()}

    def shortened(self):
        return replace(self, n_steps=1)

    def _leaves(self, state):
        free = {name: value.detach().clone().requires_grad_() for name, value in state.free.items()}
        return replace(state, free=free)


class PlainSearch(BaseEstimator):
    """What an estimator takes as its search."""

    _parameter_constraints = {}  # noqa: RUF012

    def __init__(self, tolerance=0.0):
        self.tolerance = tolerance

    def _steps(self, problem, generator, limits):
        return PlainSteps(tolerance=self.tolerance)


@each_sampling
@pytest.mark.parametrize("measures_all", [False, True])
def test_steps_of_another_kind_run_with_each_sampler(kind, n_out, y, sampling, measures_all):
    options = {"sampling": sampling, **ANYTHING_GOES, "random_state": 0}
    est = kind(trained(n_out, y), **options).fit(X, y)
    problem, steps = est._fitted.models.problem, PlainSteps(measures_all=measures_all)
    rows = torch.as_tensor(X_NEW[:3]).double()
    original = est._fitted.reference.predict(Inputs((rows,)))
    targets = problem.targets.choose(original)
    n_targets = targets.shape[1]
    query = (rows.repeat_interleave(n_targets, dim=0),)
    repeated, target = original.repeat(n_targets), targets.flatten()
    posterior = make_posterior(original, "entropy")
    sampler = choose_sampler(sampling, measures_all, kind is QUAMRegressor)(
        problem, steps, posterior, query, repeated, target, n_targets, temperature=1e3
    )
    run_searches(problem, steps, query, repeated, target, n_targets, sampler)
    sampler.finish()
    assert (sampler.n_steps == steps.n_steps).all()
    assert not sampler.diverged.any()
    for setting in ("given", "expected"):
        u = posterior.uncertainty(setting)
        assert all(np.isfinite(part).all() for part in u)
        assert (u.epistemic > 0).all()
        assert np.isfinite(posterior.standard_error(setting)).all()
    assert (posterior.effective_sample_size() >= 1).all()


@pytest.mark.slow
@each_sampling
def test_an_estimator_takes_a_search_of_another_kind(kind, n_out, y, sampling):
    module = trained(n_out, y)
    options = {"sampling": sampling, **ANYTHING_GOES, "random_state": 0}
    est = kind(module, search=PlainSearch(), **options).fit(X, y)
    u, diagnostics = est.predict_uncertainty(X_NEW, return_diagnostics=True)
    assert all(np.isfinite(part).all() for part in u)
    n_targets = 3 if kind is QUAMClassifier else 2
    assert (diagnostics.n_steps == 12 * n_targets).all()
    # The plain steps put into the models of another search are all that makes a difference.
    other = kind(module, **options).fit(X, y)
    models = replace(other._fitted.models, steps=PlainSteps())
    inputs = other._check_inputs(X_NEW)[:]
    found = replace(other._fitted, models=models).results(inputs, other._question(inputs))
    np.testing.assert_allclose(found.uncertainty.epistemic, u.epistemic, rtol=1e-12)
    assert not np.allclose(other.predict_uncertainty(X_NEW).epistemic, u.epistemic)


@each_task
def test_models_and_traces_of_a_search_of_another_kind(kind, n_out, y):
    est = kind(trained(n_out, y), search=PlainSearch(), **ANYTHING_GOES).fit(X, y)
    for model in est.adversarial_models(X_NEW[:2])[1]:
        assert np.isfinite(model["prediction"]).all()
        assert np.isfinite(model["loss_increase"])
        assert model["feasible"]
    for trace in est.search_traces(X_NEW[:2])[1]:
        assert trace["divergence"].shape == (13,)
        assert trace["divergence"][0] == pytest.approx(0, abs=1e-12)
        assert trace["divergence"][-1] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "n_out", "y", "some", "all_of_them"),
    [(QUAMClassifier, 3, LABELS, 0.02, 2.0), (QUAMRegressor, 1, TARGET, 4.0, 1e3)],
    ids=["classes", "values"],
)
def test_searches_of_another_kind_stop_early(kind, n_out, y, some, all_of_them):
    options = {"sampling": "trajectory", "slack": 1e9 * N_ROWS, "random_state": 0}
    module = trained(n_out, y)
    est = kind(module, search=PlainSearch(all_of_them), **options).fit(X, y)
    _, diagnostics = est.predict_uncertainty(X_NEW, return_diagnostics=True)
    assert (diagnostics.n_steps == 8 * est._fitted.models.problem.targets.count).all()
    est = kind(module, search=PlainSearch(some), **options).fit(X, y)
    u, diagnostics = est.predict_uncertainty(X_NEW, return_diagnostics=True)
    assert len(set(diagnostics.n_steps)) > 1
    alone = [est.predict_uncertainty(X_NEW[row : row + 1]).epistemic[0] for row in range(8)]
    np.testing.assert_allclose(alone, u.epistemic[:8], rtol=1e-9)


@each_task
@pytest.mark.parametrize("targets", ["all", "untargeted"])
@pytest.mark.parametrize("max_change", [None, 0.3])
@pytest.mark.parametrize("batch_size", [7, 256])
def test_half_of_the_searches_go_on_as_they_would_with_the_others(
    kind, n_out, y, targets, max_change, batch_size
):
    options = {"targets": targets, "max_change": max_change, "batch_size": batch_size}
    est = quam(kind, trained(n_out, y), **options, weight_decay=0.1, random_state=0).fit(X, y)
    problem, steps = est._fitted.models.problem, est._fitted.models.steps
    rows = torch.as_tensor(X_NEW[:8]).double()
    original = est._fitted.reference.predict(Inputs((rows,)))
    target = problem.targets.choose(original)[:, -1]
    state = steps.init(problem, (rows,), original, target, 1)
    for step in range(5):
        state = steps.update(problem, state, steps.evaluate(problem, state, step), step)
    index = torch.tensor([0, 3, 4, 6])
    kept = steps.keep(state, index)
    # More than one step: moments and the last losses have to be right, too.
    for step in range(5, 9):
        state, whole, whole_increase = one_step(problem, steps, state, step)
        kept, half, half_increase = one_step(problem, steps, kept, step)
        for got, wanted in zip(half.parts, whole.parts, strict=True):
            assert_close(got, wanted[index])
        assert_close(half_increase, whole_increase[index])
        for name, value in kept.free.items():
            assert_close(value, state.free[name][index])
            assert not torch.equal(value[0], problem.network.free.start[name])


def one_step(problem, steps, state, step):
    """Return the next state, and what was predicted and paid before."""
    evaluation = steps.evaluate(problem, state, step)
    at_query = evaluation.at_query.map(lambda part: part.detach().clone())
    return steps.update(problem, state, evaluation, step), at_query, evaluation.loss_increase


def assert_close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
