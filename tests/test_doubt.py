"""One number to decide by: mistakes and unknown rows together, as a share of known rows."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier, MLPRegressor

import sklearn_quam
from sklearn_quam import (
    LaplaceRegressor,
    QUAMClassifier,
    ReferenceClassifier,
    ReferenceRegressor,
)
from sklearn_quam.base._doubt import DoubtScale, Tail
from sklearn_quam.exceptions import BeyondRangeWarning

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40).map(np.array)


@given(numbers, numbers)
def test_rarity_never_falls_and_shares_lie_between_zero_and_one(known, new):
    tail = Tail.fit(known)
    rarity = tail.rarity(np.sort(new))
    assert (np.diff(rarity) >= 0).all()
    assert (rarity >= 0).all()
    share = tail.share(new)
    assert ((share >= 0) & (share <= 1)).all()


def test_shares_are_empirical_and_then_exponential():
    known = np.arange(1000.0)
    tail = Tail.fit(known)
    for value in (0, 100, 500, 850):
        assert tail.share(np.array([value])) == pytest.approx(value / 1001)
    # Beyond the 90 % quantile, at 899.1, values are 50 further out on average.
    beyond = known[known > 899.1].mean() - 899.1
    expected = -np.log(0.1) + (1200 - 899.1) / beyond
    assert tail.rarity(np.array([1200.0])) == pytest.approx(expected)


def test_new_rows_of_the_known_kind_have_the_share_that_is_said():
    rng = np.random.default_rng(0)
    risk, strange = rng.beta(1, 5, 2000), rng.exponential(size=2000)
    scale = DoubtScale.fit(risk[:1000], strange[:1000])
    doubt = scale.share(risk[1000:], strange[1000:])
    for share in (0.5, 0.8, 0.95):
        assert (doubt > share).mean() == pytest.approx(1 - share, abs=0.03)


def test_trust_is_what_the_network_is_sure_of_times_the_rarity():
    known = np.linspace(0, 1, 999)
    scale = DoubtScale.fit(np.full(999, 0.2), known)
    risk = np.array([0.0, 0.4, 0.4])
    # The share of known rows that are as strange; the first two are not among the strangest third.
    shares = np.array([1.0, 0.5, 0.2])
    trust = (1 - risk) * np.minimum(1, 3 * shares) ** 0.25
    found = np.exp(-scale.score(risk, 1 - shares))
    np.testing.assert_allclose(found, trust, rtol=1e-2)


@pytest.mark.parametrize("known", [np.zeros(30), np.full(30, 1e300), np.array([2.0])])
def test_known_rows_that_do_not_differ_are_not_strange(known):
    tail = Tail.fit(known)
    assert tail.rarity(known[:1]) == pytest.approx(0)
    assert tail.share(known[:1] * 0 - 1) == 0
    if known[0] < 1e300:
        assert tail.share(known[:1] + 1) > 0.99


X, y = load_digits(return_X_y=True)
X = X / 16
KNOWN, UNKNOWN = np.flatnonzero(y < 8), np.flatnonzero(y >= 8)[:100]
TRAIN, VAL, TEST = KNOWN[:500], KNOWN[500:700], KNOWN[700:900]


@pytest.fixture(scope="module")
def network():
    net = MLPClassifier([32], max_iter=300, learning_rate_init=5e-3, batch_size=64, random_state=0)
    return net.fit(X[TRAIN], y[TRAIN])


@pytest.fixture(scope="module")
def est(network):
    est = QUAMClassifier(network, random_state=0)
    return est.fit(X[TRAIN], y[TRAIN], X_val=X[VAL], y_val=y[VAL])


def test_doubt_finds_mistakes_and_unknown_rows(est):
    wrong = est.predict(X[TEST]) != y[TEST]
    u = est.predict_uncertainty(X[np.r_[TEST, UNKNOWN]])
    risk = 1 - est.predict_proba(X[np.r_[TEST, UNKNOWN]]).max(axis=1)
    bad = np.r_[wrong, np.ones(100, bool)]
    both = {"doubt": u.doubt, "risk": risk, "epistemic": u.epistemic}
    both = {name: roc_auc_score(bad, score) for name, score in both.items()}
    assert both["doubt"] > max(both["risk"], both["epistemic"])
    assert abs((u.doubt[:200] > 0.8).mean() - 0.2) < 0.1
    assert (u.doubt[200:] > 0.8).mean() > 0.6


def test_doubt_is_a_column_and_no_question_changes_it(est):
    rows = X[TEST[:20]]
    doubt = est.predict_doubt(rows)
    u = est.predict_uncertainty(rows)
    np.testing.assert_array_equal(u.doubt, doubt)
    assert list(u.to_frame()) == ["aleatoric", "epistemic", "total", "doubt"]
    assert "doubt" in repr(u[:3])
    other = pickle.loads(pickle.dumps(est)).set_params(setting="expected", measure="brier")
    assert other.predict_uncertainty(rows).doubt is None
    np.testing.assert_allclose(other.predict_doubt(rows), doubt)
    with pytest.warns(BeyondRangeWarning):
        assert np.isclose(est.predict_doubt(1e6 * rows[:1]), 1)


def test_doubt_survives_files_and_pickles_and_is_no_part_of_clones(est, tmp_path):
    est.save(tmp_path / "est")
    loaded = sklearn_quam.load(tmp_path / "est", est.estimator_)
    for other in (loaded, pickle.loads(pickle.dumps(est))):
        np.testing.assert_allclose(other.predict_doubt(X[TEST[:5]]), est.predict_doubt(X[TEST[:5]]))
    assert not hasattr(clone(est), "_known_rows")


def test_without_known_rows_doubt_says_what_it_takes(network):
    est = ReferenceClassifier(network).fit(X[TRAIN], y[TRAIN], X_val=X[VAL], y_val=y[VAL])
    est.fit(X[TRAIN], y[TRAIN])
    assert est.predict_uncertainty(X[:2]).doubt is None
    for ask in (est.predict_doubt, lambda _: est.threshold()):
        with pytest.raises(ValueError, match="Pass some of them to fit, as X_val and y_val"):
            ask(X[:2])


def test_doubt_of_the_network_alone_ranks_by_its_confidence(network):
    est = ReferenceClassifier(network).fit(X[TRAIN], y[TRAIN], X_val=X[VAL], y_val=y[VAL])
    risk = 1 - est.predict_proba(X[TEST]).max(axis=1)
    doubt = est.predict_doubt(X[TEST])
    assert (np.diff(doubt[np.argsort(risk)]) >= 0).all()


@pytest.mark.parametrize("component", ["aleatoric", "epistemic", "total", "doubt"])
def test_a_threshold_covers_new_rows(est, component):
    threshold = est.threshold(0.8, component=component)
    known = getattr(est.predict_uncertainty(X[VAL]), component)
    assert (known <= threshold).mean() == pytest.approx(0.8, abs=0.01)
    new = getattr(est.predict_uncertainty(X[TEST]), component)
    assert (new <= threshold).mean() == pytest.approx(0.8, abs=0.1)


def test_bad_thresholds_are_refused(est):
    with pytest.raises(ValueError, match="component must be one of"):
        est.threshold(component="both")
    with pytest.raises(ValueError, match="it takes at least 999"):
        est.threshold(0.999)
    with pytest.raises(ValueError, match="between 0 and 1"):
        est.threshold(95)


@pytest.mark.parametrize("shape", [(), (2,)])
def test_doubt_of_a_regressor_goes_with_its_interval(shape):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (240, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=240)
    y = np.column_stack([y, -y]) if shape else y
    net = MLPRegressor(hidden_layer_sizes=[16], max_iter=200, random_state=0).fit(X[:120], y[:120])
    held_out = {"X_val": X[120:], "y_val": y[120:]}
    est = LaplaceRegressor(net, random_state=0).fit(X[:120], y[:120], **held_out)
    rows = np.linspace(1, 4, 10)[:, None] * [[1.0, 1.0]]
    ends = est.predict_interval(rows)
    width = (ends[..., 1] - ends[..., 0]).reshape(10, -1).sum(axis=1)
    doubt = est.predict_doubt(rows)
    assert (np.argsort(doubt) == np.argsort(width)).all()
    assert doubt[-1] > 0.99
    alone = ReferenceRegressor(net).fit(X[:120], y[:120], **held_out)
    assert (alone.predict_doubt(rows) == 0).all()
