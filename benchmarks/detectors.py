"""Detectors that the scripts put beside the methods, by the names that results have."""

from functools import partial

from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor
from sklearn.svm import OneClassSVM

from sklearn_quam import ood

DETECTORS = {
    "Energy": ood.EnergyDetector,
    "MaxLogit": ood.MaxLogitDetector,
    "PNML": ood.PNMLDetector,
    "ViM": ood.ViMDetector,
    "Mahalanobis": ood.MahalanobisDetector,
    "Mahalanobis, lengths kept": partial(ood.MahalanobisDetector, normalize=False),
    "Mahalanobis, relative": partial(ood.MahalanobisDetector, relative=True),
    "NearestNeighbor": ood.NearestNeighborDetector,
    "NNGuide": partial(ood.NearestNeighborDetector, guided=True),
    "fDBD": ood.FDBDetector,
    "NCI": ood.NCIDetector,
    "GEN": ood.GENDetector,
    "GradientNorm": ood.GradientNormDetector,
}
ON_INPUTS = {
    "Mahalanobis, inputs": partial(ood.MahalanobisDetector, layer="input"),
    "NearestNeighbor, inputs": partial(
        ood.NearestNeighborDetector, layer="input", metric="euclidean"
    ),
}
# Of scikit-learn, on the data alone: these take no network.
WITHOUT_NETWORK = {
    "IsolationForest": partial(IsolationForest, random_state=0),
    "LocalOutlierFactor": partial(LocalOutlierFactor, novelty=True),
    "OneClassSVM": OneClassSVM,
}
