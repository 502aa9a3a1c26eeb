"""Tell how far a neural network's prediction can be trusted."""

from ._measures import Diagnostics, Uncertainty
from ._parameters import LoRA
from .baselines import ReferenceClassifier, ReferenceRegressor
from .quam import QUAMClassifier, QUAMRegressor

__version__ = "0.1.0.dev0"

__all__ = [
    "Diagnostics",
    "LoRA",
    "QUAMClassifier",
    "QUAMRegressor",
    "ReferenceClassifier",
    "ReferenceRegressor",
    "Uncertainty",
]
