"""Deep ensembles: networks that were trained alike but for their seeds."""

from __future__ import annotations

from typing import Any, ClassVar

from .._posterior.fitted import FittedMethod
from .._typing import Device, NoiseVariance, RandomState
from ..base._classifier import BaseUncertaintyClassifier
from ..base._regressor import BaseUncertaintyRegressor
from ._ensemble import Ensemble, Members, RegressionEnsemble
from .reference import GivenModel, ReferenceClassifier, ReferenceRegressor


class DeepEnsembleClassifier(Ensemble, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by an ensemble of networks.

    Networks that were trained alike but for their seeds are the plausible models.

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
        Seeds the training of the networks.
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


class DeepEnsembleRegressor(RegressionEnsemble):
    """Uncertainty of a network's regression by an ensemble of networks.

    Networks that were trained alike but for their seeds are the plausible models.

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
        Seeds the training of the networks.
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
    B. Lakshminarayanan, A. Pritzel, C. Blundell, "Simple and Scalable Predictive Uncertainty
    Estimation using Deep Ensembles", NeurIPS 2017.

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
