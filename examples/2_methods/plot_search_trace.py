"""
What a search does, step by step
================================

QUAM starts at the given network and changes it until it gives another answer for a sample, while it
still has to explain the training data. Where the data determine the answer, this is expensive;
where they do not, it is cheap.
"""

# %%
# Three classes, a known and an unknown point
# -------------------------------------------

import copy

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.colors import ListedColormap
from sklearn.datasets import load_digits, make_blobs
from sklearn.neural_network import MLPClassifier
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_quam import QUAMClassifier

X, y = make_blobs(
    150, centers=[[-3, -2], [3, -2], [0, 3]], random_state=0
)
X = X.astype(np.float32)
torch.manual_seed(0)
net = NeuralNetClassifier(
    nn.Sequential(nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 3)),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=1e-2,
    max_epochs=60,
    train_split=None,
    verbose=0,
).fit(X, y)
quam = QUAMClassifier(net, random_state=0).fit(X, y)
points = np.array([[3.0, -2.0], [-6.0, 4.0]], dtype=np.float32)

# %%
# The diagnostics name the rival class with the lowest cost, in nats of the whole training set. It
# is feasible if the cost is at most ``slack_``.

_, found = quam.predict_uncertainty(points, return_diagnostics=True)
table = found.to_frame(index=["known", "unknown"])
table[["rival", "rival_cost", "feasible"]]

# %%
# The models themselves
# ---------------------
# ``adversarial_models`` returns the most divergent model of each search that still explains the
# training data, with its weights. These networks predict about the same where there are data, and
# something else at the unknown point, the cross.

rivals = {"the given network": net}
for model in quam.adversarial_models(points[1:])[0]:
    rival = copy.deepcopy(net)
    rival.module_.load_state_dict(model["state_dict"])
    rivals[f"search towards {model['target']}"] = rival

xx, yy = np.meshgrid(np.linspace(-8, 6, 150), np.linspace(-6, 7, 150))
grid = np.c_[xx.ravel(), yy.ravel()].astype(np.float32)
colours = ["#0072B2", "#D55E00", "#009E73"]
style = {"levels": [-0.5, 0.5, 1.5, 2.5], "alpha": 0.3}
figure, axes = plt.subplots(
    1, len(rivals), figsize=(11, 3), sharey=True, layout="constrained"
)
for ax, (name, rival) in zip(axes, rivals.items()):
    regions = rival.predict(grid).reshape(xx.shape)
    ax.contourf(xx, yy, regions, cmap=ListedColormap(colours), **style)
    for label, marker in enumerate("os^"):
        own, colour = X[y == label], colours[label]
        ax.scatter(*own.T, s=12, color=colour, marker=marker)
    ax.plot(*points[1], "kX", ms=11, mec="white")
    ax.set_title(f"{name}\naccuracy {rival.score(X, y):.3f}")
plt.show()

# %%
# Natural and penalty search
# --------------------------
# The sample is a 3, for a network that has never seen a 3 or an 8. Natural search, the default,
# goes towards certainty in equal steps, each with the change that costs the training data the
# least. Penalty search, the paper's algorithm, first goes there at any cost; then the penalty
# grows, and leads it back to models that explain the data. Its costs are measured on
# mini-batches, and may be below zero.

X, y = load_digits(return_X_y=True)
X, seen = X / 16, ~np.isin(y, (3, 8))
network = MLPClassifier((32, 32), max_iter=300, random_state=0)
network.fit(X[seen], y[seen])
digit = X[~seen][:1]
colours += ["#CC79A7", "#E69F00", "#56B4E9", "#000000", "#808080"]
figure, axes = plt.subplots(
    1,
    2,
    figsize=(10, 4.6),
    sharex=True,
    sharey=True,
    layout="constrained",
)
for ax, search in zip(axes, ("natural", "penalty")):
    est = QUAMClassifier(network, search=search, random_state=0)
    est.fit(X[seen], y[seen])
    (traces,) = est.search_traces(digit)
    for number, trace in enumerate(traces):
        proba = trace["prediction"][:, number]
        others = np.delete(trace["prediction"], number, axis=1)
        log_odds = np.log(proba / others.sum(axis=1))
        cost = est.n_training_rows_ * trace["loss_increase"]
        style = {"color": colours[number], "marker": "os^DvPX*"[number]}
        ax.plot(
            log_odds, cost, lw=1, ms=4, label=trace["target"], **style
        )
    ax.axhline(est.slack_, color="0.4", ls="--", lw=1, label="slack")
    ax.axvline(0, color="0.4", ls=":", lw=1, label="as likely as not")
    ax.set(title=f"{search} search", xlabel="log-odds of the class")
    ax.set_yscale("symlog", linthresh=1)
axes[0].set_ylabel("cost (nats of the training set)")
handles = axes[0].get_legend_handles_labels()
figure.legend(
    *handles, loc="outside lower center", ncols=5, frameon=False
)
plt.show()

# %%
# Where a line of the left panel crosses the dotted one, the class is as likely as all others
# together. There, ``rival_costs`` looks for the least cost of each class:

quam = QUAMClassifier(network, random_state=0).fit(X[seen], y[seen])
costs = quam.rival_costs(digit)[0]
pd.Series(costs, index=quam.classes_, name="cost (nats)").round(2)
