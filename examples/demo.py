"""Which digits does a network not know? Train it without two classes, then ask it.

``make demo`` runs this script: it prints how well the network's entropy and QUAM's epistemic
uncertainty separate the left-out digits from the known ones, how long each takes, and writes a
figure.
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_quam import QUAMClassifier, ReferenceClassifier
from sklearn_quam.display import (
    UncertainSamplesDisplay,
    UncertaintyHistogramDisplay,
)

LEFT_OUT = (3, 8)
N_POINTS = 150  # of known and of left-out digits


def load_data():
    """Return known digits for training and testing, and the left-out ones."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    unknown = np.isin(y, LEFT_OUT)
    known = train_test_split(
        X[~unknown], y[~unknown], test_size=0.3, random_state=0
    )
    return *known, X[unknown][:N_POINTS]


def train_network(X, y):
    """Return a fitted skorch net with two hidden layers."""
    torch.manual_seed(0)
    hidden = [
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
    ]
    net = NeuralNetClassifier(
        nn.Sequential(*hidden, nn.Linear(64, 8)),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=3e-3,
        max_epochs=60,
        batch_size=64,
        train_split=None,
        verbose=0,
    )
    columns = np.unique(y, return_inverse=True)[1]
    return net.fit(X, columns.astype(np.int64))


def plot(path, scores, est, X):
    """Draw both scores, and the digits that QUAM is least and most certain about."""
    figure = plt.figure(figsize=(9, 7.5), layout="constrained")
    grid = figure.add_gridspec(2, 2)
    for place, (name, score) in zip(grid, scores.items()):
        ax = figure.add_subplot(place)
        known, unknown = np.split(score, 2)
        UncertaintyHistogramDisplay.from_predictions(
            known, unknown, xlabel=f"{name} (nats)", ax=ax
        )
    bottom = figure.add_subplot(grid[1, :])
    UncertainSamplesDisplay.from_estimator(
        est, X, ax=bottom, cmap="gray_r"
    )
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    X_train, X_test, y_train, y_test, X_unknown = load_data()
    net = train_network(X_train, y_train)
    X = np.concatenate([X_test[:N_POINTS], X_unknown])
    is_unknown = np.arange(len(X)) >= N_POINTS

    left_out = " or a ".join(map(str, LEFT_OUT))
    print(f"\nA network that has never seen a {left_out}")
    linear = QUAMClassifier(net, search="linear", random_state=0)
    methods = {
        "entropy of the network": ReferenceClassifier(net),
        "QUAM, linear search": linear,
        "QUAM": QUAMClassifier(net, random_state=0),
    }
    scores, lines = {}, []
    for name, est in methods.items():
        est.fit(X_train, y_train)
        start = time.perf_counter()
        u = est.predict_uncertainty(X)
        duration = (time.perf_counter() - start) / len(X) * 1e3
        is_network = isinstance(est, ReferenceClassifier)
        scores[name] = u.total if is_network else u.epistemic
        auroc = roc_auc_score(is_unknown, scores[name])
        lines.append(f"{name:<28}{auroc:.3f}   {duration:.2f}")
    accuracy = est.score(X_test, y_test)
    print(f"(test accuracy on the digits it knows: {accuracy:.3f})\n")
    print(
        f"{'left-out digits found by':<28}AUROC   milliseconds a digit"
    )
    print("\n".join(lines))
    print(f"\n({N_POINTS} known and {N_POINTS} left-out digits)")
    path = out / "demo.png"
    names = "entropy of the network", "epistemic uncertainty, QUAM"
    shown = dict(zip(names, (scores[names[0]], scores["QUAM"])))
    plot(path, shown, est, X)
    print(f"Figure: {path}")


if __name__ == "__main__":
    main()
