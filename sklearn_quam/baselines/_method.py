"""Constructors of the methods: their arguments are fields of classes, each declared once."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, TypeVar, dataclass_transform, get_type_hints

from sklearn.utils._param_validation import Interval

from .._typing import Device, MemoryLimit, NoiseVariance, Parameters, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._estimator import BaseUncertaintyEstimator
from ..base._regressor import BaseUncertaintyRegressor

_OF_WEIGHTS = BaseUncertaintyEstimator._weight_constraints

Class = TypeVar("Class", bound=type)


def allowed(*constraints: Any, default: Any) -> Any:
    """Return a field with constraints, as in scikit-learn's ``_parameter_constraints``."""
    return field(default=default, metadata={"allowed": list(constraints)})


def integer(*, default: int, at_least: int = 1) -> Any:
    """Return a field for whole numbers."""
    return allowed(Interval(Integral, at_least, None, closed="left"), default=default)


def real(*, default: float, below: float | None = None, closed: str = "neither") -> Any:
    """Return a field for numbers above zero; ``closed`` says which bounds count."""
    return allowed(Interval(Real, 0, below, closed=closed), default=default)


@dataclass_transform(
    kw_only_default=True, eq_default=False, field_specifiers=(field, allowed, integer, real)
)
def arguments(kind: Class) -> Class:
    """Make the fields of a class, and of its bases, the arguments of its constructor."""
    dataclass(kw_only=True, eq=False, repr=False)(kind)
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found |= vars(base).get("_parameter_constraints", {})
    found |= {one.name: one.metadata["allowed"] for one in fields(kind) if one.metadata}
    kind._parameter_constraints = found  # type: ignore[attr-defined]
    # As objects: the names in them are those of the modules of the fields.
    names = {one.name for one in fields(kind)}
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name in names}
    initialiser: Any = vars(kind)["__init__"]
    initialiser.__annotations__ = {**hints, "return": None}
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


@arguments
class WeightArguments:
    """Arguments of methods that change weights."""

    parameters: Parameters = allowed(*_OF_WEIGHTS["parameters"], default="all")
    memory_limit: MemoryLimit = allowed(*_OF_WEIGHTS["memory_limit"], default=None)
