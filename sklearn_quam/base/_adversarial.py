"""What QUAM's classifier and regressor share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from .._messages import few, short_messages, shown
from .._network.inputs.rows import Inputs
from .._network.inputs.sources import open_source
from .._network.limits import Limits, computing, slices
from .._posterior.fitted import FittedMethod, Question
from .._posterior.progress import tracked
from .._posterior.results import RowResults, SearchDiagnostics
from .._posterior.training_range import refuse_beyond_range, warn_beyond_range
from .._search.found import costs_of_rivals, found_models, search_traces
from .._search.models import AdversarialModels
from .._search.natural.arguments import LinearSearch, NaturalSearch
from .._search.penalty.arguments import PenaltySearch
from .._search.problem import Problem
from .._search.rivals import refined_costs
from .._search.targets import Targets
from ..exceptions import CurvatureError, warn
from ._data import one_row
from ._doubt import MAX_KNOWN_ROWS_IF_SLOW
from ._estimator import FitData
from ._weights import WeightChanging
from ._wrapping import N_JOBS
from .checks.refused import refuse_unknown_answer
from .checks.warned import (
    warn_about_collapsed_weights,
    warn_about_slow_network,
)

if TYPE_CHECKING:
    import pandas as pd

# Ways to search that a word stands for; what "auto" means depends on the task.
SEARCHES = {
    "natural": NaturalSearch,
    "linear": LinearSearch,
    "penalty": PenaltySearch,
}


class AdversarialSearch(WeightChanging):
    """What QUAM's classifier and regressor share."""

    # In nats, of each kind of search; the Bayesian posterior has a temperature of one.
    _auto_temperatures: ClassVar[dict[type, float]]
    # What search="auto" means where the curvature can be measured, and why.
    _auto_search: ClassVar[type]
    _auto_reason: ClassVar[str]
    _rows_in_parallel = True
    _diagnostics = SearchDiagnostics
    _fitted_kind = FittedMethod[AdversarialModels]
    _search_constraints: ClassVar[dict] = {
        **WeightChanging._weight_constraints,
        "search": [StrOptions({"auto", *SEARCHES}), HasMethods(["get_params", "_engine"])],
        "temperature": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "n_training_rows": [Interval(Integral, 1, None, closed="left"), None],
        "n_jobs": [*N_JOBS, None],
    }

    measure: str
    search: Any
    temperature: float | str
    n_training_rows: int | None
    n_jobs: int | None

    def _fit_models(self, fit: FitData) -> AdversarialModels:
        if isinstance(self.search, type):
            raise TypeError(f"search is a class: pass an object, {self.search.__name__}(...).")
        search = self._kind_of(self.search)() if isinstance(self.search, str) else self.search
        with short_messages():
            search._validate_params()
        n_rows = len(fit.training) if self.n_training_rows is None else self.n_training_rows
        if n_rows < len(fit.training):
            raise ValueError(
                f"n_training_rows={n_rows}, but {len(fit.training)} rows were passed to fit: it is "
                "the number of rows that the network was trained on, of which these are a sample."
            )
        self.n_training_rows_ = n_rows
        # Refused now if it is not understood.
        limits = self._limits(fit)
        network = self._free_network(fit)
        is_chosen = self.search != "auto"
        self.search_reason_ = "chosen by the user" if is_chosen else self._auto_reason
        self.temperature_ = self._choose_temperature(search)
        exact = isinstance(search, NaturalSearch) and search._needs_double(fit.original)
        if exact and fit.reference.device.type != "mps":
            training = fit.training.in_double()
            reference = fit.reference.in_double()
            original = reference.predict(training.inputs)
            fit = replace(fit, reference=reference, training=training, original=original)
            network = self._free_network(fit)
        self.cut_, self.execution_ = network.split.place, network.executor.name
        warn_about_slow_network(network, self.parameters)
        training, original = network.training_at_cut(fit.training), cast(Any, fit.original)
        targets = self._targets(search.targets)
        problem = Problem(network, training, targets, original, n_rows)
        # Whatever is wrong is to show now, not when samples are asked about.
        generator = torch.Generator().manual_seed(fit.seed)
        try:
            engine = search._engine(problem, self.temperature_, generator, limits)
        except CurvatureError as error:
            if is_chosen:
                raise
            # What a network does may defeat the curvature in any way; the gradients remain.
            search, self.search_reason_ = PenaltySearch(), f"no curvature: {error}"
            warn(
                f"The curvature of the network cannot be measured ({error}), so that natural and "
                "linear search are not possible. Searching with search='penalty' instead, which "
                "takes much longer. Other parameters=, such as 'last_layer', may help.",
                UserWarning,
            )
            self.temperature_ = self._choose_temperature(search)
            generator.manual_seed(fit.seed)
            engine = search._engine(problem, self.temperature_, generator, limits)
        self.search_, self.slack_ = search, engine.slack
        return AdversarialModels(problem, engine)

    def _sized(self, fitted: FittedMethod, data: FitData) -> FittedMethod:
        question = Question(self.setting, self.measure, self._limits(data))

        def run(models: AdversarialModels, inputs: Inputs, limits: Limits) -> object:
            return replace(fitted, models=models).results(inputs, replace(question, limits=limits))

        models = fitted.models.sized(run, data.training.inputs, question.limits)
        return replace(fitted, models=models)

    def _remedies(self) -> tuple[str, ...]:
        workers = "n_jobs=-1 spreads rows over all cores"
        fewer = "parameters='last_layer' searches fewer parameters"
        if isinstance(self.search_, PenaltySearch):
            quicker = "linear" if self._is_regressor() else "natural"
            other = f"search='{quicker}' is many times faster"
            return (other, workers, f"{fewer}, search__n_steps=... takes fewer steps")
        if isinstance(self.search_, LinearSearch):
            return (workers, fewer, "ask for fewer rows")
        return ("search='linear' is a first look", workers, fewer)

    def _is_regressor(self) -> bool:
        return self._task == "regressor"

    def _kind_of(self, word: str) -> type:
        """Return the kind of search that a word stands for."""
        return self._auto_search if word == "auto" else SEARCHES[word]

    def _choose_temperature(self, search: Any) -> float:
        if self.temperature != "auto":
            return float(self.temperature)
        return self._auto_temperatures.get(type(search), 1.0)

    def _targets(self, asked: Any) -> Targets:
        raise NotImplementedError

    def _most_known_rows(self) -> int:
        # A tenth of a second for each of them.
        slow = isinstance(self.search_, PenaltySearch)
        return MAX_KNOWN_ROWS_IF_SLOW if slow else super()._most_known_rows()

    def _warned(self, results: RowResults) -> RowResults:
        searched = results.diagnostics.effective_sample_size[~results.uncertainty.beyond_range]
        if len(searched):
            n_searches = self._fitted.models.problem.targets.count
            warn_about_collapsed_weights(searched, n_searches, self.temperature_)
        return super()._warned(results)

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
        if nested and isinstance(search, str) and search in {"auto", *SEARCHES}:
            # A word has no arguments; what it stands for has.
            params["search"] = self._kind_of(search)()
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
            if untargeted), its ``divergence`` KL(given || found) in nats, its ``loss_increase``
            (mean over all training rows; over up to 1024 of them in penalty search), and whether it
            is ``feasible``. A search that found no feasible model contributes the given network
            itself.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn_quam import QUAMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y))
        >>> models, = est.fit(X, y).adversarial_models(X[77:78])
        >>> len(models)
        3
        """
        inputs, fitted = self._check_inputs(x), self._fitted
        rows, original, lost = fitted.seen(inputs[:])
        refuse_beyond_range(lost)
        limits = self._question(inputs).limits
        found = found_models(fitted.models, fitted.reference.module, rows, original, limits)
        return list(self._tracked(found, len(inputs)))

    def _tracked(self, items: Any, total: int, unit: str = "row") -> Iterator[Any]:
        return tracked(items, type(self).__name__, self.verbose, unit, total)

    @computing()
    def rival_costs(self, X: Any, refine: bool = True) -> np.ndarray:
        """Return what it costs to make the network give each answer, by the cheapest model found.

        The cost of a model is the sum of KL(given || model) over the training data: so much
        log-likelihood would these lose if the given network is right. A prior around the given
        network is added, half its precision times the squared distance of the weights. The cost is
        an upper bound of what the cheapest model of all costs. A table in the documentation says
        how far above it is, for networks that are small enough for brute force.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.
        refine : bool, default=True
            Look for the cheapest model that gives the answer: the cost on the training data is
            minimised, which takes a second or two for a row. A network with millions of
            searched parameters is not refined. False returns the estimate on the path of the
            search, which is fast and much higher for networks with hidden layers. It looks at fewer
            training rows, between steps it is interpolated, and it is without the prior.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            What it costs to make each class more likely than not, in nats of the whole training
            set: zero for a class that is so already, infinite for classes that were not searched
            for (see ``targets``) or not reached. Regressors have two columns for each output: to
            move its mean up, and down, by a standard deviation. All are zero for rows
            beyond the range of the training data: any answer is as good as another. The lowest of
            the other answers with ``refine=False`` is ``rival_cost`` in the diagnostics.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn_quam import QUAMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y)).fit(X, y)
        >>> cost = est.rival_costs(X[:1])    # a setosa, far from the others
        >>> bool(cost[0, 0] == 0 and cost[0, 1] < cost[0, 2])
        True
        """
        check_is_fitted(self)
        models = self._fitted.models
        if models.problem.targets.untargeted:
            raise ValueError(
                "targets='untargeted' goes to no answer in particular: pass "
                "PenaltySearch(targets='all') to be told what each of them costs."
            )
        costs = partial(refined_costs, models) if refine else models.answer_costs
        return self._searched(X, costs, np.zeros(models.problem.targets.n_answers))

    def _searched(
        self, X: Any, search: Callable[[Any, Any, Limits], np.ndarray], of_lost: np.ndarray
    ) -> np.ndarray:
        """Return what searches tell about rows, some at a time, or what is said of lost ones."""
        inputs, fitted = self._check_inputs(X), self._fitted
        limits = self._question(inputs).limits
        size = fitted.models.rows_at_once(inputs, replace(limits, n_workers=1))
        chunks = list(slices(len(inputs), size))
        found, lost = np.repeat(of_lost[None], len(inputs), axis=0), []
        for chunk in self._tracked(chunks, len(chunks), "chunk"):
            rows, original, beyond = fitted.seen(inputs[chunk], chunk.start)
            lost.append(beyond)
            fine = torch.as_tensor(np.flatnonzero(~beyond), device=inputs.device)
            if len(fine):
                found[chunk][~beyond] = search(rows[fine], original[fine], limits)
        warn_beyond_range(np.concatenate(lost))
        return found

    @computing()
    def explain_rival(self, x: Any, target: Any = None) -> pd.DataFrame:
        """Return which training rows would pay for another answer.

        The first model on the way of a search that gives the answer is held against the given
        network, on every training row. Rows that lose much are the evidence against the answer:
        look at them, ``X_train[table["row"][:5]]``, and you see what the network goes by. Rows that
        gain are evidence for it.

        Parameters
        ----------
        x : array-like of shape (n_features,) or (1, ...)
            One row like those of the training data.
        target : object, default=None
            The answer: a label, or "up" or "down" for regressors. None takes the cheapest one that
            the given network does not give itself.

        Returns
        -------
        DataFrame
            For each training row, the one that pays most first: its number ``row`` in the X of
            ``fit``, its ``cost`` in nats, and its ``share`` of all that is lost (negative where it
            gains). ``table.attrs["target"]`` is the answer. Costs add up to that of the model on
            all rows that were passed to ``fit``.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn_quam import QUAMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y)).fit(X, y)
        >>> table = est.explain_rival(X[77:78])
        >>> int(table.attrs["target"]), bool(table["cost"][0] > 0)
        (1, True)
        """
        import pandas as pd

        check_is_fitted(self)
        refuse_unknown_answer(target, getattr(self, "classes_", ("up", "down")))
        inputs, fitted = self._check_inputs(x if open_source(x) else one_row(x)), self._fitted
        if len(inputs) != 1:
            raise ValueError(f"explain_rival takes one row at a time, not {len(inputs)}: x[:1].")
        row, original, beyond = fitted.seen(inputs[:])
        refuse_beyond_range(beyond)
        limits = self._question(inputs).limits
        found = costs_of_rivals(fitted.models, row, original, limits)
        if target is None and found:
            target = min(found, key=lambda name: found[name].sum())
        asked = [name for name in found if np.array_equal(name, target)]
        if not asked:
            reached = few(list(found)) or "none"
            raise ValueError(
                f"No search has led to the answer {shown(target)}: it is what the network says "
                "anyway, is not among the targets, or is out of reach. There are models for: "
                f"{reached}."
            )
        cost = found[asked[0]]
        order = np.argsort(-cost, kind="stable")
        lost = cost.clip(min=0).sum() or 1.0
        table = pd.DataFrame({"row": order, "cost": cost[order], "share": cost[order] / lost})
        table.attrs["target"] = asked[0]
        return table

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
            network in nats, and ``loss_increase``: the mean increase to be expected on all
            training rows if the given network is right, or in penalty search the measured mean over
            the mini-batches of the last few steps. A search that ended early repeats its last
            model.

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
        rows, original, lost = fitted.seen(inputs[:])
        refuse_beyond_range(lost)
        limits = self._question(inputs).limits
        traces = search_traces(fitted.models, rows, original, limits)
        return list(self._tracked(traces, len(inputs)))
