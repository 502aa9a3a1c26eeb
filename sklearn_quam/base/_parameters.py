"""Which constructor arguments have changed since an estimator was fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def parameters_now(estimator: Any) -> dict[str, Any]:
    """Return all arguments, those of nested objects among them, that say what is fitted.

    Parameters
    ----------
    estimator : BaseUncertaintyEstimator
        The estimator.

    Returns
    -------
    dict
        Names and values.
    """
    live = estimator._live_parameters
    return {name: value for name, value in estimator.get_params().items() if name not in live}


def changed_parameters(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of arguments that are not what they were.

    Parameters
    ----------
    before, now : dict
        What `parameters_now` returned.

    Returns
    -------
    list of str
        Names; of an object whose own arguments are listed, only if it became another kind of one.
    """
    names = sorted(before.keys() | now.keys())
    # An object whose own arguments are listed is compared by these.
    listed = {name.rpartition("__")[0] for name in names}
    missing = object()
    return [
        name
        for name in names
        if not _same(before.get(name, missing), now.get(name, missing), name in listed)
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
    return bool(np.array_equal(old, new))
