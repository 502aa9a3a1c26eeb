"""Tell how far a neural network's prediction can be trusted."""

from ._measures import Diagnostics, Uncertainty
from .baselines import ReferenceClassifier, ReferenceRegressor

__version__ = "0.1.0.dev0"

__all__ = [
    "Diagnostics",
    "ReferenceClassifier",
    "ReferenceRegressor",
    "Uncertainty",
]
