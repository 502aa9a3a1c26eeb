"""Detectors of unknown rows, on a network that is given.

Each has the interface of scikit-learn's outlier detectors: ``fit``, ``score_samples`` (the higher,
the more normal), ``decision_function`` and ``predict`` (-1 for outliers, 1 for others). The network
is taken as it is, from skorch, torch or scikit-learn, also behind a ``Pipeline``.
"""

from ._core.read import read_features
from .combined import CombinedDetector
from .energy import EnergyDetector
from .fdbd import FDBDetector
from .gen import GENDetector
from .gradient_norm import GradientNormDetector
from .mahalanobis import MahalanobisDetector
from .max_logit import MaxLogitDetector
from .nci import NCIDetector
from .nearest_neighbor import NearestNeighborDetector
from .pnml import PNMLDetector
from .vim import ViMDetector

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
