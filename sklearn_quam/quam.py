"""QUAM: uncertainty with adversarial models."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ._documented import CLASSIFIER, REGRESSOR, documented
from ._network.limits import computing
from ._posterior.training_range import warn_beyond_range
from ._search.natural.arguments import LinearSearch, NaturalSearch
from ._search.penalty.arguments import PenaltySearch
from ._search.targets import Targets, class_targets, direction_targets
from ._typing import Device, MemoryLimit, NoiseVariance, Parameters, RandomState
from .base._adversarial import AdversarialSearch
from .base._bounds import ProbabilityBounds
from .base._classifier import BaseUncertaintyClassifier
from .base._regressor import BaseUncertaintyRegressor


@documented(CLASSIFIER)
class QUAMClassifier(ProbabilityBounds, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by adversarial models (QUAM).

    For every row, searches start at the given network and look for models that explain the
    training data as well but predict something else for this row: one search for each class.
    Where such models are easy to find, the prediction is epistemically uncertain.

    Parameters
    ----------
    parameters
        "auto" is all linear layers of an MLP, and the linear layers at the end of other networks,
        behind convolutions, recurrences or attention; everything where there are none.
    setting : {"given", "expected", "pairwise"}, default="given"
        "given" judges the given network (setting (b) of the paper), "expected" the average of all
        plausible models (setting (a)), "pairwise" how far models disagree with each other. Labels
        are those of the given network in all. In "expected" and "pairwise", ``predict_proba`` is
        calibrated by held-out rows, if ``fit`` has got any. It may be changed after ``fit``: all
        use the same models.
    search : str, NaturalSearch, LinearSearch or PenaltySearch, default="auto"
        How the searches move: "natural" means `NaturalSearch` with its defaults, "linear" the much
        faster `LinearSearch`, "penalty" the paper's algorithm `PenaltySearch`. "auto" is natural
        search, or penalty search with a warning where the curvature of the network cannot be
        measured. Arguments of a search are tuned as ``search__n_steps``.
    temperature : float or "auto", default="auto"
        Scale of what models cost (T in the paper), in nats of the whole training set: a model
        weighs exp(-cost / temperature). It ranks samples, it does not forecast. "auto" is 20, and
        10 in penalty search, where unknown samples were found best; the Bayesian posterior has 1.
    n_training_rows : int, default=None
        How many samples the network was trained on, if those passed to ``fit`` are only some of
        them: each then represents several. Pass fewer of very many for a smaller estimator.
    n_jobs : int, default=None
        Workers that share the rows, through joblib (processes, or whatever
        ``joblib.parallel_config`` says). The result does not depend on it.
    memory_limit
        All workers share it. What cannot fit is refused, with the number that is needed.
    random_state : int, RandomState instance or None, default=None
        Seeds the mini-batches, the same for all rows, and the training of an unfitted estimator.

    Attributes
    ----------
    parameter_names_
    n_parameters_searched_
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
        row; at its input, because what is searched begins there; or not at all, because the network
        cannot be cut, so that all of it runs for every model.
    execution_ : {"matmul", "vmap", "loop"}
        How searches run together: as large matrix products, by ``torch.vmap``, or one by one for
        modules that allow neither.

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
    }

    # Models are weighed to rank rows. An average with such weights would be far too unsure.
    _given_predicts = True
    _auto_temperatures: ClassVar[dict] = {
        NaturalSearch: 20.0,
        LinearSearch: 20.0,
        PenaltySearch: 10.0,
    }
    _auto_search = NaturalSearch
    _auto_reason = "the curvature of what is searched can be measured"

    def __init__(
        self,
        estimator: Any = None,
        *,
        parameters: Parameters = "auto",
        setting: str = "given",
        measure: str = "entropy",
        search: Any = "auto",
        temperature: float | str = "auto",
        n_training_rows: int | None = None,
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
        self.temperature = temperature
        self.n_training_rows = n_training_rows
        self.link = link
        self.output = output
        self.device = device
        self.n_jobs = n_jobs
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose

    def _targets(self, asked: Any) -> Targets:
        return class_targets(self.classes_, asked)

    @computing()
    def _predictive(self, X: Any) -> np.ndarray:
        prediction, beyond = self._fitted.predict(self._check_inputs(X))
        warn_beyond_range(beyond)
        # Rows beyond the range of the training data may have any label.
        return np.where(beyond[:, None], 1 / len(self.classes_), prediction.to_array())


@documented(REGRESSOR, QUAMClassifier)
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
    setting
    search : str, NaturalSearch, LinearSearch or PenaltySearch, default="auto"
        How the searches move: "natural" means `NaturalSearch` with its defaults, "linear" the much
        faster `LinearSearch`, "penalty" the paper's algorithm `PenaltySearch`. "auto" is linear
        search: the posterior of the mean in closed form, which is exact for a linear model, or
        penalty search with a warning where the curvature of the network cannot be measured.
        Arguments of a search are tuned as ``search__prior_precision``.
    temperature : float or "auto", default="auto"
        Scale of what models cost (T in the paper), in nats of the whole training set: a model
        weighs exp(-cost / temperature), where a cost below zero counts as zero. "auto" is 1, the
        temperature of the Bayesian posterior.

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
    }

    _auto_temperatures: ClassVar[dict] = {}
    _auto_search = LinearSearch
    _auto_reason = "the posterior of a mean has a closed form where the network is about linear"

    def __init__(
        self,
        estimator: Any = None,
        *,
        parameters: Parameters = "auto",
        setting: str = "given",
        measure: str = "entropy",
        search: Any = "auto",
        temperature: float | str = "auto",
        n_training_rows: int | None = None,
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
        self.temperature = temperature
        self.n_training_rows = n_training_rows
        self.link = link
        self.output = output
        self.noise_variance = noise_variance
        self.device = device
        self.n_jobs = n_jobs
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose

    def _targets(self, asked: Any) -> Targets:
        return direction_targets(self.n_outputs_, asked)
