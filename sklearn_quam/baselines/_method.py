"""Constructors of the methods: their arguments are fields of classes, each declared once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

from .._typing import Device, NoiseVariance, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._regressor import BaseUncertaintyRegressor

Class = TypeVar("Class", bound=type)


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
def arguments(kind: Class) -> Class:
    """Make the fields of a class, and of its bases, the arguments of its constructor."""
    inherited = [vars(base).get("_parameter_constraints", {}) for base in reversed(kind.__mro__)]
    kind._parameter_constraints = {  # type: ignore[attr-defined]
        name: allowed for constraints in inherited for name, allowed in constraints.items()
    }
    dataclass(kw_only=True, eq=False, repr=False)(kind)
    return kind


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
