"""Sets of labels: the most probable ones by all plausible models, and split conformal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.linear_model import LogisticRegression

from sklearn_quam import LaplaceClassifier, QUAMClassifier, ReferenceClassifier, load
from sklearn_quam.base._classifier import share_of_tail
from sklearn_quam.exceptions import BeyondRangeWarning

from .networks import LABELS, WORDS, X_NEW, X, dense, train

PROBABILITIES = arrays(
    float, (3, 5), elements=st.sampled_from([0.0, 1e-30, 0.1, 0.2, 0.25, 0.5, 1.0])
).filter(lambda p: (p.sum(axis=1) > 0).all())
COUNTS = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0]])


def test_share_of_tail_by_hand():
    expected = [[1.0, 0.5, 0.2], [0.4, 0.4, 1.0], [1.0, 0.0, 0.0]]
    np.testing.assert_allclose(share_of_tail(COUNTS), expected)


@settings(deadline=None, max_examples=50)
@given(PROBABILITIES)
def test_share_of_tail_is_the_sum_of_all_that_are_not_more_probable(proba):
    proba = proba / proba.sum(axis=1, keepdims=True)
    found = share_of_tail(proba)
    expected = [[row[row <= value].sum() for value in row] for row in proba]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=0)
    # Exactly, so that no threshold leaves the most probable label out.
    assert (found.max(axis=1) == 1).all()


@settings(deadline=None, max_examples=50)
@given(PROBABILITIES, st.floats(0.01, 0.99))
def test_labels_with_a_large_tail_are_the_smallest_set(proba, coverage):
    proba = proba / proba.sum(axis=1, keepdims=True)
    for row, chosen in zip(proba, share_of_tail(proba) > 1 - coverage, strict=True):
        assert row[chosen].sum() > coverage - 1e-9
        # Without the least probable ones of it, it would be too small.
        assert row[chosen & (row > row[chosen].min())].sum() < coverage + 1e-9


def noisy_labels(n_rows, seed):
    """Return rows of three classes that overlap."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n_rows)
    centres = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])
    return centres[y] + rng.normal(size=(n_rows, 2)), y


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [(ReferenceClassifier, {}), (LaplaceClassifier, {"n_samples": 8}), (QUAMClassifier, {})],
)
def test_calibrated_sets_cover_what_they_promise(kind, arguments):
    n_runs, n_val, n_new, coverage = 15, 29, 100, 0.8
    covered = []
    for seed in range(n_runs):
        rows, y = noisy_labels(40 + n_val + n_new, seed)
        train_, val, new = slice(0, 40), slice(40, 40 + n_val), slice(40 + n_val, None)
        net = LogisticRegression(C=1e6).fit(rows[train_], y[train_])
        net.coef_ *= 5  # a network that is far too sure
        est = kind(net, random_state=0, **arguments)
        est.fit(rows[train_], y[train_], X_val=rows[val], y_val=y[val])
        covered.append(est.predict_set(rows[new], coverage)[np.arange(n_new), y[new]].mean())
    error = 4 * np.sqrt(coverage * (1 - coverage) * (1 / n_val + 1 / n_new) / n_runs)
    # Labels come in lumps, so that sets may cover more.
    assert coverage - error < np.mean(covered) < coverage + 0.1 + error
    plain = est.fit(rows[train_], y[train_]).predict_set(rows[new], coverage)
    assert plain[np.arange(n_new), y[new]].mean() < np.mean(covered)


@pytest.mark.parametrize("more", [{}, {"X_val": X, "y_val": LABELS}])
def test_sets_of_quam_are_those_of_its_network_whatever_the_setting(more):
    net = train(dense(), X, LABELS)
    alone = ReferenceClassifier(net).fit(X, LABELS, **more).predict_set(X_NEW, 0.8)
    est = QUAMClassifier(net, random_state=0).fit(X, LABELS, **more)
    for setting in ("given", "expected"):
        chosen = est.set_params(setting=setting).predict_set(X_NEW, 0.8)
        np.testing.assert_array_equal(chosen, alone)


@pytest.mark.parametrize("kind", [ReferenceClassifier, QUAMClassifier])
@pytest.mark.parametrize("more", [{"X_val": X, "y_val": LABELS}])
def test_rows_beyond_the_range_may_be_anything(kind, more):
    est = kind(train(dense(), X, LABELS)).fit(X, LABELS, **more)
    rows = np.r_[X_NEW[:2], np.full((1, 4), 1e20, np.float32)]
    with pytest.warns(BeyondRangeWarning):
        chosen = est.predict_set(rows, 0.5)
    assert chosen[2].all()
    np.testing.assert_array_equal(chosen[:2], est.predict_set(X_NEW[:2], 0.5))


def test_labels_of_any_kind_are_calibrated_and_saved(tmp_path):
    net = train(dense(), X, LABELS)
    est = ReferenceClassifier(net).fit(X, WORDS[LABELS], X_val=X, y_val=WORDS[LABELS])
    same = ReferenceClassifier(net).fit(X, LABELS, X_val=X, y_val=LABELS)
    np.testing.assert_array_equal(est.predict_set(X_NEW), same.predict_set(X_NEW))
    est.save(tmp_path / "est")
    again = load(tmp_path / "est", net)
    np.testing.assert_array_equal(again.predict_set(X_NEW), est.predict_set(X_NEW))
    assert not hasattr(est.fit(X, WORDS[LABELS]), "conformal_scores_")


def test_held_out_rows_that_cannot_be_used_are_refused():
    est = ReferenceClassifier(train(dense(), X, LABELS))
    with pytest.raises(ValueError, match="pass both or neither"):
        est.fit(X, LABELS, X_val=X)
    with pytest.raises(ValueError, match="y_val has labels that y has not: 7"):
        est.fit(X, LABELS, X_val=X, y_val=np.where(LABELS == 2, 7, LABELS))
    with pytest.raises(ValueError, match="X_val has 60 rows, but y_val has 50"):
        est.fit(X, LABELS, X_val=X, y_val=LABELS[:50])
    assert not est.__sklearn_is_fitted__()
    with pytest.raises(ValueError, match="takes at least 99"):
        est.fit(X, LABELS, X_val=X, y_val=LABELS).predict_set(X_NEW, 0.99)
    with pytest.raises(ValueError, match="between 0 and 1"):
        est.predict_set(X_NEW, 90)


RARE = 0.03


def imbalanced(n_rows, seed):
    """Return rows of two classes that overlap; one of them is rare."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n_rows) < RARE).astype(int)
    return rng.normal(size=(n_rows, 2)) + 1.5 * y[:, None], y


def test_sets_of_each_class_cover_what_they_promise():
    """Rare labels are in their sets as often as others; on average over all rows they are not."""
    n_runs, n_val, n_new, coverage = 40, 1000, 1000, 0.9
    rows, y = imbalanced(1000, seed=0)
    net = LogisticRegression().fit(rows, y)
    est = ReferenceClassifier(net)
    hits = {False: [], True: []}
    for seed in range(1, n_runs + 1):
        new, labels = imbalanced(n_val + n_new, seed)
        est.fit(rows, y, X_val=new[:n_val], y_val=labels[:n_val])
        labels = labels[n_val:]
        for per_class, found in hits.items():
            chosen = est.predict_set(new[n_val:], coverage, per_class=per_class)
            assert chosen.any(axis=1).all()
            right = chosen[np.arange(n_new), labels]
            found.append([right[labels == k].mean() for k in (0, 1)])
    # Independent draws, whatever their coverage: three standard errors of the mean.
    mean = {per_class: np.mean(found, axis=0) for per_class, found in hits.items()}
    error = 3 * np.std(hits[True], axis=0) / np.sqrt(n_runs)
    assert (error < 0.08).all()
    assert (mean[True] > coverage - error).all()
    assert mean[False][1] < 0.5


def test_classes_with_too_few_held_out_rows_are_named():
    est = ReferenceClassifier(train(dense(), X, LABELS)).fit(X, WORDS[LABELS])
    with pytest.raises(ValueError, match="pass X_val and y_val to fit, at least 9 rows of each"):
        est.predict_set(X_NEW, 0.9, per_class=True)
    few = np.r_[np.flatnonzero(LABELS != 2), np.flatnonzero(LABELS == 2)[:3]]
    est.fit(X, WORDS[LABELS], X_val=X[few], y_val=WORDS[LABELS[few]])
    text = rf"at least 9 rows of X_val of each class, but '{WORDS[2]}' has 3\. Hold out more rows"
    with pytest.raises(ValueError, match=text):
        est.predict_set(X_NEW, 0.9, per_class=True)
    # Three rows are enough for three quarters.
    assert est.predict_set(X_NEW, 0.75, per_class=True).shape == (len(X_NEW), 3)


def test_classes_are_calibrated_by_their_own_rows(tmp_path):
    net = train(dense(), X, LABELS)
    est = ReferenceClassifier(net).fit(X, LABELS, X_val=X, y_val=LABELS)
    share = share_of_tail(est.predict_proba(X))
    chosen = est.predict_set(X, 0.6, per_class=True)
    for k in range(3):
        own = np.sort(share[k == LABELS, k])[::-1]
        smallest = own[int(np.ceil((len(own) + 1) * 0.6 - 1e-9)) - 1]
        np.testing.assert_array_equal(chosen[:, k], share[:, k] >= smallest)
    est.save(tmp_path / "est.npz")
    again = load(tmp_path / "est.npz", net)
    np.testing.assert_array_equal(again.predict_set(X, 0.6, per_class=True), chosen)
    assert not hasattr(est.fit(X, LABELS), "conformal_labels_")
