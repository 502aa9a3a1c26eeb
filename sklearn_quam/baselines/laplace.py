"""Laplace's approximation, after the fact, on a given network."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from .._documented import CLASSIFIER, REGRESSOR, documented
from .._typing import Device, MemoryLimit, NoiseVariance, Parameters, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._regressor import BaseUncertaintyRegressor
from ._laplace import LaplaceMethod


@documented(CLASSIFIER)
class LaplaceClassifier(LaplaceMethod, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by Laplace's approximation.

    The posterior of the weights is taken for a Gaussian around the given ones. Its covariance is
    the inverse of a sum: the curvature of the loss (the generalised Gauss-Newton matrix) and a
    prior precision. Scores (logits or means) are linear in the weights around the given ones:
    exactly for the last layer, to first order for more.

    Parameters
    ----------
    parameters
        Low-rank updates have no Kronecker factors: not with ``structure="kron"``.
    structure : {"full", "kron", "diag"}, default="kron"
        What is kept of the curvature of the loss: all of it, which takes memory for the square of
        the number of parameters; a Kronecker product for each linear or convolutional layer (and
        the diagonal for other parameters); or the diagonal.
    prior_precision : float, "marginal_likelihood" or "grid", default="marginal_likelihood"
        Inverse variance of the Gaussian prior of each parameter, around zero: a number, the one
        that makes the training data most likely, or the one with the best log score on a fifth of
        the training rows, while the curvature is measured on the others.
    n_samples : int, default=256
        Draws of the scores (logits or means), evenly spread; the same for all rows.
    predictive : {"monte_carlo", "probit"}, default="monte_carlo"
        How predictions are averaged in ``setting="expected"``: over the draws, or by the probit
        approximation.
    random_state : int, RandomState instance or None, default=None
        Seeds the draws and the training of an unfitted estimator.

    Attributes
    ----------
    parameter_names_
    n_parameters_searched_
    prior_precision_ : float
        The prior precision that is used.
    log_marginal_likelihood_ : float
        Logarithm of the marginal likelihood of the training data, approximately.

    References
    ----------
    D. J. C. MacKay, "A Practical Bayesian Framework for Backpropagation Networks", Neural
    Computation 1992. E. Daxberger, A. Kristiadi, A. Immer, R. Eschenhagen, M. Bauer, P. Hennig,
    "Laplace Redux: Effortless Bayesian Deep Learning", NeurIPS 2021. A. Immer, M. Korzepa, M.
    Bauer, "Improving Predictions of Bayesian Neural Nets via Local Linearization", AISTATS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import LaplaceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier((10,), solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> est = LaplaceClassifier(net, random_state=0).fit(X, y)
    >>> far_away = [[0.0, 9.0, 0.0, 9.0]]
    >>> est.score_samples(far_away) < est.score_samples(X).mean()
    array([ True])
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyClassifier._parameter_constraints,
        **LaplaceMethod._laplace_constraints,
        "predictive": [StrOptions({"monte_carlo", "probit"})],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
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
        random_state: RandomState = None,
        verbose: int | None = None,
    ) -> None:
        self.estimator = estimator
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
        self.random_state = random_state
        self.verbose = verbose


@documented(REGRESSOR, LaplaceClassifier)
class LaplaceRegressor(LaplaceMethod, BaseUncertaintyRegressor):
    """Uncertainty of a network's regression by Laplace's approximation.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn_quam import LaplaceRegressor
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> y = 2 * X[:, 0] + np.random.default_rng(0).normal(scale=0.1, size=50)
    >>> est = LaplaceRegressor(Ridge(0.01).fit(X, y), random_state=0).fit(X, y)
    >>> inside, outside = est.predict_uncertainty([[0.0], [5.0]]).epistemic
    >>> bool(outside > inside)
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyRegressor._parameter_constraints,
        **LaplaceMethod._laplace_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
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
        random_state: RandomState = None,
        verbose: int | None = None,
    ) -> None:
        self.estimator = estimator
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
        self.random_state = random_state
        self.verbose = verbose
