"""Two moons: epistemic uncertainty over the plane, against Hamiltonian Monte Carlo.

100 points, a network with two hidden layers of 100 units. HMC with a standard normal prior of the
weights is the ground truth. Every method sees the same network; MC dropout one that was trained
with a dropout of 0.2. Reported are correlations with HMC and the mean absolute error (in nats) over
a grid, and over its corners, far away from the data.

    python -m benchmarks.paper.two_moons --out DIR
"""

import warnings

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetClassifier
from torch import nn

import sklearn_quam

from .runs import means, run_against_hmc, save_figure

SETTINGS = ("given", "expected")
CHAINS = {"n_chains": 4, "n_warmup": 100, "n_samples": 200, "n_leapfrog": 150}
METHODS = {
    "HMC": CHAINS,
    "QUAM": {},
    "QUAM, linear search": {"search": "linear"},
    "QUAM, penalty search": {"search": "penalty", "parameters": "all"},
    "DeepEnsemble": {"n_estimators": 10},
    "MCDropout": {"n_samples": 1000},
    "Laplace": {},
    "Laplace, all layers": {"parameters": "all"},
    "MixtureLaplace": {"n_estimators": 10},
    "SWAG": {},
    "CyclicalSGHMC": {},
}
XLIM, YLIM, RESOLUTION = (-2.5, 3.5), (-2.0, 2.5), 25


class Network(nn.Sequential):
    def __init__(self, dropout=0.0):
        super().__init__(
            nn.Linear(2, 100),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(100, 100),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(100, 2),
        )


def data(seed):
    X, y = make_moons(100, noise=0.1, random_state=seed)
    return X.astype(np.float32), y.astype(np.int64)


def trained(X, y, seed, dropout=0.0):
    torch.manual_seed(seed)
    return NeuralNetClassifier(
        Network,
        module__dropout=dropout,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        optimizer__weight_decay=1e-4,
        lr=5e-3,
        max_epochs=200,
        batch_size=50,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
    ).fit(X, y)


def grid():
    x, y = np.meshgrid(np.linspace(*XLIM, RESOLUTION), np.linspace(*YLIM, RESOLUTION))
    return np.c_[x.ravel(), y.ravel()].astype(np.float32)


def is_corner(points):
    """Tell which points are in the far corners of the plane."""
    share = (points - [XLIM[0], YLIM[0]]) / [np.ptp(XLIM), np.ptp(YLIM)]
    return (np.abs(share - 0.5) > 0.3).all(axis=1)


def uncertainty(method, seed):
    """Return the epistemic uncertainty over the grid in both settings."""
    torch.set_num_threads(1)
    X, y = data(seed)
    name, arguments = method.partition(",")[0], METHODS[method]
    net = trained(X, y, seed, dropout=0.2 if name == "MCDropout" else 0.0)
    est = getattr(sklearn_quam, f"{name}Classifier")(net, random_state=seed, **arguments)
    with warnings.catch_warnings():
        # R-hat is part of the result.
        warnings.simplefilter("ignore", ConvergenceWarning)
        est.fit(X, y)
        result = {}
        for setting in SETTINGS:
            est.set_params(setting=setting)
            u, diagnostics = est.predict_uncertainty(grid(), return_diagnostics=True)
            result[setting] = [float(f"{value:.4g}") for value in u.epistemic]
        if name == "HMC":
            result["r_hat"] = float(diagnostics.r_hat.max())
    return result


def compare(result, truth, setting):
    """Return how a method's map resembles that of HMC."""
    ours, theirs = np.array(result[setting]), np.array(truth[setting])
    corner = is_corner(grid())
    numbers = {}
    for where, rows in (("", np.full(len(ours), True)), ("corner_", corner)):
        numbers[f"{where}spearman"] = spearmanr(ours[rows], theirs[rows]).statistic
        numbers[f"{where}pearson"] = pearsonr(ours[rows], theirs[rows]).statistic
        numbers[f"{where}error"] = np.abs(ours - theirs)[rows].mean()
    return numbers


def summarise(results, seeds, methods):
    rows = []
    for setting in SETTINGS:
        for method in methods:
            if method == "HMC":
                continue
            each = [compare(results[f"{method} {s}"], results[f"HMC {s}"], setting) for s in seeds]
            rows.append({"setting": setting, "method": method, **means(each)})
    return rows


def plot(results, seed, methods, path):
    import matplotlib.pyplot as plt

    X, y = data(seed)
    # Two lines a setting: a single one is too small to be read on a page.
    n_columns = -(-len(methods) // 2)
    figure, axes = plt.subplots(
        2 * len(SETTINGS), n_columns, figsize=(2.1 * n_columns, 9), layout="constrained"
    )
    extent = (*XLIM, *YLIM)
    for block, setting in zip(np.split(axes, len(SETTINGS)), SETTINGS, strict=True):
        for ax in block.flat[len(methods) :]:
            ax.set_axis_off()
        for ax, method in zip(block.flat, methods, strict=False):
            values = np.array(results[f"{method} {seed}"][setting]).reshape(RESOLUTION, -1)
            ax.imshow(values, origin="lower", extent=extent, aspect="auto", cmap="viridis")
            for label, marker in ((0, "o"), (1, "^")):
                points = X[y == label].T
                ax.scatter(*points, s=5, c="white", marker=marker, edgecolors="black", lw=0.3)
            ax.set(xticks=[], yticks=[])
            ax.set_title(method.replace(", ", ",\n"), fontsize=9)
        for ax in block[:, 0]:
            ax.set_ylabel(f"setting {setting!r}")
    save_figure(figure, path)


if __name__ == "__main__":
    run_against_hmc(
        __doc__,
        "two_moons",
        METHODS,
        {"grid": [XLIM, YLIM, RESOLUTION]},
        judge=uncertainty,
        summarise=summarise,
        plot=plot,
    )
