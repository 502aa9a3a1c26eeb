"""
Mistakes, attacks, and how much confidence is right
===================================================

A network that has seen few digits makes mistakes, and small changes that no human would fall for
make it wrong about most of the others. Does its uncertainty tell? And if the average of all
plausible models predicts instead of the network, are its probabilities what they claim to be?
"""

# %%
# A network that has seen 300 digits
# ----------------------------------

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn.functional import cross_entropy

import sklearn_quam as sq
from sklearn_quam.display import AccuracyRejectionDisplay
from sklearn_quam.model_selection import compare_uncertainty

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, train_size=300, test_size=200, random_state=10
)
torch.manual_seed(10)
hidden = [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
net = NeuralNetClassifier(
    nn.Sequential(*hidden, nn.Dropout(0.2), nn.Linear(32, 10)),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=3e-3,
    max_epochs=60,
    batch_size=64,
    iterator_train__shuffle=True,
    train_split=None,
    verbose=0,
).fit(X_train, y_train)

# %%
# An attack
# ---------
# Projected gradient descent changes each pixel by at most a tenth of its range, so that the loss of
# the network grows. Digits count that the network recognises before and no longer after.


def attacked(X, y, size=0.1, n_steps=20):
    X, y = torch.tensor(X), torch.tensor(y)
    changed = X.clone()
    for _ in range(n_steps):
        changed.requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(net.module_.eval()(changed), y), changed)
        changed = changed.detach() + 2.5 * size / n_steps * gradient.sign()
        changed = changed.clamp(X - size, X + size).clamp(0, 1)
    return changed.numpy()


right = net.predict(X_test) == y_test
changed = attacked(X_test, y_test)
fooled = np.flatnonzero(right & (net.predict(changed) != y_test))
print(f"{len(X_test)} test digits, {(~right).sum()} mistakes, {len(fooled)} more after the attack")

figure, axes = plt.subplots(2, 8, figsize=(9, 2.8), layout="constrained")
for (above, below), row in zip(axes.T, fooled, strict=False):
    for ax, image in ((above, X_test[row]), (below, changed[row])):
        ax.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[], title=f"says {net.predict(image[None])[0]}")
axes[0, 0].set_ylabel("before")
axes[1, 0].set_ylabel("after")
plt.show()

# %%
# The methods
# -----------
# The average of all plausible models predicts (``setting="expected"``); for QUAM its network does.
# QUAM is there twice: with its default temperature of 30 nats, and with that of the posterior, 1.

common = {"setting": "expected", "random_state": 0}
methods = {
    "MC dropout": sq.MCDropoutClassifier(net, **common),
    "Deep ensemble": sq.DeepEnsembleClassifier(net, **common),
    "Laplace": sq.LaplaceClassifier(net, **common),
    "Mixture of Laplace": sq.MixtureLaplaceClassifier(net, **common),
    "SWAG": sq.SWAGClassifier(net, **common),
    "Cyclical SGHMC": sq.CyclicalSGHMCClassifier(net, **common),
    "QUAM": sq.QUAMClassifier(net, **common),
    "QUAM, temperature 1": sq.QUAMClassifier(net, temperature=1, **common),
}
for est in methods.values():
    est.fit(X_train, y_train)
data = (X_train, y_train, X_test, y_test, {"attacks": changed[fooled[:60]]})
frame = compare_uncertainty(
    methods, *data, component="epistemic", n_resamples=50, random_state=0
).details
frame = frame.replace("entropy of the network", "Network alone").set_index("method")

# %%
# Reject the doubtful ones
# ------------------------
# The more of the digits with a high total uncertainty are rejected, the better should be the
# answers for the others. Thin grey lines are the other methods.

highlighted = ("Network alone", "MC dropout", "Deep ensemble", "QUAM")
others = {"color": "0.75", "linestyle": "-", "linewidth": 1, "label": "_other", "zorder": 1}
methods["Network alone"] = sq.ReferenceClassifier(net).fit(X_train, y_train)
figure, ax = plt.subplots(figsize=(7.5, 4), layout="constrained")
curves = {}
for name in sorted(methods, key=lambda name: name not in highlighted):
    style = {} if name in highlighted else others
    curves[name] = AccuracyRejectionDisplay.from_estimator(
        methods[name], X_test, y_test, name=name, ax=ax, **style
    )
ax.set(xlim=(0.5, 1), ylim=(0.9, 1.002))
ax.legend(loc="lower left", frameon=False)
plt.show()

# %%
# How much confidence is right
# ----------------------------
# The calibration error is the distance between confidence and accuracy; the log score is the mean
# logarithm of the probability of the true class; the area is that under the curves above.

table = frame.loc[frame["task"] == "rejection", ["ece", "log_score"]]
table["accuracy"] = pd.Series({name: curve.accuracy[-1] for name, curve in curves.items()})
table["area"] = pd.Series({name: curve.auc for name, curve in curves.items()})
table.round(3)

# %%
# QUAM's models are weighed to rank digits. An average with such weights would be far less confident
# than accurate, so that the network itself predicts: both rows of QUAM have its calibration.
# Held-out digits, passed to ``fit`` as ``X_val`` and ``y_val``, would calibrate every method here.
#
# Mistakes and attacks
# --------------------
# AUROC with which the epistemic uncertainty of a method (of the network alone: its entropy) tells
# its mistakes from its right answers, and attacked digits from the unchanged ones. Lines are 95 %
# intervals. Mistakes are few: which of the better methods is the best one cannot be told here.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
for ax, task in zip(axes, ("misclassification", "ood:attacks"), strict=True):
    rows = frame[frame["task"] == task]
    ax.hlines(rows.index, rows["roc_auc_low"], rows["roc_auc_high"], color="#0072B2")
    ax.plot(rows["roc_auc"], rows.index, "o", color="#0072B2")
    ax.set(title=task.removeprefix("ood:"), xlabel="AUROC")
    ax.grid(axis="x", alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
plt.show()
