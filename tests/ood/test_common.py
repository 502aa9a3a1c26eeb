"""scikit-learn's own checks, on every detector."""

from functools import partial

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from sklearn_quam import ood
from sklearn_quam.base import _reading

from .common import ARGUMENTS, test_every_detector_is_tested  # noqa: F401

WITHOUT_LABELS = "fit(X) without labels needs a given network; these checks pass none"
EXPECTED_FAILURES = {
    "check_outliers_train": WITHOUT_LABELS,
    "check_outliers_fit_predict": WITHOUT_LABELS,
}
DETECTORS = {
    name: getattr(ood, name.partition(",")[0])(**arguments)
    for name, arguments in ARGUMENTS.items()
    if arguments.get("layer") is None
}
# One that reads logits, one that is fitted to features; "make test-slow" checks all of them.
FIRST = ["EnergyDetector", "MahalanobisDetector"]
checks_of = partial(parametrize_with_checks, expected_failed_checks=lambda _: EXPECTED_FAILURES)


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch):
    default = _reading.default_network

    def small(task):
        return default(task).set_params(network__hidden_layer_sizes=(8,), network__max_iter=50)

    monkeypatch.setattr(_reading, "default_network", small)


@pytest.mark.filterwarnings("ignore")
@checks_of([DETECTORS[name] for name in FIRST])
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@checks_of([DETECTORS[name] for name in DETECTORS if name not in FIRST])
def test_scikit_learn_check_of_the_others(estimator, check):
    check(estimator)
