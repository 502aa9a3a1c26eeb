"""Mixture of Laplace approximations: one around each network of an ensemble."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from .._documented import CLASSIFIER, REGRESSOR, documented
from .._posterior.fitted import FittedMethod
from .._typing import Device, MemoryLimit, NoiseVariance, Parameters, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._regressor import BaseUncertaintyRegressor
from ._ensemble import Ensemble, Members, RegressionEnsemble
from ._laplace import GaussianModels, LaplaceMethod
from .deep_ensemble import DeepEnsembleClassifier
from .laplace import LaplaceClassifier, LaplaceRegressor


@documented(CLASSIFIER, also=(DeepEnsembleClassifier, LaplaceClassifier))
class MixtureLaplaceClassifier(Ensemble, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by a mixture of Laplace approximations.

    An ensemble of networks, each with the Gaussian of `LaplaceClassifier` around its weights: the
    posterior is their mixture with equal shares.

    Parameters
    ----------
    n_samples : int, default=256
        Draws of the scores around each network, evenly spread; the same for all rows.
    random_state : int, RandomState instance or None, default=None
        Seeds the training of the networks and the draws.

    Attributes
    ----------
    estimators_ : list
        The networks of the ensemble.

    References
    ----------
    R. Eschenhagen, E. Daxberger, P. Hennig, A. Kristiadi, "Mixtures of Laplace Approximations for
    Improved Post-Hoc Uncertainty in Deep Learning", Bayesian Deep Learning workshop, NeurIPS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import MixtureLaplaceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier((10,), solver="lbfgs", random_state=0)
    >>> est = MixtureLaplaceClassifier(net, n_estimators=3, random_state=0).fit(X, y)
    >>> len(est.estimators_)
    3
    >>> bool((est.predict_uncertainty(X).epistemic > 0).all())
    True
    """

    _fitted_kind = FittedMethod[Members[GaussianModels]]
    _member_type = LaplaceClassifier
    _member_arguments = (
        *Ensemble._member_arguments,
        "parameters",
        "structure",
        "prior_precision",
        "n_samples",
        "predictive",
        "memory_limit",
    )
    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyClassifier._parameter_constraints,
        **Ensemble._ensemble_constraints,
        **LaplaceMethod._laplace_constraints,
        "predictive": [StrOptions({"monte_carlo", "probit"})],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_estimators: int = 5,
        estimators: Any = None,
        parameters: Parameters = "last_layer",
        structure: str = "kron",
        prior_precision: float | str = "marginal_likelihood",
        n_samples: int = 256,
        predictive: str = "monte_carlo",
        memory_limit: MemoryLimit = None,
        setting: str = "given",
        measure: str = "entropy",
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        n_jobs: int | None = None,
        random_state: RandomState = None,
        verbose: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.n_estimators = n_estimators
        self.estimators = estimators
        self.parameters = parameters
        self.structure = structure
        self.prior_precision = prior_precision
        self.n_samples = n_samples
        self.predictive = predictive
        self.memory_limit = memory_limit
        self.setting = setting
        self.measure = measure
        self.link = link
        self.output = output
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


@documented(REGRESSOR, MixtureLaplaceClassifier)
class MixtureLaplaceRegressor(RegressionEnsemble):
    """Uncertainty of a network's regression by a mixture of Laplace approximations.

    An ensemble of networks, each with the Gaussian of `LaplaceRegressor` around its weights: the
    posterior is their mixture with equal shares.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.neural_network import MLPRegressor
    >>> from sklearn_quam import MixtureLaplaceRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> net = MLPRegressor(hidden_layer_sizes=(4,), solver="lbfgs", random_state=0)
    >>> est = MixtureLaplaceRegressor(net, n_estimators=3, random_state=0).fit(X, y)
    >>> len(est.estimators_)
    3
    >>> bool((est.predict_uncertainty(X).epistemic > 0).all())
    True
    """

    _fitted_kind = FittedMethod[Members[GaussianModels]]
    _member_type = LaplaceRegressor
    _member_arguments = (
        *RegressionEnsemble._member_arguments,
        "parameters",
        "structure",
        "prior_precision",
        "n_samples",
        "memory_limit",
    )
    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyRegressor._parameter_constraints,
        **Ensemble._ensemble_constraints,
        **LaplaceMethod._laplace_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_estimators: int = 5,
        estimators: Any = None,
        parameters: Parameters = "last_layer",
        structure: str = "kron",
        prior_precision: float | str = "marginal_likelihood",
        n_samples: int = 256,
        memory_limit: MemoryLimit = None,
        setting: str = "given",
        measure: str = "entropy",
        noise_variance: NoiseVariance = None,
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        n_jobs: int | None = None,
        random_state: RandomState = None,
        verbose: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.n_estimators = n_estimators
        self.estimators = estimators
        self.parameters = parameters
        self.structure = structure
        self.prior_precision = prior_precision
        self.n_samples = n_samples
        self.memory_limit = memory_limit
        self.setting = setting
        self.measure = measure
        self.noise_variance = noise_variance
        self.link = link
        self.output = output
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
