"""Mixture of Laplace approximations: one around each network of an ensemble."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from .._posterior.fitted import FittedMethod
from .._typing import Device, MemoryLimit, NoiseVariance, Parameters, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._regressor import BaseUncertaintyRegressor
from ._ensemble import Ensemble, Members, RegressionEnsemble
from ._laplace import GaussianModels, LaplaceMethod
from .laplace import LaplaceClassifier, LaplaceRegressor


class MixtureLaplaceClassifier(Ensemble, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by a mixture of Laplace approximations.

    An ensemble of networks, each with the Gaussian of `LaplaceClassifier` around its weights: the
    posterior is their mixture with equal shares.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        A fitted skorch net, a trained module, a fitted scikit-learn ``MLPClassifier`` or
        ``LogisticRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None trains a
        small network on scaled inputs.
    n_estimators : int, default=5
        Networks, of which the given one (or the first that is trained) is one. The others are
        trained as it was, by its own ``fit``, with seeds of their own. A plain module cannot be:
        pass more of them as ``estimators``, or wrap it in skorch.
    estimators : list of estimators or torch.nn.Module, default=None
        Fitted networks that are the ensemble instead; ``n_estimators`` does not count then.
        ``estimator`` remains the reference of ``setting="given"``; if it is None, the first of the
        list is.
    parameters : str, int, list of str, callable or LoRA, default="last_layer"
        What may differ from the given network: "all", "last_layer", a number of last layers,
        "bias", "norm" (of normalisation layers), names of parameters or patterns such as "head.*",
        a function of (name, parameter), "lora" or a `LoRA`. The part of the network before it is
        computed only once for each row. Low-rank updates have no Kronecker factors: not with
        ``structure="kron"``.
    structure : {"full", "kron", "diag"}, default="kron"
        What is kept of the curvature of the loss: all of it, which takes memory for the square of
        the number of parameters; a Kronecker product for each linear or convolutional layer (and
        the diagonal for other parameters); or the diagonal.
    prior_precision : float, "marginal_likelihood" or "grid", default="marginal_likelihood"
        Inverse variance of the Gaussian prior of each parameter, around zero: a number, the one
        that makes the training data most likely, or the one with the best log score on a fifth of
        the training rows, while the curvature is measured on the others.
    n_samples : int, default=256
        Draws of the scores around each network, evenly spread; the same for all rows.
    predictive : {"monte_carlo", "probit"}, default="monte_carlo"
        How predictions are averaged in ``setting="expected"``: over the draws, or by the probit
        approximation.
    memory_limit : int, float or str, default=None
        Memory for models that run together, in bytes or as a text such as "1GB"; None takes a
        quarter of what is free.
    setting : {"given", "expected"}, default="given"
        "given" judges the given network (setting (b) of the paper), "expected" the average of all
        plausible models, which then also predicts (setting (a)). It may be changed after ``fit``:
        both use the same models.
    measure : {"entropy", "brier", "zero_one"}, default="entropy"
        Entropies in nats, Brier scores, or zero-one losses.
    link : {"logits", "log_probabilities", "probabilities", "binary_logit"}, default=None
        What the network returns: scores, logarithms of probabilities, probabilities, or the one
        score of the second of two classes. None takes it from a skorch net's criterion, and means
        logits for a plain module.
    output : str or int, default=None
        Which output is meant, by its name or number, if the network returns several. None takes
        ``logits``, or what comes first.
    device : str or torch.device, default=None
        Where to run; None stays where the network is.
    n_jobs : int, default=None
        Networks that are trained at the same time, through joblib.
    random_state : int, RandomState instance or None, default=None
        Seeds the training of the networks and the draws.
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
    estimators_ : list
        The networks of the ensemble.
    reference_loss_ : float
        Mean negative log-likelihood of the network on the training data.
    n_features_in_ : int
        Number of features seen by ``fit``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X has any.

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


class MixtureLaplaceRegressor(RegressionEnsemble):
    """Uncertainty of a network's regression by a mixture of Laplace approximations.

    An ensemble of networks, each with the Gaussian of `LaplaceRegressor` around its weights: the
    posterior is their mixture with equal shares.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        A fitted skorch net, a trained module, a fitted scikit-learn ``MLPRegressor``, ``Ridge`` or
        ``LinearRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None trains a
        small network on scaled inputs.
    n_estimators : int, default=5
        Networks, of which the given one (or the first that is trained) is one. The others are
        trained as it was, by its own ``fit``, with seeds of their own. A plain module cannot be:
        pass more of them as ``estimators``, or wrap it in skorch.
    estimators : list of estimators or torch.nn.Module, default=None
        Fitted networks that are the ensemble instead; ``n_estimators`` does not count then.
        ``estimator`` remains the reference of ``setting="given"``; if it is None, the first of the
        list is.
    parameters : str, int, list of str, callable or LoRA, default="last_layer"
        What may differ from the given network: "all", "last_layer", a number of last layers,
        "bias", "norm" (of normalisation layers), names of parameters or patterns such as "head.*",
        a function of (name, parameter), "lora" or a `LoRA`. The part of the network before it is
        computed only once for each row. Low-rank updates have no Kronecker factors: not with
        ``structure="kron"``.
    structure : {"full", "kron", "diag"}, default="kron"
        What is kept of the curvature of the loss: all of it, which takes memory for the square of
        the number of parameters; a Kronecker product for each linear or convolutional layer (and
        the diagonal for other parameters); or the diagonal.
    prior_precision : float, "marginal_likelihood" or "grid", default="marginal_likelihood"
        Inverse variance of the Gaussian prior of each parameter, around zero: a number, the one
        that makes the training data most likely, or the one with the best log score on a fifth of
        the training rows, while the curvature is measured on the others.
    n_samples : int, default=256
        Draws of the scores around each network, evenly spread; the same for all rows.
    memory_limit : int, float or str, default=None
        Memory for models that run together, in bytes or as a text such as "1GB"; None takes a
        quarter of what is free.
    setting : {"given", "expected"}, default="given"
        "given" judges the given network (setting (b) of the paper), "expected" the average of all
        plausible models, which then also predicts (setting (a)). It may be changed after ``fit``:
        both use the same models.
    measure : {"entropy", "variance"}, default="entropy"
        Entropies in nats, or variances in squared units of the target.
    noise_variance : float or array-like of shape (n_outputs,), default=None
        Variance around the mean, for networks that predict the mean only. None measures it by the
        residuals of the training data, or of half of ``X_val`` if ``fit`` gets that.
    link : {"mean", "mean_variance", "mean_log_variance"}, default=None
        What the network returns; two parts are a tuple, or the two halves of the columns. None
        takes it from a skorch net's criterion, such as ``MSELoss`` for the mean; of other modules
        it takes a tuple for mean and variance, anything else for the mean.
    output : str or int, default=None
        Which output is meant, by its name or number, if the network returns several. None takes
        ``logits``, or what comes first.
    device : str or torch.device, default=None
        Where to run; None stays where the network is.
    n_jobs : int, default=None
        Networks that are trained at the same time, through joblib.
    random_state : int, RandomState instance or None, default=None
        Seeds the training of the networks and the draws.
    verbose : int, default=None
        1 shows progress bars, 0 none; None shows those that take more than about ten seconds.

    Attributes
    ----------
    estimator_ : estimator or torch.nn.Module
        The fitted network.
    estimators_ : list
        The networks of the ensemble.
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

    References
    ----------
    R. Eschenhagen, E. Daxberger, P. Hennig, A. Kristiadi, "Mixtures of Laplace Approximations for
    Improved Post-Hoc Uncertainty in Deep Learning", Bayesian Deep Learning workshop, NeurIPS 2021.

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
