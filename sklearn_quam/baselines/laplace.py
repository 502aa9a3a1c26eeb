"""Laplace's approximation, after the fact, on a given network."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from .._typing import Device, MemoryLimit, NoiseVariance, Parameters, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._regressor import BaseUncertaintyRegressor
from ._laplace import LaplaceMethod


class LaplaceClassifier(LaplaceMethod, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by Laplace's approximation.

    The posterior of the weights is taken for a Gaussian around the given ones. Its covariance is
    the inverse of a sum: the curvature of the loss (the generalised Gauss-Newton matrix) and a
    prior precision. Scores (logits or means) are linear in the weights around the given ones:
    exactly for the last layer, to first order for more.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        A fitted skorch net, a trained module, a fitted scikit-learn ``MLPClassifier`` or
        ``LogisticRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None trains a
        small network on scaled inputs.
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
        Draws of the scores (logits or means), evenly spread; the same for all rows.
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
    random_state : int, RandomState instance or None, default=None
        Seeds the draws and the training of an unfitted estimator.
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
    parameter_names_ : list of str
        Parameters of the network that may differ.
    n_parameters_searched_ : int
        Number of values in them, or in the factors of low-rank updates of them.
    prior_precision_ : float
        The prior precision that is used.
    log_marginal_likelihood_ : float
        Logarithm of the marginal likelihood of the training data, approximately.
    reference_loss_ : float
        Mean negative log-likelihood of the network on the training data.
    n_features_in_ : int
        Number of features seen by ``fit``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X has any.

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


class LaplaceRegressor(LaplaceMethod, BaseUncertaintyRegressor):
    """Uncertainty of a network's regression by Laplace's approximation.

    The posterior of the weights is taken for a Gaussian around the given ones. Its covariance is
    the inverse of a sum: the curvature of the loss (the generalised Gauss-Newton matrix) and a
    prior precision. Scores (logits or means) are linear in the weights around the given ones:
    exactly for the last layer, to first order for more.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        A fitted skorch net, a trained module, a fitted scikit-learn ``MLPRegressor``, ``Ridge`` or
        ``LinearRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None trains a
        small network on scaled inputs.
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
        Draws of the scores (logits or means), evenly spread; the same for all rows.
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
    random_state : int, RandomState instance or None, default=None
        Seeds the draws and the training of an unfitted estimator.
    verbose : int, default=None
        1 shows progress bars, 0 none; None shows those that take more than about ten seconds.

    Attributes
    ----------
    estimator_ : estimator or torch.nn.Module
        The fitted network.
    parameter_names_ : list of str
        Parameters of the network that may differ.
    n_parameters_searched_ : int
        Number of values in them, or in the factors of low-rank updates of them.
    prior_precision_ : float
        The prior precision that is used.
    log_marginal_likelihood_ : float
        Logarithm of the marginal likelihood of the training data, approximately.
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
    D. J. C. MacKay, "A Practical Bayesian Framework for Backpropagation Networks", Neural
    Computation 1992. E. Daxberger, A. Kristiadi, A. Immer, R. Eschenhagen, M. Bauer, P. Hennig,
    "Laplace Redux: Effortless Bayesian Deep Learning", NeurIPS 2021. A. Immer, M. Korzepa, M.
    Bauer, "Improving Predictions of Bayesian Neural Nets via Local Linearization", AISTATS 2021.

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
