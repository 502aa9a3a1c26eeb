"""Detectors, networks and data that the tests of this folder share."""

import numpy as np
import torch
from torch import nn

from sklearn_quam import ood
from sklearn_quam.ood._core.detector import BaseDetector

N_FEATURES, N_CLASSES = 4, 3
# name -> arguments; what comes behind a comma tells ways to run the same detector apart
ARGUMENTS = {
    "EnergyDetector": {},
    "MaxLogitDetector": {},
    "MaxLogitDetector, normalised": {"normalize": 3.0},
    "MaxLogitDetector, any norm": {"normalize": "auto"},
    "MahalanobisDetector": {},
    "MahalanobisDetector, relative": {"relative": True, "normalize": False},
    "MahalanobisDetector, inputs": {"layer": "input"},
    "NearestNeighborDetector": {"n_neighbors": 3},
    "NearestNeighborDetector, inputs": {"layer": "input", "metric": "euclidean"},
    "NearestNeighborDetector, guided": {"n_neighbors": 3, "guided": True},
    "ViMDetector": {},
    "ViMDetector, two layers": {"layer": ["0", "penultimate"]},
    "PNMLDetector": {},
    "PNMLDetector, normalised": {"normalize": True},
    "FDBDetector": {},
    "NCIDetector": {},
    "GENDetector": {},
    "GradientNormDetector": {},
}
NAMES = list(ARGUMENTS)
# Every class, and the options that keep other things after fit.
EACH = [name for name in NAMES if "," not in name]
EACH += ["NearestNeighborDetector, guided", "MahalanobisDetector, relative"]


def test_every_detector_is_tested():
    kinds = {name: getattr(ood, name) for name in ood.__all__ if name.endswith("Detector")}
    public = {name for name, kind in kinds.items() if issubclass(kind, BaseDetector)}
    assert {name.partition(",")[0] for name in NAMES} == public


def make_data(n_samples=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_samples, N_FEATURES)).astype(np.float32)
    return X, np.digitize(X[:, 0] + 0.3 * rng.normal(size=n_samples), [-0.5, 0.5])


def make_module(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(N_FEATURES, 8), nn.Tanh(), nn.Linear(8, N_CLASSES))


def make_detector(name, estimator=None, **params):
    kind = getattr(ood, name.partition(",")[0])
    network = make_module() if estimator is None else estimator
    return kind(network, **{**ARGUMENTS[name], **params})
