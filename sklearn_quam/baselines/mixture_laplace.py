"""Mixture of Laplace approximations: one around each network of an ensemble."""

from __future__ import annotations

from .._documented import CLASSIFIER, REGRESSOR, documented
from .._posterior.fitted import FittedMethod
from ._method import ClassifierMethod, RegressorMethod, arguments
from .deep_ensemble import DeepEnsembleClassifier, Ensemble, Members
from .laplace import GaussianModels, LaplaceArguments, LaplaceClassifier, LaplaceRegressor


@documented(CLASSIFIER, also=(DeepEnsembleClassifier, LaplaceClassifier))
@arguments
class MixtureLaplaceClassifier(ClassifierMethod, Ensemble, LaplaceArguments):
    """Uncertainty of a network's classification by a mixture of Laplace approximations.

    An ensemble of networks, each with the Gaussian of `LaplaceClassifier` or `LaplaceRegressor`
    around its weights: the posterior is their mixture with equal shares.

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
    >>> bool((est.predict_uncertainty(X).epistemic > 0).all())
    True
    """

    _fitted_kind = FittedMethod[Members[GaussianModels]]
    _member_type = LaplaceClassifier


@documented(REGRESSOR, MixtureLaplaceClassifier)
@arguments
class MixtureLaplaceRegressor(RegressorMethod, Ensemble, LaplaceArguments):
    """Uncertainty of a network's regression by a mixture of Laplace approximations.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.neural_network import MLPRegressor
    >>> from sklearn_quam import MixtureLaplaceRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> net = MLPRegressor(hidden_layer_sizes=(4,), solver="lbfgs", random_state=0)
    >>> est = MixtureLaplaceRegressor(net, n_estimators=3, random_state=0).fit(X, y)
    >>> bool((est.predict_uncertainty(X).epistemic > 0).all())
    True
    """

    _fitted_kind = FittedMethod[Members[GaussianModels]]
    _member_type = LaplaceRegressor
