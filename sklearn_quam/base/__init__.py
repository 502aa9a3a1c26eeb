"""What all methods share; a new method subclasses the two classes of this module."""

from ._classifier import BaseUncertaintyClassifier
from ._estimator import BaseUncertaintyEstimator, FitData, NetworkEstimator
from ._regressor import BaseUncertaintyRegressor

__all__ = [
    "BaseUncertaintyClassifier",
    "BaseUncertaintyEstimator",
    "BaseUncertaintyRegressor",
    "FitData",
    "NetworkEstimator",
]
