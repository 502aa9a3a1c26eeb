"""QUAM: uncertainty with adversarial models."""

from __future__ import annotations

from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ._arguments import arguments
from ._documented import CLASSIFIER, REGRESSOR, documented
from ._messages import shown
from ._network.limits import computing
from ._search.natural.arguments import LinearSearch, NaturalSearch
from ._search.targets import Targets, class_targets, direction_targets
from ._typing import MemoryLimit, Parameters
from .base._adversarial import AdversarialSearch
from .baselines._method import ClassifierMethod, RegressorMethod


@arguments
class _QUAM(AdversarialSearch):
    parameters: Parameters = "auto"
    search: Any = "auto"
    temperature: float | str = "auto"
    n_training_rows: int | None = None
    n_jobs: int | None = None
    memory_limit: MemoryLimit = None


@documented(CLASSIFIER)
@arguments
class QUAMClassifier(_QUAM, ClassifierMethod):
    """Uncertainty of a network's classification by adversarial models (QUAM).

    For every sample, searches start at the given network and look for models that explain the
    training data as well but predict something else for this sample: one search for each class.
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
        calibrated by the held-out samples passed to ``fit``. It may be changed after ``fit``.
    search : str, NaturalSearch, LinearSearch or PenaltySearch, default="auto"
        The search algorithm: "natural" means `NaturalSearch` with its defaults, "linear" the much
        faster `LinearSearch`, "penalty" the paper's algorithm `PenaltySearch`. "auto" is natural
        search, or penalty search with a warning where the curvature of the network cannot be
        measured. Arguments of a search are tuned as ``search__n_steps``.
    temperature : float or "auto", default="auto"
        Temperature of the posterior (T in the paper), in nats of the whole training set: a model
        weighs exp(-cost / temperature). It ranks samples, it does not forecast; the Bayesian
        posterior has 1. "auto" is 20, and 10 in penalty search, where unknown samples were found
        best. Where the posterior of logits is taken as Gaussian, it is the temperature at which
        the log-odds of a typical training sample have a standard deviation of 3.5.
    n_training_rows : int, default=None
        How many samples the network was trained on, if those passed to ``fit`` are only some of
        them: each then represents several. Pass fewer of very many for a smaller estimator.
    n_jobs : int, default=None
        Workers that share the samples, through joblib. The result does not depend on it.
    memory_limit
        All workers share it. An error names the number that is needed if it is too small.
    random_state : int, RandomState instance or None, default=None
        Seed of the mini-batches, the same for all samples, and of the training of an unfitted
        estimator.

    Attributes
    ----------
    parameter_names_
    n_parameters_searched_
    search_ : NaturalSearch, LinearSearch or PenaltySearch
        The search that was chosen.
    search_reason_ : str
        The reason for it.
    n_training_rows_ : int
        Number of samples that the network was trained on.
    temperature_ : float
        The temperature, in nats of the whole training set.
    slack_ : float
        The slack, in nats of the whole training set.
    cut_ : {"inside", "at_input", "failed"}
        Where the network is cut: inside, so that the part before runs only once for each sample; at
        its input, because the searched part begins there; or nowhere, so that all of it runs for
        every model.
    execution_ : {"matmul", "vmap", "loop"}
        How models run together: as large matrix products, by ``torch.vmap``, or one by one for
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

    # Weights that rank samples best would make an average far too unsure.
    _given_predicts = True
    _auto_search = NaturalSearch
    _auto_reason = "the curvature of what is searched can be measured"

    def _targets(self, asked: Any) -> Targets:
        return class_targets(self.classes_, asked)

    def _predictive(self, X: Any) -> np.ndarray:
        prediction, lost = self._predict_given(X)
        # Beyond the range of the training data, any label is possible.
        return np.where(lost[:, None], 1 / len(self.classes_), prediction.to_array())

    @computing()
    def predict_proba_bounds(
        self, X: Any, slack: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds of the probability of each class over all plausible models.

        The models are the given network and those of the searches that cost no more than the slack.
        Together they are a credal set: any weighted average of them is within the bounds. The true
        bounds are no narrower, as searches may miss models.

        Parameters
        ----------
        slack : float, default=None
            Largest cost of a model, in nats of the whole training set: 3 nats are a likelihood
            ratio of 20. None takes ``slack_``. The larger, the wider are the bounds.

        Returns
        -------
        lower, upper : ndarray of shape (n_samples, n_classes)
            Bounds of each probability; columns as in ``classes_``. They are 0 and 1 for samples
            beyond the range of the training data.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn_quam import QUAMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y)).fit(X, y)
        >>> lower, upper = est.predict_proba_bounds(X[77:78], slack=2.0)
        >>> proba = est.predict_proba(X[77:78])
        >>> bool(((lower <= proba) & (proba <= upper)).all())
        True
        """
        check_is_fitted(self)
        nats: Any = self.slack_ if slack is None else slack
        if not isinstance(nats, Real) or not 0 <= float(nats) < np.inf:
            raise ValueError(
                f"slack={shown(slack)} is not valid: pass a number of nats from 0 on, or None."
            )
        models: Any = self._fitted.models
        anything = np.tile([0.0, 1.0], (models.problem.targets.n_answers, 1))
        found = self._searched(X, partial(models.bounds, slack=float(nats)), anything)
        return found[..., 0], found[..., 1]


@documented(REGRESSOR, QUAMClassifier)
@arguments
class QUAMRegressor(_QUAM, RegressorMethod):
    """Uncertainty of a network's regression by adversarial models (QUAM).

    For every sample, searches move the prediction up and down with models that explain the training
    data as well, one search for each direction and output. Where such models are easy to find, the
    prediction is epistemically uncertain. By default the network is taken as linear in its
    parameters, and the answer is a closed form; other searches follow the network itself.

    Bands grow with the distance from the training data. In gaps between them they are too
    narrow: see :doc:`/results/sine`.

    Parameters
    ----------
    setting
    search : str, NaturalSearch, LinearSearch or PenaltySearch, default="auto"
        The search algorithm, as for `QUAMClassifier`. "auto" is linear search: the posterior of the
        mean in closed form, which is exact for a linear model, or penalty search with a warning
        where the curvature of the network cannot be measured.
    temperature : float or "auto", default="auto"
        Temperature of the posterior (T in the paper), in nats of the whole training set: a model
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

    _auto_search = LinearSearch
    _auto_reason = "the posterior of a mean has a closed form where the network is about linear"

    def _targets(self, asked: Any) -> Targets:
        return direction_targets(self.n_outputs_, asked)
