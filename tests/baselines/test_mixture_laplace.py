"""Mixtures of Laplace approximations against their members."""

import pickle

import numpy as np
import pytest
from sklearn.utils import check_random_state

from sklearn_quam import (
    LaplaceClassifier,
    LaplaceRegressor,
    MixtureLaplaceClassifier,
    MixtureLaplaceRegressor,
)

from ..curvature.slow_curvature import close, seeded
from ..networks import LABELS, TARGET, X64, X64_NEW, dense
from .test_laplace import NOISE, PRECISION, TARGET64, each_structure, linear, uncertainties

MIXTURES = [
    (MixtureLaplaceClassifier, LaplaceClassifier, 3, LABELS),
    (MixtureLaplaceRegressor, LaplaceRegressor, 1, TARGET),
]
each_mixture = pytest.mark.parametrize(("mixture", "single", "n_out", "y"), MIXTURES)


@each_structure
@each_mixture
def test_a_mixture_of_one_is_that_one(mixture, single, n_out, y, structure):
    module = seeded(dense, n_out)
    options = {"structure": structure, "n_samples": 16}
    mixed = mixture(estimators=[module], random_state=0, **options).fit(X64, y)
    seed = check_random_state(0).randint(np.iinfo(np.int32).max)
    alone = single(module, random_state=seed, **options).fit(X64, y)
    for first, second in zip(uncertainties(mixed), uncertainties(alone), strict=True):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(mixed.predict(X64_NEW), alone.predict(X64_NEW))


@each_mixture
def test_a_mixture_of_identical_networks_is_one_of_them_with_more_draws(mixture, single, n_out, y):
    module = seeded(dense, n_out)
    mixed = mixture(estimators=[module] * 3, random_state=0, n_samples=512).fit(X64, y)
    alone = single(module, random_state=1, n_samples=512).fit(X64, y)
    for first, second in zip(uncertainties(mixed), uncertainties(alone), strict=True):
        np.testing.assert_allclose(first, second, rtol=0.02, atol=2e-3)
    if single is LaplaceRegressor:
        options = {"estimators": [module] * 3, "measure": "variance"}
        alone.set_params(measure="variance")
        for first, second in zip(
            uncertainties(mixture(**options).fit(X64, y)), uncertainties(alone), strict=True
        ):
            close(first, second)


def test_the_average_of_a_mixture_is_that_of_its_members():
    modules = [dense().double(), dense().double(), seeded(dense)]
    options = {"setting": "expected", "n_samples": 512, "random_state": 0}
    mixed = MixtureLaplaceClassifier(estimators=modules, **options).fit(X64, LABELS)
    each = [
        LaplaceClassifier(m, **options).fit(X64, LABELS).predict_proba(X64_NEW) for m in modules
    ]
    np.testing.assert_allclose(mixed.predict_proba(X64_NEW), np.mean(each, axis=0), atol=2e-3)
    same = MixtureLaplaceClassifier(estimators=modules[-1:] * 2, **options).fit(X64, LABELS)
    np.testing.assert_allclose(same.predict_proba(X64_NEW), each[-1], atol=2e-3)
    stored = pickle.loads(pickle.dumps(mixed))
    np.testing.assert_array_equal(stored.predict_proba(X64_NEW), mixed.predict_proba(X64_NEW))


def test_a_mixture_adds_what_its_members_disagree_about():
    """Variance of a mixture: the mean of the variances plus the variance of the means."""
    modules = [linear([1.0, 0, 0, 0]), linear([0, 1.0, 0, 0]), linear([0, 0, 1.0, 1.0])]
    options = {"prior_precision": PRECISION, "noise_variance": NOISE, "measure": "variance"}
    mixed = MixtureLaplaceRegressor(estimators=modules, setting="expected", **options)
    mixed.fit(X64, TARGET64)
    parts = [LaplaceRegressor(m, **options).fit(X64, TARGET64) for m in modules]
    means = np.array([part.predict(X64_NEW) for part in parts])
    within = np.mean([part.predict_uncertainty(X64_NEW).epistemic for part in parts], axis=0)
    close(mixed.predict(X64_NEW), means.mean(axis=0), 1e-8)
    close(mixed.predict_uncertainty(X64_NEW).epistemic, within + means.var(axis=0), 1e-8)
