"""scikit-learn's own checks, on every estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from sklearn_quam import ReferenceClassifier, ReferenceRegressor


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([ReferenceClassifier(), ReferenceRegressor()])
def test_scikit_learn_check(estimator, check):
    check(estimator)
