"""Monte Carlo dropout: thinned networks as plausible models (Gal and Ghahramani, 2016).

A thinned network is one model: its dropout masks are the same for all rows. So the answer for a row
does not depend on the rows beside it.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval

from .._documented import CLASSIFIER, REGRESSOR, documented
from .._network.cut.layers import last_module, layers_in_order
from .._network.free import probe_rows
from .._posterior.fitted import FittedMethod
from .._typing import Device, NoiseVariance, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._data import FitData
from ..base._estimator import BaseUncertaintyEstimator
from ..base._regressor import BaseUncertaintyRegressor
from ._sampling.dropout import (
    ThinnedModels,
    axes_of_rows,
    check_rows,
    dropped_shapes,
    thinned,
)

# The rate of the network that is trained where the user passes none.
_DEFAULT_RATE = 0.1


class _MCDropout(BaseUncertaintyEstimator):
    """Finds dropout in the network, or puts some there."""

    _counts_models = "n_samples"
    _fitted_kind = FittedMethod[ThinnedModels]
    _dropout_constraints: ClassVar[dict] = {
        "n_samples": [Interval(Integral, 1, None, closed="left")],
        "p": [Interval(Real, 0, 1, closed="left"), None],
    }

    n_samples: int
    p: float | None

    def _fit_models(self, fit: FitData) -> ThinnedModels:
        module, likelihood = fit.reference.module, fit.reference.likelihood
        probe = probe_rows(fit.training.inputs)
        self.p_, hooked = self.p, None
        if not dropped_shapes(module, *probe.parts):
            if self.p is None and self.estimator is not None:
                raise ValueError(
                    "The network has no dropout layers (those inside attention and recurrent "
                    "layers do not count). Pass p=0.1, say, to put dropout before its last layer."
                )
            self.p_ = _DEFAULT_RATE if self.p is None else self.p
            layers = layers_in_order(module, lambda: likelihood.pick(module(*probe.parts)))
            hooked = last_module(module, layers)
        split, of_rest = thinned(module, hooked, likelihood, probe)
        models = ThinnedModels(
            split,
            of_rest,
            probe,
            self.n_samples,
            self.p_,
            fit.seed,
            axes_of_rows(split, probe),
            module,
            hooked,
            likelihood.output,
        )
        check_rows(models)
        return models


@documented(CLASSIFIER)
class MCDropoutClassifier(_MCDropout, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by Monte Carlo dropout.

    Units are dropped at random when predicting, too: every pattern is a plausible model. Only
    dropout changes, batch normalisation and all else stay in evaluation mode; dropout inside
    attention and recurrent layers stays off. The part of the network before the first dropout is
    computed only once for each row.

    Parameters
    ----------
    n_samples : int, default=256
        Thinned networks to average over. They are the same for all rows.
    p : float, default=None
        Dropout rate. None takes the network's own dropout layers as they are, and is an error if it
        has none; for the small network that is trained if ``estimator`` is None, it means 0.1. A
        number replaces the rates of all dropout layers, or puts dropout before the last layer of a
        network that has none.
    random_state : int, RandomState instance or None, default=None
        Seeds the masks and the training of an unfitted estimator.

    Attributes
    ----------
    p_ : float or None
        The rate that is used; None for the network's own.

    References
    ----------
    Y. Gal, Z. Ghahramani, "Dropout as a Bayesian Approximation: Representing Model Uncertainty in
    Deep Learning", ICML 2016.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import MCDropoutClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier((10,), solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> est = MCDropoutClassifier(net, p=0.2, random_state=0).fit(X, y)
    >>> far_away = [[0.0, 9.0, 0.0, 9.0]]
    >>> est.score_samples(far_away) < est.score_samples(X).mean()
    array([ True])
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyClassifier._parameter_constraints,
        **_MCDropout._dropout_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_samples: int = 256,
        p: float | None = None,
        setting: str = "given",
        measure: str = "entropy",
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        random_state: RandomState = None,
        verbose: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.n_samples = n_samples
        self.p = p
        self.setting = setting
        self.measure = measure
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state
        self.verbose = verbose


@documented(REGRESSOR, MCDropoutClassifier)
class MCDropoutRegressor(_MCDropout, BaseUncertaintyRegressor):
    """Uncertainty of a network's regression by Monte Carlo dropout.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn_quam import MCDropoutRegressor
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> y = 2 * X[:, 0] + np.random.default_rng(0).normal(scale=0.1, size=50)
    >>> est = MCDropoutRegressor(Ridge(0.01).fit(X, y), p=0.2, random_state=0).fit(X, y)
    >>> inside, outside = est.predict_uncertainty([[0.0], [5.0]]).epistemic
    >>> bool(outside > inside)
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyRegressor._parameter_constraints,
        **_MCDropout._dropout_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_samples: int = 256,
        p: float | None = None,
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
        self.n_samples = n_samples
        self.p = p
        self.setting = setting
        self.measure = measure
        self.noise_variance = noise_variance
        self.link = link
        self.output = output
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
