"""What users pass as numbers and as labels, checked."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.validation import column_or_1d

from .._messages import cut, is_about_numbers
from .._network.inputs.layouts import from_tensor


def numbers(values: Any, name: str, *, finite: bool = True) -> np.ndarray:
    """Return numbers as an array of any shape."""
    values = plain(values, name)
    try:
        checks = {"ensure_2d": False, "allow_nd": True, "ensure_all_finite": finite}
        return check_array(values, dtype=np.float64, input_name=name, **checks)
    except (TypeError, ValueError) as error:
        if is_about_numbers(error):
            raise ValueError(f"{name} must hold numbers: {cut(error)}.") from error
        raise


def column(values: Any, name: str, low: float = -np.inf, high: float = np.inf) -> np.ndarray:
    """Return numbers within limits as an array of shape (n_samples,)."""
    values = numbers(values, name)
    if values.min() < low or values.max() > high:
        raise ValueError(f"{name} must lie between {low} and {high}.")
    return column_or_1d(values)


def labels_in(values: Any, name: str) -> np.ndarray:
    """Return labels of any kind as an array of shape (n_samples,)."""
    values = column_or_1d(plain(values, name))
    assert_all_finite(values, input_name=name)
    if values.dtype == object and not all(isinstance(value, Hashable) for value in values):
        raise TypeError(f"{name} must hold labels: numbers, texts or booleans.")
    return values


def plain(values: Any, name: str) -> Any:
    """Return tensors as arrays; refuse a mask, which would be ignored."""
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(f"{name} is a masked array. Leave out what is masked, in all arguments.")
    return from_tensor(values)
