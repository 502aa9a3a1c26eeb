"""Which constructor arguments have changed since an estimator was fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_PLAIN = (bool, int, float, str, type(None))


def parameters_now(estimator: Any) -> dict[str, Any]:
    """Return all arguments that say what is fitted, those of nested objects among them.

    Of the wrapped estimator's own arguments, only plain values: some estimators make the objects
    among them anew whenever they are asked.

    Parameters
    ----------
    estimator : BaseUncertaintyEstimator
        The estimator.

    Returns
    -------
    dict
        Names and values.
    """
    return {
        name: value
        for name, value in estimator.get_params().items()
        if name not in estimator._live_parameters
        and (not name.startswith("estimator__") or isinstance(value, _PLAIN))
    }


def changed_parameters(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of arguments that are not what they were.

    Parameters
    ----------
    before, now : dict
        What `parameters_now` returned.

    Returns
    -------
    list of str
        Names. An object whose own arguments are listed is compared by these. A wrapped estimator
        that was trained in between no longer lists its own, which is no change.
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
        # Missing values are NaN to many transformers: another object after unpickling.
        return old == new or bool(np.isnan([old, new]).all())
    return bool(np.array_equal(old, new))
