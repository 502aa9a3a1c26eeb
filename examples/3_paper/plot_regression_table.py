"""
Regression, all methods in one table
====================================

How good are predicted means and variances on held-out rows, and is the epistemic uncertainty high
where errors are large? Two small data sets, three random splits of each, and every method but
Hamiltonian Monte Carlo, with default arguments.
"""

# %%
# Data and networks
# -----------------
# How diabetes progresses is hard to predict from ten numbers: most of the error is noise. The
# function of Friedman has less noise, so that more of the error is the network's. A network has one
# hidden layer; that of Monte Carlo dropout is another one, trained with dropout.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetRegressor
from torch import nn

import sklearn_quam as sq
from sklearn_quam.metrics import gaussian_log_score

data_sets = {
    "diabetes": load_diabetes(return_X_y=True),
    "Friedman": make_friedman1(400, noise=1.0, random_state=10),
}


def trained(X, y, dropout, seed):
    torch.manual_seed(seed)
    net = NeuralNetRegressor(
        nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Dropout(dropout), nn.Linear(20, 1)),
        optimizer=torch.optim.Adam,
        optimizer__weight_decay=1e-4,
        lr=1e-2,
        max_epochs=60,
        batch_size=64,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
    )
    return make_pipeline(StandardScaler(), net).fit(X, y[:, None])


# %%
# The methods
# -----------
# The average of all plausible models predicts (``setting="expected"``), and uncertainties are
# variances. The noise is measured on rows that the network has not been trained on, where residuals
# are as large as on new ones.


def fitted(X, y, X_val, y_val, seed):
    common = {"setting": "expected", "measure": "variance", "random_state": seed}
    net, with_dropout = trained(X, y, 0.0, seed), trained(X, y, 0.1, seed)
    ensemble = sq.DeepEnsembleRegressor(net, **common).fit(X, y, X_val=X_val, y_val=y_val)
    members = ensemble.estimators_  # the mixture need not train its own
    methods = {
        "Network alone": sq.ReferenceRegressor(net, **common),
        "MC dropout": sq.MCDropoutRegressor(with_dropout, **common),
        "Deep ensemble": ensemble,
        "Laplace": sq.LaplaceRegressor(net, **common),
        "Mixture of Laplace": sq.MixtureLaplaceRegressor(net, estimators=members, **common),
        "SWAG": sq.SWAGRegressor(net, **common),
        "Cyclical SGHMC": sq.CyclicalSGHMCRegressor(net, **common),
        "QUAM": sq.QUAMRegressor(net, **common),
    }
    for est in methods.values():
        if est is not ensemble:
            est.fit(X, y, X_val=X_val, y_val=y_val)
    return methods


rows = []
for data, (X, y) in data_sets.items():
    X, y = X.astype(np.float32), y.astype(np.float32)
    for seed in (10, 11, 12):
        train, test = train_test_split(np.arange(len(X)), test_size=0.25, random_state=seed)
        train, held_out = train_test_split(train, test_size=0.15, random_state=seed)
        z = (y - y[train].mean()) / y[train].std()
        for name, est in fitted(X[train], z[train], X[held_out], z[held_out], seed).items():
            mean, u = est.predict(X[test], return_uncertainty=True)
            result = {
                "data": data,
                "method": name,
                "log score": gaussian_log_score(z[test], mean, u.total),
                "RMSE": root_mean_squared_error(z[test], mean),
            }
            if name != "Network alone":  # which has no epistemic uncertainty
                error = np.abs(mean - z[test])
                result["rank correlation"] = spearmanr(u.epistemic, error).statistic
            rows.append(result)
frame = pd.DataFrame(rows)

# %%
# In numbers
# ----------
# Means over the splits, for targets with a standard deviation of one. The last column is the rank
# correlation of epistemic uncertainty and absolute error. It and the log score should be high.

table = frame.groupby(["data", "method"], sort=False).mean()
table.round(3)

# %%
# The picture
# -----------
# Small dots are splits, large ones their means: splits often differ more than methods do.

figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharey=True, layout="constrained")
for line, data in zip(axes, data_sets, strict=True):
    for ax, column in zip(line, table.columns, strict=True):
        own = frame[frame["data"] == data]
        ax.plot(own[column], own["method"], "o", color="#56B4E9", ms=4)
        ax.plot(table.loc[data, column], table.loc[data].index, "o", color="#0072B2", ms=8)
        ax.set_title(f"{data}: {column}")
        ax.locator_params(axis="x", nbins=5)
        ax.grid(axis="x", alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    ax.axvline(0, color="black", lw=0.8, ls=":")
axes[0, 0].invert_yaxis()
plt.show()

# %%
# No method is the best one in all panels. Log scores follow the errors: on diabetes those of the
# network with dropout are the smallest, because it overfits less; on Friedman's function those of
# the ensemble, which averages networks that were trained independently. QUAM starts at one network,
# and predicts about as well as this one. Its log score on Friedman's function is the lowest: noise
# that is measured on held-out rows has the errors of the network in it already, and QUAM's
# epistemic part, the widest, counts them once more. No rank correlation is high: even the right
# variance tells how large an error is on average, not how large it is.
