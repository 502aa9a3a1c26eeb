"""
All methods in one picture
==========================

Every method of the package answers the same question for the same network: which other predictions
are plausible here? They differ in where they look for other models, and in the time that takes. All
have the same interface, so that a loop compares them.
"""

# %%
# A small network with dropout
# ----------------------------
# Monte Carlo dropout needs a network with dropout; the other methods switch it off.

from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.colors import PowerNorm
from sklearn.datasets import make_moons
from skorch import NeuralNetClassifier
from torch import nn

import sklearn_quam as sq
from sklearn_quam.display import UncertaintyMapDisplay

X, y = make_moons(120, noise=0.1, random_state=0)
X, y = X.astype(np.float32), y.astype(np.int64)
torch.manual_seed(0)
net = NeuralNetClassifier(
    nn.Sequential(
        nn.Linear(2, 30),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(30, 30),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(30, 2),
    ),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    optimizer__weight_decay=1e-3,
    lr=1e-2,
    max_epochs=100,
    iterator_train__shuffle=True,
    train_split=None,
    verbose=0,
).fit(X, y)

# %%
# The methods
# -----------
# All of them get the trained network. The ensembles train further ones like it. The chains of
# Hamiltonian Monte Carlo are short; it would warn if they did not agree with each other.

reference = sq.ReferenceClassifier(net)
methods = {
    "Reference (entropy)": reference,
    "MC dropout": sq.MCDropoutClassifier(net, random_state=0),
    "Deep ensemble": sq.DeepEnsembleClassifier(net, random_state=0),
    "Laplace": sq.LaplaceClassifier(net, random_state=0),
    "Mixture of Laplace": sq.MixtureLaplaceClassifier(
        net, random_state=0
    ),
    "SWAG": sq.SWAGClassifier(net, random_state=0),
    "Cyclical SGHMC": sq.CyclicalSGHMCClassifier(net, random_state=0),
    "HMC": sq.HMCClassifier(
        net, n_warmup=50, n_samples=70, n_leapfrog=50, random_state=0
    ),
    "QUAM": sq.QUAMClassifier(net, random_state=0),
}

# %%
# One loop
# --------
# Colours are the epistemic uncertainty in nats; for the network itself, which considers no other
# model, its entropy. Every panel has its own scale, so compare shapes, not values. Colours follow
# the square root, so that small values show, too.

xx, yy = np.meshgrid(np.linspace(-2, 3, 30), np.linspace(-1.5, 2, 30))
grid = np.c_[xx.ravel(), yy.ravel()].astype(np.float32)
figure, axes = plt.subplots(
    3,
    3,
    figsize=(10.5, 8.4),
    sharex=True,
    sharey=True,
    layout="constrained",
)
rows = {}
for ax, (name, est) in zip(axes.flat, methods.items()):
    start = perf_counter()
    est.fit(X, y)
    fitted = perf_counter()
    u = est.predict_uncertainty(grid)
    rows[name] = {
        "fit (s)": fitted - start,
        "900 points (s)": perf_counter() - fitted,
    }
    display = UncertaintyMapDisplay.from_predictions(
        xx,
        yy,
        u,
        X=X,
        y=y,
        component="total" if est is reference else "epistemic",
        plot_method="pcolormesh",
        shading="gouraud",
        norm=PowerNorm(0.5),
        scatter_kwargs={"s": 12, "linewidths": 0.4},
        ax=ax,
    )
    display.colorbar_.set_label("")
    handles, labels = ax.get_legend_handles_labels()
    ax.get_legend().remove()
    ax.set(title=name, xlabel="", ylabel="")
figure.legend(
    handles, labels, loc="outside lower center", ncols=2, frameon=False
)
plt.show()

# %%
# Time
# ----
# Seconds of ``fit`` on the trained network, and of the answers for all points of the grid.

pd.DataFrame(rows).T.round(3)
