"""The given network alone: its entropy, and no epistemic uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._arguments import arguments
from .._documented import CLASSIFIER, REGRESSOR, documented
from .._network.inputs.rows import Inputs, StoredRows
from .._network.limits import Limits, rows_at_once
from .._network.predictions import Prediction
from .._posterior.accumulate import Posterior
from .._posterior.fitted import FittedMethod, Question
from ..base._data import FitData
from ..base._estimator import BaseUncertaintyEstimator
from ._method import ClassifierMethod, RegressorMethod


@dataclass(frozen=True)
class GivenModel:
    """The given network as the only plausible model."""

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:  # noqa: ARG002
        """Return how many samples are worked on together."""
        return rows_at_once(inputs)

    def sample(
        self,
        inputs: Inputs,  # noqa: ARG002
        original: Prediction,
        posterior: Posterior,
        question: Question,  # noqa: ARG002
    ) -> dict[str, np.ndarray]:
        """Add the given network's own prediction to the accumulator; see `Models`."""
        posterior.update(original[None])
        return {}


class _Reference(BaseUncertaintyEstimator):
    _fitted_kind = FittedMethod[GivenModel]

    def _fit_models(self, fit: FitData) -> GivenModel:  # noqa: ARG002
        return GivenModel()


@documented(CLASSIFIER)
@arguments
class ReferenceClassifier(ClassifierMethod, _Reference):
    """The given network alone, as a point of comparison.

    Its aleatoric uncertainty is the entropy (for regressors, the entropy or the variance) of its
    prediction; its epistemic uncertainty is exactly zero, because no other model is considered.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import ReferenceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", max_iter=1000, random_state=0).fit(X, y)
    >>> est = ReferenceClassifier(net).fit(X, y)
    >>> est.predict_uncertainty(X[:2]).epistemic
    array([0., 0.])
    """


@documented(REGRESSOR, ReferenceClassifier)
@arguments
class ReferenceRegressor(RegressorMethod, _Reference):
    """The given network alone, as a point of comparison.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> from sklearn_quam import ReferenceRegressor
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> y = np.array([0.0, 1.5, 1.5, 3.0])
    >>> est = ReferenceRegressor(LinearRegression().fit(X, y), measure="variance").fit(X, y)
    >>> est.predict_uncertainty(X[:2]).total.round(4)
    array([0.1125, 0.1125])
    """
