"""scikit-learn's own checks, on every estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from sklearn_quam import (
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    ReferenceRegressor,
)

ESTIMATORS = [
    ReferenceClassifier(),
    ReferenceRegressor(),
    QUAMClassifier(n_steps=2),
    QUAMRegressor(n_steps=2),
]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator, check):
    check(estimator)
