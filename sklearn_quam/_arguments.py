"""Constructors whose arguments are fields of classes, each declared once."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, TypeVar, dataclass_transform, get_type_hints

from sklearn.utils._param_validation import Interval

Class = TypeVar("Class", bound=type)


def allowed(*constraints: Any, default: Any = MISSING, kw_only: bool = True) -> Any:
    """Return a field with constraints, as in scikit-learn's ``_parameter_constraints``."""
    return field(default=default, kw_only=kw_only, metadata={"allowed": list(constraints)})


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
