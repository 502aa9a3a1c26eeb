"""Do 90 % intervals hold 90 % of the targets? With and without held-out rows to calibrate on.

Two tasks, each with an MLP (50-50, no weight decay) that is trained to the end: a sine (100
training rows, noise with a standard deviation of 0.2), and scikit-learn's diabetes (half of the
rows). Another 100 rows are passed as ``X_val`` and ``y_val`` or not at all; intervals are asked for
100 further rows. Means over seeds of the share that lies in its interval, and of the width of
intervals in standard deviations of y.

    python -m benchmarks.intervals
"""

import warnings

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler

import sklearn_quam
from sklearn_quam.metrics import interval_coverage

from .paper.runs import means, options, report, run

COVERAGE = 0.9
METHODS = {
    "Reference": {},
    "DeepEnsemble": {},
    "Laplace": {},
    "Laplace, all layers": {"parameters": "all"},
    "QUAM": {"search": "penalty"},
    "QUAM, linear search": {"search": "linear"},
}


def sine(seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-np.pi, np.pi, (300, 1))
    return X, np.sin(X[:, 0]) + rng.normal(scale=0.2, size=300), 100


def diabetes(seed):
    X, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))[: 221 + 200]
    return StandardScaler().fit_transform(X)[order], (y[order] - y.mean()) / y.std(), 221


TASKS = {"sine": sine, "diabetes": diabetes}


def judge(task, method, seed):
    X, y, n_train = TASKS[task](seed)
    train, val, test = np.split(np.arange(n_train + 200), [n_train, n_train + 100])
    net = MLPRegressor(
        hidden_layer_sizes=(50, 50), alpha=0.0, solver="lbfgs", max_iter=2000, random_state=seed
    )
    kind = getattr(sklearn_quam, f"{method.partition(',')[0]}Regressor")
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        net.fit(X[train], y[train])
        est = kind(net, random_state=seed, **METHODS[method])
        for how, more in {"plain": {}, "calibrated": {"X_val": X[val], "y_val": y[val]}}.items():
            est.fit(X[train], y[train], **more)
            interval = est.predict_interval(X[test], COVERAGE)
            found[f"coverage, {how}"] = interval_coverage(y[test], *interval.T)
            found[f"width, {how}"] = float(np.diff(interval).mean() / y.std())
    return found


def main():
    chosen = options(__doc__, seeds=list(range(10)))
    tasks = {
        f"{task}, {method}, {seed}": lambda t=task, m=method, s=seed: judge(t, m, s)
        for task in TASKS
        for method in METHODS
        for seed in chosen.seeds
    }
    path = chosen.out / "intervals.json"
    results = run(path, {"coverage": COVERAGE, "methods": METHODS}, tasks)
    rows = [
        {"task": task, "method": method}
        | means([results[f"{task}, {method}, {seed}"] for seed in chosen.seeds])
        for task in TASKS
        for method in METHODS
    ]
    report(path, rows)


if __name__ == "__main__":
    main()
