"""
A plain torch module
====================

Pass any ``torch.nn.Module``, a downloaded one or one of your own training loop. ``link=`` says what
it returns; logits are the default.
"""

# %%
# A small convolutional network for digits, trained in a loop without 8 and 9.

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from sklearn_quam import QUAMClassifier
from sklearn_quam.display import UncertainSamplesDisplay

X, y = load_digits(return_X_y=True)
X = torch.tensor(X / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
known = torch.tensor(y < 8)
X_train, y_train = X[known][:1000], torch.tensor(y)[known][:1000]

torch.manual_seed(0)
module = nn.Sequential(
    nn.Conv2d(1, 16, 3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(144, 32),
    nn.ReLU(),
    nn.Linear(32, 8),
)
optimizer = torch.optim.Adam(module.parameters(), 5e-3)
for _ in range(30):
    for rows in torch.randperm(len(X_train)).split(64):
        optimizer.zero_grad()
        cross_entropy(module(X_train[rows]), y_train[rows]).backward()
        optimizer.step()

# %%
# Unknown digits
# --------------
# By default the linear layers behind the convolution are searched: the convolution runs once for
# each image, and the searches are large matrix products. Most of the images with the highest
# uncertainty are eights and nines. The number with the question mark is the rival class: the answer
# of another network that is about as good on the training data.

quam = QUAMClassifier(module, random_state=0).fit(X_train, y_train)
new = np.concatenate([X[known][1000:1040], X[~known][:20]])
UncertainSamplesDisplay.from_estimator(quam, new, n_images=8)
plt.show()

# %%
# The rival classes
# -----------------
# The diagnostics name the rival class of each sample and its cost: how many nats of log-likelihood
# the whole training set loses with the cheapest model found that predicts this class.

_, diagnostics = quam.predict_uncertainty(
    new[-3:], return_diagnostics=True
)
diagnostics.to_frame()[["rival", "rival_cost", "feasible"]]
