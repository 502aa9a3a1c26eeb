"""Draw the figures of "Concepts in one picture" and of the quick start: figures.py [FOLDER]."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_quam import QUAMClassifier
from sklearn_quam.model_selection import RejectOptionClassifier

BLUE, RED = "#0072B2", "#D55E00"


def concepts(path):
    """Draw a map of both uncertainties: two classes overlap, and a third one lies apart."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 120)
    X = np.array([[-2.0, 0.0], [0.2, 0.0], [0.0, 5.5]])[y] + rng.normal(size=(len(y), 2))
    net = MLPClassifier((50, 50), alpha=1e-3, tol=5e-4, random_state=0).fit(X, y)
    columns, rows = np.meshgrid(np.linspace(-8, 6, 43), np.linspace(-5, 10, 43))
    places = np.column_stack([columns.ravel(), rows.ravel()])
    u = QUAMClassifier(net, random_state=0).fit(X, y).predict_uncertainty(places)
    figure, axes = plt.subplots(1, 2, figsize=(8, 4), sharey=True, layout="constrained")
    for ax, name in zip(axes, ("aleatoric", "epistemic"), strict=True):
        values = getattr(u, name).reshape(columns.shape)
        colours = ax.pcolormesh(columns, rows, values, vmax=np.quantile(values, 0.99))
        figure.colorbar(colours, ax=ax, label="nats", shrink=0.8)
        for k, marker in enumerate("osD"):
            ax.scatter(*X[y == k].T, s=8, marker=marker, color="white", edgecolors="black", lw=0.4)
        for letter, place in {"A": (-0.9, -1.0), "B": (-7.0, 6.8), "C": (0.0, 6.5)}.items():
            box = {"boxstyle": "circle", "facecolor": "white"}
            ax.text(*place, letter, ha="center", va="center", bbox=box, fontsize=9)
        ax.set(title=name, xlabel="first feature")
    axes[0].set_ylabel("second feature")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def wines(path):
    """Draw the wines of the quick start: both uncertainties, mistakes, and what is held back."""
    X, y = load_wine(return_X_y=True, as_frame=True)
    X_train, X_rest, y_train, y_rest = train_test_split(X, y, test_size=0.5, random_state=0)
    X_val, X_test, y_val, y_test = train_test_split(X_rest, y_rest, test_size=0.5, random_state=0)
    net = make_pipeline(StandardScaler(), MLPClassifier(max_iter=500, random_state=0))
    est = QUAMClassifier(net.fit(X_train, y_train), random_state=0)
    est.fit(X_train, y_train, X_val=X_val, y_val=y_val)
    reject = RejectOptionClassifier(est, coverage=0.8, cv="prefit").fit(X_val, y_val)
    held_back, u = reject.predict(X_test) == -1, est.predict_uncertainty(X_test)
    wrong = est.predict(X_test) != y_test.to_numpy()
    figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
    ax.scatter(u.aleatoric[~wrong], u.epistemic[~wrong], color=BLUE, label="right")
    ax.scatter(u.aleatoric[wrong], u.epistemic[wrong], color=RED, marker="X", label="wrong")
    ax.scatter(
        u.aleatoric[held_back],
        u.epistemic[held_back],
        s=120,
        facecolors="none",
        edgecolors="black",
        label="held back",
    )
    ax.set(xlabel="aleatoric (nats)", ylabel="epistemic (nats)")
    ax.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(folder):
    """Draw all figures into a folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    concepts(folder / "concepts.png")
    wines(folder / "wines.png")


if __name__ == "__main__":
    write(*sys.argv[1:] or [Path(__file__).parent / "generated"])
