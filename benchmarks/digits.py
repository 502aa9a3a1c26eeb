"""Digits of classes that a network has never seen: QUAM against an ensemble and the entropy.

For every set of left-out classes and every seed, an MLP 64-64 is trained on the other digits;
the AUROC says how well a score tells left-out digits from known ones of the test set. QUAM runs
with default arguments (natural search, in both settings), with linear and with penalty search; rows
a second are given relative to the penalty search. The defaults were chosen on (3, 5), (0, 1, 2),
(2, 7), (4, 7) and (8, 9) with seeds below 10; neither is used here.

Run with ``python -m benchmarks.digits``; writes ``benchmarks/results/digits.json``.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm

import sklearn_quam
from sklearn_quam import (
    DeepEnsembleClassifier,
    LaplaceClassifier,
    QUAMClassifier,
    ReferenceClassifier,
)

LEFT_OUT = [(1, 6), (0, 5), (2, 9), (3, 8), (6, 7)]
SEEDS = range(10, 15)
ENSEMBLE = 5


def train(X, y, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, int(y.max()) + 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(60):
        for rows in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            cross_entropy(net(X[rows]), y[rows]).backward()
            optimizer.step()
    return net.eval()


def prepare(left_out, seed, n_points, n_members=ENSEMBLE):
    """Return networks, the first of them the given one, their data, and known and unknown rows."""
    X, y = load_digits(return_X_y=True)
    X = torch.tensor((X / 16).astype(np.float32))
    unknown = np.isin(y, left_out)
    known = np.flatnonzero(~unknown)
    columns = torch.tensor(np.unique(y[known], return_inverse=True)[1])
    fit, test = train_test_split(np.arange(len(known)), test_size=0.3, random_state=seed)
    X_train, y_train = X[known[fit]], columns[fit]
    X_known = X[known[test[:n_points]]]
    X_unknown = X[np.random.default_rng(seed).permutation(np.flatnonzero(unknown))[:n_points]]
    nets = [train(X_train, y_train, 10 * seed + member) for member in range(n_members + 1)]
    return nets, X_train, y_train, torch.cat([X_known, X_unknown])


def aurocs(left_out, seed, n_points):
    """Return the AUROC of QUAM's and an ensemble's epistemic uncertainty, and of the entropy."""
    (net, *others), X_train, y_train, X_new = prepare(left_out, seed, n_points)
    is_unknown = np.r_[np.zeros(n_points), np.ones(n_points)]
    laplace = LaplaceClassifier(net, parameters="all", random_state=seed)
    methods = {
        "quam": QUAMClassifier(net, random_state=seed),
        "expected": QUAMClassifier(net, setting="expected", random_state=seed),
        "linear": QUAMClassifier(net, search="linear", random_state=seed),
        "penalty": QUAMClassifier(net, search="penalty", random_state=seed),
        "ensemble": DeepEnsembleClassifier(net, estimators=others),
        "laplace": laplace,
        "laplace, expected": clone(laplace).set_params(setting="expected"),
        "entropy": ReferenceClassifier(net),
    }
    found, seconds = {}, {}
    for name, method in methods.items():
        method.fit(X_train, y_train)
        start = time.perf_counter()
        uncertainty = method.predict_uncertainty(X_new)
        seconds[name] = time.perf_counter() - start
        score = uncertainty.total if name == "entropy" else uncertainty.epistemic
        found[name] = float(roc_auc_score(is_unknown, score))
    for name in ("quam", "linear"):
        found[f"{name}, times as fast"] = seconds["penalty"] / seconds[name]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=30, help="of known and of left-out digits")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for left_out in LEFT_OUT:
        for seed in tqdm(SEEDS, desc=f"without {left_out}"):
            result = aurocs(left_out, seed, options.points)
            rows.append({"left_out": left_out, "seed": seed, **result})
    methods = [name for name in rows[0] if name not in ("left_out", "seed")]
    for name in methods:
        means = [np.mean([r[name] for r in rows if r["left_out"] == out]) for out in LEFT_OUT]
        mean = np.mean([r[name] for r in rows])
        print(f"{name:<24}" + "".join(f"{m:9.3f}" for m in means) + f"   mean {mean:.3f}")
    versions = {
        package.__name__: package.__version__ for package in (sklearn_quam, sklearn, torch, np)
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "digits.json").write_text(
        json.dumps({"points": options.points, "versions": versions, "results": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
