"""Uncertainty of the predictions of a neural network."""

from ._loading import load
from ._network.parameters import LoRA
from ._posterior.results import Diagnostics, Uncertainty
from ._search.natural.arguments import LinearSearch, NaturalSearch
from ._search.penalty.arguments import PenaltySearch
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
    "LinearSearch",
    "LoRA",
    "MCDropoutClassifier",
    "MCDropoutRegressor",
    "MixtureLaplaceClassifier",
    "MixtureLaplaceRegressor",
    "NaturalSearch",
    "PenaltySearch",
    "QUAMClassifier",
    "QUAMRegressor",
    "ReferenceClassifier",
    "ReferenceRegressor",
    "SWAGClassifier",
    "SWAGRegressor",
    "Uncertainty",
    "load",
]
