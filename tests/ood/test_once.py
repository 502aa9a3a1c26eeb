"""Several detectors of one network: what it shows is read once, and nothing else changes."""

import numpy as np
import pytest
from sklearn.base import clone
from torch import nn

from sklearn_quam.exceptions import SeenRowsWarning
from sklearn_quam.model_selection import compare_uncertainty
from sklearn_quam.ood._core.once import clock, read_once

from .common import EACH, make_data, make_detector, make_module

X, Y = make_data()
X_NEW = make_data(n_samples=15, seed=1)[0]
ON_FEATURES = [name for name in EACH if "layer" not in make_detector(name).get_params()]


class Counting(nn.Module):
    """Counts the rows that it is asked for; copies count together."""

    rows = 0

    def __init__(self):
        super().__init__()
        self.layers = make_module()

    def forward(self, x):
        Counting.rows += len(x)
        return self.layers(x)


def ask_all(network, names):
    found = {}
    for name in names:
        detector = clone(make_detector(name, network)).fit(X, Y)
        detector._network_prediction(X_NEW)
        found[name] = (detector.score_samples(X_NEW), detector.offset_, detector.classes_.tolist())
    return found


def test_scores_are_the_same_to_the_last_digit():
    network = make_module()
    expected = ask_all(network, EACH)
    with read_once():
        found = ask_all(network, EACH)
    for name in EACH:
        np.testing.assert_array_equal(found[name][0], expected[name][0])
        assert found[name][1:] == expected[name][1:]


def test_the_network_runs_for_the_first_detector_only():
    network = Counting()
    with read_once():
        ask_all(network, ON_FEATURES[:1])
        after_one = Counting.rows
        ask_all(network, ON_FEATURES)
        assert Counting.rows == after_one > 0
        ask_all(Counting(), ON_FEATURES[:1])
        assert Counting.rows == 2 * after_one
    ask_all(network, ON_FEATURES[:2])
    assert Counting.rows == 4 * after_one


def test_other_arguments_rows_and_labels_are_read_anew():
    network = make_module()
    with read_once():
        first = make_detector("MahalanobisDetector", network).fit(X, Y)
        others = [
            (make_detector("MahalanobisDetector", network, layer="0"), (X, Y)),
            (make_detector("MahalanobisDetector", network), (X + 1, Y)),
            (make_detector("MahalanobisDetector", network), (X, Y[::-1].copy())),
        ]
        for detector, data in others:
            scores = detector.fit(*data).score_samples(X_NEW)
            assert not np.allclose(scores, first.score_samples(X_NEW))
            alone = clone(detector).fit(*[part.copy() for part in data])
            np.testing.assert_array_equal(scores, alone.score_samples(X_NEW.copy()))


def test_seconds_that_were_saved_are_counted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Slow(Counting):
        def forward(self, x):
            now[0] += 1.0
            return super().forward(x)

    network = Slow()
    with read_once():
        start = clock()
        make_detector("EnergyDetector", network).fit(X, Y)
        first = clock() - start
        start, began = clock(), now[0]
        make_detector("MaxLogitDetector", network).fit(X, Y)
        assert now[0] == began
        assert clock() - start == first > 0
    assert clock() == now[0]


def test_a_fit_that_fails_leaves_nothing_that_answers():
    with read_once():
        detector = make_detector("NearestNeighborDetector, guided").fit(X, Y)
        detector.set_params(metric="euclidean")
        with pytest.raises(ValueError, match="metric='cosine'"):
            detector.fit(X, Y)
        assert not hasattr(detector, "_fitted")


def test_thresholds_of_few_rows_still_warn():
    network = make_module()
    with read_once():
        for name in ("EnergyDetector", "GENDetector"):
            detector = make_detector(name, network).fit(X[:20], Y[:20])
            with pytest.warns(SeenRowsWarning, match="threshold is set by training rows"):
                detector.predict(X_NEW)


def test_compared_detectors_share_the_network():
    network = Counting()
    detectors = [make_detector(name, network) for name in ON_FEATURES]
    data = (X[:40], Y[:40], X[40:], Y[40:], X_NEW)
    counts = []
    for some in (detectors[:1], detectors[:4]):
        before = Counting.rows
        frame = compare_uncertainty(some, *data, n_resamples=5).details
        counts.append(Counting.rows - before)
        assert frame.fit_seconds.dropna().gt(0).all()
        assert frame.rows_per_second.dropna().gt(0).all()
    assert counts[0] == counts[1]
