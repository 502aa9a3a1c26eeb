"""Metrics of anything: a number, or words about what is wrong."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sklearn_quam import metrics

from .cases import ANYTHING, NUMBERS, assert_no_nan, calmly, fuzz

LABELLED = st.sampled_from([0, 1, True, False, -1, 2, "a", "b", "", None, 0.5, np.nan, 10**30])
# The first two are what most metrics take.
CONTENTS = [st.sampled_from([0, 1]), st.floats(0, 1), NUMBERS, LABELLED, st.booleans(), st.just(1)]
KINDS = [
    list,
    np.array,
    tuple,
    pd.Series,
    lambda values: np.array(values, dtype=object),
    lambda values: np.ma.masked_array(values, mask=[True] + [False] * (len(values) - 1)),
    lambda values: torch.tensor(values, requires_grad=True),
    lambda values: torch.tensor(values, dtype=torch.bfloat16),
    lambda values: np.array(values)[:, None],
    lambda values: np.column_stack([values, values]),
    lambda values: pd.DataFrame({"a": values}),
    lambda values: pd.Series(values, dtype="Float64"),
    lambda values: pd.Series(values, dtype="category"),
    lambda values: np.array(values).astype("f2"),
    lambda values: np.array(values).astype("c8"),
    lambda values: np.array(values).astype("M8[s]"),
    lambda values: np.array(values).astype("S"),
    lambda values: (value for value in values),
]


@st.composite
def columns(draw, size, good=False):
    """Return a value for each row, in whatever it may come, or as it should."""
    content = draw(st.sampled_from(CONTENTS[:2] if good else CONTENTS))
    values = draw(st.lists(content, min_size=size, max_size=size))
    kind = draw(st.sampled_from(KINDS[:4] if good else KINDS))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return kind(values)
    except (TypeError, ValueError, OverflowError, RuntimeError, IndexError):
        return values


@st.composite
def passed(draw, n_arguments):
    """Return arguments of a metric, at most one of which is odd."""
    size, odd = draw(st.integers(1, 6)), draw(st.integers(0, n_arguments))
    anything = st.one_of(columns(size), ANYTHING)
    good = columns(size, good=True)
    return [draw(anything if number == odd else good) for number in range(n_arguments)]


OPTIONS = {
    "fpr_at_tpr": {"tpr": st.sampled_from([0.5, 1, 0, -1, np.nan, "a", None])},
    "expected_calibration_error": {
        "n_bins": st.sampled_from([1, 3, 0, 1.5, None, 40]),
        "strategy": st.sampled_from(["uniform", "quantile", "other", None]),
        "labels": st.one_of(st.none(), columns(2), ANYTHING),
    },
}
FUNCTIONS = sorted(name for name in metrics.__all__ if name[0].islower())
FUNCTIONS.remove("bootstrap_interval")
OF_THREE = ("gaussian_log_score", "interval_coverage")


@pytest.mark.parametrize("name", FUNCTIONS)
@fuzz
@given(data=st.data())
def test_metrics_of_anything(name, data):
    arguments = data.draw(passed(3 if name in OF_THREE else 2))
    known = OPTIONS.get(name, {})
    chosen = data.draw(st.sets(st.sampled_from(sorted(known)))) if known else ()
    options = {option: data.draw(known[option]) for option in chosen}
    assert_no_nan(calmly(lambda: getattr(metrics, name)(*arguments, **options)))


@fuzz
@given(
    name=st.sampled_from([name for name in FUNCTIONS if name != "accuracy_rejection_curve"]),
    data=st.data(),
    stratify=st.one_of(st.none(), columns(4), ANYTHING),
    confidence=st.sampled_from([0.9, 0, 1, np.nan, "a"]),
    n_resamples=st.sampled_from([1, 3, 0, 2.5]),
)
def test_intervals_of_anything(name, data, stratify, confidence, n_resamples):
    arguments = data.draw(passed(3 if name in OF_THREE else 2))
    options = {"confidence": confidence, "n_resamples": n_resamples, "stratify": stratify}
    metric = getattr(metrics, name)
    assert_no_nan(calmly(lambda: metrics.bootstrap_interval(metric, *arguments, **options)))
