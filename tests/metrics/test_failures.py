"""Measures of failures and of calibration, against closed forms and slow versions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from sklearn_quam.metrics import (
    augrc,
    failure_auroc,
    rank_correlation,
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
    assert failure_auroc(correct, doubt) == pytest.approx(auroc)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=20))
def test_no_order_rejects_failures_sooner_than_their_losses(losses):
    doubt = np.arange(len(losses))
    assert augrc(losses, losses) <= augrc(losses, doubt) * (1 + 1e-9)
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
