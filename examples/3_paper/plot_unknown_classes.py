"""
Classes that a network has never seen
=====================================

A network can only answer with classes that it knows. For any other sample it names one of them,
too, and often with confidence. Here it is trained on digits without 1 and 6: does its uncertainty
separate these from digits that it knows?
"""

# %%
# Digits without 1 and 6
# ----------------------
# Monte Carlo dropout needs a network with dropout; the other methods switch it off.

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

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
left_out = np.isin(y, (1, 6))
# torch counts classes from 0
columns = np.unique(y[~left_out], return_inverse=True)[1]
X_train, X_test, y_train, y_test = train_test_split(
    X[~left_out], columns, test_size=0.3, random_state=10
)
X_unknown = np.random.default_rng(10).permutation(X[left_out])[:50]
X_new = np.concatenate([X_test[:50], X_unknown])
is_unknown = np.repeat([0, 1], 50)

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
sure = net.predict_proba(X_unknown).max(axis=1) > 0.9
print(f"accuracy on digits it knows: {net.score(X_test, y_test):.3f}")
print(f"left-out digits with a confidence above 0.9: {sure.mean():.0%}")

# %%
# Every method, with default arguments
# ------------------------------------
# The network alone considers no other model: its score is the entropy of its prediction. The score
# of the others is the epistemic uncertainty. Values of different methods are not on one scale:
# compare how far the two histograms are apart.

methods = {
    "Entropy": sq.ReferenceClassifier(net),
    "MC dropout": sq.MCDropoutClassifier(net, random_state=0),
    "Deep ensemble": sq.DeepEnsembleClassifier(net, random_state=0),
    "Laplace": sq.LaplaceClassifier(net, random_state=0),
    "QUAM": sq.QUAMClassifier(net, random_state=0),
}
scores = {}
figure, axes = plt.subplots(2, 3, figsize=(11, 7), layout="constrained")
axes[1, 2].set_axis_off()
for ax, (name, est) in zip(axes.flat, methods.items()):
    u = est.fit(X_train, y_train).predict_uncertainty(X_new)
    scores[name] = u.total if name == "Entropy" else u.epistemic
    UncertaintyHistogramDisplay.from_predictions(
        *np.split(scores[name], 2),
        xlabel="nats",
        ax=ax,
        bins=20,
        log=True,
    )
    # Crowded where values span little more than a magnitude.
    ax.xaxis.set_minor_formatter("")
    ax.set_title(name)
plt.show()

# %%
# In numbers
# ----------
# With so few digits the 95 % intervals of the AUROC are wide. The last column is the share of known
# digits that are flagged when 95 % of the left-out ones are.

resampling = {"stratify": is_unknown, "n_resamples": 200}
rows = {}
for name, score in scores.items():
    auroc = bootstrap_interval(
        roc_auc_score, is_unknown, score, **resampling, random_state=0
    )
    rows[name] = {
        "AUROC": auroc.value,
        "from": auroc.low,
        "to": auroc.high,
        "AUPR": aupr(is_unknown, score),
        "FPR at 95 % TPR": fpr_at_tpr(is_unknown, score),
    }
pd.DataFrame(rows).T.round(3)
