"""
A skorch net
============

Train a net as you always do, pass it to :class:`~sklearn_quam.QUAMClassifier`, and ask how far its
predictions can be trusted. The net is not trained again, and not changed.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_moons
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_quam import QUAMClassifier
from sklearn_quam.display import UncertaintyMapDisplay

X, y = make_moons(200, noise=0.1, random_state=0)
X, y = X.astype(np.float32), y.astype(np.int64)
torch.manual_seed(0)
net = NeuralNetClassifier(
    nn.Sequential(
        nn.Linear(2, 50),
        nn.ReLU(),
        nn.Linear(50, 50),
        nn.ReLU(),
        nn.Linear(50, 2),
    ),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=5e-3,
    max_epochs=150,
    train_split=None,
    verbose=0,
).fit(X, y)

# %%
# Three numbers for each sample
# -----------------------------
# The first sample is one of the training data, the second is far away from all of them.

quam = QUAMClassifier(net, random_state=0).fit(X, y)
quam.predict_uncertainty(
    np.array([X[0], [3.0, 3.0]], dtype=np.float32)
).to_frame()

# %%
# Over the whole plane
# --------------------
# The network itself is sure almost everywhere: the aleatoric uncertainty, its own entropy, is large
# at the decision boundary only. The epistemic uncertainty grows where data are missing, most of all
# where another boundary would fit the training data as well.

display = UncertaintyMapDisplay.from_estimator(
    quam, X, y, component="aleatoric", grid_resolution=30
)
display.plot(component="epistemic")
plt.show()
