"""
What a search does, step by step
================================

QUAM starts at the given network and changes it until it says something else about a row, while it
must still explain the training data. Where the data determine the answer, this does not work;
where they do not, it does. The steps of the searches, and the models they end with, can be looked
at.
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
from sklearn.datasets import make_blobs
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_quam import QUAMClassifier
from sklearn_quam.display import SearchTraceDisplay

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
# The diagnostics sum up what was found for each of them: the cheapest rival, if there is any, what
# it costs on the training data, and whether this is little enough to count.

u, diagnostics = quam.predict_uncertainty(rows, return_diagnostics=True)
columns = ["rival", "loss_increase", "feasible", "n_steps", "standard_error"]
pd.concat([u.to_frame(index=points), diagnostics.to_frame(index=points)[columns]], axis=1)

# %%
# The way of each search
# ----------------------
# A search for each class starts at the given network, at the star. Up means that it says something
# else about the point, right that it explains the training data worse. Left of the dashed line a
# model still counts as one that explains them. The penalty grows from step to step, so that
# searches that went too far to the right have to come back.

figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), sharex=True, sharey=True, layout="constrained")
for ax, (name, point) in zip(axes, points.items(), strict=True):
    SearchTraceDisplay.from_estimator(quam, np.float32(point), ax=ax)
    ax.set_title(f"{name} point")
plt.show()

# %%
# What they came back with
# ------------------------
# ``adversarial_models`` returns the most divergent model of each search that still explains the
# training data: its prediction, what it costs there, and its weights.

found = dict(zip(points, quam.adversarial_models(rows), strict=True))
table = pd.concat({name: pd.DataFrame(models) for name, models in found.items()}, names=["point"])
table["prediction"] = [values.round(3) for values in table["prediction"]]
table.drop(columns="state_dict").set_index("target", append=True).droplevel(1)

# %%
# The weights can be loaded into a copy of the network. These are networks that you might have been
# given instead: they say about the same where there is data, and something else at the unknown
# point, the cross.

xx, yy = np.meshgrid(np.linspace(-8, 6, 150), np.linspace(-6, 7, 150))
grid = np.c_[xx.ravel(), yy.ravel()].astype(np.float32)
colours, markers = ("#0072B2", "#D55E00", "#009E73"), "os^"
rivals = {"the given network": net}
for model in sorted(found["unknown"], key=lambda model: model["target"]):
    rival = copy.deepcopy(net)
    rival.module_.load_state_dict(model["state_dict"])
    rivals[f"search towards {model['target']}"] = rival

figure, axes = plt.subplots(1, 4, figsize=(12, 3.5), sharey=True, layout="constrained")
for ax, (name, rival) in zip(axes, rivals.items(), strict=True):
    regions = rival.predict(grid).reshape(xx.shape)
    ax.contourf(xx, yy, regions, [-0.5, 0.5, 1.5, 2.5], cmap=ListedColormap(colours), alpha=0.3)
    for label, (colour, marker) in enumerate(zip(colours, markers, strict=True)):
        ax.scatter(*X[y == label].T, s=12, color=colour, marker=marker, label=f"class {label}")
    ax.plot(*points["unknown"], "kX", ms=11, mec="white", label="unknown point")
    ax.set(title=f"{name}\naccuracy {rival.score(X, y):.3f}", xlabel="feature 0")
axes[0].set_ylabel("feature 1")
handles, labels = axes[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
plt.show()
