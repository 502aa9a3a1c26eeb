"""Which digits does a network not know? Train it without two classes, then ask it.

``make demo`` runs this script: it prints how well the network's entropy and QUAM's epistemic
uncertainty tell the left-out digits from the known ones, how long each takes, and writes a figure.
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

LEFT_OUT = (3, 8)
N_POINTS = 150  # of known and of left-out digits
BLUE, RED = "#0072B2", "#D55E00"  # told apart by everyone


def load_data():
    """Return known digits for training and testing, and the left-out ones."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    unknown = np.isin(y, LEFT_OUT)
    known = train_test_split(X[~unknown], y[~unknown], test_size=0.3, random_state=0)
    return *known, X[unknown], y[unknown]


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


def plot_histogram(ax, known, unknown, label):
    """Draw how the score is distributed over known and left-out digits."""
    bins = np.linspace(0, max(known.max(), unknown.max()), 30)
    ax.hist(known, bins, alpha=0.75, color=BLUE, label="known digits")
    ax.hist(unknown, bins, alpha=0.6, color=RED, label="left-out digits")
    ax.set(xlabel=label, ylabel="digits")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)


def plot_digits(figure, title, images, captions, colours):
    """Draw a row of digits with a caption each."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    for ax, image, caption, colour in zip(
        figure.subplots(1, len(images)), images, captions, colours, strict=True
    ):
        ax.imshow(image.reshape(8, 8), cmap="gray_r")
        ax.set_title(caption, fontsize=8, color=colour)
        ax.axis("off")


def plot(path, scores, X, y, predicted, diagnostics):
    """Draw both scores, and the digits that QUAM is least and most certain about."""
    figure = plt.figure(figsize=(8, 6.4), layout="constrained")
    top, middle, bottom = figure.subfigures(3, 1, height_ratios=[2.2, 1, 1])
    for ax, (name, score) in zip(top.subplots(1, 2), scores.items(), strict=True):
        plot_histogram(ax, score[:N_POINTS], score[N_POINTS:], name)
    order = list(scores.values())[-1].argsort()
    names = np.where(np.isin(y, LEFT_OUT), "left out", "known")
    for part, title, rows in (
        (middle, "least certain: predicted as ..., might as well be ...", order[:-10:-1]),
        (bottom, "most certain", order[:9]),
    ):
        captions = [
            f"{predicted[row]}"
            + (f", {diagnostics.rival[row]}?" if diagnostics.feasible[row] else "")
            + f"\n({names[row]} {y[row]})"
            for row in rows
        ]
        colours = [RED if y[row] in LEFT_OUT else BLUE for row in rows]
        plot_digits(part, title, X[rows], captions, colours)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("demo_output"), help="folder for the figure"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    X_train, X_test, y_train, y_test, X_unknown, y_unknown = load_data()
    net = train_network(X_train, y_train)
    X = np.concatenate([X_test[:N_POINTS], X_unknown[:N_POINTS]])
    y = np.concatenate([y_test[:N_POINTS], y_unknown[:N_POINTS]])
    is_unknown = np.isin(y, LEFT_OUT)

    methods = {
        "entropy of the network": ReferenceClassifier(net),
        "QUAM, linear search": QUAMClassifier(net, search="linear", random_state=0),
        "QUAM": QUAMClassifier(net, random_state=0),
    }
    scores, milliseconds = {}, {}
    for name, est in methods.items():
        est.fit(X_train, y_train)
        start = time.perf_counter()
        uncertainty, diagnostics = est.predict_uncertainty(X, return_diagnostics=True)
        milliseconds[name] = (time.perf_counter() - start) / len(X) * 1e3
        is_network = isinstance(est, ReferenceClassifier)
        scores[name] = uncertainty.total if is_network else uncertainty.epistemic

    print(f"\nA network that has never seen a {' or a '.join(map(str, LEFT_OUT))}")
    print(f"(test accuracy on the digits it knows: {est.score(X_test, y_test):.3f})\n")
    print(f"{'telling left-out digits by':<28}AUROC   milliseconds a digit")
    for name, score in scores.items():
        auroc = roc_auc_score(is_unknown, score)
        print(f"{name:<28}{auroc:.3f}   {milliseconds[name]:.2f}")
    print(f"\n({N_POINTS} known and {N_POINTS} left-out digits)")
    path = out / "demo.png"
    shown = {
        "entropy of the network (nats)": scores["entropy of the network"],
        "epistemic uncertainty, QUAM (nats)": scores["QUAM"],
    }
    plot(path, shown, X, y, est.predict(X), diagnostics)
    print(f"Figure: {path}")


if __name__ == "__main__":
    main()
