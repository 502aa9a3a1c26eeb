"""Which digits does a network not know? Train it without two classes, then ask it.

``make demo`` runs this script: it prints how well the uncertainty tells the left-out digits from
the known ones, and writes a figure.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_quam import ReferenceClassifier

LEFT_OUT = (3, 5)


def load_data():
    """Return known digits for training and testing, and the left-out ones."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    unknown = np.isin(y, LEFT_OUT)
    known = train_test_split(X[~unknown], y[~unknown], test_size=0.3, random_state=0)
    return *known, X[unknown]


def train_network(X, y):
    """Return a fitted skorch net with two hidden layers."""
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)),
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


def plot(path, known, unknown, images):
    """Draw the two distributions, and the most certain of the unknown digits."""
    figure = plt.figure(figsize=(8, 4.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.4, 1])
    ax = left.subplots()
    bins = np.linspace(0, max(known.max(), unknown.max()), 40)
    ax.hist(known, bins, density=True, alpha=0.75, color="#0072B2", label="known digits")
    ax.hist(unknown, bins, density=True, alpha=0.6, color="#D55E00", label="left-out digits")
    ax.set(xlabel="entropy of the network (nats)", ylabel="density", yscale="log")
    ax.legend(frameon=False)
    right.suptitle("left-out digits: least (top)\nand most (bottom) uncertain", fontsize=10)
    order = unknown.argsort()
    for axis, row in zip(right.subplots(2, 4).flat, [*order[:4], *order[:-5:-1]], strict=True):
        axis.imshow(images[row].reshape(8, 8), cmap="gray_r")
        axis.set_title(f"{unknown[row]:.2f}", fontsize=8)
        axis.axis("off")
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("demo_output"), help="folder for the figure"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    X_train, X_test, y_train, y_test, X_unknown = load_data()
    net = train_network(X_train, y_train)
    est = ReferenceClassifier(net).fit(X_train, y_train)

    known = est.predict_uncertainty(X_test).total
    unknown = est.predict_uncertainty(X_unknown).total
    is_unknown = np.r_[np.zeros(len(known)), np.ones(len(unknown))]
    auroc = roc_auc_score(is_unknown, np.r_[known, unknown])

    print(f"Digits without {' and '.join(map(str, LEFT_OUT))}: {len(X_train)} to train on.")
    print(f"Test accuracy on known digits:                 {est.score(X_test, y_test):.3f}")
    print(f"AUROC, telling left-out digits by the entropy: {auroc:.3f}")
    path = out / "demo.png"
    plot(path, known, unknown, X_unknown)
    print(f"Figure: {path}")


if __name__ == "__main__":
    main()
