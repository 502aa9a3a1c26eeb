"""The package's detectors against those of pytorch-ood, on the same network.

pytorch-ood itself asks for torchvision, for data sets and models that nothing here needs: only its
detectors are imported. Where conventions differ they are said: its Mahalanobis distances are half
of ours and in units of the sum, not the mean, over training rows; pNML divides by the logarithm of
the number of classes, and runs the head on features of length one: here it gets the network's own
logits.
"""

from copy import deepcopy

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from sklearn_quam import ood

from . import peer_packages


def trained_network():
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 24), nn.Tanh())
    net.append(nn.Linear(24, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        cross_entropy(net(X[:1000]), y[:1000]).backward()
        optimizer.step()
    strange = torch.rand(100, 64, generator=torch.Generator().manual_seed(0))
    return net.eval(), X[:1000], y[:1000], torch.cat([X[1000:1300], strange])


def differences():
    """Yield a detector and how far both scores are apart, relative to the largest one."""
    peer = peer_packages.pytorch_ood()
    net, X, y, X_new = trained_network()
    body, head = net[:-1], net[-1]
    with torch.no_grad():
        features, new, logits = body(X), body(X_new), net(X_new)

    def ours(detector):
        return -detector.fit(X, y).score_samples(X_new)

    def row(name, found, expected):
        found, expected = np.asarray(found), np.asarray(expected, dtype=float)
        return name, float(np.abs(found - expected).max() / np.abs(expected).max())

    yield row(
        "energy", ours(ood.EnergyDetector(net)), peer.EnergyBased(net).predict(X_new).detach()
    )
    found = ours(ood.EnergyDetector(net, temperature=3.0))
    yield row("energy, temperature 3", found, peer.EnergyBased(None, t=3.0).predict_logits(logits))
    yield row(
        "largest logit", ours(ood.MaxLogitDetector(net)), peer.MaxLogit(None).predict_logits(logits)
    )
    exact = ood.MahalanobisDetector(net, shrinkage=0.0, normalize=False)
    expected = peer.Mahalanobis(None).fit_features(features, y).predict_features(new)
    yield row("Mahalanobis", ours(exact), 2 * len(X) * expected)
    expected = peer.RMD(None).fit_features(features, y).predict_features(new)
    yield row("Mahalanobis, relative", ours(exact.set_params(relative=True)), len(X) * expected)
    expected = peer.KNN(None, k=7).fit_features(features, y).predict_features(new)
    # The squared distance of unit vectors is twice their cosine distance.
    found = ours(ood.NearestNeighborDetector(net, n_neighbors=7))
    yield row("nearest neighbour", 2 * found, expected**2)
    vim = peer.ViM(None, d=10, w=head.weight, b=head.bias).fit_features(features, y)
    found = ours(ood.ViMDetector(net, n_components=10))
    yield row("ViM", found, vim.predict_features(new))
    pnml = peer.PNML(None, head=lambda _: logits).fit_features(features, y)
    expected = np.log(10) * pnml.predict_features(new)
    yield row("pNML", ours(ood.PNMLDetector(net, normalize=True)), expected)
    fdbd = peer.fDBD(None, head).fit_features(features)
    yield row("fDBD", ours(ood.FDBDetector(net)), fdbd.predict_features(new))
    # Its scores are in units of weights and features, ours in those of their mean lengths.
    unit = float(head.weight.detach().norm(dim=1).mean())
    alpha = 0.1 * unit / float(features.abs().sum(dim=1).mean())
    nci = peer.NCI(None, head, alpha=alpha).fit_features(features)
    yield row("NCI", unit * ours(ood.NCIDetector(net)), nci.predict_features(new))
    # It returns means over classes, of probabilities that are at least 1e-7.
    soft = deepcopy(net)
    with torch.no_grad():
        for parameter in soft[-1].parameters():
            parameter *= 0.25
        for gamma, n_largest in ((0.1, 100), (0.5, 4)):
            expected = peer.GEN(None, gamma=gamma, M=n_largest).predict_logits(soft(X_new))
            found = ours(ood.GENDetector(soft, gamma=gamma, n_largest=n_largest))
            yield row("GEN", found / min(n_largest, 10), expected)
    name = f"{len(net) - 1}.weight"
    gradient = peer.GradNorm(net, param_filter=lambda each: each == name)
    found = ours(ood.GradientNormDetector(net))
    yield row("gradient norm", found, gradient.predict(X_new).detach())
