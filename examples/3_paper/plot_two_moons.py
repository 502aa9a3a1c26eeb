"""
Two moons, against Hamiltonian Monte Carlo
==========================================

For a network this small, Hamiltonian Monte Carlo can sample the posterior of the weights: it is the
ground truth for cheaper methods. The measure is the mutual information of the
prediction and the weights (``setting="expected"``), which has the same scale for all methods: 0
where all plausible models agree, log 2 where half of them are sure of either class.
"""

# %%
# The data and the networks
# -------------------------
# Monte Carlo dropout gets a network of its own, trained with dropout.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from sklearn.datasets import make_moons
from skorch import NeuralNetClassifier
from torch import nn

import sklearn_quam as sq

X, y = make_moons(100, noise=0.1, random_state=10)
X, y = X.astype(np.float32), y.astype(np.int64)


def trained(dropout):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(2, 40),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(40, 40),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(40, 2),
    )
    return NeuralNetClassifier(
        module,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        optimizer__weight_decay=1e-4,
        lr=5e-3,
        max_epochs=120,
        batch_size=50,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
    ).fit(X, y)


net, net_with_dropout = trained(0.0), trained(0.2)

# %%
# The methods
# -----------

common = {"setting": "expected", "random_state": 0}
methods = {
    "HMC": sq.HMCClassifier(
        net, n_warmup=50, n_samples=70, n_leapfrog=50, **common
    ),
    "QUAM": sq.QUAMClassifier(net, **common),
    "Deep ensemble": sq.DeepEnsembleClassifier(
        net, n_estimators=10, **common
    ),
    "MC dropout": sq.MCDropoutClassifier(net_with_dropout, **common),
    "Laplace": sq.LaplaceClassifier(net, **common),
}
xx, yy = np.meshgrid(
    np.linspace(-2.5, 3.5, 25), np.linspace(-2, 2.5, 25)
)
grid = np.c_[xx.ravel(), yy.ravel()].astype(np.float32)
maps = {
    name: est.fit(X, y).predict_uncertainty(grid).epistemic
    for name, est in methods.items()
}
print(f"R-hat of HMC on the training data: {methods['HMC'].r_hat_:.3f}")

# %%
# The maps
# --------
# In brackets the rank correlation with HMC over all points of the grid.

truth = maps["HMC"]
correlation = {
    name: spearmanr(values, truth).statistic
    for name, values in maps.items()
}
figure, axes = plt.subplots(
    2,
    3,
    figsize=(10, 6),
    sharex=True,
    sharey=True,
    layout="constrained",
)
for ax, (name, values) in zip(axes.flat, maps.items()):
    surface = ax.contourf(
        xx,
        yy,
        values.reshape(xx.shape),
        np.linspace(0, np.log(2), 22),
        cmap="viridis",
    )
    for label, colour, marker in (
        (0, "#0072B2", "o"),
        (1, "#D55E00", "s"),
    ):
        ax.scatter(
            *X[y == label].T,
            s=14,
            c=colour,
            marker=marker,
            edgecolors="white",
            lw=0.4,
        )
    ax.set_title(
        "HMC, the ground truth"
        if name == "HMC"
        else f"{name} ({correlation[name]:.2f})"
    )
axes.flat[-1].set_axis_off()
axes[0, 2].tick_params(labelbottom=True)
scale = axes.flat[-1].inset_axes([0.05, 0.5, 0.9, 0.1])
bar = figure.colorbar(surface, cax=scale, orientation="horizontal")
bar.set_label("epistemic uncertainty (nats)")
bar.set_ticks(
    [0, 0.2, 0.4, 0.6, np.log(2)],
    labels=["0", "0.2", "0.4", "0.6", "log 2"],
)
plt.show()

# %%
# In numbers
# ----------
# The mean absolute error shows how far the values themselves are from those of HMC.

pd.DataFrame(
    {
        "Spearman correlation": correlation,
        "mean error (nats)": {
            name: np.abs(u - truth).mean() for name, u in maps.items()
        },
        "mean (nats)": {name: u.mean() for name, u in maps.items()},
    }
).round(3)
