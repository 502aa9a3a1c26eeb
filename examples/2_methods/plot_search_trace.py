"""
What a search does, step by step
================================

QUAM starts at the given network and changes it until it says something else about a row, while it
must still explain the training data. Where the data determine the answer, this is expensive; where
they do not, it is cheap. The steps of the searches, and the models they meet, can be looked at.
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

X, y = make_blobs(150, centers=[[-3, -2], [3, -2], [0, 3]], cluster_std=0.9, random_state=0)
X = X.astype(np.float32)
torch.manual_seed(0)
net = NeuralNetClassifier(
    nn.Sequential(nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 3)),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=5e-3,
    max_epochs=60,
    iterator_train__shuffle=True,
    train_split=None,
    verbose=0,
).fit(X, y)
quam = QUAMClassifier(net, random_state=0).fit(X, y)
points = {"known": [3.0, -2.0], "unknown": [-6.0, 4.0]}
rows = np.array(list(points.values()), dtype=np.float32)

# %%
# The diagnostics name the cheapest rival of each, and tell what it costs in nats of the whole
# training set. It is feasible if that is no more than ``slack``.

u, diagnostics = quam.predict_uncertainty(rows, return_diagnostics=True)
columns = ["rival", "rival_cost", "feasible"]
pd.concat([u.to_frame(index=points), diagnostics.to_frame(index=points)[columns]], axis=1)

# %%
# The path of each search
# -----------------------
# The search for a class starts at the given network, at the star. Up means that the model says
# something else about the point, right that it explains the training data worse. Left of the dashed
# line a model still counts as one that explains them.

colours = ("#0072B2", "#D55E00", "#009E73")
figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharex=True, sharey=True, layout="constrained")
for ax, name, traces in zip(axes, points, quam.search_traces(rows), strict=True):
    for trace, colour, marker in zip(traces, colours, "os^", strict=True):
        cost = quam.n_training_rows_ * trace["loss_increase"]
        style = {"color": colour, "marker": marker, "label": f"class {trace['target']}"}
        ax.plot(cost, trace["divergence"], **style)
    ax.axvline(quam.slack_, color="0.4", ls="--", label="slack")
    ax.plot(0, 0, "k*", ms=13, mec="white", label="given network")
    ax.set(title=f"{name} point", xlabel="cost (nats of the training set)")
    ax.set_xscale("symlog", linthresh=1)
    ax.set_yscale("symlog", linthresh=0.01)
axes[0].set_ylabel("divergence (nats)")
axes[0].legend(frameon=False)
plt.show()

# %%
# The models themselves
# ---------------------
# ``adversarial_models`` returns the most divergent model of each search that still explains the
# training data, with its weights: networks that you might have been given instead. They say about
# the same where there is data, and something else at the unknown point, the cross.

xx, yy = np.meshgrid(np.linspace(-8, 6, 150), np.linspace(-6, 7, 150))
grid = np.c_[xx.ravel(), yy.ravel()].astype(np.float32)
rivals = {"the given network": net}
(models,) = quam.adversarial_models(rows[1:])
for model in sorted(models, key=lambda model: model["target"]):
    rivals[f"search towards {model['target']}"] = rival = copy.deepcopy(net)
    rival.module_.load_state_dict(model["state_dict"])
figure, axes = plt.subplots(1, 4, figsize=(12, 3.5), sharey=True, layout="constrained")
for ax, (name, rival) in zip(axes, rivals.items(), strict=True):
    regions = rival.predict(grid).reshape(xx.shape)
    ax.contourf(xx, yy, regions, [-0.5, 0.5, 1.5, 2.5], cmap=ListedColormap(colours), alpha=0.3)
    for label, colour, marker in zip(range(3), colours, "os^", strict=True):
        ax.scatter(*X[y == label].T, s=12, color=colour, marker=marker, label=f"class {label}")
    ax.plot(*points["unknown"], "kX", ms=11, mec="white", label="unknown point")
    ax.set(title=f"{name}\naccuracy {rival.score(X, y):.3f}", xlabel="feature 0")
handles, labels = axes[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
plt.show()

# %%
# Two ways to search
# ------------------
# A network that has never seen a 3 or an 8 is shown a 3. Natural search, the default, takes equal
# shares of the way to certainty, each by the change that costs the training data the least. Penalty
# search, the paper's algorithm, goes there at any cost; then the penalty grows, and leads it back
# to models that explain the data. Its costs are estimated on mini-batches, and may be below zero.

X, y = load_digits(return_X_y=True)
X, seen = X / 16, ~np.isin(y, (3, 8))
network = MLPClassifier((32, 32), max_iter=300, random_state=0).fit(X[seen], y[seen])
digit = X[~seen][:1]
palette = (*colours, "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#808080")
styles = [{"color": colour, "marker": m} for colour, m in zip(palette, "os^DvPX*", strict=True)]
figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), sharex=True, sharey=True, layout="constrained")
for ax, search in zip(axes, ("natural", "penalty"), strict=True):
    est = QUAMClassifier(network, search=search, random_state=0).fit(X[seen], y[seen])
    (traces,) = est.search_traces(digit)
    for column, (trace, style) in enumerate(zip(traces, styles, strict=True)):
        target, others = np.split(np.roll(trace["prediction"], -column, axis=1), [1], axis=1)
        log_odds = np.log(target[:, 0] / others.sum(axis=1))
        cost = est.n_training_rows_ * trace["loss_increase"]
        ax.plot(log_odds, cost, lw=1, ms=4, label=trace["target"], **style)
    ax.axhline(est.slack_, color="0.4", ls="--", lw=1, label="slack")
    ax.axvline(0, color="0.4", ls=":", lw=1, label="as likely as not")
    ax.set(title=f"{search} search", xlabel="log-odds of the class")
    ax.set_yscale("symlog", linthresh=1)
axes[0].set_ylabel("cost (nats of the training set)")
handles, labels = axes[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
plt.show()

# %%
# Where a line of the left panel crosses the dotted one, it tells the price of that class:

natural = QUAMClassifier(network, random_state=0).fit(X[seen], y[seen])
pd.Series(natural.rival_costs(digit)[0], index=natural.classes_, name="price (nats)").round(2)
