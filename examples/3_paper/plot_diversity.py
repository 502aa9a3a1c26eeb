"""
How different are the models that QUAM finds?
=============================================

Many models tell more than one only if they differ. Members of an ensemble differ because they were
trained from other starting points; adversarial models all start at the given network, and differ
because they look for another answer. The paper reports that the latter are more diverse. Here that
depends on where one looks.
"""

# %%
# Two kinds of models
# -------------------
# The network has never seen a 1 or a 6. For some of these digits QUAM searches for a rival model
# for each of the eight known classes; the ensemble has as many members, the same for all digits.

import copy

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy.spatial import ConvexHull
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_quam import DeepEnsembleClassifier, QUAMClassifier

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
left_out = np.isin(y, (1, 6))
classes, columns = np.unique(y[~left_out], return_inverse=True)  # torch counts classes from 0
X_train, X_held_out, y_train, _ = train_test_split(
    X[~left_out], columns, test_size=0.3, random_state=10
)
digits = X[left_out][::30]

torch.manual_seed(10)
net = NeuralNetClassifier(
    nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=3e-3,
    max_epochs=40,
    batch_size=64,
    iterator_train__shuffle=True,
    train_split=None,
    verbose=0,
).fit(X_train, y_train)
ensemble = DeepEnsembleClassifier(net, n_estimators=8, random_state=0).fit(X_train, y_train)
members = [member.module_.eval() for member in ensemble.estimators_]


def as_network(model):
    network = copy.deepcopy(net.module_).eval()
    network.load_state_dict(model["state_dict"])
    return network


quam = QUAMClassifier(net, random_state=0).fit(X_train, y_train)
rivals = [list(map(as_network, models)) for models in quam.adversarial_models(digits)]

# %%
# What they look at
# -----------------
# Integrated gradients tell which pixels speak for a class: the mean gradient on the straight way
# from an empty image to the digit, times the digit. The class is the one that the given network
# predicts. Only the pattern counts, so each is scaled to length one.


def attributions(networks, digit, n_points=50):
    target = int(net.predict(digit[None])[0])
    way = (torch.arange(n_points)[:, None] + 0.5) / n_points * torch.tensor(digit)
    way.requires_grad_()
    scores = [network(way)[:, target].sum() for network in networks]
    gradients = [torch.autograd.grad(score, way)[0].mean(dim=0) for score in scores]
    patterns = np.stack(gradients) * digit
    return patterns / np.linalg.norm(patterns, axis=1, keepdims=True)


def predictions(networks, rows):
    with torch.no_grad():
        logits = [network(torch.tensor(rows)) for network in networks]
    return torch.stack(logits).softmax(dim=-1).flatten(start_dim=1).numpy()


figure, axes = plt.subplots(2, 9, figsize=(11, 2.9), layout="constrained")
kinds = {"adversarial": rivals[0], "ensemble": members}
for (first, *others), (name, networks) in zip(axes, kinds.items(), strict=True):
    first.imshow(digits[0].reshape(8, 8), cmap="gray_r")
    first.set_ylabel(name)
    patterns, answers = attributions(networks, digits[0]), predictions(networks, digits[:1])
    for ax, pattern, answer in zip(others, patterns, answers, strict=True):
        ax.imshow(pattern.reshape(8, 8), cmap="RdBu", vmin=-0.5, vmax=0.5)
        ax.set_title(f"says {classes[answer.argmax()]}")
plt.setp(axes, xticks=[], yticks=[])
plt.show()

# %%
# Blue pixels speak for the class that the given network predicts, red ones against it. Adversarial
# models name different classes, with patterns that are much alike; members of the ensemble (the
# first is the given network) name fewer, with patterns that differ in more ways.
#
# All digits
# ----------
# The means over all digits: how much the models differ in their patterns, in their predictions for
# held-out digits of the known classes, and in those for the digit itself. The spread is the root
# mean square distance from the mean.


def spread(vectors):
    return np.sqrt(vectors.var(axis=0).sum())


rows = []
for digit, own in zip(digits, rivals, strict=True):
    kinds = {"adversarial": own, "ensemble": members}
    known = {name: predictions(networks, X_held_out) for name, networks in kinds.items()}
    plane = PCA(2).fit(np.concatenate(list(known.values())))
    for name, networks in kinds.items():
        patterns, answers = attributions(networks, digit), predictions(networks, digit[None])
        explained = PCA().fit(patterns).explained_variance_ratio_[:-1].cumsum()
        hull = ConvexHull(plane.transform(known[name]))
        rows.append(
            {
                "models": name,
                "explained": explained,
                "hull": hull,
                "patterns: spread": spread(patterns),
                "known digits: spread": spread(known[name]),
                "known digits: area of the hull": hull.volume,
                "this digit: spread": spread(answers),
                "this digit: classes named": len(set(answers.argmax(axis=1))),
            }
        )
frame = pd.DataFrame(rows).set_index("models")
frame.drop(columns=["explained", "hull"]).groupby("models").mean().T.round(2)

# %%
# The picture
# -----------
# Left: the faster a line rises, the more the patterns have in common; thin lines are single digits,
# markers their mean. Right: all predictions of a model for held-out digits of the known classes are
# one point, in the plane that shows most of them. The adversarial models are those from above.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for name, colour, marker in (("adversarial", "#0072B2", "o"), ("ensemble", "#D55E00", "^")):
    curves, hull = np.stack(frame.loc[name, "explained"]), frame.loc[name, "hull"].iloc[0]
    left.plot(range(1, 8), curves.T, color=colour, lw=0.5, alpha=0.4)
    left.plot(range(1, 8), curves.mean(axis=0), color=colour, marker=marker, lw=2, label=name)
    right.fill(*hull.points[hull.vertices].T, facecolor=f"{colour}26", edgecolor=colour)
    right.plot(*hull.points.T, marker, color=colour)
right.plot(*hull.points[0], "k*", ms=13, label="given network")
left.set(title="patterns", xlabel="principal components", ylabel="explained share of the variance")
right.set(title="predictions for known digits", xlabel="component 1", ylabel="component 2")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
plt.show()

# %%
# So the claim holds where the searches aim: about the digit itself, adversarial models disagree far
# more than the members of an ensemble, and this is what its epistemic uncertainty is made of. On
# digits of the known classes they differ *less*: each search changes the given network only as far
# as it has to. What they look at differs about as much, but in fewer ways, perhaps because they all
# come from one network.
