"""scikit-learn's own checks, on every detector."""

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
# One that reads logits only, one with moments of features.
NAMES = ["MaxLogitDetector, any norm", "MahalanobisDetector"]
DETECTORS = [getattr(ood, name.partition(",")[0])(**ARGUMENTS[name]) for name in NAMES]


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch):
    default = _reading.default_network

    def small(task):
        return default(task).set_params(network__hidden_layer_sizes=(8,), network__max_iter=5)

    monkeypatch.setattr(_reading, "default_network", small)


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(DETECTORS, expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_scikit_learn_check(estimator, check):
    check(estimator)
