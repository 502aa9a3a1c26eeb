"""Training rows that come batch by batch: the same as all at once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neural_network import MLPClassifier

from sklearn_quam import load
from sklearn_quam.ood._core.moments import MomentDetector, moments_of

from ..networks import fitted as fit_quietly
from .common import NAMES, make_data, make_detector, make_module

X, Y = make_data(90)
X_NEW = make_data(20, seed=1)[0] * 1.5
STREAMING = [name for name in NAMES if isinstance(make_detector(name), MomentDetector)]


@pytest.fixture(params=STREAMING)
def name(request):
    return request.param


def in_batches(detector, order=slice(None), y=Y, size=30):
    for start in range(0, len(X), size):
        rows = slice(start, start + size)
        detector.partial_fit(X[order][rows], None if y is None else y[order][rows])
    return detector


def test_some_detectors_take_batches():
    assert len(STREAMING) >= 4


@pytest.mark.parametrize("labels", [Y, None], ids=["labels", "none"])
def test_batches_are_the_same_as_all_rows(name, labels):
    at_once = make_detector(name).fit(X, labels)
    found = in_batches(make_detector(name), y=labels)
    np.testing.assert_allclose(
        found.score_samples(X_NEW), at_once.score_samples(X_NEW), rtol=1e-6, atol=1e-9
    )


def test_a_fit_is_continued_and_classes_may_come_late(name):
    order = np.argsort(Y, kind="stable")
    at_once = make_detector(name).fit(X, Y)
    continued = make_detector(name).fit(X[order][:30], Y[order][:30])
    continued.partial_fit(X[order][30:], Y[order][30:])
    np.testing.assert_allclose(
        continued.score_samples(X_NEW), at_once.score_samples(X_NEW), rtol=1e-6, atol=1e-9
    )


def test_held_out_rows_set_the_threshold(name):
    detector = make_detector(name, contamination=0.25).fit(X[:30], Y[:30])
    detector.partial_fit(X[30:], Y[30:], X_val=X_NEW)
    assert (detector.predict(X_NEW) == -1).sum() == 5
    np.testing.assert_allclose(
        detector.offset_, np.quantile(detector.score_samples(X_NEW), 0.25), rtol=1e-9
    )


def test_rows_of_the_last_batch_are_scored_by_others(name):
    """About as many are flagged as were asked for, where the last batch is most of them."""
    detector = make_detector(name).fit(X[:20], Y[:20])
    detector.partial_fit(X[20:], Y[20:])
    scores = detector.score_samples(X)
    assert (scores < detector.offset_).mean() <= 0.15


def test_a_saved_detector_goes_on(name, tmp_path):
    first = make_detector(name).fit(X[:40], Y[:40])
    first.save(tmp_path / "detector")
    again = load(tmp_path / "detector", estimator=make_module(seed=5))
    for detector in (first, again):
        detector.partial_fit(X[40:], Y[40:])
    np.testing.assert_allclose(again.score_samples(X_NEW), first.score_samples(X_NEW), rtol=1e-9)


@pytest.mark.filterwarnings("error::sklearn_quam.exceptions.BeyondRangeWarning")
def test_rows_are_known_by_their_own_batch(name):
    detector = make_detector(name).fit(X[:40] / 1000, Y[:40])
    detector.partial_fit(X[40:], Y[40:])
    assert np.isfinite(detector.score_samples(X)).all()


def test_what_does_not_fit_is_refused(name):
    detector = make_detector(name).fit(X[:40], Y[:40])
    with pytest.raises(ValueError, match="is none of the labels"):
        detector.partial_fit(X[:3], ["a", "b", "c"])
    with pytest.raises(ValueError, match="3 samples, but 2 labels"):
        detector.partial_fit(X[:3], Y[:2])
    with pytest.raises(ValueError, match="features"):
        detector.partial_fit(X[:, :2], Y)
    detector.set_params(contamination=0.1)
    with pytest.raises(ValueError, match="contamination"):
        detector.partial_fit(X, Y)


def test_a_network_is_trained_by_the_first_batch(name):
    net = MLPClassifier((8,), max_iter=20, random_state=0)
    detector = fit_quietly(make_detector(name, net), X[:60], Y[:60])
    weights = detector.estimator_.coefs_[0].copy()
    detector.partial_fit(X[60:], Y[60:])
    np.testing.assert_array_equal(detector.estimator_.coefs_[0], weights)


@settings(max_examples=50)
@given(
    n_rows=st.integers(1, 40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    offset=st.sampled_from([0.0, 1e3]),
    seed=st.integers(0, 5),
)
def test_moments_add_up(n_rows, cuts, offset, seed):
    rng = np.random.default_rng(seed)
    rows, group = rng.normal(size=(n_rows, 3)) + offset, rng.integers(0, 4, n_rows)
    ends = [0, *sorted(min(cut, n_rows) for cut in cuts), n_rows]
    batches = [slice(a, b) for a, b in pairwise(ends)]
    found = sum(
        (moments_of(rows[batch], group[batch], 4) for batch in batches[1:]),
        start=moments_of(rows[batches[0]], group[batches[0]], 4),
    )
    expected = moments_of(rows, group, 4)
    np.testing.assert_allclose(found.counts, expected.counts)
    np.testing.assert_allclose(found.means, expected.means, rtol=1e-9)
    np.testing.assert_allclose(found.scatter, expected.scatter, atol=1e-7)
    together = expected.together()
    np.testing.assert_allclose(together.means[0], rows.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(together.scatter, np.cov(rows.T, bias=True) * n_rows, atol=1e-6)
