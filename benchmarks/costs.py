"""How far is the cost that natural search attributes to a model from its cost on all training data?

The search measures a model on some of the training samples, or to second order. Here each model on
the paths is measured on all of them, with the prior, and both costs are compared. Models count that
have a weight: their cost is at least a hundredth of the temperature, and a search ends at twelve
times the temperature. Half of the samples that are asked about are known ones, the others digits
that were left out, or samples of a table with shuffled columns.

Columns: how many training samples there are, and on how many a model is measured; models; the share
whose cost is within 5 % of the exact one; what nine of ten are within; median and quantiles of the
ratio of the estimated cost to the exact one.

    python -m benchmarks.costs
"""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.functional import cross_entropy

from sklearn_quam import NaturalSearch, QUAMClassifier
from sklearn_quam._network.limits import slices

from .paper.runs import options, report, run

LEFT_OUT = (3, 5)
N_NEW = 20  # of each kind
N_ROWS = ("auto", 256)
# Models that are measured together.
AT_ONCE = 64


def digits():
    X, y = load_digits(return_X_y=True)
    X, known = (X / 16).astype(np.float32), ~np.isin(y, LEFT_OUT)
    rows = np.random.default_rng(0).permutation(np.flatnonzero(known))
    y = np.unique(y[rows], return_inverse=True)[1]
    return X[rows[:1000]], y[:1000], X[rows[1000 : 1000 + N_NEW]], X[~known][:N_NEW]


def table(X, y, n_training):
    X = StandardScaler().fit_transform(X).astype(np.float32)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(X))
    X, y = X[order], y[order]
    known = X[n_training : n_training + N_NEW]
    return X[:n_training], y[:n_training], known, rng.permuted(known, axis=0)


def lenet(X, y, n_epochs=60):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 1 + int(y.max())),
    )
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    X, y = torch.tensor(X), torch.tensor(y)
    for _ in range(n_epochs):
        for rows in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            cross_entropy(net(X[rows]), y[rows]).backward()
            optimizer.step()
    return net.eval()


def mlp(*sizes):
    return lambda X, y: MLPClassifier(sizes, max_iter=300, random_state=0).fit(X, y)


def overlapping():
    return make_classification(
        3000, 12, n_informative=6, n_classes=3, flip_y=0.1, class_sep=0.8, random_state=0
    )


# name -> data, network
CASES = {
    "digits, MLP 64-64": (digits, mlp(64, 64)),
    "digits, small LeNet": (digits, lenet),
    "digits, logistic": (digits, lambda X, y: LogisticRegression(max_iter=300).fit(X, y)),
    "breast cancer, MLP 100": (
        lambda: table(*load_breast_cancer(return_X_y=True), 450),
        mlp(100),
    ),
    "overlapping classes, MLP 100": (lambda: table(*overlapping(), 2500), mlp(100)),
}


def compared(est, rows):
    """Return what the models of the paths are said to cost, and what they do cost."""
    models = est._fitted.models
    problem, engine = models.problem, models.engine
    start, given = problem.network.free.start, problem.original_on_training
    inputs, original = models.given(est._check_inputs(rows)[:])
    said, exact = [], []

    @torch.no_grad()
    def measured(free):
        nats = sum(
            given[chunk]
            .kl(problem.network.predict(free, problem.training.rows_at(chunk)))
            .double()
            .sum(dim=1)
            for chunk in slices(len(problem.training), 512)
        )
        squares = sum((free[n] - start[n]).double().square().flatten(1).sum(1) for n in free)
        return nats + engine.precision / 2 * squares

    def watch(number, point, free):  # noqa: ARG001
        places = (point.cost > 0.01 * engine.temperature).nonzero()[:, 0]
        for some in places.split(AT_ONCE):
            said.append(point.cost[some].double())
            exact.append(measured(free(some)))

    for searches in models.searches(inputs, original, est._question(inputs).limits):
        engine.steps.paths(problem, searches, 12 * engine.temperature, watch)
    return torch.cat(said).numpy(), torch.cat(exact).numpy()


def judge(case, n_rows):
    load, build = CASES[case]
    X, y, known, others = load()
    net = build(X, y)
    est = QUAMClassifier(net, search=NaturalSearch(n_rows=n_rows), random_state=0).fit(X, y)
    said, exact = compared(est, np.concatenate([known, others]))
    ratio = (said / exact)[said <= 12 * est.temperature_]
    off = np.abs(np.log(ratio))
    return {
        "network": case,
        "training": len(X),
        "rows": est._fitted.models.engine.steps.n_rows,
        "models": len(ratio),
        "within 5 %": float(np.mean(off <= np.log(1.05))),
        "nine of ten within": float(np.exp(np.quantile(off, 0.9)) - 1),
        "median": float(np.median(ratio)),
        "5 % of them below": float(np.quantile(ratio, 0.05)),
        "5 % above": float(np.quantile(ratio, 0.95)),
    }


def main():
    chosen = options(__doc__)
    path = chosen.out / "costs.json"
    tasks = {
        f"{case}, {n_rows} rows": lambda case=case, n_rows=n_rows: judge(case, n_rows)
        for case in CASES
        for n_rows in N_ROWS
    }
    settings = {"n_new": N_NEW, "left_out": LEFT_OUT}
    results = run(path, settings, tasks)
    report(path, list(results.values()))


if __name__ == "__main__":
    main()
