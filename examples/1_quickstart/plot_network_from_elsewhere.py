"""
An image network from somewhere else
====================================

Networks of libraries are passed as they are: residual blocks, several outputs, a ``forward`` of
their own. This one is written like those of torchvision, and returns its features, too. (It is
small and trained here, so that this page needs no download. For a downloaded one, begin at "Wrap
it".)
"""

# %%
# The network
# -----------
# It has seen digits without 8 and 9.

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn.functional import cross_entropy

from sklearn_quam import QUAMClassifier, ReferenceClassifier
from sklearn_quam.display import UncertainSamplesDisplay


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        h = torch.relu(self.norm1(self.first(x)))
        return torch.relu(x + self.norm2(self.second(h)))


class SmallResNet(nn.Module):
    def __init__(self, n_classes=8, width=8):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(
            Block(width), nn.MaxPool2d(2), Block(width)
        )
        self.head = nn.Linear(width * 4, n_classes)

    def forward(self, images):
        maps = self.blocks(self.stem(images))
        features = nn.functional.adaptive_avg_pool2d(maps, 2).flatten(1)
        return {"features": features, "scores": self.head(features)}


X, y = load_digits(return_X_y=True)
X = torch.tensor(X / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
known = torch.tensor(y < 8)
X_train, y_train = X[known][:1000], torch.tensor(y)[known][:1000]

torch.manual_seed(0)
net = SmallResNet()
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
for _ in range(6):
    for rows in torch.randperm(len(X_train)).split(64):
        optimizer.zero_grad()
        scores = net(X_train[rows])["scores"]
        cross_entropy(scores, y_train[rows]).backward()
        optimizer.step()

# %%
# Wrap it
# -------
# ``output=`` selects one of the outputs. ``fit`` cuts the network in front of its last layer:
# convolutions run once for each image, and the searches are matrix products.

quam = QUAMClassifier(net, output="scores", random_state=0)
quam.fit(X_train, y_train)
print(quam.parameter_names_, quam.cut_, quam.execution_)

# %%
# Ask it
# ------
# Digits that it has never seen, among others that it knows. If only a single linear layer is
# searched, as here, the network's own entropy may be the better score: measure both. The entropy
# does not name the rival class of an image, the number with the question mark.

new = np.concatenate([X[known][1000:1100], X[~known][:100]])
unknown = np.arange(200) >= 100
plain = ReferenceClassifier(net, output="scores").fit(X_train, y_train)
entropy = plain.predict_uncertainty(new).total
epistemic = quam.predict_uncertainty(new).epistemic
print("entropy", round(roc_auc_score(unknown, entropy), 3))
print("QUAM   ", round(roc_auc_score(unknown, epistemic), 3))

UncertainSamplesDisplay.from_estimator(quam, new, n_images=8)
plt.show()
