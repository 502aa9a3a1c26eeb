"""The given network alone: its entropy, and no epistemic uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._documented import CLASSIFIER, REGRESSOR, documented
from .._network.inputs.rows import Inputs, StoredRows
from .._network.limits import Limits, rows_at_once
from .._network.predictions import Prediction
from .._posterior.accumulate import Posterior
from .._posterior.fitted import FittedMethod, Question
from .._typing import Device, NoiseVariance, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._data import FitData
from ..base._regressor import BaseUncertaintyRegressor


@dataclass(frozen=True)
class GivenModel:
    """The only plausible model is the given one."""

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:  # noqa: ARG002
        """Return how many rows are worked on together."""
        return rows_at_once(inputs)

    def sample(
        self,
        inputs: Inputs,  # noqa: ARG002
        original: Prediction,
        posterior: Posterior,
        question: Question,  # noqa: ARG002
    ) -> dict[str, np.ndarray]:
        """Hand over the given model's own prediction; see `Models`."""
        posterior.update(original[None])
        return {}


class _OnlyTheGivenModel:
    """Fills in the hook."""

    _fitted_kind = FittedMethod[GivenModel]

    def _fit_models(self, fit: FitData) -> GivenModel:  # noqa: ARG002
        return GivenModel()


@documented(CLASSIFIER)
class ReferenceClassifier(_OnlyTheGivenModel, BaseUncertaintyClassifier):
    """The given network alone, as a point of comparison.

    Its aleatoric uncertainty is the entropy of the predicted probabilities, which is what most
    people use today; the epistemic uncertainty is exactly zero, because no other model is
    considered.

    Parameters
    ----------
    setting : {"given", "expected", "pairwise"}, default="given"
        Whose prediction is judged. With a single model both are the same.
    random_state : int, RandomState instance or None, default=None
        Seeds the training of an unfitted estimator.

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

    def __init__(
        self,
        estimator: Any = None,
        *,
        link: str | None = None,
        output: str | int | None = None,
        setting: str = "given",
        measure: str = "entropy",
        device: Device = None,
        random_state: RandomState = None,
        verbose: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.link = link
        self.output = output
        self.setting = setting
        self.measure = measure
        self.device = device
        self.random_state = random_state
        self.verbose = verbose


@documented(REGRESSOR, ReferenceClassifier)
class ReferenceRegressor(_OnlyTheGivenModel, BaseUncertaintyRegressor):
    """The given network alone, as a point of comparison.

    Its aleatoric uncertainty is the entropy (or the variance) of the predicted Gaussian; the
    epistemic uncertainty is exactly zero, because no other model is considered.

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

    def __init__(
        self,
        estimator: Any = None,
        *,
        link: str | None = None,
        output: str | int | None = None,
        setting: str = "given",
        measure: str = "entropy",
        noise_variance: NoiseVariance = None,
        device: Device = None,
        random_state: RandomState = None,
        verbose: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.link = link
        self.output = output
        self.setting = setting
        self.measure = measure
        self.noise_variance = noise_variance
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
