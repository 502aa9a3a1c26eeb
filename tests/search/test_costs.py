"""What rivals cost: properties that hold for every search."""

from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn

from benchmarks.costs import compared
from sklearn_quam import NaturalSearch, PenaltySearch, QUAMClassifier, QUAMRegressor
from sklearn_quam._search.penalty.samplers import AnswerCosts
from sklearn_quam.exceptions import CollapsedWeightsWarning

from ..networks import LABELS, TARGET, TWO_TARGETS, X_NEW, X, dense, train

SEARCHES = {
    "natural": "natural",
    "linear": "linear",
    "penalty": PenaltySearch(n_steps=30),
    "penalty, little slack": PenaltySearch(n_steps=30, slack=1.0),
}
each_search = pytest.mark.parametrize("search", SEARCHES)


@cache
def seeded(n_out, target):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(
            dense(n_out), X, {"classes": LABELS, "one": TARGET, "two": TWO_TARGETS}[target]
        )


@cache
def fitted(search, task, **arguments):
    options = {"search": SEARCHES[search], "random_state": 0, **arguments}
    if task == "classes":
        return QUAMClassifier(seeded(3, task), **options).fit(X, LABELS)
    y = TARGET if task == "one" else TWO_TARGETS
    return QUAMRegressor(seeded(1 if task == "one" else 2, task), **options).fit(X, y)


# -- the average of the models -------------------------------------------------------------


# In penalty search, models count as free that explain the labels better than the network does.
@pytest.mark.parametrize("search", ["natural", "linear"])
def test_without_a_temperature_the_average_is_the_network(search):
    est = fitted(search, "classes", temperature=1e-9, setting="expected")
    proba = est.predict_proba(X_NEW)
    with pytest.warns(CollapsedWeightsWarning):
        u = est.predict_uncertainty(X_NEW)
    np.testing.assert_allclose(u.total, -(proba * np.log(proba)).sum(axis=1), atol=1e-3)
    np.testing.assert_allclose(u.epistemic, 0, atol=1e-3)


# -- one number, one rule ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("search", "task"),
    [("natural", "classes"), ("penalty", "one"), ("linear", "two"), ("penalty", "classes")],
)
def test_a_rival_is_feasible_if_it_costs_no_more_than_the_slack(search, task):
    est = fitted(search, task)
    _, found = est.predict_uncertainty(X_NEW[:6], return_diagnostics=True)
    np.testing.assert_array_equal(found.feasible, found.rival_cost <= est.slack_)
    np.testing.assert_array_equal([r is None for r in found.rival], np.isinf(found.rival_cost))
    # It is the cheapest of all answers that the network does not give.
    costs = est.rival_costs(X_NEW[:6], refine=False)
    if task == "classes":
        own = np.searchsorted(est.classes_, est.predict(X_NEW[:6]))
        costs[np.arange(6), own] = np.inf
        named = [c if np.isfinite(costs[i, c]) else None for i, c in enumerate(costs.argmin(1))]
        assert found.rival.tolist() == named
    elif task == "one":
        assert found.rival.tolist() == [("up", "down")[c] for c in costs.argmin(axis=1)]
    np.testing.assert_allclose(found.rival_cost, costs.min(axis=1), rtol=1e-5)


@each_search
@pytest.mark.parametrize("task", ["classes", "one", "two"])
def test_nothing_but_the_own_answer_is_free(search, task):
    est = fitted(search, task)
    costs = est.rival_costs(X_NEW, refine=False)
    if task == "classes":
        free = est.predict_proba(X_NEW) >= 0.5
        np.testing.assert_array_equal(costs == 0, free)
    else:
        assert (costs > 0).all()
        assert np.isfinite(costs).all()


@pytest.mark.parametrize("task", ["classes", "one"])
def test_costs_of_penalty_search_by_a_slow_loop(task, monkeypatch):
    """The cost of a step is that of a unit distance in the last steps."""
    visits, take = [], AnswerCosts.on_visit

    def on_visit(self, visit):
        take(self, visit)
        score = self.score(visit.prediction).numpy().copy()
        visits.append((score, visit.expected_increase.clone().numpy(), visit.steps.clone().numpy()))

    est = fitted("penalty", task)
    window = est._fitted.models.engine.steps.window
    monkeypatch.setattr(AnswerCosts, "on_visit", on_visit)
    found = est.rival_costs(X_NEW[:5], refine=False)
    level, n_targets = (0.0, 3) if task == "classes" else (1.0, 2)
    scores, increases, steps = (np.array(part) for part in zip(*visits, strict=True))
    for number, cost in enumerate(found.ravel()):
        assert scores.shape[1] == 5 * n_targets
        distance = scores[:, number] - scores[0, number]
        if scores[0, number] >= level:
            assert cost == 0
            continue
        offers = []
        for step in range(1, steps[-1, number] + 1):
            last = slice(max(0, step - window + 1), step + 1)
            unit = increases[last, number].sum() / (distance[last].clip(min=0) ** 2).sum()
            if scores[step, number] >= level:
                offers.append(unit * (level - scores[0, number]) ** 2 * len(X))
        if offers:
            np.testing.assert_allclose(cost, min(offers), rtol=1e-4)


def test_untargeted_searches_have_no_price_for_each_answer():
    search = PenaltySearch(n_steps=10, targets="untargeted")
    est = QUAMClassifier(seeded(3, "classes"), search=search, random_state=0).fit(X, LABELS)
    with pytest.raises(ValueError, match=r"pass PenaltySearch\(targets='all'\)"):
        est.rival_costs(X_NEW, refine=False)
    _, found = est.predict_uncertainty(X_NEW, return_diagnostics=True)
    np.testing.assert_array_equal(found.feasible, found.rival_cost <= est.slack_)
    assert all(rival != label for rival, label in zip(found.rival, est.predict(X_NEW), strict=True))


# -- rounding ------------------------------------------------------------------------------


def confident(hidden, margin, dtype):
    """Return a network that is sure of most rows by so many nats, and data."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 4)) + np.repeat(
        [[3, 0, 0, 0], [0, -3, 0, 0], [0] * 4], [100, 50, 50], 0
    )
    rows, y = rows.astype(np.float32), np.repeat([0, 1, 2], [100, 50, 50])
    solver = MLPClassifier((8,), activation="tanh", solver="lbfgs", random_state=0, alpha=0.1)
    model = solver.fit(rows, y) if hidden else LogisticRegression().fit(rows, y)
    weights = model.coefs_ if hidden else [model.coef_.T]
    biases = model.intercepts_ if hidden else [model.intercept_]
    layers = [nn.Linear(*weight.shape) for weight in weights]
    with torch.no_grad():
        for layer, weight, bias in zip(layers, weights, biases, strict=True):
            layer.weight.copy_(torch.tensor(weight.T))
            layer.bias.copy_(torch.tensor(bias))
        net = nn.Sequential(layers[0], nn.Tanh(), layers[1]) if hidden else layers[0]
        best = net(torch.tensor(rows)).topk(2, dim=1).values
        factor = margin / (best[:, 0] - best[:, 1]).median()
        layers[-1].weight *= factor
        layers[-1].bias *= factor
    return net.to(dtype), rows.astype(np.dtype(str(dtype).split(".")[1])), y


@pytest.mark.parametrize(
    ("hidden", "margin"), [(False, 50), (False, 1000), (True, 10), (True, 300), (True, 1000)]
)
def test_single_precision_says_what_double_precision_says_of_confident_networks(hidden, margin):
    answers = []
    for dtype in (torch.float32, torch.float64):
        net, rows, y = confident(hidden, margin, dtype)
        new = 2 * np.random.default_rng(1).normal(size=(12, 4)).astype(np.float32)
        est = QUAMClassifier(net, random_state=0).fit(rows, y)
        u, found = est.predict_uncertainty(new.astype(rows.dtype), return_diagnostics=True)
        assert (found.n_diverged == 0).all()
        answers.append((u.epistemic, est.rival_costs(new.astype(rows.dtype), refine=False)))
    for single, double in zip(*answers, strict=True):
        np.testing.assert_allclose(single, double, rtol=1e-3)
    assert np.isfinite(answers[1][1]).mean() > 0.5


def test_corrections_make_rivals_of_a_linear_classifier_cheaper():
    rows, y = make_moons(150, noise=0.35, random_state=0)
    net = LogisticRegression().fit(rows, y)
    costs = []
    for n_corrections in (0, 8):
        search = NaturalSearch(n_rows=150, n_steps=20, n_corrections=n_corrections)
        est = QUAMClassifier(net, search=search, random_state=0).fit(rows, y)
        costs.append(est.rival_costs(rows[:10], refine=False).max(axis=1))
    assert (costs[1] <= costs[0] * (1 + 1e-3)).all()
    assert np.median(costs[1] / costs[0]) < 0.995


# -- what a model is said to cost, and what it costs on all training rows -------------------


@cache
def small_network(kind):
    """Return a network, its training data, and rows to ask about: known ones and noise."""
    if kind == "cancer":
        rows, y = load_breast_cancer(return_X_y=True)
        rows, n = StandardScaler().fit_transform(rows).astype(np.float32), 450
    else:
        rows, y = load_digits(return_X_y=True)
        rows, n = (rows / 16).astype(np.float32), 600
    new = np.concatenate(
        [rows[n : n + 8], np.random.default_rng(0).permuted(rows[n : n + 8], axis=0)]
    )
    if kind == "head":
        net = LogisticRegression(max_iter=50, tol=0.1).fit(rows[:n], y[:n])
    else:
        net = MLPClassifier((32, 32), max_iter=60, random_state=0, tol=1e-2).fit(rows[:n], y[:n])
    return net, rows[:n], y[:n], new


# Largest factor that nine of ten costs are off by, as the search is by default, and with more rows.
@pytest.mark.parametrize(
    ("kind", "n_rows", "largest"),
    [
        ("mlp", "auto", 1.7),
        ("mlp", 256, 1.1),
        ("cancer", "auto", 1.3),
        ("head", "auto", 3.0),
        *((kind, 600, 1.001) for kind in ("mlp", "head")),
    ],
)
def test_a_model_costs_on_all_training_rows_about_what_it_is_said_to(kind, n_rows, largest):
    net, rows, y, new = small_network(kind)
    est = QUAMClassifier(net, search=NaturalSearch(n_rows=n_rows), random_state=0).fit(rows, y)
    said, exact = compared(est, new)
    off = np.abs(np.log(said / exact))[said <= 12 * est.temperature_]
    assert len(off) > 50
    assert np.exp(np.quantile(off, 0.9)) < largest
    # The estimate has no bias to speak of, but where the curvature stands for the rows.
    if kind != "head":
        assert abs(np.median(said / exact) - 1) < 0.1
