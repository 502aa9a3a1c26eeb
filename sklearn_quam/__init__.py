"""Tell how far a neural network's prediction can be trusted."""

from ._measures import Diagnostics, Uncertainty
from ._parameters import LoRA
from .baselines import (
    CyclicalSGHMCClassifier,
    CyclicalSGHMCRegressor,
    DeepEnsembleClassifier,
    DeepEnsembleRegressor,
    HMCClassifier,
    HMCRegressor,
    LaplaceClassifier,
    LaplaceRegressor,
    MCDropoutClassifier,
    MCDropoutRegressor,
    MixtureLaplaceClassifier,
    MixtureLaplaceRegressor,
    ReferenceClassifier,
    ReferenceRegressor,
    SWAGClassifier,
    SWAGRegressor,
)
from .quam import QUAMClassifier, QUAMRegressor

__version__ = "0.1.0.dev0"

__all__ = [
    "CyclicalSGHMCClassifier",
    "CyclicalSGHMCRegressor",
    "DeepEnsembleClassifier",
    "DeepEnsembleRegressor",
    "Diagnostics",
    "HMCClassifier",
    "HMCRegressor",
    "LaplaceClassifier",
    "LaplaceRegressor",
    "LoRA",
    "MCDropoutClassifier",
    "MCDropoutRegressor",
    "MixtureLaplaceClassifier",
    "MixtureLaplaceRegressor",
    "QUAMClassifier",
    "QUAMRegressor",
    "ReferenceClassifier",
    "ReferenceRegressor",
    "SWAGClassifier",
    "SWAGRegressor",
    "Uncertainty",
]
