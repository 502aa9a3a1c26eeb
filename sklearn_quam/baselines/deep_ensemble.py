"""Deep ensembles: networks that were trained alike but for their seeds."""

from __future__ import annotations

from typing import Any, ClassVar

from .._documented import CLASSIFIER, REGRESSOR, documented
from .._posterior.fitted import FittedMethod
from .._typing import Device, NoiseVariance, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._regressor import BaseUncertaintyRegressor
from ._ensemble import Ensemble, Members, RegressionEnsemble
from .reference import GivenModel, ReferenceClassifier, ReferenceRegressor


@documented(CLASSIFIER)
class DeepEnsembleClassifier(Ensemble, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by an ensemble of networks.

    Networks that were trained alike but for their seeds are the plausible models.

    Parameters
    ----------
    n_estimators : int, default=5
        Networks, of which the given one (or the first that is trained) is one. The others are
        trained as it was, by its own ``fit``, with seeds of their own. A plain module cannot be:
        pass more of them as ``estimators``, or wrap it in skorch.
    estimators : list of estimators or torch.nn.Module, default=None
        Fitted networks that are the ensemble instead; ``n_estimators`` does not count then.
        ``estimator`` remains the reference of ``setting="given"``; if it is None, the first of the
        list is.
    n_jobs : int, default=None
        Networks that are trained at the same time, through joblib.
    random_state : int, RandomState instance or None, default=None
        Seeds the training of the networks.

    Attributes
    ----------
    estimators_ : list
        The networks of the ensemble.

    References
    ----------
    B. Lakshminarayanan, A. Pritzel, C. Blundell, "Simple and Scalable Predictive Uncertainty
    Estimation using Deep Ensembles", NeurIPS 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import DeepEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier((10,), solver="lbfgs", random_state=0)
    >>> est = DeepEnsembleClassifier(net, n_estimators=3, random_state=0).fit(X, y)
    >>> len(est.estimators_)
    3
    >>> bool((est.predict_uncertainty(X).epistemic > 0).all())
    True
    """

    _fitted_kind = FittedMethod[Members[GivenModel]]
    _member_type = ReferenceClassifier
    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyClassifier._parameter_constraints,
        **Ensemble._ensemble_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_estimators: int = 5,
        estimators: Any = None,
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
        self.setting = setting
        self.measure = measure
        self.link = link
        self.output = output
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


@documented(REGRESSOR, DeepEnsembleClassifier)
class DeepEnsembleRegressor(RegressionEnsemble):
    """Uncertainty of a network's regression by an ensemble of networks.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.neural_network import MLPRegressor
    >>> from sklearn_quam import DeepEnsembleRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> net = MLPRegressor(hidden_layer_sizes=(4,), solver="lbfgs", random_state=0)
    >>> est = DeepEnsembleRegressor(net, n_estimators=3, random_state=0).fit(X, y)
    >>> len(est.estimators_)
    3
    >>> bool((est.predict_uncertainty(X).epistemic > 0).all())
    True
    """

    _fitted_kind = FittedMethod[Members[GivenModel]]
    _member_type = ReferenceRegressor
    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyRegressor._parameter_constraints,
        **Ensemble._ensemble_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_estimators: int = 5,
        estimators: Any = None,
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
        self.setting = setting
        self.measure = measure
        self.noise_variance = noise_variance
        self.link = link
        self.output = output
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
