"""Methods to compare with, one file each."""

from .cyclical_sghmc import CyclicalSGHMCClassifier, CyclicalSGHMCRegressor
from .deep_ensemble import DeepEnsembleClassifier, DeepEnsembleRegressor
from .hmc import HMCClassifier, HMCRegressor
from .laplace import LaplaceClassifier, LaplaceRegressor
from .mc_dropout import MCDropoutClassifier, MCDropoutRegressor
from .mixture_laplace import MixtureLaplaceClassifier, MixtureLaplaceRegressor
from .reference import ReferenceClassifier, ReferenceRegressor
from .swag import SWAGClassifier, SWAGRegressor

__all__ = [
    "CyclicalSGHMCClassifier",
    "CyclicalSGHMCRegressor",
    "DeepEnsembleClassifier",
    "DeepEnsembleRegressor",
    "HMCClassifier",
    "HMCRegressor",
    "LaplaceClassifier",
    "LaplaceRegressor",
    "MCDropoutClassifier",
    "MCDropoutRegressor",
    "MixtureLaplaceClassifier",
    "MixtureLaplaceRegressor",
    "ReferenceClassifier",
    "ReferenceRegressor",
    "SWAGClassifier",
    "SWAGRegressor",
]
