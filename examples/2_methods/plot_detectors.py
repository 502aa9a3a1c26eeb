"""
Detectors beside QUAM
=====================

Detectors find unknown samples without other models: they look at the logits or features of a
sample, or at the sample itself. They are fast, have the interface of scikit-learn's outlier
detectors, and miss samples in different places.
"""

# %%
# One network, many detectors
# ---------------------------
# The network separates two moons. It is given: no detector trains or changes it.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.ensemble import IsolationForest
from sklearn.metrics import euclidean_distances
from sklearn.neural_network import MLPClassifier

from sklearn_quam import QUAMClassifier
from sklearn_quam.model_selection import compare_uncertainty
from sklearn_quam.ood import (
    CombinedDetector,
    EnergyDetector,
    MahalanobisDetector,
    NearestNeighborDetector,
    ViMDetector,
)

X, y = make_moons(200, noise=0.1, random_state=0)
net = MLPClassifier(
    (50, 50), alpha=1e-2, max_iter=1000, random_state=0
).fit(X, y)

detectors = {
    "Energy": EnergyDetector(net),
    "Mahalanobis": MahalanobisDetector(net),
    "ViM": ViMDetector(net),
    "Nearest neighbours, features": NearestNeighborDetector(net),
    "Nearest neighbours, inputs": NearestNeighborDetector(
        net, layer="input", metric="euclidean"
    ),
    "Isolation forest (scikit-learn)": IsolationForest(random_state=0),
    "QUAM": QUAMClassifier(net, random_state=0),
}
detectors["QUAM and neighbours"] = CombinedDetector(
    [detectors["QUAM"], detectors["Nearest neighbours, inputs"]],
    random_state=0,
)

# %%
# Which points each of them flags
# -------------------------------
# The colour of a point is the share of known points, which no detector has seen, that are more
# normal: 1 is more unusual than all of them. Energy trusts all points far from the decision
# boundary, however far away they are from the data. QUAM asks whether the training data leave
# another answer open: behind the moons they hardly do, and it takes points there for known ones.
# Nearest neighbours ask whether there are data nearby, and ignore the prediction.

X_known = make_moons(500, noise=0.1, random_state=1)[0]
xx, yy = np.meshgrid(np.linspace(-3, 4, 40), np.linspace(-3, 3.5, 40))
grid = np.column_stack([xx.ravel(), yy.ravel()])
figure, axes = plt.subplots(
    2,
    4,
    figsize=(11, 5.4),
    sharex=True,
    sharey=True,
    layout="constrained",
)
for ax, (name, detector) in zip(axes.flat, detectors.items()):
    detector.fit(X, y)
    known = np.sort(detector.score_samples(X_known))
    below = np.searchsorted(known, detector.score_samples(grid))
    strange = 1 - below.reshape(xx.shape) / len(known)
    surface = ax.pcolormesh(
        xx, yy, strange, vmin=0, vmax=1, cmap="magma"
    )
    ax.scatter(*X.T, s=3, c=np.where(y, "#56B4E9", "#009E73"))
    ax.set_title(name, fontsize=10)
figure.colorbar(
    surface,
    ax=axes,
    label="share of known points\nthat are more normal",
)
plt.show()

# %%
# In numbers
# ----------
# Unknown points lie in the gaps around the moons, or far away. One call compares methods and
# detectors, those of scikit-learn among them.

rng = np.random.default_rng(0)
near = rng.uniform([-2, -1.5], [3, 2], size=(2000, 2))
distance = euclidean_distances(near, X_known).min(axis=1)
X_ood = {
    "near": near[distance > 0.3][:200],
    "far": rng.uniform(-20, 20, size=(200, 2)),
}
X_test, y_test = make_moons(200, noise=0.1, random_state=2)
known = X, y, X_test, y_test
compare_uncertainty(
    detectors, *known, X_ood, n_resamples=20, random_state=0
)
