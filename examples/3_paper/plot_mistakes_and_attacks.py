"""
Mistakes and attacks
====================

A network that has seen few digits makes mistakes, and changes too small to deceive a person make it
wrong about most of the other digits. Does its uncertainty show that?
"""

# %%
# A network that has seen 300 digits
# ----------------------------------

import matplotlib.pyplot as plt
import numpy as np
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
# the network grows. Only digits count that the network recognises before, and not after.


def attacked(X, y, size=0.1, n_steps=20):
    X, y, module = torch.tensor(X), torch.tensor(y), net.module_.eval()
    changed = X.clone()
    for _ in range(n_steps):
        changed.requires_grad_()
        loss = cross_entropy(module(changed), y)
        (gradient,) = torch.autograd.grad(loss, changed)
        step = 2.5 * size / n_steps * gradient.sign()
        changed = (changed.detach() + step).clamp(X - size, X + size)
        changed = changed.clamp(0, 1)
    return changed.numpy()


right = net.predict(X_test) == y_test
changed = attacked(X_test, y_test)
fooled = np.flatnonzero(right & (net.predict(changed) != y_test))
print(f"{len(X_test)} test digits, {(~right).sum()} mistakes,")
print(f"{len(fooled)} more mistakes after the attack")

figure, axes = plt.subplots(
    2, 8, figsize=(9, 2.8), layout="constrained"
)
for line, images in zip(axes, (X_test, changed)):
    for ax, row in zip(line, fooled):
        image = images[row]
        ax.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        ax.set_title(f"says {net.predict(image[None])[0]}")
        ax.set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("before")
axes[1, 0].set_ylabel("after")
plt.show()

# %%
# Reject the doubtful ones
# ------------------------
# The more digits with a high total uncertainty are rejected, the better should be the answers for
# the others.

options = {"setting": "expected", "random_state": 0}
methods = {
    "MC dropout": sq.MCDropoutClassifier(net, **options),
    "Deep ensemble": sq.DeepEnsembleClassifier(net, **options),
    "Laplace": sq.LaplaceClassifier(net, **options),
    "QUAM": sq.QUAMClassifier(net, **options),
}
_, ax = plt.subplots(figsize=(7.5, 4), layout="constrained")
for name, est in methods.items():
    AccuracyRejectionDisplay.from_estimator(
        est.fit(X_train, y_train), X_test, y_test, name=name, ax=ax
    )
ax.set(xlim=(0.5, 1), ylim=(0.9, 1.002))
plt.show()

# %%
# Mistakes and attacks
# --------------------
# How well the epistemic uncertainty of a method (of the network alone: its entropy) separates
# mistakes from right answers, and attacked digits from the unchanged ones. There are few mistakes:
# small differences mean nothing.

known = X_train, y_train, X_test, y_test
compare_uncertainty(
    methods,
    *known,
    {"attacks": changed[fooled[:60]]},
    component="epistemic",
    n_resamples=50,
    random_state=0,
)
