"""Bootstrap confidence intervals for any metric."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import _num_samples, check_consistent_length, column_or_1d, indexable

from .._messages import checked_arguments, shown
from .._network.inputs.rows import from_tensor

_POSITIVE = Interval(Integral, 1, None, closed="left")


class BootstrapInterval(NamedTuple):
    """A metric and its bootstrap confidence interval.

    Parameters
    ----------
    value : float
        The metric on all samples.
    low, high : float
        Ends of the interval.

    Examples
    --------
    >>> from sklearn_quam.metrics import BootstrapInterval
    >>> BootstrapInterval(value=0.9, low=0.85, high=0.94).high
    0.94
    """

    value: float
    low: float
    high: float


@checked_arguments(
    {"metric": [callable], "random_state": ["random_state"], "stratify": ["array-like", None]}
    | {"confidence": [Interval(Real, 0, 1, closed="neither")], "n_resamples": [_POSITIVE]},
    prefer_skip_nested_validation=False,  # the metric has to check its own arguments
)
def bootstrap_interval(
    metric: Callable[..., Any],
    *arrays: Any,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    random_state: Any = None,
    stratify: Any = None,
    **kwargs: Any,
) -> BootstrapInterval:
    """Return a metric with the percentile bootstrap interval over samples.

    Parameters
    ----------
    metric : callable
        Called as ``metric(*arrays, **kwargs)``, returns a number.
    *arrays : array-likes of length n_samples
        Arguments of the metric; samples are resampled together.
    confidence : float, default=0.95
        Coverage asked for.
    n_resamples : int, default=1000
        How often to resample.
    random_state : int, RandomState instance or None, default=None
        Seeds the resampling.
    stratify : array-like of shape (n_samples,), default=None
        Resample within groups of equal values. Pass the labels where their numbers were chosen, or
        where a class is rare: a resample on which the metric is undefined is an error. Do not pass
        ``y_correct``, which would hold the accuracy fixed.
    **kwargs : dict
        Further arguments of the metric, by name.

    Returns
    -------
    BootstrapInterval
        The metric on all samples, and both ends.

    Examples
    --------
    >>> from sklearn.metrics import roc_auc_score
    >>> from sklearn_quam.metrics import bootstrap_interval
    >>> y, score = [0, 0, 0, 1, 1, 1], [0.1, 0.4, 0.2, 0.3, 0.8, 0.9]
    >>> auroc = bootstrap_interval(roc_auc_score, y, score, stratify=y, random_state=0)
    >>> auroc.low <= auroc.value <= auroc.high
    True
    """
    if not arrays:
        raise ValueError("bootstrap_interval needs at least one array to resample.")
    arrays = tuple(indexable(*map(from_tensor, arrays)))
    value = _scalar(metric(*arrays, **kwargs))
    groups = np.zeros(_num_samples(arrays[0]))
    if stratify is not None:
        groups = column_or_1d(from_tensor(stratify))
    check_consistent_length(arrays[0], groups)
    try:
        groups = np.unique(groups, return_inverse=True)[1]
    except TypeError as error:  # numbers and texts have no order
        raise TypeError("stratify must hold numbers or texts, not both.") from error
    strata = [np.flatnonzero(groups == group) for group in range(groups.max() + 1)]
    random = check_random_state(random_state)
    values = []
    for _ in range(n_resamples):
        rows = np.concatenate([random.choice(stratum, len(stratum)) for stratum in strata])
        resampled = [_safe_indexing(array, rows) for array in arrays]
        values.append(_metric_of_resample(metric, resampled, kwargs))
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return BootstrapInterval(value, float(low), float(high))


def _metric_of_resample(metric: Callable[..., Any], arrays: list, kwargs: dict) -> float:
    """Return the metric; say what to do where it is undefined."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UndefinedMetricWarning)
            value = _scalar(metric(*arrays, **kwargs))
        if not math.isfinite(value):
            raise ValueError(f"it is {value}")
    except (ValueError, UndefinedMetricWarning) as error:
        raise ValueError(
            "The metric is undefined on some resamples, perhaps because a class is missing there; "
            f"stratify=y_true keeps all classes. The first reason: {error}"
        ) from error
    return value


def _scalar(value: Any) -> float:
    if np.ndim(value) != 0:
        raise TypeError(f"The metric must return a single number, got {shown(value)}.")
    return float(value)
