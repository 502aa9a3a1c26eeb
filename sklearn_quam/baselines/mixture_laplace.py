"""Mixture of Laplace approximations: one around each network of an ensemble."""

from __future__ import annotations

from .._arguments import arguments
from .._documented import CLASSIFIER, REGRESSOR, documented
from .._posterior.fitted import FittedMethod
from ._method import ClassifierMethod, RegressorMethod
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
    """

    _fitted_kind = FittedMethod[Members[GaussianModels]]
    _member_type = LaplaceClassifier


@documented(REGRESSOR, MixtureLaplaceClassifier)
@arguments
class MixtureLaplaceRegressor(RegressorMethod, Ensemble, LaplaceArguments):
    """Uncertainty of a network's regression by a mixture of Laplace approximations."""

    _fitted_kind = FittedMethod[Members[GaussianModels]]
    _member_type = LaplaceRegressor
