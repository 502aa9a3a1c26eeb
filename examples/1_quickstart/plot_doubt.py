"""
Which predictions to hold back
==============================

Two things go wrong with predictions: the network errs, or a sample is of a kind that it has never
seen. Doubt is one number for both: the share of known samples that are less doubtful. Here a
network of digits has never seen a 3 or an 8, and one in ten of its training labels is wrong.
"""

# %%
# Digits, some of them unknown
# ----------------------------

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from sklearn_quam import QUAMClassifier
from sklearn_quam.display import UncertaintyHistogramDisplay
from sklearn_quam.model_selection import (
    RejectOptionClassifier,
    compare_uncertainty,
)
from sklearn_quam.ood import (
    EnergyDetector,
    NearestNeighborDetector,
    PNMLDetector,
)

X, y = load_digits(return_X_y=True)
X, unknown = X / 16, np.isin(y, (3, 8))
X_unknown, X, y = X[unknown], X[~unknown], y[~unknown]
rng = np.random.default_rng(0)
others = rng.choice(np.unique(y), len(y))
y = np.where(rng.random(len(y)) < 0.1, others, y)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.3, random_state=0
)
X_train, X_val, y_train, y_val = train_test_split(
    X_train, y_train, test_size=0.3, random_state=0
)
net = MLPClassifier([64, 64], alpha=0.1, tol=1e-2, random_state=0)
net = net.fit(X_train, y_train)

# %%
# Wrap, fit, ask
# --------------
# Held-out samples, which the network was not trained on, show how doubtful known samples are.

est = QUAMClassifier(net, random_state=0)
est.fit(X_train, y_train, X_val=X_val, y_val=y_val)
for name, digits in (("known", X_test), ("unknown", X_unknown)):
    share = (est.predict_doubt(digits) > 0.9).mean()
    print(f"{name} digits with a doubt above 0.9: {share:.0%}")

# %%
# Reject
# ------

reject = RejectOptionClassifier(est, coverage=0.8, cv="prefit")
reject.fit(X_val, y_val)
print(f"known digits answered:   {reject.accepts(X_test).mean():.0%}")
share = reject.accepts(X_unknown).mean()
print(f"unknown digits answered: {share:.0%}")
print(f"accuracy of all answers: {est.score(X_test, y_test):.3f}")
print(f"accuracy of those given: {reject.score(X_test, y_test):.3f}")

# %%
# Plot
# ----
# The dashed line is the threshold that 95 % of known samples do not exceed.

UncertaintyHistogramDisplay.from_estimator(
    est, X_test, X_unknown, component="doubt", bins=20
)
plt.show()

# %%
# Compare
# -------
# Columns are AUROCs. "both" counts mistakes and unknown samples as failures.

methods = {
    "QUAM, doubt": est,
    "energy": EnergyDetector(net),
    "neighbors": NearestNeighborDetector(net),
    "pNML": PNMLDetector(net),
}
known = (X_train, y_train, X_test, y_test)
compare_uncertainty(
    methods, *known, X_unknown, n_resamples=20, random_state=0
)
