"""Bounds of probabilities over all plausible models that QUAM finds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from sklearn_quam import PenaltySearch, QUAMClassifier
from sklearn_quam.exceptions import BeyondRangeWarning

from .networks import BINARY, LABELS, X_NEW, X, dense, train

SEARCHES = {"natural": "natural", "linear": "linear", "penalty": PenaltySearch(n_steps=20)}
FITTED = {}


def fitted(name):
    if name not in FITTED:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = train(dense(), X, LABELS)
        FITTED[name] = QUAMClassifier(net, search=SEARCHES[name], random_state=0).fit(X, LABELS)
    return FITTED[name]


@settings(deadline=None, max_examples=8)
@given(st.sampled_from(sorted(SEARCHES)), st.floats(0, 50), st.floats(0, 50))
def test_bounds_hold_the_given_network_and_widen_with_the_slack(name, first, second):
    est, rows = fitted(name), X_NEW[:4]
    proba = est.predict_proba(rows)
    (low, high), (lower, upper) = (
        est.predict_proba_bounds(rows, slack) for slack in sorted([first, second])
    )
    assert low.shape == high.shape == proba.shape
    assert ((lower >= 0) & (upper <= 1)).all()
    # The widest hold the others, and these the given network, which may run in single precision.
    assert (lower <= low + 1e-12).all()
    assert (low <= proba + 1e-6).all()
    assert (proba <= high + 1e-6).all()
    assert (high <= upper + 1e-12).all()


def test_bounds_hold_the_averages_of_models_within_the_slack():
    est = fitted("penalty")
    lower, upper = est.predict_proba_bounds(X_NEW[:3])
    for row, models in enumerate(est.adversarial_models(X_NEW[:3])):
        for model in models:
            if model["feasible"]:
                assert (model["prediction"] >= lower[row] - 1e-6).all()
                assert (model["prediction"] <= upper[row] + 1e-6).all()
    assert (upper - lower).max() > 0.1


@pytest.mark.parametrize("search", ["natural", "linear"])
def test_bounds_of_a_linear_model_in_closed_form(search):
    """Near the given model a cost of s nats allows a log-odds ratio of sqrt(2 s v) to both sides.

    There it is exact: the curvature is the sum of p (1 - p) x x', which a Kronecker product holds
    where p is alike for all rows.
    """
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 4))
    net = LogisticRegression(C=1e-6).fit(rows, BINARY)
    est = QUAMClassifier(net, search=search).set_params(search__prior_precision=1e-9)
    if search == "natural":
        est.set_params(search__n_rows=60, search__n_steps=400)
    est.fit(rows, BINARY)
    p = net.predict_proba(rows)[:, 1]
    assert np.ptp(p) < 1e-3
    design = np.c_[rows, np.ones(60)]
    covariance = np.linalg.inv(design.T @ (design * (p * (1 - p))[:, None]))
    log_odds = net.decision_function(rows[:6])
    variance = np.einsum("ni,ij,nj->n", design[:6], covariance, design[:6])
    for slack in (0.01, 0.1):
        shift = np.sqrt(2 * slack * variance)
        lower, upper = est.predict_proba_bounds(rows[:6], slack)
        for sign, bound in ((1, upper[:, 1]), (-1, lower[:, 1])):
            part_of_way = sign * (np.log(bound / (1 - bound)) - log_odds) / shift
            np.testing.assert_allclose(part_of_way, 1, rtol=0.02)
        np.testing.assert_allclose(lower[:, 0], 1 - upper[:, 1], atol=1e-6)


def test_bounds_by_hand_on_a_recorded_path():
    """Where a path leaves the slack, roots of costs and log-odds are interpolated."""
    est, slack = fitted("natural"), 3.0
    _, upper = est.predict_proba_bounds(X_NEW[:4], slack)
    for row, traces in enumerate(est.search_traces(X_NEW[:4])):
        highest = np.zeros(3)
        for trace in traces:
            root = np.sqrt(trace["loss_increase"] * len(X))
            proba = trace["prediction"].clip(1e-30, 1 - 1e-12)
            log_odds = np.log(proba / (1 - proba))
            for step, model in enumerate(log_odds):
                if root[step] <= slack**0.5:
                    highest = np.maximum(highest, 1 / (1 + np.exp(-model)))
                elif root[step - 1] <= slack**0.5:
                    part = (slack**0.5 - root[step - 1]) / (root[step] - root[step - 1])
                    between = log_odds[step - 1] + part * (model - log_odds[step - 1])
                    highest = np.maximum(highest, 1 / (1 + np.exp(-between)))
        np.testing.assert_allclose(upper[row], highest, rtol=1e-3, atol=1e-6)


def test_a_row_does_not_depend_on_the_others():
    est = fitted("natural")
    together = np.array(est.predict_proba_bounds(X_NEW[:5], 2.0))
    alone = [np.array(est.predict_proba_bounds(row[None], 2.0))[:, 0] for row in X_NEW[:5]]
    np.testing.assert_allclose(together, np.stack(alone, axis=1), atol=1e-5)


def test_rows_beyond_the_range_may_have_any_probability():
    est = fitted("linear")
    rows = np.r_[X_NEW[:1], np.full((1, 4), 1e20, np.float32)]
    with pytest.warns(BeyondRangeWarning):
        lower, upper = est.predict_proba_bounds(rows)
    assert (lower[1] == 0).all()
    assert (upper[1] == 1).all()
    np.testing.assert_allclose(est.predict_proba_bounds(rows[:1])[0], lower[:1])


@pytest.mark.parametrize("slack", [-1, np.nan, np.inf, "much"])
def test_slack_that_is_none_is_refused(slack):
    with pytest.raises(ValueError, match="pass a number of nats"):
        fitted("linear").predict_proba_bounds(X_NEW, slack)
