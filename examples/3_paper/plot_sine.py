"""
Bands around a sine
===================

A regression with a known noise: how wide is the band of plausible means, near the data and away
from them? Hamiltonian Monte Carlo is the ground truth; the other methods get the same network.
"""

# %%
# Noisy values of a sine
# ----------------------

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from skorch import NeuralNetRegressor
from torch import nn

import sklearn_quam as sq
from sklearn_quam.display import RegressionUncertaintyDisplay

NOISE = 0.1
rng = np.random.default_rng(10)
X = rng.uniform(-np.pi, np.pi, (40, 1)).astype(np.float32)
y = (np.sin(X[:, 0]) + NOISE * rng.normal(size=40)).astype(np.float32)
torch.manual_seed(0)
net = NeuralNetRegressor(
    nn.Sequential(
        nn.Linear(1, 50),
        nn.Tanh(),
        nn.Linear(50, 50),
        nn.Tanh(),
        nn.Linear(50, 1),
    ),
    optimizer=torch.optim.Adam,
    optimizer__weight_decay=1e-4,
    lr=1e-2,
    max_epochs=500,
    batch_size=-1,
    train_split=None,
    verbose=0,
).fit(X, y[:, None])

# %%
# The methods
# -----------
# Laplace's approximation is of the last layer only, its default, or of all layers.

common = {
    "setting": "expected",
    "noise_variance": NOISE**2,
    "random_state": 0,
}
methods = {
    "HMC": sq.HMCRegressor(
        net, n_warmup=60, n_samples=80, n_leapfrog=80, **common
    ),
    "QUAM": sq.QUAMRegressor(net, **common),
    "Deep ensemble": sq.DeepEnsembleRegressor(
        net, n_estimators=5, **common
    ),
    "Laplace": sq.LaplaceRegressor(net, **common),
    "Laplace, all layers": sq.LaplaceRegressor(
        net, parameters="all", **common
    ),
}

# %%
# The bands
# ---------

figure, axes = plt.subplots(
    2,
    3,
    figsize=(11, 6),
    sharex=True,
    sharey=True,
    layout="constrained",
)
widths = {}
for ax, (name, est) in zip(axes.flat, methods.items()):
    display = RegressionUncertaintyDisplay.from_estimator(
        est.fit(X, y),
        X,
        y,
        xlim=(-2 * np.pi, 2 * np.pi),
        grid_resolution=100,
        ax=ax,
    )
    widths[name] = display.epistemic_std
    ax.get_legend().remove()
    ax.plot(
        display.x,
        np.sin(display.x),
        color="#D55E00",
        ls="--",
        lw=1,
        label="sine",
    )
    ax.set(title=name, ylim=(-4, 4), xlabel="", ylabel="")
handles, labels = ax.get_legend_handles_labels()
axes[0, 2].tick_params(labelbottom=True)
axes.flat[-1].set_axis_off()
axes.flat[-1].legend(
    handles, labels, loc="center", frameon=False, fontsize="large"
)
plt.show()

# %%
# Whether the chains of HMC agree with each other:

print(f"R-hat of HMC on the training data: {methods['HMC'].r_hat_:.3f}")

# %%
# In numbers
# ----------
# The mean standard deviation of the predicted mean, within the range of the data and outside of it.

inside = (display.x > X.min()) & (display.x < X.max())
pd.DataFrame(widths).groupby(
    np.where(inside, "inside", "outside")
).mean().T.round(3)
