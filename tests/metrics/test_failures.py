"""Measures of failures and of calibration, against closed forms and slow versions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from sklearn_quam.metrics import (
    augrc,
    classwise_calibration_error,
    excess_augrc,
    expected_calibration_error,
    failure_auroc,
    rank_correlation,
    smooth_calibration_error,
)

outcomes = st.integers(2, 30).flatmap(
    lambda n: st.tuples(
        st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda c: 0 < sum(c) < len(c)),
        st.lists(st.integers(0, 6), min_size=n, max_size=n),
    )
)


@settings(deadline=None, max_examples=30)
@given(outcomes)
def test_augrc_has_a_closed_form(outcome):
    correct, doubt = map(np.array, outcome)
    accuracy = correct.mean()
    auroc = roc_auc_score(~correct, doubt)
    expected = (1 - auroc) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert augrc(~correct, doubt) == pytest.approx(expected)
    best = (1 - accuracy) ** 2 / 2
    assert excess_augrc(~correct, doubt) == pytest.approx(expected - best, abs=1e-12)
    assert failure_auroc(correct, doubt) == pytest.approx(auroc)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=20))
def test_no_order_rejects_failures_sooner_than_their_losses(losses):
    doubt = np.arange(len(losses))
    assert augrc(losses, losses) <= augrc(losses, doubt) * (1 + 1e-9)
    assert excess_augrc(losses, losses) == 0
    assert augrc([2 * loss for loss in losses], doubt) == pytest.approx(2 * augrc(losses, doubt))


def test_unknown_rows_are_failures():
    correct, known, unknown = [True, False, True], [0.1, 0.2, 0.3], [0.4, 0.15]
    # Pairs of a failure and a correct row that are in order: .2, .4 and .15 against .1 and .3.
    assert failure_auroc(correct, known, unknown) == pytest.approx(4 / 6)
    assert failure_auroc([True] * 3, known, unknown) == pytest.approx(4 / 6)
    with pytest.raises(ValueError, match="No samples are failures"):
        failure_auroc([True] * 3, known)
    with pytest.raises(ValueError, match="All samples are failures"):
        failure_auroc([False] * 3, known, unknown)


def test_rank_correlation_knows_order_only():
    first = np.random.default_rng(0).normal(size=50)
    assert rank_correlation(first, np.exp(first)) == pytest.approx(1)
    assert rank_correlation(first, -(first**3)) == pytest.approx(-1)
    assert rank_correlation(first, np.zeros(50)) == 0


def slow_smooth_error(confidence, correct, width, n_points=4000):
    """Return the integral of smoothed gaps, by a kernel that is reflected at both ends."""
    at = (np.arange(n_points) + 0.5) / n_points
    images = [sign * confidence + 2 * k for k in range(-4, 5) for sign in (-1, 1)]
    kernel = sum(np.exp(-(((at[:, None] - one) / width) ** 2) / 2) for one in images)
    kernel = kernel / (width * np.sqrt(2 * np.pi))
    return np.abs(kernel @ (correct - confidence)).mean() / len(confidence)


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_the_smooth_error_is_its_own_width(power):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 400)
    correct = rng.uniform(size=400) < confidence**power
    proba = np.column_stack([1 - confidence, confidence])
    found = smooth_calibration_error(correct.astype(int), proba)
    assert slow_smooth_error(confidence, correct, found) == pytest.approx(found, rel=2e-2)


def test_the_smooth_error_of_a_constant_gap_is_the_gap():
    y = np.repeat([1, 0], [60, 40])
    proba = np.full(100, 0.9)
    assert smooth_calibration_error(y, proba) == pytest.approx(0.3, abs=1e-3)
    assert expected_calibration_error(y, proba) == pytest.approx(0.3)


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 4), st.integers(1, 40), st.integers(1, 12), st.integers(0, 1000))
def test_classwise_error_is_the_mean_over_labels_and_bins(n_labels, n_rows, n_bins, seed):
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.ones(n_labels), n_rows)
    y = rng.integers(0, n_labels, n_rows)
    total = 0.0
    for label in range(n_labels):
        for low in np.arange(n_bins) / n_bins:
            inside = (proba[:, label] > low) & (proba[:, label] <= low + 1 / n_bins)
            total += abs(((y == label) - proba[:, label])[inside].sum())
    found = classwise_calibration_error(y, proba, n_bins=n_bins, labels=range(n_labels))
    assert found == pytest.approx(total / n_rows / n_labels)
