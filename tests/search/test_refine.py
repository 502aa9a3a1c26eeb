"""Refined costs of rivals, held against an independent solver."""

from functools import cache

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn

from sklearn_quam import NaturalSearch, QUAMClassifier, QUAMRegressor
from sklearn_quam._search import rivals
from sklearn_quam._search.rivals import cheapest_rivals
from sklearn_quam.exceptions import NetworkError

N_TRAINING, N_ROWS = 80, 3


@cache
def fitted(kind):
    n_classes = 2 if kind == "logistic" else 3
    rows, y = make_blobs(N_TRAINING + N_ROWS, 2, centers=n_classes, random_state=0)
    rows = rows + np.random.default_rng(0).normal(0, 2, rows.shape)
    rows = StandardScaler().fit_transform(rows)
    net = LogisticRegression()
    if kind in ("tanh", "relu"):
        net = MLPClassifier((5,), activation=kind, solver="lbfgs", alpha=0.1, random_state=0)
    net.fit(rows[:N_TRAINING], y[:N_TRAINING])
    search = NaturalSearch(n_rows=N_TRAINING)
    est = QUAMClassifier(net, search=search, random_state=0).fit(rows[:N_TRAINING], y[:N_TRAINING])
    return est, rows[:N_TRAINING], rows[N_TRAINING:]


@cache
def refined(kind):
    est, _, rows = fitted(kind)
    return est.rival_costs(rows)


class Solver:
    """The cost of a network with at most one hidden layer, in numpy, and its least value."""

    def __init__(self, est, rows):
        start = est._fitted.models.problem.network.free.start
        self.shapes = [tuple(part.shape) for part in start.values()]
        self.given = np.concatenate([part.double().numpy().ravel() for part in start.values()])
        self.rows, self.tau = rows, est._fitted.models.engine.precision
        self.log_proba = log_softmax(self.logits(self.given, rows), axis=1)

    def logits(self, vector, rows):
        ends = np.cumsum([np.prod(shape) for shape in self.shapes])[:-1]
        parts = [p.reshape(s) for p, s in zip(np.split(vector, ends), self.shapes, strict=True)]
        for number in range(0, len(parts), 2):
            rows = rows if number == 0 else np.tanh(rows)
            rows = rows @ parts[number].T + parts[number + 1]
        # A single unit is the log-odds of the second class.
        return np.c_[np.zeros(len(rows)), rows] if rows.shape[1] == 1 else rows

    def cost(self, vector):
        moved = log_softmax(self.logits(vector, self.rows), axis=1)
        nats = (softmax(self.log_proba, axis=1) * (self.log_proba - moved)).sum()
        return nats + self.tau / 2 * ((vector - self.given) ** 2).sum()

    def odds(self, vector, row, target):
        logits = self.logits(vector, row[None])[0]
        return logits[target] - logsumexp(np.delete(logits, target))

    def least(self, row, target):
        rule = {"type": "ineq", "fun": lambda v: self.odds(v, row, target)}
        options = {"maxiter": 300, "ftol": 1e-6}
        found = minimize(self.cost, self.given, method="SLSQP", constraints=rule, options=options)
        assert rule["fun"](found.x) > -1e-4
        return found.fun


@pytest.mark.parametrize(
    ("kind", "largest", "median"),
    [("logistic", 1.02, 1.02), ("softmax", 1.05, 1.05), ("tanh", np.inf, 2.0)],
)
def test_refined_costs_are_those_of_an_independent_solver(kind, largest, median):
    est, train, rows = fitted(kind)
    costs, solver = refined(kind), Solver(est, train)
    answers = np.argwhere(costs)
    ratio = np.array([costs[i, c] / solver.least(rows[i], c) for i, c in answers])
    assert np.median(ratio) <= median
    assert ratio.max() <= largest
    if kind != "tanh":
        assert ratio.min() >= 1 - 1e-3


@pytest.mark.parametrize("kind", ["logistic", "softmax", "tanh"])
def test_a_refined_cost_is_that_of_a_model_which_gives_the_answer(kind):
    est, train, rows = fitted(kind)
    inputs, solver = est._check_inputs(rows), Solver(est, train)
    original = est._fitted.predict(inputs)[0]
    limits = est._question(inputs).limits
    models = est._fitted.models
    for _, targets, nats, found in cheapest_rivals(models, inputs[:], original, limits):
        every = zip(targets.flatten().tolist(), nats.tolist(), found.numpy(), strict=True)
        for number, (target, cost, rival) in enumerate(every):
            if cost:
                row = rows[number // targets.shape[1]]
                assert solver.odds(rival, row, target) > -1e-5
                assert solver.cost(rival) == pytest.approx(cost, rel=1e-4)


@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_refined_costs_are_far_below_the_path_where_there_is_a_hidden_layer(kind):
    est, _, rows = fitted(kind)
    path, costs = est.rival_costs(rows, refine=False), refined(kind)
    np.testing.assert_array_equal(costs == 0, path == 0)
    assert np.median(costs[path > 0] / path[path > 0]) < 0.7


@pytest.mark.parametrize(
    ("kind", "rtol"), [("logistic", 1e-4), ("softmax", 1e-4), ("relu", 0.02), ("tanh", 0.05)]
)
def test_refined_costs_do_not_depend_on_the_rows_beside_them(kind, rtol):
    est, _, rows = fitted(kind)
    alone = np.concatenate([est.rival_costs(rows[i : i + 1]) for i in range(2)])
    np.testing.assert_allclose(alone, refined(kind)[:2], rtol=rtol)


def test_a_network_that_fails_has_the_costs_of_the_path(monkeypatch):
    def fail(*_):
        raise NetworkError("trying to differentiate twice")

    est, _, rows = fitted("softmax")
    monkeypatch.setattr(rivals, "cheapest_models", fail)
    path = est.rival_costs(rows, refine=False)
    np.testing.assert_allclose(est.rival_costs(rows), path, rtol=1e-5)


def test_a_mean_of_a_linear_regression_costs_what_the_posterior_says():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 3)).astype(np.float32)
    y = rows @ [1.0, -2.0, 0.5] + rng.normal(0, 0.5, 60)
    est = QUAMRegressor(nn.Linear(3, 1), random_state=0).fit(rows, y.astype(np.float32))
    costs = est.rival_costs(rows[:3])
    # By hand: half the squared distance over the variance of the mean, in units of the noise.
    variance = float(est._fitted.predict(est._check_inputs(rows[:1]))[0].variance)
    design = np.c_[rows, np.ones(60)].astype(float)
    precision = design.T @ design / variance + est._fitted.models.engine.precision * np.eye(4)
    of_mean = np.einsum("ij,jk,ik->i", design[:3], np.linalg.inv(precision), design[:3])
    np.testing.assert_allclose(costs, (variance / of_mean / 2)[:, None].repeat(2, 1), rtol=1e-4)
