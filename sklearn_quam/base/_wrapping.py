"""Arguments of estimators: which are cloned, and which have changed since `fit`."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval

from .._network.adapters import is_pretrained

# Attributes that clone keeps.
CLONED_ATTRIBUTES = ("_metadata_request", "_sklearn_output_config", "_skl_callbacks")

# Allowed values of n_jobs, without zero.
N_JOBS = [Interval(Integral, None, -1, closed="right"), Interval(Integral, 1, None, closed="left")]

_PLAIN = (bool, int, float, str, type(None))


def is_kept(name: str, value: Any) -> bool:
    """Return whether an argument holds given networks, which are not cloned."""
    if name == "estimators":
        return value is not None
    return name == "estimator" and is_pretrained(value)


def parameters_now(estimator: Any) -> dict[str, Any]:
    """Return all arguments that determine a fit, with those of nested objects.

    Of the wrapped estimator's own, only plain values: some estimators make objects anew each time.
    """
    return {
        name: value
        for name, value in estimator.get_params().items()
        if name not in estimator._live_parameters
        and (not name.startswith("estimator__") or isinstance(value, _PLAIN))
    }


def changed_parameters(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of arguments that have changed.

    An object whose own arguments are listed is compared by these. A wrapped estimator that was
    trained in between does not list its own any more, which is no change.
    """
    listed = {name.rpartition("__")[0] for name in now}
    return [
        name
        for name in sorted(before.keys() & now.keys())
        if not _same(before[name], now[name], name in listed)
    ]


def _same(old: Any, new: Any, listed: bool = False) -> bool:
    if old is new:
        return True
    if listed:
        return type(old) is type(new)
    if isinstance(old, torch.nn.Module) or hasattr(old, "get_params"):
        return False
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, float) and isinstance(new, float):
        # A NaN argument is another object after unpickling.
        return old == new or bool(np.isnan([old, new]).all())
    return bool(np.array_equal(old, new))
