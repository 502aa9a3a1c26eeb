"""The arguments of penalty search."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from sklearn_quam import PenaltySearch, QUAMClassifier, QUAMRegressor

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


@each_task
@pytest.mark.parametrize(("targets", "max_change"), [("all", 0.02), ("untargeted", 100.0)])
def test_no_found_model_is_further_away_than_the_bound(kind, n_out, y, targets, max_change):
    module = trained(n_out, y)
    options = {"n_steps": 12, "learning_rate": 0.05, "penalty_every": 4, "penalty": 0.1}
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
    told = dict(zip(names, meaning, strict=True))
    searches = PenaltySearch(n_steps=20), PenaltySearch(n_steps=20, **told)
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
