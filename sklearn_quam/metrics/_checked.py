"""Checks and descriptions of what metrics take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.validation import column_or_1d

from .._documented import documented, parsed
from .._messages import checked_arguments, cut, is_about_numbers
from .._network.inputs.rows import from_tensor

Function = TypeVar("Function", bound=Callable)

_ARGUMENTS = parsed(
    """
    Parameters
    ----------
    y_score : array-like of shape (n_samples,)
        Higher for samples that look more like those to be found, such as an uncertainty.
    y_correct : array-like of shape (n_samples,)
        Whether each prediction is correct, or how correct it is, from 0 to 1.
    loss : array-like of shape (n_samples,)
        Loss of each prediction, such as 0 or 1, or a squared error; never negative. In a pool with
        unknown samples, these have a loss of 1.
    uncertainty : array-like of shape (n_samples,)
        Samples with the lowest are kept longest; equal ones go in random order, on average.
    y_true : array-like of shape (n_samples,)
        Labels of any kind.
    y_proba : array-like of shape (n_samples,) or (n_samples, n_classes)
        Predicted probabilities, of the second of two labels or of all.
    labels : array-like of shape (n_classes,)
        Labels of the columns, in their order; None means the sorted labels of ``y_true``.
    """
)


def metric(**constraints: Any) -> Callable[[Function], Function]:
    """Return a decorator of metrics: arguments are arrays unless constrained, and documented."""

    def decorate(function: Function) -> Function:
        arguments = inspect.signature(function).parameters.values()
        arrays = {one.name: ["array-like"] + [None] * (one.default is None) for one in arguments}
        check = checked_arguments(arrays | constraints, prefer_skip_nested_validation=True)
        return documented(_ARGUMENTS)(check(function))

    return decorate


def numbers(values: Any, name: str, *, finite: bool | str = True) -> np.ndarray:
    """Return numbers as an array of any shape."""
    values = _plain(values, name)
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
    values = column_or_1d(_plain(values, name))
    assert_all_finite(values, input_name=name)
    if values.dtype == object and not all(isinstance(value, Hashable) for value in values):
        raise TypeError(f"{name} must hold labels: numbers, texts or booleans.")
    return values


def _plain(values: Any, name: str) -> Any:
    """Return tensors as arrays; refuse a mask, which would be ignored."""
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(f"{name} is a masked array. Leave out what is masked, in all arguments.")
    return from_tensor(values)
