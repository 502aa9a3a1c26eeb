"""Detectors of unknown samples, on a network that is given.

Each has the interface of scikit-learn's outlier detectors: ``fit``, ``score_samples`` (the higher,
the more normal), ``decision_function`` and ``predict`` (-1 for outliers, 1 for others). The network
is taken as it is, from skorch, torch or scikit-learn, also behind a ``Pipeline``.
"""

from ._core.detector import read_features
from .combined import CombinedDetector
from .features import MahalanobisDetector, NearestNeighborDetector, ViMDetector
from .last_layer import FDBDetector, GradientNormDetector, NCIDetector, PNMLDetector
from .logits import EnergyDetector, GENDetector, MaxLogitDetector

__all__ = [
    "CombinedDetector",
    "EnergyDetector",
    "FDBDetector",
    "GENDetector",
    "GradientNormDetector",
    "MahalanobisDetector",
    "MaxLogitDetector",
    "NCIDetector",
    "NearestNeighborDetector",
    "PNMLDetector",
    "ViMDetector",
    "read_features",
]
