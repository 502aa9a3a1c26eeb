"""
Classes that a network has never seen
=====================================

A network can only answer with classes that it knows. Shown something else, it names one of them all
the same, and often with confidence. Here it is trained on digits without 1 and 6: does its
uncertainty tell these from digits that it knows, and what does it take to find out?
"""

# %%
# Digits without 1 and 6
# ----------------------
# Dropout makes Monte Carlo dropout meaningful; the other methods switch it off.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn

import sklearn_quam as sq
from sklearn_quam.display import UncertaintyHistogramDisplay
from sklearn_quam.metrics import aupr, bootstrap_interval, fpr_at_tpr

N_POINTS = 50  # of each kind
X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
left_out = np.isin(y, (1, 6))
_, columns = np.unique(y[~left_out], return_inverse=True)  # torch counts classes from 0
X_train, X_test, y_train, y_test = train_test_split(
    X[~left_out], columns, test_size=0.3, random_state=10
)
X_unknown = np.random.default_rng(10).permutation(X[left_out])[:N_POINTS]
X_new = np.concatenate([X_test[:N_POINTS], X_unknown])
is_unknown = np.repeat([0, 1], N_POINTS)

torch.manual_seed(10)
hidden = [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
net = NeuralNetClassifier(
    nn.Sequential(*hidden, nn.Dropout(0.2), nn.Linear(32, 8)),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=3e-3,
    max_epochs=40,
    batch_size=64,
    iterator_train__shuffle=True,
    train_split=None,
    verbose=0,
).fit(X_train, y_train)
confidence = net.predict_proba(X_unknown).max(axis=1)
print(f"accuracy on digits that it knows: {net.score(X_test, y_test):.3f}")
print(f"share of left-out digits with a confidence above 0.9: {(confidence > 0.9).mean():.2f}")

# %%
# Every method, with default arguments
# ------------------------------------
# The network alone considers no other model: its score is the entropy of its prediction. That of
# the others is the epistemic uncertainty.

methods = {
    "Entropy": sq.ReferenceClassifier(net),
    "MC dropout": sq.MCDropoutClassifier(net, random_state=0),
    "Deep ensemble": sq.DeepEnsembleClassifier(net, random_state=0),
    "Laplace": sq.LaplaceClassifier(net, random_state=0),
    "QUAM": sq.QUAMClassifier(net, random_state=0),
}
scores, diagnostics = {}, {}
for name, est in methods.items():
    est.fit(X_train, y_train)
    u, diagnostics[name] = est.predict_uncertainty(X_new, return_diagnostics=True)
    scores[name] = u.total if name == "Entropy" else u.epistemic

# %%
# Known and left-out digits
# -------------------------
# Values of different methods are not on one scale, and span magnitudes: what counts is how far the
# two histograms are apart. The AUROC measures that; with so few digits its 95 % intervals are wide.

resampling = {"stratify": is_unknown, "n_resamples": 200, "random_state": 0}
auroc = {
    name: bootstrap_interval(roc_auc_score, is_unknown, score, **resampling)
    for name, score in scores.items()
}
figure, axes = plt.subplots(2, 3, figsize=(11, 5.8), layout="constrained")
for ax, (name, score) in zip(axes.flat, scores.items(), strict=False):
    UncertaintyHistogramDisplay.from_predictions(
        *np.split(score, 2), xlabel="nats", ax=ax, bins=20, log=True
    )
    ax.get_legend().remove()
    ax.xaxis.set_minor_formatter("")  # crowded where values span little more than a magnitude
    ax.set(title=name, ylabel="share of digits" if ax in axes[:, 0] else "")
for place, interval in enumerate(auroc.values()):
    axes[1, 2].plot(interval.value, place, "ko")
    axes[1, 2].hlines(place, interval.low, interval.high, "black")
axes[1, 2].set_yticks(range(len(auroc)), auroc)
axes[1, 2].set(title="AUROC", xlim=(None, 1), ylim=(len(auroc) - 0.5, -0.5))
axes[1, 2].grid(axis="x", alpha=0.3)
axes[1, 2].spines[["top", "right"]].set_visible(False)
handles, _ = axes[0, 0].get_legend_handles_labels()
figure.legend(handles, ["known", "left out"], loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %%
# In numbers. The last column is the share of known digits that are reported by mistake when 95 % of
# the left-out ones are to be found.

pd.DataFrame(
    {
        "AUROC": {name: interval.value for name, interval in auroc.items()},
        "AUPR": {name: aupr(is_unknown, score) for name, score in scores.items()},
        "FPR at 95 % TPR": {name: fpr_at_tpr(is_unknown, score) for name, score in scores.items()},
    }
).round(3)

# %%
# What it takes
# -------------
# A step of a search runs the digit forward and backward, about the work of three forward passes,
# and the training rows that tell what the model costs forward. QUAM may search for the most
# probable classes only. Monte Carlo dropout may take more samples, which are one forward pass each;
# it is drawn up to the cost of QUAM's cheapest variant. Linear search, the cross, looks at no
# training row: it runs the digit forward and backward once for each class.

passes_of_step = 3 + 64
work = [diagnostics["QUAM"].n_steps.mean() * passes_of_step]
found = [auroc["QUAM"].value]
for targets in (5, 3, 2, 1):
    search = sq.NaturalSearch(targets=targets)
    est = sq.QUAMClassifier(net, search=search, random_state=0).fit(X_train, y_train)
    u, steps = est.predict_uncertainty(X_new, return_diagnostics=True)
    work.append(steps.n_steps.mean() * passes_of_step)
    found.append(roc_auc_score(is_unknown, u.epistemic))
linear = sq.QUAMClassifier(net, search="linear", random_state=0).fit(X_train, y_train)
found_by_linear = roc_auc_score(is_unknown, linear.predict_uncertainty(X_new).epistemic)
samples = [10, 30, 100, 300, int(work[-1])]
found_by_dropout = []
for n_samples in samples:
    est = sq.MCDropoutClassifier(net, n_samples=n_samples, random_state=0).fit(X_train, y_train)
    found_by_dropout.append(roc_auc_score(is_unknown, est.predict_uncertainty(X_new).epistemic))

figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
ax.semilogx(work, found, "o-", color="#0072B2", label="QUAM")
ax.semilogx(3 * len(linear.classes_), found_by_linear, "X", color="#0072B2", label="linear search")
ax.semilogx(samples, found_by_dropout, "^--", color="#D55E00", label="MC dropout")
for label, *place in zip(("all", 5, 3, 2, 1), work, found, strict=True):
    ax.annotate(label, place, (0, 6), textcoords="offset points", ha="center")
ax.set(xlabel="work for a digit, in forward passes", ylabel="AUROC")
ax.margins(y=0.12)
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()

# %%
# Numbers beside the markers are how many classes are searched for. The predicted one alone buys
# nothing: Monte Carlo dropout is better for a small part of the work. The second most probable one
# brings most of what there is to gain. Monte Carlo dropout gains nothing from more samples than a
# few hundred. Linear search finds nearly as much as natural search for next to no work; where the
# network is less linear in its weights, the two differ more (:doc:`/results/index`).
