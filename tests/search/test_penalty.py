"""Penalty search: its schedule, its steps against the text of the paper, its arguments."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import distributions
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from sklearn_quam import PenaltySearch, QUAMClassifier, QUAMRegressor
from sklearn_quam._network.inputs.rows import Inputs
from sklearn_quam._search.searches import Searches

from ..networks import LABELS, TARGET, TWO_TARGETS, X_NEW, X, dense, train
from ..searches import quam

each_task = pytest.mark.parametrize(
    ("kind", "n_out", "y"),
    [(QUAMClassifier, 3, LABELS), (QUAMRegressor, 2, TWO_TARGETS)],
    ids=["classes", "values"],
)


def trained(n_out, y, n_epochs=60):
    """Return a network that has learnt something, in double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(dense(n_out).double(), X, y, n_epochs)


# -- steps, against the paper ----------------------------------------------------------------


def mean_loss(module, weights, est, y):
    """Return the training loss of a network with other weights."""
    output = functional_call(module, weights, (torch.as_tensor(X).double(),))
    if hasattr(est, "classes_"):
        return cross_entropy(output, torch.as_tensor(y))
    normal = distributions.Normal(output, torch.as_tensor(est.noise_variance_).sqrt())
    return -normal.log_prob(torch.as_tensor(y).double()).sum(dim=1).mean()


def divergence(module, weights, est, row):
    """Return KL(p_w || p_w') at a row, w' being the weights."""
    given, found = module(row[None]).detach()[0], functional_call(module, weights, (row[None],))[0]
    if hasattr(est, "classes_"):
        p, q = (distributions.Categorical(logits=logits) for logits in (given, found))
    else:
        scale = torch.as_tensor(est.noise_variance_).sqrt()
        p, q = (distributions.Normal(mean, scale) for mean in (given, found))
    return distributions.kl_divergence(p, q).sum()


@each_task
@pytest.mark.parametrize("step", [0, 4])
def test_an_untargeted_step_is_that_of_algorithm_1(kind, n_out, y, step):
    # One search for a row, down -D(p(y|x,w), p(y|x,w')) + c * loss: all else in the text is
    # constant. The first step of Adam is the gradient over its own size.
    module = trained(n_out, y)
    options = {"learning_rate": 0.05, "learning_rate_decay": 2.0, "adam_epsilon": 0.01}
    options |= {"penalty": 0.7, "penalty_growth": 3.0, "penalty_every": 4}
    est = quam(kind, module, targets="untargeted", **options, random_state=0).fit(X, y)
    problem, steps = est._fitted.models.problem, est._fitted.models.engine.steps
    rows = torch.as_tensor(X_NEW[:5]).double()
    original = est._fitted.reference.predict(Inputs((rows,)))
    targets = problem.targets.choose(original)
    assert targets.shape == (5, 1)
    state = steps.init(problem, Searches((rows,), original, targets))
    start = {name: value.detach().clone() for name, value in state.free.items()}
    moved = steps.update(problem, state, steps.evaluate(problem, state, step), step)
    rate, penalty = {0: (0.05, 0.7), 4: (0.025, 2.1)}[step]
    for number, row in enumerate(rows):
        weights = {name: value[number].clone().requires_grad_() for name, value in start.items()}
        apart = divergence(module, weights, est, row)
        assert apart > 0
        objective = -apart + penalty * mean_loss(module, weights, est, y)
        gradients = torch.autograd.grad(objective, list(weights.values()))
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            expected = weight - rate * gradient / (gradient.abs() + 0.01)
            found = moved.free[name][number]
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
            assert (found - weight).abs().max() > 1e-4


@each_task
def test_an_untargeted_search_starts_next_to_the_given_network(kind, n_out, y):
    # At the given network itself the divergence has no gradient.
    module = trained(n_out, y)
    est = quam(kind, module, targets="untargeted", random_state=0).fit(X, y)
    rows = torch.as_tensor(X_NEW[:2]).double()
    original = est._fitted.reference.predict(Inputs((rows,)))
    models, targets = est._fitted.models, torch.zeros(2, 1, dtype=torch.long)
    state = models.engine.steps.init(models.problem, Searches((rows,), original, targets))
    for name, weight in module.named_parameters():
        change = state.free[name].detach() - weight.detach()
        size = change.square().mean().sqrt() / weight.detach().square().mean().sqrt()
        assert 1e-4 < float(size) < 3e-3
        assert torch.equal(change[0], change[1])


@each_task
@pytest.mark.parametrize("targets", ["all", "untargeted"])
@pytest.mark.parametrize("max_change", [0.02, 100.0])
def test_no_found_model_is_further_away_than_the_bound(kind, n_out, y, targets, max_change):
    module = trained(n_out, y)
    options = {"n_steps": 20, "learning_rate": 0.05, "penalty_every": 4, "penalty": 0.1}
    options |= {"adam_epsilon": 1e-3, "slack": 1e9, "targets": targets, "random_state": 0}
    bounded, free = (
        quam(kind, module, **options, max_change=bound).fit(X, y) for bound in (max_change, None)
    )
    sizes, free_sizes = (
        [change_of(model, module) for row in est.adversarial_models(X_NEW[:4]) for model in row]
        for est in (bounded, free)
    )
    assert max(sizes) <= max_change * (1 + 1e-12)
    assert min(sizes) > 0
    if max_change == 100.0:
        assert sizes == free_sizes
    elif max_change == 0.02:
        # All of them are held back, and come as far as they may.
        assert min(free_sizes) > max_change
        np.testing.assert_allclose(sizes, max_change, rtol=1e-9)


def change_of(model, module):
    """Return the Euclidean norm of the difference of all parameters."""
    changes = [
        (model["state_dict"][name] - parameter.detach()).flatten()
        for name, parameter in module.named_parameters()
    ]
    return float(torch.cat(changes).norm())


@each_task
@pytest.mark.parametrize(
    ("targets", "max_change", "batch_size"), [("all", None, 7), ("untargeted", 0.3, 256)]
)
def test_half_of_the_searches_go_on_as_they_would_with_the_others(
    kind, n_out, y, targets, max_change, batch_size
):
    options = {"targets": targets, "max_change": max_change, "batch_size": batch_size}
    est = quam(kind, trained(n_out, y), **options, weight_decay=0.1, random_state=0).fit(X, y)
    problem, steps = est._fitted.models.problem, est._fitted.models.engine.steps
    rows = torch.as_tensor(X_NEW[:8]).double()
    original = est._fitted.reference.predict(Inputs((rows,)))
    targets = problem.targets.choose(original)[:, -1:]
    state = steps.init(problem, Searches((rows,), original, targets))
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


# -- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "n_out", "y", "meaning"),
    [
        (QUAMClassifier, 3, LABELS, ("by_layer", 6.0, 1.9, 0.1)),
        (QUAMRegressor, 1, TARGET, (0.02, 0.3, 2.2, 1e-8)),
    ],
    ids=["classes", "values"],
)
def test_what_auto_means_for_each_task(kind, n_out, y, meaning):
    names = ("learning_rate", "penalty", "penalty_growth", "adam_epsilon")
    searches = "penalty", PenaltySearch(), PenaltySearch(**dict(zip(names, meaning, strict=True)))
    module = trained(n_out, y, n_epochs=10)
    found = [
        kind(module, search=search, random_state=0).fit(X, y).predict_uncertainty(X_NEW[:2])
        for search in searches
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other.epistemic, found[0].epistemic)


def test_arguments_of_the_search_are_set_through_the_estimator():
    est = QUAMClassifier(dense(), search="penalty", random_state=0).set_params(search__n_steps=3)
    assert est.search.n_steps == 3
    duplicate = clone(est).set_params(search__n_steps=5)
    assert (est.search.n_steps, duplicate.search.n_steps) == (3, 5)
    _, diagnostics = duplicate.fit(X, LABELS).predict_uncertainty(X_NEW, return_diagnostics=True)
    assert (diagnostics.n_steps == 15).all()


def test_a_search_that_is_changed_after_fit_is_refused_until_it_is_set_back():
    est = quam(QUAMClassifier, dense(), n_steps=3, random_state=0).fit(X, LABELS)
    expected = est.predict_uncertainty(X_NEW[:2]).epistemic
    est.set_params(search__n_steps=5)
    for method in (est.predict_uncertainty, est.adversarial_models, est.search_traces):
        with pytest.raises(ValueError, match=r"search__n_steps .* changed after fit"):
            method(X_NEW[:2])
    est.set_params(search__n_steps=3)
    np.testing.assert_array_equal(est.predict_uncertainty(X_NEW[:2]).epistemic, expected)
