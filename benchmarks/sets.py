"""How large are sets that hold 95 % of the labels, and do they grow where rows are strange?

Scikit-learn's digits with noise on their pixels (standard deviation of 0.35 where pixels are
between 0 and 1): an MLP 64-64 trained on 400 rows, 400 others passed as ``X_val`` and ``y_val`` or
not at all, sets asked for 500 further rows; and for 500 strange ones, whose pixels are each taken
from another row. Means over seeds of the share of labels that are in their sets, and of the size of
sets. A method is good if sets are small for known rows and large for strange ones. QUAM's sets are
those of its network, "Reference".

    python -m benchmarks.sets
"""

import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import sklearn_quam

from .paper.runs import means, options, report, run

COVERAGE = 0.95
METHODS = ("Reference", "DeepEnsemble", "MCDropout", "Laplace")
ARGUMENTS = {"MCDropout": {"p": 0.1}}


def judge(method, seed):
    rng = np.random.default_rng(seed)
    X, y = load_digits(return_X_y=True)
    X = X / 16 + rng.normal(scale=0.35, size=X.shape)
    train, val, test, _ = np.split(rng.permutation(len(y)), [400, 800, 1300])
    strange = rng.permuted(X[test], axis=0)
    kind = getattr(sklearn_quam, f"{method.partition(',')[0]}Classifier")
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        net = MLPClassifier((64, 64), max_iter=500, random_state=seed).fit(X[train], y[train])
        est = kind(net, random_state=seed, **ARGUMENTS.get(method, {}))
        for how, more in {"plain": {}, "calibrated": {"X_val": X[val], "y_val": y[val]}}.items():
            est.fit(X[train], y[train], **more)
            sets = est.predict_set(X[test], COVERAGE)
            found[f"coverage, {how}"] = sets[np.arange(len(test)), y[test]].mean()
            found[f"size, {how}"] = sets.sum(axis=1).mean()
        found["size, strange"] = est.predict_set(strange, COVERAGE).sum(axis=1).mean()
    return found


def main():
    chosen = options(__doc__, seeds=[0, 1, 2, 3, 4])
    tasks = {
        f"{method}, {seed}": lambda m=method, s=seed: judge(m, s)
        for method in METHODS
        for seed in chosen.seeds
    }
    path = chosen.out / "sets.json"
    results = run(path, {"coverage": COVERAGE, "arguments": ARGUMENTS}, tasks)
    rows = [
        {"method": method} | means([results[f"{method}, {seed}"] for seed in chosen.seeds])
        for method in METHODS
    ]
    report(path, rows)


if __name__ == "__main__":
    main()
