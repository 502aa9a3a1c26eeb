"""What QUAM's classifier and regressor share."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from .._network.limits import computing
from .._posterior.results import SearchDiagnostics
from .._search.adversarial import AdversarialModels, adversarial_models
from .._search.penalty import PenaltySearch
from .._search.targets import Targets
from .._search.traces import found_models, search_traces
from ._estimator import FitData
from ._weights import WeightChanging

# Ways to search that a word stands for.
SEARCHES = {"penalty": PenaltySearch}


class AdversarialSearch(WeightChanging):
    """What QUAM's classifier and regressor share."""

    # Times the temperature of the Bayesian posterior, one over the number of training rows.
    _auto_temperature: ClassVar[float]
    # The slack, where it is left to us, in units of the temperature.
    _auto_slack: ClassVar[float]
    _rows_in_parallel = True
    _diagnostics = SearchDiagnostics
    _search_constraints: ClassVar[dict] = {
        **WeightChanging._weight_constraints,
        "search": [StrOptions(set(SEARCHES)), HasMethods(["get_params", "_steps"])],
        "slack": [Interval(Real, 0, None, closed="left"), None],
        "temperature": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "n_jobs": [Integral, None],
    }

    search: Any
    targets: Any
    sampling: str
    temperature: float | str
    slack: float | None
    n_jobs: int | None

    def _fit_models(self, fit: FitData) -> AdversarialModels:
        if isinstance(self.search, type):
            raise TypeError(f"search is a class: pass an object, {self.search.__name__}(...).")
        search = SEARCHES[self.search]() if isinstance(self.search, str) else self.search
        search._validate_params()
        if self.temperature == "auto":
            self.temperature_ = self._auto_temperature / len(fit.training)
        else:
            self.temperature_ = float(self.temperature)
        self.slack_ = self._auto_slack * self.temperature_ if self.slack is None else self.slack
        # Refused now if it is not understood.
        self._limits(fit)
        network = self._free_network(fit)
        self.cut_, self.execution_ = network.split.place, network.executor.name
        return adversarial_models(
            fit.reference,
            network,
            fit.training,
            search,
            self._choose_targets(),
            sampling=self.sampling,
            temperature=self.temperature_,
            slack=self.slack_,
            seed=fit.seed,
        )

    def _choose_targets(self) -> Targets:
        raise NotImplementedError

    def set_params(self, **params: Any) -> Any:
        """Set constructor arguments.

        Parameters
        ----------
        **params : dict
            Names and values; those of the search are called ``search__name``.

        Returns
        -------
        self : object
            The estimator itself.
        """
        search = params.get("search", self.search)
        nested = any(name.startswith("search__") for name in params)
        if nested and isinstance(search, str) and search in SEARCHES:
            # A word has no arguments; what it stands for has.
            params["search"] = SEARCHES[search]()
        return super().set_params(**params)

    @computing()
    def adversarial_models(self, x: Any) -> list[list[dict[str, Any]]]:
        """Return the rival models that were found for a few points.

        Parameters
        ----------
        x : array-like of shape (n_samples, ...)
            A few rows like those of the training data.

        Returns
        -------
        list of list of dict
            For each row a list of models, the most divergent first; for each model its
            ``state_dict`` (to be loaded into a copy of the module; that of a scikit-learn network
            has the names "0.weight", "0.bias", "2.weight", ...), its ``prediction`` for the row
            (probabilities or means), the ``target`` of its search (a label, "up", "down", or None
            if untargeted), its ``divergence`` KL(given || found) in nats, its ``loss_increase`` on
            up to 1024 training rows, and whether it is ``feasible``. A search that found no
            feasible model contributes the given network itself.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn_quam import QUAMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y))
        >>> est = est.set_params(search__n_steps=20)
        >>> models, = est.fit(X, y).adversarial_models(X[77:78])
        >>> len(models)
        3
        """
        inputs, fitted = self._check_inputs(x), self._fitted
        limits = self._question(inputs).limits
        return list(found_models(fitted.models, fitted.reference, inputs, limits))

    @computing()
    def search_traces(self, x: Any) -> list[list[dict[str, Any]]]:
        """Return every step of the searches of a few points, which is not kept otherwise.

        Parameters
        ----------
        x : array-like of shape (n_samples, ...)
            A few rows like those of the training data.

        Returns
        -------
        list of list of dict
            For each row a list of searches; for each search its ``target``, and arrays with an
            entry for each of the n_steps + 1 models met, the given network first (next to it if
            ``targets="untargeted"``): ``prediction`` for the row, ``divergence`` from the given
            network in nats, and ``loss_increase``, the mean over the mini-batches of the last few
            steps. A search that ended early repeats its last model.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn_quam import QUAMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y))
        >>> est = est.set_params(search__n_steps=20)
        >>> (to_first_class, *_), = est.fit(X, y).search_traces(X[77:78])
        >>> to_first_class["divergence"].shape
        (21,)
        """
        inputs, fitted = self._check_inputs(x), self._fitted
        limits = self._question(inputs).limits
        return list(search_traces(fitted.models, fitted.reference, inputs, limits))
