"""The threshold of `predict`: how many known rows are flagged that nobody has seen."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_wine, make_classification
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_quam.exceptions import SeenRowsWarning
from sklearn_quam.ood import (
    EnergyDetector,
    MahalanobisDetector,
    NearestNeighborDetector,
    PNMLDetector,
)
from sklearn_quam.ood._core.fitted import Known, cross_fitted
from sklearn_quam.ood._core.reading import Seen
from sklearn_quam.ood.last_layer import _directions

from .common import EACH, make_data, make_detector


def split(seed):
    X, y = load_wine(return_X_y=True)
    return train_test_split(X, y, test_size=0.25, random_state=seed, stratify=y)


@pytest.fixture(scope="module")
def networks():
    """Networks with a hundred features, of which 133 rows leave some open; data that they know."""
    found = []
    for seed in range(5):
        X, X_new, y, _ = split(seed)
        net = MLPClassifier(max_iter=1000, random_state=seed)
        found.append((make_pipeline(StandardScaler(), net).fit(X, y), X, y, X_new))
    return found


@pytest.mark.parametrize("name", EACH)
def test_few_known_rows_of_wine_are_flagged(name, networks):
    """At a contamination of .05; before rows were left out, up to 66 %."""
    flagged = [
        (make_detector(name, net).fit(X, y).predict(X_new) == -1).mean()
        for net, X, y, X_new in networks
    ]
    assert np.mean(flagged) <= 0.15
    held_out, others = [], slice(None, None, 2)
    for net, X, y, X_new in networks:
        detector = make_detector(name, net).fit(X, y, X_val=X_new[others])
        held_out.append((detector.predict(X_new[1::2]) == -1).mean())
    # A threshold that 23 rows set has (0.05 * 22 + 1) / 24, nearly 9 %, below it on average.
    assert np.mean(held_out) <= 0.13


def leave_one_out(detector, seen):
    """Return leverages of rows with respect to all others, the slow way."""
    rows = _directions(seen, detector.normalize)
    out = np.arange(len(rows))
    return np.array(
        [
            row @ np.linalg.solve(rows[out != i].T @ rows[out != i], row)
            for i, row in enumerate(rows)
        ]
    )


@pytest.mark.parametrize("normalize", [False, True])
def test_regret_without_the_row_itself(normalize):
    X, y = make_data()
    detector = make_detector("PNMLDetector", normalize=normalize).fit(X, y)
    reader, score = detector._fitted.reader, detector._fitted.score
    seen = reader(detector._check_rows(X, reader.reference))
    leverage = leave_one_out(detector, seen.features)
    own = score._leverage(seen)
    np.testing.assert_allclose(own / (1 - own), leverage, rtol=1e-6)
    known = score.left_out(seen)
    assert (known < score(seen)).all()
    np.testing.assert_allclose(detector.offset_, np.quantile(known, 0.05))


@pytest.mark.parametrize("n_rows", [10, 63, 1000, 4321, 12_000])
def test_rows_are_scored_by_others(n_rows):
    target = np.sort(np.random.default_rng(0).integers(0, 3, n_rows))
    numbers = np.arange(n_rows, dtype=float)[:, None]
    known, learnt = Known(Seen(numbers, numbers, numbers), target, None), []

    def learn(known):
        some, own = known.seen, known.target
        learnt.append(some.features[:, 0])
        assert len(np.unique(own)) == 3
        np.testing.assert_array_equal(own, target[some.features[:, 0].astype(int)])
        return lambda rows: rows.features[:, 0] + np.isin(rows.features, some.features).sum()

    scored = cross_fitted(learn, known)
    # Nobody is scored by itself, none twice, and there are enough.
    assert len(np.unique(scored)) == len(scored)
    assert np.isin(scored, numbers).all()
    assert len(scored) >= min(n_rows, 400)
    assert len(learnt) <= 5
    assert sum(map(len, learnt)) <= 5 * n_rows
    if n_rows >= 2000:
        assert len(learnt) == 1


def test_very_few_rows_are_scored_by_themselves():
    X, y = make_data(6)
    detector = make_detector("MahalanobisDetector").fit(X, y)
    assert np.isfinite(detector.offset_)


def test_rows_that_the_network_may_know_by_heart_are_named():
    X, y = make_classification(60, 20, n_informative=5, random_state=0)
    net = MLPClassifier(max_iter=500, random_state=0).fit(X[:40], y[:40])
    small = MLPClassifier((4,), max_iter=500, random_state=0).fit(X[:40, :4], y[:40])
    for kind in (EnergyDetector, MahalanobisDetector):
        detector = kind(net).fit(X[:40], y[:40])
        detector.score_samples(X[40:])
        with pytest.warns(SeenRowsWarning, match=r"fewer than 10 for each column: .* X_val=") as w:
            detector.predict(X[40:])
        assert w[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EnergyDetector(net).fit(X[:40], y[:40], X_val=X[40:]).predict(X)
        # What does not look at the network does not depend on what that has learnt.
        NearestNeighborDetector(net, layer="input").fit(X[:40], y[:40]).predict(X)
        PNMLDetector(small).fit(X[:40, :4], y[:40]).predict(X[:, :4])


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    X_train, X_val, y_train, y_val = train_test_split(X, y, test_size=0.4, random_state=0)
    net = make_pipeline(StandardScaler(), MLPClassifier(max_iter=200, random_state=0))
    return net.fit(X_train, y_train), X_train, y_train, X_val, y_val


@pytest.mark.parametrize("name", EACH)
def test_doubt_is_a_share_of_held_out_rows(name, wine):
    net, X_train, y_train, X_val, y_val = wine
    detector = make_detector(name, net).fit(X_train, y_train, X_val=X_val, y_val=y_val)
    doubt = detector.predict_doubt(X_val)
    assert ((doubt >= 0) & (doubt < 1)).all()
    # Each known row has as many others below it as its rank says.
    n_below = (doubt[:, None] > doubt).sum(axis=1)
    low = n_below < 0.85 * len(doubt)
    np.testing.assert_allclose(doubt[low], n_below[low] / (len(doubt) + 1), atol=1e-9)
    # The rank is the ceiling of 73 * 0.9.
    assert len(doubt) == 72
    assert detector.threshold(0.9) == pytest.approx(np.sort(doubt)[65])
    with pytest.raises(ValueError, match="cannot be promised"):
        detector.threshold(0.999)
    # Rows that only the score finds are doubtful, too.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (detector.predict_doubt(1e6 * X_val[:3]) > 0.99).all()


def test_doubt_needs_held_out_rows():
    X, y = load_wine(return_X_y=True)
    net = make_pipeline(StandardScaler(), MLPClassifier(max_iter=50, random_state=0)).fit(X, y)
    with pytest.raises(ValueError, match="Pass some of them to fit, as X_val"):
        EnergyDetector(net).fit(X, y).predict_doubt(X)
