"""QUAM: uncertainty with adversarial models."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from ._network.limits import computing
from ._search.natural.arguments import LinearSearch, NaturalSearch
from ._search.profile import SAMPLERS
from ._search.targets import Targets, class_targets, direction_targets
from ._typing import Device, MemoryLimit, NoiseVariance, Parameters, RandomState
from .base._adversarial import AdversarialSearch
from .base._bounds import ProbabilityBounds
from .base._classifier import BaseUncertaintyClassifier
from .base._regressor import BaseUncertaintyRegressor
from .base.checks.warned import warn_about_lost_rows


class QUAMClassifier(ProbabilityBounds, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by adversarial models (QUAM).

    For every row, searches start at the given network and look for models that explain the
    training data as well but predict something else for this row: one search for each class.
    Where such models are easy to find, the prediction is epistemically uncertain.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        A fitted skorch net, a trained module, a fitted scikit-learn ``MLPClassifier`` or
        ``LogisticRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None
        trains a small network on scaled inputs.
    parameters : str, int, list of str, callable or LoRA, default="auto"
        What may differ from the given network: "all", "last_layer", a number of last layers,
        "bias", "norm" (of normalisation layers), names of parameters or patterns such as "head.*",
        a function of (name, parameter), "lora" or a `LoRA`. The part of the network before it is
        computed only once for each row. "auto" is all linear layers of an MLP, and the linear
        layers at the end of other networks, behind convolutions, recurrences or attention;
        everything where there are none.
    setting : {"given", "expected"}, default="given"
        "given" judges the given network (setting (b) of the paper), "expected" the average of all
        plausible models (setting (a)). Labels are those of the given network in both. In
        "expected", ``predict_proba`` is calibrated by held-out rows, if ``fit`` has got any. It may
        be changed after ``fit``: both use the same models.
    measure : {"entropy", "brier", "zero_one"}, default="entropy"
        Entropies in nats, Brier scores, or zero-one losses.
    search : str, NaturalSearch, LinearSearch or PenaltySearch, default="auto"
        How the searches move: "natural" means `NaturalSearch` with its defaults, "linear" the much
        faster `LinearSearch`, "penalty" the paper's algorithm `PenaltySearch`. "auto" is natural
        search, or penalty search with a warning where the curvature of the network cannot be
        measured. Arguments of a search are tuned as ``search__n_steps``.
    targets : "auto", "all", int or "untargeted", default="auto"
        A search for each class, for the N most probable ones, or a single search that raises
        the divergence itself, which finds less and needs ``search="penalty"``. "auto" is all
        classes if there are at most 20, else the most probable one and its ten likeliest rivals.
    sampling : {"auto", "profile", "trajectory", "best", "gaussian"}, default="auto"
        Which models count. "profile": all that a search meets, as an integral over the log-odds of
        its class, so that the number of steps does not matter. "trajectory": all that it meets,
        each alike. "best": the most divergent feasible one of each search. "gaussian": this one and
        draws around it. The given network counts in any case: it anchors the weights where every
        other model explains the data badly. "auto" is "trajectory" in penalty search and
        "profile" in others.
    temperature : float or "auto", default="auto"
        Scale of what models cost (T in the paper), in nats of the whole training set: a model
        weighs exp(-cost / temperature), where a cost below zero counts as zero. "auto" is 30, which
        ranks rows best, 10 in penalty search and 1, as in the Bayesian posterior, in linear search.
    slack : float, default=None
        Largest cost, in nats of the whole training set, at which a model still counts as one that
        explains the data (gamma in the paper); None means 10.
        It decides what is called feasible, what ``sampling="best"`` may take, and when a penalty
        search has converged.
    n_training_rows : int, default=None
        How many rows the network was trained on, if those passed to ``fit`` are only a sample of
        them: each then stands for several.
    max_training_rows : int, default=None
        Keep what the searches need of so many training rows, drawn at random, and let them stand
        for all: a smaller estimator, and a faster one where rows are very many. The rows that tell
        best what a rival costs may then be missing, so that rivals look cheaper than they are.
        None keeps all.
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
        Workers that share the rows, through joblib (processes, or whatever
        ``joblib.parallel_config`` says). The result does not depend on it.
    memory_limit : int, float or str, default=None
        Memory for models that run together, in bytes or as a text such as "1GB"; None takes a
        quarter of what is free. All workers share it. What cannot fit is refused, with the number
        that is needed.
    random_state : int, RandomState instance or None, default=None
        Seeds the mini-batches, the same for all rows, and the training of an unfitted estimator.
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
    search_ : NaturalSearch, LinearSearch or PenaltySearch
        How the searches move.
    search_reason_ : str
        Why they move like this.
    n_training_rows_ : int
        How many rows the network was trained on.
    temperature_ : float
        The temperature, in nats of the whole training set.
    slack_ : float
        The slack, in nats of the whole training set.
    cut_ : {"inside", "at_input", "failed"}
        Where the network is cut: inside, so that what comes before is computed only once for each
        row; at its input, because what is searched begins there; or not at all, because the module
        cannot be traced, so that all of it runs for every model.
    execution_ : {"matmul", "vmap", "loop"}
        How searches run together: as large matrix products, by ``torch.vmap``, or one by one for
        modules that allow neither.
    reference_loss_ : float
        Mean negative log-likelihood of the network on the training data.
    n_features_in_ : int
        Number of features seen by ``fit``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X has any.

    References
    ----------
    K. Schweighofer, L. Aichberger, M. Ielanskyi, G. Klambauer, S. Hochreiter, "Quantification of
    Uncertainty with Adversarial Models", NeurIPS 2023.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import QUAMClassifier
    >>> X, y = make_blobs(centers=[[-3, 0], [3, 0]], random_state=0)
    >>> net = MLPClassifier(max_iter=1000, random_state=0).fit(X, y)
    >>> est = QUAMClassifier(net, random_state=0).fit(X, y)
    >>> u = est.predict_uncertainty([[-3, 0], [0, 6]])    # among the data, and far from them
    >>> bool(u.epistemic[1] > 10 * u.epistemic[0])
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyClassifier._parameter_constraints,
        **AdversarialSearch._search_constraints,
        "sampling": [StrOptions({"auto", *SAMPLERS})],
        "targets": [
            StrOptions({"auto", "all", "untargeted"}),
            Interval(Integral, 1, None, closed="left"),
        ],
    }

    # Models are weighed to rank rows. An average with such weights would be far too unsure.
    _given_predicts = True
    _auto_temperature = 10.0
    # Where the network is taken as linear, rivals look cheaper than they are.
    _own_temperatures: ClassVar[dict] = {NaturalSearch: 20.0, LinearSearch: 20.0}
    _auto_slack = 10.0
    _auto_search = NaturalSearch
    _auto_reason = "the curvature of what is searched can be measured"
    _auto_sampling = "trajectory"

    def __init__(
        self,
        estimator: Any = None,
        *,
        parameters: Parameters = "auto",
        setting: str = "given",
        measure: str = "entropy",
        search: Any = "auto",
        targets: Any = "auto",
        sampling: str = "auto",
        temperature: float | str = "auto",
        slack: float | None = None,
        n_training_rows: int | None = None,
        max_training_rows: int | None = None,
        link: str | None = None,
        output: str | int | None = None,
        device: Device = None,
        n_jobs: int | None = None,
        memory_limit: MemoryLimit = None,
        random_state: RandomState = None,
        verbose: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.parameters = parameters
        self.setting = setting
        self.measure = measure
        self.search = search
        self.targets = targets
        self.sampling = sampling
        self.temperature = temperature
        self.slack = slack
        self.n_training_rows = n_training_rows
        self.max_training_rows = max_training_rows
        self.link = link
        self.output = output
        self.device = device
        self.n_jobs = n_jobs
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose

    def _choose_targets(self) -> Targets:
        return class_targets(self.classes_, self.targets)

    @computing()
    def _predictive(self, X: Any) -> np.ndarray:
        prediction, lost = self._fitted.predict(self._check_inputs(X))
        warn_about_lost_rows(lost)
        # Rows beyond the range of the training data may have any label.
        return np.where(lost[:, None], 1 / len(self.classes_), prediction.to_array())


class QUAMRegressor(AdversarialSearch, BaseUncertaintyRegressor):
    """Uncertainty of a network's regression by adversarial models (QUAM).

    For every row, it asks how far other models that explain the training data as well move the
    prediction up and down, one way for each direction and output. Where such models are easy to
    find, the prediction is epistemically uncertain. By default the network is taken as linear in
    its parameters, and the answer is a closed form; other searches follow the network itself.

    Bands grow with the distance from the training data. In gaps between them they are too
    narrow: see :doc:`/results/sine`.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        A fitted skorch net, a trained module, a fitted scikit-learn ``MLPRegressor``, ``Ridge`` or
        ``LinearRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None
        trains a small network on scaled inputs.
    parameters : str, int, list of str, callable or LoRA, default="auto"
        What may differ from the given network: "all", "last_layer", a number of last layers,
        "bias", "norm" (of normalisation layers), names of parameters or patterns such as "head.*",
        a function of (name, parameter), "lora" or a `LoRA`. The part of the network before it is
        computed only once for each row. "auto" is all linear layers of an MLP, and the linear
        layers at the end of other networks, behind convolutions, recurrences or attention;
        everything where there are none.
    setting : {"given", "expected"}, default="given"
        "given" judges the given network (setting (b) of the paper), "expected" the average of all
        plausible models, which then also predicts (setting (a)). It may be changed after ``fit``:
        both use the same models.
    measure : {"entropy", "variance"}, default="entropy"
        Entropies in nats, or variances in squared units of the target.
    search : str, NaturalSearch, LinearSearch or PenaltySearch, default="auto"
        How the searches move: "natural" means `NaturalSearch` with its defaults, "linear" the much
        faster `LinearSearch`, "penalty" the paper's algorithm `PenaltySearch`. "auto" is linear
        search: the posterior of the mean in closed form, which is exact for a linear model, or
        penalty search with a warning where the curvature of the network cannot be measured.
        Arguments of a search are tuned as ``search__damping``.
    targets : {"all", "untargeted"}, default="all"
        Searches up and down for each output, or a single search that raises the divergence
        itself, which finds less and needs ``search="penalty"``.
    sampling : {"auto", "profile", "trajectory", "best", "gaussian"}, default="auto"
        Which models count. "profile", which "auto" means: for every shift of the mean the one that
        explains the data best. "trajectory": all that a search meets on its way. "best": the most
        divergent feasible one of each search. "gaussian": this one and draws around it. Only
        "profile" has the scale of a posterior; the others rank rows. Its
        loss increases are those to be expected if the given network is right. The given network (in
        "profile": shifts next to zero) counts in any case: it anchors the weights where every other
        model explains the data badly.
    temperature : float or "auto", default="auto"
        Scale of what models cost (T in the paper), in nats of the whole training set: a model
        weighs exp(-cost / temperature), where a cost below zero counts as zero. "auto" is 1, the
        temperature of the Bayesian posterior.
    slack : float, default=None
        Largest cost, in nats of the whole training set, at which a model still counts as one that
        explains the data (gamma in the paper); None means 10.
        It decides what is called feasible, what ``sampling="best"`` may take, and when a penalty
        search has converged.
    n_training_rows : int, default=None
        How many rows the network was trained on, if those passed to ``fit`` are only a sample of
        them: each then stands for several.
    max_training_rows : int, default=None
        Keep what the searches need of so many training rows, drawn at random, and let them stand
        for all: a smaller estimator, and a faster one where rows are very many. The rows that tell
        best what a rival costs may then be missing, so that rivals look cheaper than they are.
        None keeps all.
    link : {"mean", "mean_variance", "mean_log_variance"}, default=None
        What the network returns; two parts are a tuple, or the two halves of the columns. None
        takes it from a skorch net's criterion, such as ``MSELoss`` for the mean; of other modules
        it takes a tuple for mean and variance, anything else for the mean.
    output : str or int, default=None
        Which output is meant, by its name or number, if the network returns several. None takes
        ``logits``, or what comes first.
    noise_variance : float or array-like of shape (n_outputs,), default=None
        Variance around the mean, for networks that predict the mean only. None measures it by the
        residuals of the training data, or of half of ``X_val`` if ``fit`` gets that.
    device : str or torch.device, default=None
        Where to run; None stays where the network is.
    n_jobs : int, default=None
        Workers that share the rows, through joblib (processes, or whatever
        ``joblib.parallel_config`` says). The result does not depend on it.
    memory_limit : int, float or str, default=None
        Memory for models that run together, in bytes or as a text such as "1GB"; None takes a
        quarter of what is free. All workers share it. What cannot fit is refused, with the number
        that is needed.
    random_state : int, RandomState instance or None, default=None
        Seeds the mini-batches, the same for all rows, and the training of an unfitted estimator.
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
    parameter_names_ : list of str
        Parameters of the network that may differ.
    n_parameters_searched_ : int
        Number of values in them, or in the factors of low-rank updates of them.
    search_ : NaturalSearch, LinearSearch or PenaltySearch
        How the searches move.
    search_reason_ : str
        Why they move like this.
    n_training_rows_ : int
        How many rows the network was trained on.
    temperature_ : float
        The temperature, in nats of the whole training set.
    slack_ : float
        The slack, in nats of the whole training set.
    cut_ : {"inside", "at_input", "failed"}
        Where the network is cut: inside, so that what comes before is computed only once for each
        row; at its input, because what is searched begins there; or not at all, because the module
        cannot be traced, so that all of it runs for every model.
    execution_ : {"matmul", "vmap", "loop"}
        How searches run together: as large matrix products, by ``torch.vmap``, or one by one for
        modules that allow neither.
    reference_loss_ : float
        Mean negative log-likelihood of the network on the training data.
    n_features_in_ : int
        Number of features seen by ``fit``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X has any.

    References
    ----------
    K. Schweighofer, L. Aichberger, M. Ielanskyi, G. Klambauer, S. Hochreiter, "Quantification of
    Uncertainty with Adversarial Models", NeurIPS 2023.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.neural_network import MLPRegressor
    >>> from sklearn_quam import QUAMRegressor
    >>> X = np.linspace(-2, 2, 100)[:, None]
    >>> y = np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=100)
    >>> net = MLPRegressor(solver="lbfgs", max_iter=500, random_state=0).fit(X, y)
    >>> est = QUAMRegressor(net, random_state=0).fit(X, y)
    >>> u = est.predict_uncertainty([[0.0], [5.0]])    # among the data, and far from them
    >>> bool(u.epistemic[1] > 10 * u.epistemic[0])
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyRegressor._parameter_constraints,
        **AdversarialSearch._search_constraints,
        "sampling": [StrOptions({"auto", *SAMPLERS})],
        "targets": [StrOptions({"all", "untargeted"})],
    }

    _auto_temperature = 1.0
    _auto_slack = 10.0
    _auto_search = LinearSearch
    _auto_reason = "the posterior of a mean has a closed form where the network is about linear"
    _auto_sampling = "profile"

    def __init__(
        self,
        estimator: Any = None,
        *,
        parameters: Parameters = "auto",
        setting: str = "given",
        measure: str = "entropy",
        search: Any = "auto",
        targets: Any = "all",
        sampling: str = "auto",
        temperature: float | str = "auto",
        slack: float | None = None,
        n_training_rows: int | None = None,
        max_training_rows: int | None = None,
        link: str | None = None,
        output: str | int | None = None,
        noise_variance: NoiseVariance = None,
        device: Device = None,
        n_jobs: int | None = None,
        memory_limit: MemoryLimit = None,
        random_state: RandomState = None,
        verbose: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.parameters = parameters
        self.setting = setting
        self.measure = measure
        self.search = search
        self.targets = targets
        self.sampling = sampling
        self.temperature = temperature
        self.slack = slack
        self.n_training_rows = n_training_rows
        self.max_training_rows = max_training_rows
        self.link = link
        self.output = output
        self.noise_variance = noise_variance
        self.device = device
        self.n_jobs = n_jobs
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose

    def _choose_targets(self) -> Targets:
        return direction_targets(self.n_outputs_, self.targets)
