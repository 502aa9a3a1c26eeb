"""Metrics against slow versions, closed forms, scikit-learn and numbers computed by hand."""

import inspect
import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    mean_squared_error,
    roc_auc_score,
    roc_curve,
)

from sklearn_quam.metrics import (
    accuracy_rejection_auc,
    accuracy_rejection_curve,
    aupr,
    bootstrap_interval,
    excess_augrc,
    expected_calibration_error,
    fpr_at_tpr,
    gaussian_log_score,
    interval_coverage,
    risk_coverage_auc,
)

NUMERIC = settings(deadline=None, max_examples=25)


def close(actual, expected, rtol=1e-10, atol=1e-12):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=rtol, atol=atol)


# Few different scores, so that ties are common.
detection_rows = st.lists(
    st.tuples(st.booleans(), st.integers(-4, 4)), min_size=2, max_size=25
).filter(lambda rows: len({label for label, _ in rows}) == 2)
rejection_rows = st.lists(st.tuples(st.floats(0, 1), st.integers(-4, 4)), min_size=1, max_size=25)


def column(rows, number):
    return np.array([row[number] for row in rows], dtype=float)


# Detection.


def slow_fpr(y_true, y_score, tpr):
    """Count hits and alarms at every threshold, and look at those where the curve turns."""
    points = []
    for threshold in [math.inf, *sorted(set(y_score), reverse=True)]:
        reported = [score >= threshold for score in y_score]
        hits = sum(int(y) for r, y in zip(reported, y_true, strict=True) if r)
        points.append((hits, sum(reported) - hits))
    corners = [
        (hits, alarms)
        for i, (hits, alarms) in enumerate(points)
        if i in (0, 1, len(points) - 1)  # scikit-learn keeps the first threshold in any case
        or (points[i + 1][0] - hits, points[i + 1][1] - alarms)
        != (hits - points[i - 1][0], alarms - points[i - 1][1])
    ]
    best_distance, best_fpr = math.inf, None
    for hits, alarms in corners:
        distance = abs(hits / sum(y_true) - tpr)
        if distance < best_distance - 1e-9:
            best_distance, best_fpr = distance, alarms / (len(y_true) - sum(y_true))
    return best_fpr


def slow_aupr(y_true, y_score):
    points = [(0.0, 1.0)]
    for threshold in sorted(set(y_score), reverse=True):
        reported = [y for y, score in zip(y_true, y_score, strict=True) if score >= threshold]
        points.append((sum(reported) / sum(y_true), sum(reported) / len(reported)))
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))


@NUMERIC
@given(detection_rows, st.sampled_from([0.05, 0.5, 0.7, 0.95, 1.0]))
def test_detection_metrics_agree_with_counting(rows, tpr):
    y_true, y_score = column(rows, 0), column(rows, 1)
    close(fpr_at_tpr(y_true, y_score, tpr=tpr), slow_fpr(y_true, y_score, tpr))
    close(aupr(y_true, y_score), slow_aupr(y_true, y_score))


@pytest.mark.slow
@NUMERIC
@given(detection_rows, st.randoms(use_true_random=False))
def test_detection_metrics_see_only_the_order_of_scores(rows, random):
    y_true, y_score = column(rows, 0), column(rows, 1)
    order = random.sample(range(len(rows)), len(rows))
    for metric in (fpr_at_tpr, aupr):
        value = metric(y_true, y_score)
        assert 0 <= value <= 1
        close(metric(y_true, np.exp(y_score / 2) + 3), value)
        close(metric(y_true[order], y_score[order]), value)
        close(metric(2 * y_true - 1, y_score), value)
        close(metric(y_true.astype(bool), y_score.astype(np.float32)), value)


def test_detection_by_hand():
    # By falling score: 1, 0, 1, 1, 0, 1, 0, 0.
    y_true = np.array([0, 1, 0, 1, 1, 0, 1, 0])
    y_score = np.array([1, 8, 2, 6, 5, 4, 3, 7])
    # TPR 3/4 is first met after one false alarm of four, TPR 1 after two.
    assert fpr_at_tpr(y_true, y_score, tpr=0.75) == 0.25
    assert fpr_at_tpr(y_true, y_score, tpr=0.95) == 0.5
    assert fpr_at_tpr(y_true, y_score, tpr=0.25) == 0.0
    # (recall, precision): (0,1) (1/4,1) (1/4,1/2) (2/4,2/3) (3/4,3/4) (3/4,3/5) (1,4/6) ...
    # Trapezoids: 1/4 + (1/2+2/3)/8 + (2/3+3/4)/8 + (3/5+2/3)/8.
    close(aupr(y_true, y_score), 1 / 4 + (7 / 6 + 17 / 12 + 19 / 15) / 8)


def test_fpr_is_read_where_the_curve_turns():
    # Scores fall from 1, 0, 0, 1, 1, 1: TPR 1/2 lies within the last run, TPR 1/4 is its corner.
    y_true, y_score = [1, 0, 0, 1, 1, 1], [6, 5, 4, 3, 2, 1]
    assert fpr_at_tpr(y_true, y_score, tpr=0.5) == 0.0
    assert fpr_at_tpr(y_true, y_score, tpr=0.95) == 1.0


def test_fpr_of_equally_near_thresholds_is_the_smaller():
    # TPRs 0.6 and 0.7, both where the curve turns, are equally near to 0.65.
    y_true, y_score = np.array([1] * 6 + [0, 1, 0] + [1] * 3), np.arange(12)[::-1]
    assert fpr_at_tpr(y_true, y_score, tpr=0.65) == 0.0
    # In floating point 0.7 is nearer.
    fprs, tprs, _ = roc_curve(y_true, y_score)
    assert fprs[np.abs(tprs - 0.65).argmin()] == 0.5


def test_perfect_useless_and_inverted_scores():
    y_true = np.r_[np.zeros(30), np.ones(10)]
    assert fpr_at_tpr(y_true, y_true) == 0
    assert aupr(y_true, y_true) == 1
    assert fpr_at_tpr(y_true, -y_true) == 1
    assert fpr_at_tpr(y_true, np.ones(40)) == 1
    # From (0, 1) straight to (1, 1/4); the step-wise area is 1/4.
    close(aupr(y_true, np.ones(40)), 5 / 8)
    assert average_precision_score(y_true, np.ones(40)) == 0.25


# Rejection.


def slow_curve(values, uncertainty):
    """Average over all orders that keep the most certain rows first."""
    rows = range(len(values))
    orders = [
        order
        for order in itertools.permutations(rows)
        if all(uncertainty[a] <= uncertainty[b] for a, b in itertools.pairwise(order))
    ]
    curves = [[np.mean([values[i] for i in o[: k + 1]]) for k in rows] for o in orders]
    return np.mean(curves, axis=0)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2)), min_size=1, max_size=6))
def test_rejection_curve_is_the_average_over_random_orders_of_ties(rows):
    values, uncertainty = column(rows, 0), column(rows, 1)
    fraction, accuracy = accuracy_rejection_curve(values, uncertainty)
    expected = slow_curve(values, uncertainty)
    close(fraction, np.arange(1, len(rows) + 1) / len(rows))
    close(accuracy, expected)
    close(accuracy_rejection_auc(values, uncertainty), np.mean(expected))
    close(risk_coverage_auc(7 * values, uncertainty), 7 * np.mean(expected))


@pytest.mark.slow
@NUMERIC
@given(rejection_rows, st.randoms(use_true_random=False))
def test_rejection_properties(rows, random):
    values, uncertainty = column(rows, 0), column(rows, 1)
    order = random.sample(range(len(rows)), len(rows))
    area = accuracy_rejection_auc(values, uncertainty)
    assert 0 <= area <= 1
    close(accuracy_rejection_curve(values, uncertainty)[1][-1], values.mean())
    close(accuracy_rejection_auc(values, np.full(len(rows), 3.0)), values.mean())
    close(accuracy_rejection_auc(values, np.exp(uncertainty)), area)
    close(accuracy_rejection_auc(values[order], uncertainty[order]), area)
    close(risk_coverage_auc(1 - values, uncertainty), 1 - area, atol=1e-9)
    best, worst = (risk_coverage_auc(values, order) for order in (values, -values))
    assert best - 1e-12 <= risk_coverage_auc(values, uncertainty) <= worst + 1e-12


def test_rejection_by_hand():
    # By rising uncertainty: correct, {correct, wrong}, wrong; the pair counts half a row each.
    y_correct, uncertainty = [False, True, True, False], [9.0, 1.0, 2.0, 2.0]
    fraction, accuracy = accuracy_rejection_curve(y_correct, uncertainty)
    close(fraction, [0.25, 0.5, 0.75, 1])
    close(accuracy, [1, 1.5 / 2, 2 / 3, 2 / 4])
    close(accuracy_rejection_auc(y_correct, uncertainty), (1 + 3 / 4 + 2 / 3 + 1 / 2) / 4)
    # Losses 4, 0, 2 by rising uncertainty have the means 4, 2, 2; sorted, they have 0, 1, 2.
    close(risk_coverage_auc([0, 2, 4], [2, 3, 1]), 8 / 3)


def test_area_of_a_perfect_order_of_many_rows():
    # All of a fraction a correct, then wrong: the area tends to a - a log a.
    y_correct = np.arange(100_000) < 70_000
    area = accuracy_rejection_auc(y_correct, np.arange(100_000))
    close(area, 0.7 - 0.7 * math.log(0.7), rtol=1e-5)


# Calibration.


def slow_calibration_error(y_true, y_proba, n_bins):
    bins = {}
    for label, proba in zip(y_true, y_proba, strict=True):
        top = max(range(len(proba)), key=lambda k: proba[k])
        number = next(b for b in range(n_bins) if proba[top] <= (b + 1) / n_bins + 1e-15)
        bins.setdefault(number, []).append((proba[top], label == top))
    total = 0.0
    for members in bins.values():
        confidence, accuracy = np.mean(members, axis=0)
        total += len(members) / len(y_true) * abs(confidence - accuracy)
    return total


@pytest.mark.parametrize("n_bins", [1, 4, 15])
def test_calibration_error_agrees_with_a_slow_version(n_bins):
    rng = np.random.default_rng(n_bins)
    y_proba = rng.dirichlet([0.7, 0.7, 0.7], size=300)
    y_true = rng.integers(3, size=300)
    expected = slow_calibration_error(y_true, y_proba, n_bins)
    close(expected_calibration_error(y_true, y_proba, n_bins=n_bins), expected)
    names = np.array(["c", "a", "b"])  # columns in this order
    error = expected_calibration_error(names[y_true], y_proba, n_bins=n_bins, labels=names)
    close(error, expected)
    y_sorted = y_proba[:, [1, 2, 0]]
    close(expected_calibration_error(names[y_true], y_sorted, n_bins=n_bins), expected)
    order = rng.permutation(300)
    error = expected_calibration_error(y_true[order], y_proba[order], n_bins=n_bins)
    close(error, expected)


@NUMERIC
@given(detection_rows, st.sampled_from(["uniform", "quantile"]), st.integers(1, 20))
def test_calibration_of_binary_probabilities(rows, strategy, n_bins):
    y_true, y_proba = column(rows, 0), (column(rows, 1) + 4) / 8
    options = {"strategy": strategy, "n_bins": n_bins}
    error = expected_calibration_error(y_true, y_proba, **options)
    assert 0 <= error <= 1
    both = np.column_stack([1 - y_proba, y_proba])
    close(expected_calibration_error(y_true, both, **options), error)
    close(expected_calibration_error(y_true, y_proba[:, None], **options), error)
    one_bin = abs(np.mean(np.maximum(y_proba, 1 - y_proba) - (y_true == (y_proba > 0.5))))
    close(expected_calibration_error(y_true, y_proba, n_bins=1), one_bin)
    assert error >= one_bin - 1e-12


def test_calibration_by_hand():
    # Confidences 0.6 (wrong), 0.6 (right), 0.9 (right), 0.9 (right). Uniform halves put all four
    # together; tenths and quantiles part 0.6 from 0.9, and each pair is off by 0.1.
    y_true, y_proba = ["y", "y", "y", "n"], [0.4, 0.6, 0.9, 0.1]
    close(expected_calibration_error(y_true, y_proba, n_bins=2), abs(3 / 4 - 0.75))
    close(expected_calibration_error(y_true, y_proba, n_bins=10), (0.1 + 0.1) / 2)
    error = expected_calibration_error(y_true, y_proba, n_bins=2, strategy="quantile")
    close(error, (0.1 + 0.1) / 2)


def test_probability_on_an_edge_belongs_to_the_lower_bin():
    # With edges 0, 1/2, 3/4, 1: 0.75 (right) shares a bin with 0.7 (wrong), not with 0.9.
    error = expected_calibration_error([1, 0, 1], [0.75, 0.7, 0.9], n_bins=4)
    close(error, (abs(0.75 + 0.7 - 1) + 0.1) / 3)


# Gaussians and intervals.


@pytest.mark.parametrize("shape", [(20,), (20, 1), (20, 3)])
def test_gaussian_log_score_agrees_with_scipy(shape):
    rng = np.random.default_rng(0)
    y_true, mean, variance = rng.normal(size=shape), rng.normal(size=shape), rng.random(shape) + 0.1
    log_density = norm(mean, np.sqrt(variance)).logpdf(y_true).reshape(20, -1)
    close(gaussian_log_score(y_true, mean, variance), log_density.sum(axis=1).mean())
    log_density = norm(mean, np.sqrt(2.5)).logpdf(y_true).reshape(20, -1)
    close(gaussian_log_score(y_true, mean, 2.5), log_density.sum(axis=1).mean())


def test_interval_coverage_by_hand():
    # Inside, on the lower end, on the upper end, below, above.
    y_true, lower, upper = [1, 2, 3, 4, 5], [0, 2, 0, 5, 0], [2, 3, 3, 6, 4]
    assert interval_coverage(y_true, lower, upper) == 3 / 5
    assert interval_coverage(y_true, np.full(5, -np.inf), np.full(5, np.inf)) == 1
    assert interval_coverage([[1, 9], [1, 1]], np.zeros((2, 2)), np.full((2, 2), 2)) == 3 / 4


# Bootstrap.


def test_bootstrap_interval_of_a_mean_has_its_standard_error():
    values = np.random.default_rng(0).normal(size=400)
    result = bootstrap_interval(np.mean, values, n_resamples=2000, random_state=0)
    half_width = norm.ppf(0.975) * values.std() / 20
    assert result.value == values.mean()
    close([result.low, result.high], values.mean() + half_width * np.array([-1, 1]), atol=0.01)
    narrow = bootstrap_interval(np.mean, values, confidence=0.5, random_state=0)
    close(narrow.high - narrow.low, 2 * norm.ppf(0.75) * values.std() / 20, atol=0.01)


@pytest.mark.slow
def test_bootstrap_is_seeded_and_keeps_rows_together():
    rng = np.random.default_rng(0)
    y_true, y_pred = rng.normal(size=(2, 50))
    first, again, other = (
        bootstrap_interval(mean_squared_error, y_true, y_pred, n_resamples=50, random_state=seed)
        for seed in (0, 0, 1)
    )
    assert first == again != other
    paired = bootstrap_interval(mean_squared_error, y_true, y_true, random_state=0)
    assert paired == (0, 0, 0)


def test_stratified_bootstrap_keeps_the_numbers_of_each_group():
    groups = np.array(["a"] * 3 + ["b"] * 7)

    def share(rows):
        return np.mean(rows == "a")

    stratified = bootstrap_interval(share, groups, stratify=groups, random_state=0)
    assert stratified == (0.3, 0.3, 0.3)
    plain = bootstrap_interval(share, groups, random_state=0)
    assert plain.low < 0.3 < plain.high
    # Groups still vary inside.
    varying = bootstrap_interval(np.mean, np.arange(10.0), stratify=groups, random_state=0)
    assert varying.low < 4.5 < varying.high


@pytest.mark.parametrize("metric", [roc_auc_score, aupr, f1_score])
def test_undefined_resamples_are_an_error_that_says_what_to_do(metric):
    y_true, y_score = [0] * 10 + [1], [0] * 10 + [1]
    with pytest.raises(ValueError, match=r"undefined on some resamples.*stratify=y_true"):
        bootstrap_interval(metric, y_true, y_score, random_state=0)
    bootstrap_interval(metric, y_true, y_score, stratify=y_true, random_state=0, n_resamples=20)


def test_bootstrap_errors():
    with pytest.raises(ValueError, match="at least one array"):
        bootstrap_interval(np.mean)
    with pytest.raises(ValueError, match="inconsistent"):
        bootstrap_interval(accuracy_score, [0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="inconsistent"):
        bootstrap_interval(np.mean, [0.0, 1.0], stratify=[0, 1, 1])
    with pytest.raises(TypeError, match="single number"):
        bootstrap_interval(accuracy_rejection_curve, [0, 1], [0, 1])
    with pytest.raises(ValueError, match="it is nan"):
        bootstrap_interval(lambda x: np.nan, [0.0])
    with pytest.raises(ValueError, match="'confidence' parameter"):
        bootstrap_interval(np.mean, [0.0], confidence=1.0)
    with pytest.raises(ValueError, match="'n_resamples' parameter"):
        bootstrap_interval(np.mean, [0.0], n_resamples=0)


# Bad input.


ROWS = {
    fpr_at_tpr: ([0, 1, 1], [0.1, 0.2, 0.3]),
    aupr: ([0, 1, 1], [0.1, 0.2, 0.3]),
    accuracy_rejection_curve: ([0, 1, 1], [0.1, 0.2, 0.3]),
    accuracy_rejection_auc: ([0, 1, 1], [0.1, 0.2, 0.3]),
    risk_coverage_auc: ([0, 1, 1], [0.1, 0.2, 0.3]),
    excess_augrc: ([0, 1, 1], [0.1, 0.2, 0.3]),
    expected_calibration_error: ([0, 1, 1], [0.1, 0.2, 0.3]),
    gaussian_log_score: ([0, 1, 1], [0.1, 0.2, 0.3], [1, 1, 1]),
    interval_coverage: ([0, 1, 1], [0.1, 0.2, 0.3], [1, 1, 1]),
}
POSITIONS = [(metric, place) for metric, rows in ROWS.items() for place in range(len(rows))]


@pytest.mark.parametrize(("metric", "place"), POSITIONS)
def test_bad_arrays_are_named(metric, place):
    name = list(inspect.signature(metric).parameters)[place]

    def call(bad):
        metric(*(bad if i == place else rows for i, rows in enumerate(ROWS[metric])))

    with pytest.raises(ValueError, match=f"Input {name} contains NaN"):
        call([0.0, 1.0, np.nan])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        call(ROWS[metric][place][:2])
    with pytest.raises(ValueError, match=f"The '{name}' parameter"):
        call("text")
    if name not in ("lower", "upper"):
        with pytest.raises(ValueError, match=f"Input {name} contains infinity"):
            call([0.0, 1.0, np.inf])


@pytest.mark.parametrize("metric", [fpr_at_tpr, aupr])
@pytest.mark.parametrize(
    ("y_true", "message"),
    [
        ([1, 1, 1], "only one class, 1"),
        ([0, 0, 0], "only one class, 0"),
        ([0, 1, 2], r"must be 0 or 1.*got \[0, 1, 2\]"),
        (["a", "b", "a"], r"must be 0 or 1.*got \['a', 'b'\]"),
    ],
)
def test_detection_needs_two_known_classes(metric, y_true, message):
    with pytest.raises(ValueError, match=message):
        metric(y_true, [0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fpr_at_tpr([0, 1], [0, 1], tpr=1.5), "'tpr' parameter"),
        (lambda: fpr_at_tpr([0, 1], [0, 1], tpr=0), "'tpr' parameter"),
        (lambda: fpr_at_tpr([0, 1], [[0, 1], [1, 1]]), "1d array"),
        (lambda: accuracy_rejection_auc([0, 2], [0, 1]), "y_correct must lie between 0 and 1"),
        (lambda: accuracy_rejection_curve([0, -0.1], [0, 1]), "y_correct must lie between 0 and"),
        (lambda: risk_coverage_auc([0, -1], [0, 1]), "loss must lie between 0 and inf"),
        (lambda: expected_calibration_error([0, 1], [0, 1.1]), "y_proba must lie between 0 and 1"),
        (lambda: expected_calibration_error([0, 1], [[0.5, 0.4]] * 2), "must sum to one"),
        (lambda: expected_calibration_error([1, 1], [0.5, 0.4]), "2 classes, but there are 1 la"),
        (lambda: expected_calibration_error([0, 1], [[0.2, 0.3, 0.5]] * 2), "labels="),
        (lambda: expected_calibration_error([0, 1], [0, 1], labels=[0, 0, 1]), "labels="),
        (lambda: expected_calibration_error([0, 1], [0, 1], labels=[0, 2]), r"a column: \[1\]"),
        (lambda: expected_calibration_error([0, 1], [0, 1], labels=["0", "1"]), "without a column"),
        (lambda: expected_calibration_error([0, 1], [0, 1], n_bins=0), "'n_bins' parameter"),
        (lambda: expected_calibration_error([0, 1], [0, 1], strategy="x"), "'strategy' param"),
        (lambda: gaussian_log_score([0, 1], [0, 1], [1, 0]), "variance must be above zero"),
        (lambda: gaussian_log_score([0, 1], [0, 1], -1.0), "variance must be above zero"),
        (lambda: gaussian_log_score([0, 1], [[0, 1], [1, 1]], 1.0), "mean, variance must have the"),
        (lambda: interval_coverage([0, 1], [0, 2], [1, 1]), "lower is above upper"),
        (lambda: aupr([0, 1], torch.empty(2, device="meta")), "'meta' device"),
        (lambda: aupr([0, 1], np.ma.masked_array([1, 2], [0, 1])), "y_score is a masked array"),
        (lambda: aupr([0, 1], pd.Series(["a", "b"])), "y_score must hold numbers"),
        (lambda: aupr([0, 1], pd.Series(["a", "b"], dtype="category")), "must hold numbers"),
    ],
)
def test_wrong_values_get_a_useful_message(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: expected_calibration_error(np.array(["a", 1], dtype=object), [0, 1]),
            "labels of several kinds",
        ),
        (lambda: expected_calibration_error([{"a": 1}, {"a": 2}], [0, 1]), "must hold labels"),
        (lambda: aupr([{"a": 1}, {"a": 2}], [0, 1]), "y_true must hold labels"),
        (
            lambda: bootstrap_interval(np.mean, [0, 1], stratify=np.array(["a", 1], dtype=object)),
            "numbers or texts, not both",
        ),
    ],
)
def test_wrong_kinds_get_a_useful_message(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([0.0, 1.0, 3.0, 2.0], requires_grad=True),
        torch.tensor([0.0, 1.0, 3.0, 2.0], dtype=torch.bfloat16),
        torch.tensor([0.0, 1.0, 3.0, 2.0]).to_sparse(),
    ],
)
def test_tensors_of_any_kind_are_numbers(tensor):
    assert aupr([0, 1, 0, 1], tensor) == aupr([0, 1, 0, 1], [0, 1, 3, 2])
    interval = bootstrap_interval(np.mean, tensor, stratify=tensor, random_state=0)
    assert interval == (1.5, 1.5, 1.5)


def test_losses_whose_sum_is_no_number_have_a_mean():
    huge = np.full(4, 1.7e308)
    close(risk_coverage_auc(huge, [1, 2, 3, 4]), 1.7e308)
    assert excess_augrc(huge, [1, 2, 3, 4]) == 0
