"""
Regression with bands
=====================

A network for regression predicts a mean; the spread of the residuals is the noise around it. The
epistemic part is the uncertainty of the mean itself: small where there are data, large in this gap
and outside of the data, where it grows with the distance.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.neural_network import MLPRegressor

from sklearn_quam import LaplaceRegressor, QUAMRegressor
from sklearn_quam.display import RegressionUncertaintyDisplay

rng = np.random.default_rng(0)
X = np.concatenate([rng.uniform(-3, -1, 60), rng.uniform(1, 3, 60)])[
    :, None
]
y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=len(X))
net = MLPRegressor(
    hidden_layer_sizes=(50, 50),
    activation="tanh",
    solver="lbfgs",
    max_iter=2000,
    random_state=0,
)
net.fit(X, y)

# %%
# QUAM, and a Laplace approximation of the last layer
# ---------------------------------------------------
# By default QUAM takes the network as linear in its parameters, so that bands are a closed form:
# those of Laplace's approximation of all layers. The approximation of the last layer alone, the
# default of ``LaplaceRegressor``, has narrower bands. Both are too narrow in small gaps between the
# data, where the network goes straight on.

methods = {
    "QUAM": QUAMRegressor(net, setting="expected", random_state=0),
    "Laplace, last layer": LaplaceRegressor(
        net, setting="expected", random_state=0
    ),
}
figure, axes = plt.subplots(
    1, 2, figsize=(10, 3.8), sharey=True, layout="constrained"
)
for ax, (name, est) in zip(axes, methods.items()):
    RegressionUncertaintyDisplay.from_estimator(
        est.fit(X, y), X, y, xlim=(-4.5, 4.5), ax=ax
    )
    ax.set(title=name, ylim=(-4, 4))
plt.show()

# %%
# In numbers
# ----------
# ``measure="variance"`` gives the parts in squared units of the target; otherwise they are
# entropies in nats.

quam = QUAMRegressor(
    net, setting="expected", measure="variance", random_state=0
).fit(X, y)
quam.predict_uncertainty([[-2.0], [0.0], [4.0]]).to_frame(
    index=["data", "gap", "outside"]
)
