"""How the defaults of QUAM were chosen: digits of left-out classes, and what other settings buy.

The same task as in ``benchmarks.digits``, on left-out classes and seeds that are not used there.

Run with ``python -m benchmarks.defaults``; writes ``benchmarks/results/defaults.json``.
"""

import time
from functools import cache

import numpy as np
from sklearn.metrics import roc_auc_score

import sklearn_quam

from .digits import prepare
from .paper.runs import options, report, run

LEFT_OUT = [(3, 5), (0, 1, 2), (2, 7), (4, 7), (8, 9)]
SEEDS = (0,)
# What is tried: one thing after the other.
SETTINGS = {
    "defaults": {},
    "setting expected": {"setting": "expected"},
    "temperature 1": {"temperature": 1.0},
    "temperature 3": {"temperature": 3.0},
    "temperature 30": {"temperature": 30.0},
    "goal 8": {"search__goal": 8.0},
    "goal 16": {"search__goal": 16.0},
    "prior precision 0.01": {"search__prior_precision": 0.01},
    "prior precision 0.1": {"search__prior_precision": 0.1},
    "5 steps": {"search__n_steps": 5},
    "20 steps": {"search__n_steps": 20},
    "64 rows": {"search__n_rows": 64},
    "all rows": {"search__n_rows": 10_000},
    "one correction": {"search__n_corrections": 1},
    "3 targets": {"search__targets": 3},
    "last layer searched": {"parameters": "last_layer"},
    "linear search": {"search": "linear"},
    "penalty search": {"search": "penalty"},
}
cached_prepare = cache(prepare)


def judge(arguments, n_points):
    aurocs, seconds = [], []
    for left_out in LEFT_OUT:
        for seed in SEEDS:
            nets, X, y, X_new = cached_prepare(left_out, seed, n_points, n_members=0)
            est = sklearn_quam.QUAMClassifier(nets[0], random_state=seed)
            est.set_params(**arguments).fit(X, y)
            start = time.perf_counter()
            epistemic = est.predict_uncertainty(X_new).epistemic
            seconds.append((time.perf_counter() - start) / len(X_new))
            labels = np.arange(len(X_new)) >= n_points
            aurocs.append(roc_auc_score(labels, epistemic))
    return {"auroc": np.mean(aurocs), "worst": np.min(aurocs), "seconds": np.mean(seconds)}


def main():
    chosen = options(__doc__, points=40)
    tasks = {name: lambda a=a: judge(a, chosen.points) for name, a in SETTINGS.items()}
    settings = {"points": chosen.points, "left_out": LEFT_OUT, "seeds": SEEDS}
    path = chosen.out / "defaults.json"
    results = run(path, settings, tasks)
    report(path, [{"setting": name, **result} for name, result in results.items()])


if __name__ == "__main__":
    main()
