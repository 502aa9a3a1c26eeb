"""Default arguments on real data: digits of classes that the network has never seen."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax

from sklearn_quam import QUAMClassifier, ReferenceClassifier

N_POINTS = 25
ENSEMBLE = 5


def train(X, y, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, int(y.max()) + 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(60):
        for rows in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            cross_entropy(net(X[rows]), y[rows]).backward()
            optimizer.step()
    return net.eval()


def aurocs(left_out, seed):
    """Return the AUROC of QUAM, of an ensemble and of the entropy."""
    X, y = load_digits(return_X_y=True)
    X = torch.tensor((X / 16).astype(np.float32))
    unknown = np.isin(y, left_out)
    known = np.flatnonzero(~unknown)
    columns = torch.tensor(np.unique(y[known], return_inverse=True)[1])
    fit, test = train_test_split(np.arange(len(known)), test_size=0.3, random_state=seed)
    X_train, y_train = X[known[fit]], columns[fit]
    X_known = X[known[test[:N_POINTS]]]
    X_unknown = X[np.random.default_rng(seed).permutation(np.flatnonzero(unknown))[:N_POINTS]]
    X_new = torch.cat([X_known, X_unknown])
    is_unknown = np.r_[np.zeros(N_POINTS), np.ones(N_POINTS)]
    net, *others = (train(X_train, y_train, 10 * seed + member) for member in range(ENSEMBLE + 1))
    with torch.no_grad():
        given = log_softmax(net(X_new), dim=1)
        members = torch.stack([log_softmax(other(X_new), dim=1) for other in others])
        ensemble = (given.exp() * (given - members)).sum(dim=2).mean(dim=0)
    entropy = ReferenceClassifier(net).fit(X_train, y_train).predict_uncertainty(X_new).total
    quam = QUAMClassifier(net, random_state=seed).fit(X_train, y_train).predict_uncertainty(X_new)
    return [roc_auc_score(is_unknown, s) for s in (quam.epistemic, ensemble, entropy)]


# One test for each set of left-out classes: none of them, nor the seeds, was used for tuning.
@pytest.mark.parametrize("left_out", [(4, 7), (8, 9), (1, 6)], ids=str)
def test_quam_finds_digits_that_the_network_does_not_know(left_out):
    quam, ensemble, entropy = np.mean([aurocs(left_out, seed) for seed in range(10, 15)], axis=0)
    assert quam > ensemble
    # Where the entropy is already good there is less than 0.05 to gain.
    assert quam > min(entropy + 0.05, 0.5 + entropy / 2)
