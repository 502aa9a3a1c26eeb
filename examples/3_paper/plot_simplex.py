"""
Plausible predictions on the simplex
====================================

Three classes, and a point far from all of them. A prediction for it is a point of the probability
simplex, a triangle. Brute force shows which predictions are possible without explaining the
training data worse. Which method finds them: samples of the posterior, an ensemble, or the
searches of QUAM?
"""

# %%
# Three Gaussian classes
# ----------------------

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.func import functional_call, vmap

from sklearn_quam import (
    DeepEnsembleClassifier,
    HMCClassifier,
    QUAMClassifier,
)

rng = np.random.default_rng(10)
centres = np.array([(-4.0, -2.0), (4.0, -2.0), (0.0, 2.8)])
y = np.repeat(np.arange(3), 21)
X = (centres[y] + np.sqrt(1.5) * rng.normal(size=(len(y), 2))).astype(
    np.float32
)
point = np.array([[-6.0, 2.0]], dtype=np.float32)

torch.manual_seed(0)
net = NeuralNetClassifier(
    nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 3)),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    optimizer__weight_decay=1e-4,
    lr=1e-2,
    max_epochs=200,
    batch_size=-1,
    train_split=None,
    verbose=0,
).fit(X, y)

# %%
# Which predictions are possible?
# -------------------------------
# For every prediction of a grid, networks are trained that make this prediction at the point, all
# of them together. The posterior density of the best of them, relative to the best of all, is
# the plausibility of the prediction; the prior is the standard normal one of HMC.

STEPS, RESTARTS = 10, 4
simplex = (
    np.array(
        [
            (i, j, STEPS - i - j)
            for i in range(STEPS + 1)
            for j in range(STEPS + 1 - i)
        ]
    )
    / STEPS
)
wanted = torch.tensor(simplex, dtype=torch.float32).clamp(0.005, 0.99)
wanted = (wanted / wanted.sum(dim=1, keepdim=True)).repeat_interleave(
    RESTARTS, dim=0
)
shapes = ((10, 2), (10, 1), (3, 10), (3, 1))
weights = [
    (0.5 * torch.randn(len(wanted), *shape)).requires_grad_()
    for shape in shapes
]
inputs, target = (
    torch.tensor(np.concatenate([X, point])).T,
    torch.tensor(y),
)
optimizer = torch.optim.Adam(weights, 0.03)
for step in range(800):
    hidden = torch.relu(weights[0] @ inputs + weights[1])
    log_proba = torch.log_softmax(
        weights[2] @ hidden + weights[3], dim=1
    )
    energy = -log_proba[:, target, torch.arange(len(y))].sum(dim=1)
    energy = (
        energy
        + sum(part.flatten(1).square().sum(dim=1) for part in weights)
        / 2
    )
    mismatch = (wanted * (wanted.log() - log_proba[:, :, -1])).sum(
        dim=1
    )
    optimizer.zero_grad()
    (energy + 10 * 1.006**step * mismatch).sum().backward()
    optimizer.step()
energy = (
    energy.detach().unflatten(0, (-1, RESTARTS)).amin(dim=1).numpy()
)
print(f"largest mismatch: {mismatch.max():.3f} nats")

# %%
# Three methods
# -------------
# The searches of QUAM meet many models. ``search_traces`` returns the prediction and the cost of
# each, and the cost decides its weight.

quam = QUAMClassifier(net, random_state=0).fit(X, y)
(traces,) = quam.search_traces(point)
increase = np.concatenate([trace["loss_increase"] for trace in traces])
ensemble = DeepEnsembleClassifier(
    net, n_estimators=20, random_state=0
).fit(X, y)
hmc = HMCClassifier(
    net, n_warmup=50, n_samples=100, n_leapfrog=50, random_state=0
).fit(X, y)
_, diagnostics = hmc.predict_uncertainty(point, return_diagnostics=True)
print(f"R-hat of HMC at the point: {diagnostics.r_hat[0]:.3f}")
# The draws have no public name: this is a look inside.
module, draws = net.module_, hmc._fitted.models.weights
logits = vmap(
    lambda draw: functional_call(module, draw, torch.tensor(point))
)(draws)
found = {
    "HMC": logits.softmax(dim=-1)[:, 0].detach().numpy(),
    "Deep ensemble": np.concatenate(
        [one.predict_proba(point) for one in ensemble.estimators_]
    ),
    "QUAM": np.concatenate([trace["prediction"] for trace in traces]),
}
cost = increase.clip(min=0) * quam.n_training_rows_
counts = {"QUAM": np.exp(-cost / quam.temperature_)}

# %%
# The darker the background, the more plausible is a network with this prediction. Faint models of
# QUAM have little weight.

corners = np.array([(0, 0), (1, 0), (0.5, np.sqrt(0.75))])
figure, axes = plt.subplots(
    1, 3, figsize=(11, 3.8), layout="constrained"
)
for ax, (name, proba) in zip(axes, found.items()):
    surface = ax.tricontourf(
        *(simplex @ corners).T,
        energy.min() - energy,
        levels=10,
        cmap="Blues",
    )
    ax.triplot(*corners.T, color="0.5", lw=1)
    weights = 0.25 + 0.75 * counts.get(name, 1.0)
    ax.scatter(*(proba @ corners).T, s=22, c="#D55E00", alpha=weights)
    given = net.predict_proba(point) @ corners
    ax.scatter(
        *given.T, s=190, c="black", marker="*", edgecolors="white"
    )
    for number, side in enumerate(("top", "top", "bottom")):
        ax.text(
            *corners[number], f"class {number}", ha="center", va=side
        )
    ax.set_aspect("equal")
    ax.set_title(name, pad=18)
    ax.set_axis_off()
marks = [
    ax.scatter([], [], c="#D55E00"),
    ax.scatter([], [], c="black", marker="*"),
]
names = ["models", "given network"]
figure.legend(
    marks, names, loc="outside lower center", ncols=2, frameon=False
)
figure.colorbar(
    surface, ax=axes, shrink=0.7, label="log density (nats)"
)
plt.show()

# %%
# In numbers
# ----------
# The largest probability that plausible models give to each class; for QUAM, models count whose
# weight is at least 1 / e of that of the given network.

plausible = {
    name: proba[counts.get(name, np.ones(len(proba))) > np.exp(-1)]
    for name, proba in found.items()
}
table = pd.DataFrame(
    {name: proba.max(axis=0) for name, proba in plausible.items()}
).T
table.columns = ["class 0", "class 1", "class 2"]
table.assign(models=[len(proba) for proba in plausible.values()]).round(
    3
)
