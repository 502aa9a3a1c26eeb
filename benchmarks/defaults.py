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
    "learning rate 0.005": {"search__learning_rate": 5e-3},
    "learning rate 0.01": {"search__learning_rate": 1e-2},
    "learning rate 0.02": {"search__learning_rate": 2e-2},
    "batch of 64": {"search__batch_size": 64},
    "batch of 128": {"search__batch_size": 128},
    "50 steps": {"search__n_steps": 50},
    "3 targets": {"targets": 3},
    "last layer searched": {"parameters": "last_layer"},
    "best models only": {"sampling": "best"},
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
