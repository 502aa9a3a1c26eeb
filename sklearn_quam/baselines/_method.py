"""The arguments that methods share."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from .._arguments import allowed, arguments
from .._typing import Device, MemoryLimit, NoiseVariance, Parameters, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._estimator import BaseUncertaintyEstimator
from ..base._regressor import BaseUncertaintyRegressor

_OF_WEIGHTS = BaseUncertaintyEstimator._weight_constraints


@arguments
class _Common:
    estimator: Any = field(default=None, kw_only=False)
    setting: str = "given"
    measure: str = "entropy"
    link: str | None = None
    output: str | int | None = None
    device: Device = None
    random_state: RandomState = None
    verbose: int | None = None


@arguments
class ClassifierMethod(_Common, BaseUncertaintyClassifier):
    """A classifier with the arguments that all have."""


@arguments
class RegressorMethod(_Common, BaseUncertaintyRegressor):
    """A regressor with the arguments that all have."""

    noise_variance: NoiseVariance = None


@arguments
class WeightArguments:
    """Arguments of methods that change weights."""

    parameters: Parameters = allowed(*_OF_WEIGHTS["parameters"], default="all")
    memory_limit: MemoryLimit = allowed(*_OF_WEIGHTS["memory_limit"], default=None)
