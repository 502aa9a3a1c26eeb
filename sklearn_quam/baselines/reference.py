"""The given network alone: its entropy, and no epistemic uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

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


class ReferenceClassifier(_OnlyTheGivenModel, BaseUncertaintyClassifier):
    """The given network alone, as a point of comparison.

    Its aleatoric uncertainty is the entropy of the predicted probabilities, which is what most
    people use today; the epistemic uncertainty is exactly zero, because no other model is
    considered.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        A fitted skorch net, a trained module, a fitted scikit-learn ``MLPClassifier`` or
        ``LogisticRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None
        trains a small network on scaled inputs.
    link : {"logits", "log_probabilities", "probabilities", "binary_logit"}, default=None
        What the network returns: scores, logarithms of probabilities, probabilities, or the one
        score of the second of two classes. None takes it from a skorch net's criterion, and means
        logits for a plain module.
    output : str or int, default=None
        Which output is meant, by its name or number, if the network returns several. None takes
        ``logits``, or what comes first.
    setting : {"given", "expected"}, default="given"
        Whose prediction is judged. With a single model both are the same.
    measure : {"entropy", "brier", "zero_one"}, default="entropy"
        Entropies in nats, Brier scores, or zero-one losses.
    device : str or torch.device, default=None
        Where to run; None stays where the network is.
    random_state : int, RandomState instance or None, default=None
        Seeds the training of an unfitted estimator.
    verbose : int, default=None
        1 shows progress bars, 0 none; None shows those that take more than about ten seconds.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels.
    conformal_scores_ : ndarray of shape (n_val, ...)
        How far off the targets of held-out rows are, by what was predicted for them: sorted. Only
        if ``X_val`` was passed to ``fit``.
    conformal_labels_ : ndarray of shape (n_val,)
        Columns of the labels of these rows, in the same order.
    logit_scale_ : float
        What logits are multiplied by in ``predict_proba`` with ``setting="expected"``: the inverse
        of the temperature of temperature scaling. 1 if no ``X_val`` was passed to ``fit``.
    estimator_ : estimator or torch.nn.Module
        The fitted network.
    reference_loss_ : float
        Mean negative log-likelihood of the network on the training data.
    n_features_in_ : int
        Number of features seen by ``fit``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X has any.

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


class ReferenceRegressor(_OnlyTheGivenModel, BaseUncertaintyRegressor):
    """The given network alone, as a point of comparison.

    Its aleatoric uncertainty is the entropy (or the variance) of the predicted Gaussian; the
    epistemic uncertainty is exactly zero, because no other model is considered.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        A fitted skorch net, a trained module, a fitted scikit-learn ``MLPRegressor``, ``Ridge`` or
        ``LinearRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None
        trains a small network on scaled inputs.
    link : {"mean", "mean_variance", "mean_log_variance"}, default=None
        What the network returns; two parts are a tuple, or the two halves of the columns. None
        takes it from a skorch net's criterion, such as ``MSELoss`` for the mean; of other modules
        it takes a tuple for mean and variance, anything else for the mean.
    output : str or int, default=None
        Which output is meant, by its name or number, if the network returns several. None takes
        ``logits``, or what comes first.
    setting : {"given", "expected"}, default="given"
        Whose prediction is judged. With a single model both are the same.
    measure : {"entropy", "variance"}, default="entropy"
        Entropies in nats, or variances in squared units of the target.
    noise_variance : float or array-like of shape (n_outputs,), default=None
        Variance around the mean, for networks that predict the mean only. None measures it by the
        residuals of the training data, or of half of ``X_val`` if ``fit`` gets that.
    device : str or torch.device, default=None
        Where to run; None stays where the network is.
    random_state : int, RandomState instance or None, default=None
        Seeds the training of an unfitted estimator.
    verbose : int, default=None
        1 shows progress bars, 0 none; None shows those that take more than about ten seconds.

    Attributes
    ----------
    estimator_ : estimator or torch.nn.Module
        The fitted network.
    n_outputs_ : int
        Number of values predicted for a row.
    noise_variance_ : ndarray of shape (n_outputs,)
        Variance around the mean; only for networks that predict the mean only.
    conformal_scores_ : ndarray of shape (n_val, ...)
        How far off the targets of held-out rows are, by what was predicted for them: sorted. Only
        if ``X_val`` was passed to ``fit``.
    reference_loss_ : float
        Mean negative log-likelihood of the network on the training data.
    n_features_in_ : int
        Number of features seen by ``fit``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X has any.

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
