"""Measures of classes other than entropies, against closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sklearn_quam import QUAMClassifier, ReferenceClassifier
from sklearn_quam._network.predictions import Categorical
from sklearn_quam._posterior.accumulate import CategoricalPosterior
from sklearn_quam._posterior.measures import LOSSES
from sklearn_quam.exceptions import BeyondRangeWarning

from ..networks import LABELS, X_NEW, X, dense, train

NUMERIC = settings(deadline=None, max_examples=50)
P, Q, R = [0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]
WEIGHTS = [0.25, 0.75]


def categorical(proba):
    return Categorical(torch.tensor(np.asarray(proba), dtype=torch.float64).log())


def posterior(measure, given_proba, probas, weights):
    found = CategoricalPosterior(categorical([given_proba]), measure)
    log_weights = torch.tensor(weights, dtype=torch.float64).log()[:, None]
    found.update(categorical([[proba] for proba in probas]), log_weights)
    return found


def assert_parts(u, aleatoric, epistemic):
    np.testing.assert_allclose(u.aleatoric, aleatoric, rtol=1e-12)
    np.testing.assert_allclose(u.epistemic, epistemic, rtol=1e-12)
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-15)


def test_brier_scores_by_hand():
    found = posterior("brier", P, [Q, R], WEIGHTS)
    # 1 - .25 - .09 - .04; squared distances of P and Q, P and R.
    assert_parts(found.uncertainty("given"), 0.62, 0.25 * 0.26 + 0.75 * 0.26)
    mean = np.array([0.175, 0.3, 0.525])
    own = 0.25 * (1 - 0.46) + 0.75 * (1 - 0.44)
    assert_parts(found.uncertainty("expected"), own, 1 - (mean**2).sum() - own)


def test_mistakes_by_hand():
    found = posterior("zero_one", P, [Q, R], WEIGHTS)
    # Q decides for the second class, R for the third: P says that this is right with .3 and .2.
    assert_parts(found.uncertainty("given"), 0.5, 0.25 * 0.2 + 0.75 * 0.3)
    # The mean decides for the third.
    assert_parts(found.uncertainty("expected"), 0.4, 0.475 - 0.4)


def test_models_that_decide_alike_make_no_more_mistakes():
    found = posterior("zero_one", P, [[0.9, 0.1, 0.0], [0.4, 0.3, 0.3]], WEIGHTS)
    for setting in ("given", "expected"):
        assert found.uncertainty(setting).epistemic == 0
        assert not found.all_agree(setting)
    assert posterior("zero_one", P, [P], [1.0]).all_agree("given")


PROBABILITIES = arrays(float, (4, 3), elements=st.floats(0.01, 1))


@NUMERIC
@given(PROBABILITIES, st.sampled_from(sorted(LOSSES)))
def test_losses_by_their_definition(values, measure):
    """Own and excess loss are expectations of what probabilities lose for each class."""
    p, q = np.split(values / values.sum(axis=1, keepdims=True), 2)
    loss = LOSSES[measure]
    of_p, of_q = (loss.of_classes(torch.tensor(proba)).numpy() for proba in (p, q))
    own = loss.own(categorical(p)).numpy()
    excess = loss.excess(categorical(p), categorical(q), torch.tensor(q)).numpy()
    np.testing.assert_allclose(own, (p * of_p).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(excess, (p * of_q).sum(axis=1) - own, rtol=1e-6, atol=1e-12)
    assert (excess >= 0).all()
    # What came true and was certain costs nothing.
    certain = loss.of_classes(torch.eye(3, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(np.diag(certain), 0, atol=1e-12)


@NUMERIC
@given(PROBABILITIES, arrays(float, 3, elements=st.floats(0.1, 1)), st.sampled_from(sorted(LOSSES)))
def test_expected_setting_is_the_mean_distance_from_the_mean(values, weights, measure):
    probas, weights = values / values.sum(axis=1, keepdims=True), weights / weights.sum()
    found = posterior(measure, probas[0], probas[1:], weights)
    u, loss = found.uncertainty("expected"), LOSSES[measure]
    mean = weights @ probas[1:]
    to_mean = loss.excess(
        categorical(probas[1:]),
        categorical(np.tile(mean, (3, 1))),
        torch.tensor(mean).expand(3, -1),
    )
    np.testing.assert_allclose(u.epistemic, weights @ to_mean.numpy(), rtol=1e-6, atol=1e-12)
    # The standard error of a weighted mean.
    spread = weights**2 @ (to_mean.numpy() - u.epistemic) ** 2
    np.testing.assert_allclose(found.standard_error("expected"), np.sqrt(spread), atol=1e-7)


@pytest.mark.parametrize("setting", ["given", "expected"])
def test_which_rows_are_beyond_the_range_is_no_matter_of_the_measure(setting):
    est = QUAMClassifier(train(dense(), X, LABELS), random_state=0, setting=setting).fit(X, LABELS)
    rows = np.repeat(X_NEW[:1], 12, axis=0)
    rows[:, 1] = 10.0 ** np.arange(12)
    found = []
    for measure in LOSSES:
        with pytest.warns(BeyondRangeWarning):
            u = est.set_params(measure=measure).predict_uncertainty(rows)
        assert np.isfinite(u).all()
        found.append(u.beyond_range)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    assert 0 < found[0].sum() < len(rows)


def test_measures_of_the_network_alone():
    est = ReferenceClassifier(train(dense(), X, LABELS)).fit(X, LABELS)
    proba = est.predict_proba(X_NEW)
    mistake = est.set_params(measure="zero_one").predict_uncertainty(X_NEW).total
    np.testing.assert_allclose(mistake, 1 - proba.max(axis=1), atol=1e-6)
    brier = est.set_params(measure="brier").predict_uncertainty(X_NEW).total
    np.testing.assert_allclose(brier, 1 - (proba**2).sum(axis=1), atol=1e-6)
    with pytest.raises(ValueError, match="measure"):
        est.set_params(measure="variance").predict_uncertainty(X_NEW)
