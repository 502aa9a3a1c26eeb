"""QUAM for both tasks: fit a search for adversarial models, and ask it for details."""

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

from .._documented import QUERY, documented
from .._messages import few, short_messages, shown
from .._network.inputs.rows import Inputs
from .._network.inputs.sources import open_source
from .._network.limits import Limits, computing, slices
from .._posterior.accumulate import make_posterior
from .._posterior.fitted import FittedMethod, Question
from .._posterior.progress import tracked
from .._posterior.results import RowResults
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
from ._estimator import BaseUncertaintyEstimator, FitData
from ._wrapping import N_JOBS
from .checks.warned import (
    warn_about_collapsed_weights,
    warn_about_slow_network,
)

if TYPE_CHECKING:
    import pandas as pd

# Searches by name; "auto" depends on the task.
SEARCHES = {"natural": NaturalSearch, "linear": LinearSearch, "penalty": PenaltySearch}


@documented(QUERY)
class AdversarialSearch(BaseUncertaintyEstimator):
    """The common base of QUAM's classifier and regressor."""

    # What search="auto" means where the curvature can be measured, and why.
    _auto_search: ClassVar[type]
    _auto_reason: ClassVar[str]
    _targets: Callable[[Any], Targets]  # the targets of the searches of a sample
    _rows_in_parallel = True
    _changes_weights = True
    _diagnostics = ("rival", "rival_cost", "feasible", "n_steps")
    _fitted_kind = FittedMethod[AdversarialModels]
    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyEstimator._weight_constraints,
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
        limits, search = self._limits(fit), self._search()
        n_rows = len(fit.training) if self.n_training_rows is None else self.n_training_rows
        if n_rows < len(fit.training):
            raise ValueError(
                f"n_training_rows={n_rows}, but {len(fit.training)} rows were passed to fit: it is "
                "the number of rows that the network was trained on, of which these are a sample."
            )
        self.n_training_rows_ = n_rows

        network, original, training = fit.network, fit.original, fit.training
        exact = isinstance(search, NaturalSearch) and search._needs_double(original)
        if exact and fit.reference.device.type != "mps":
            training = replace(training, rows=()).in_double()
            network = self._free_network(fit.reference.in_double(), training.inputs, fit.seed)
            at_cut, original = network.given(training.inputs)
            training = replace(training, rows=at_cut.parts)
        self.cut_, self.execution_ = network.split.place, network.executor.name
        warn_about_slow_network(network, self.parameters)
        training = training.behind_cut()

        def prepare(search: Any) -> AdversarialModels:
            temperature = None if self.temperature == "auto" else float(self.temperature)
            targets = self._targets(search.targets)
            problem = Problem(network, training, targets, cast(Any, original), n_rows)
            generator = torch.Generator().manual_seed(fit.seed)
            engine = search._engine(problem, temperature, generator, limits)
            self.search_, self.slack_, self.temperature_ = search, engine.slack, engine.temperature
            return AdversarialModels(problem, engine)

        def run(models: AdversarialModels, inputs: Inputs, limits: Limits) -> None:
            rows, original = models.given(inputs)
            posterior = make_posterior(original, self.setting, self.measure, standard_error=False)
            models.sample(rows, original, posterior, Question(self.setting, self.measure, limits))

        is_chosen = self.search != "auto"
        self.search_reason_ = "chosen by the user" if is_chosen else self._auto_reason
        try:
            models = prepare(search)
        except CurvatureError as error:
            if is_chosen:
                raise
            warn(
                f"The curvature of the network cannot be measured ({error}), so that natural and "
                "linear search are not possible. Searching with search='penalty' instead, which "
                "takes much longer. Other parameters=, such as 'last_layer', may help.",
                UserWarning,
            )
            self.search_reason_ = f"no curvature: {error}"
            models = prepare(PenaltySearch())
        return models.sized(run, fit.training.inputs, limits)

    def _search(self) -> Any:
        """Return the checked search object that `search` stands for."""
        if isinstance(self.search, type):
            raise TypeError(f"search is a class: pass an object, {self.search.__name__}(...).")
        search = self._kind_of(self.search)() if isinstance(self.search, str) else self.search
        with short_messages():
            search._validate_params()
        return search

    def _kind_of(self, word: str) -> type:
        return self._auto_search if word == "auto" else SEARCHES[word]

    def _most_known_rows(self) -> int:
        # A tenth of a second for each of them.
        slow = isinstance(self.search_, PenaltySearch)
        return MAX_KNOWN_ROWS_IF_SLOW if slow else super()._most_known_rows()

    def _warn_about(self, results: RowResults) -> None:
        super()._warn_about(results)
        # At the default, samples without plausible rivals are certain, and nothing is amiss.
        if self.temperature == "auto":
            return
        searched = results.diagnostics.effective_sample_size[~results.uncertainty.beyond_range]
        n_searches = self._fitted.models.problem.targets.count
        warn_about_collapsed_weights(searched, n_searches, self.temperature_)

    def set_params(self, **params: Any) -> Any:
        search = params.get("search", self.search)
        nested = any(name.startswith("search__") for name in params)
        if nested and isinstance(search, str) and search in {"auto", *SEARCHES}:
            # A string has no arguments, but the search that it stands for has.
            params["search"] = self._kind_of(search)()
        return super().set_params(**params)

    set_params.__doc__ = BaseUncertaintyEstimator.set_params.__doc__

    def _tracked(self, items: Any, total: int, unit: str = "row") -> Iterator[Any]:
        return tracked(items, type(self).__name__, self.verbose, unit, total)

    def _few_rows(self, x: Any) -> tuple[Any, Any, Limits]:
        """Return a few samples as the models take them, the given prediction, and the limits."""
        inputs = self._check_inputs(x)
        rows, original, lost = self._fitted.seen(inputs[:])
        refuse_beyond_range(lost)
        return rows, original, self._question(inputs).limits

    @computing()
    def adversarial_models(self, x: Any) -> list[list[dict[str, Any]]]:
        """Return the adversarial models that were found for a few samples.

        Parameters
        ----------
        x : array-like of shape (n_samples, ...)
            A few samples like those of the training data.

        Returns
        -------
        list of list of dict
            For each sample a list of models, the most divergent first; for each model its
            ``state_dict`` (to be loaded into a copy of the module; that of a scikit-learn network
            has the names "0.weight", "0.bias", "2.weight", ...), its ``prediction`` for the sample
            (probabilities or means), the ``target`` of its search (a label, "up", "down", or None
            if untargeted), its ``divergence`` KL(given || found) in nats, its ``loss_increase``
            (mean over all training samples; over up to 1024 in penalty search), and whether it is
            ``feasible``. A search that found no feasible model contributes the given network.
        """
        rows, original, limits = self._few_rows(x)
        fitted = self._fitted
        found = found_models(fitted.models, fitted.reference.module, rows, original, limits)
        return list(self._tracked(found, len(original)))

    @computing()
    def rival_costs(self, X: Any, refine: bool = True) -> np.ndarray:
        """Return the cost of the cheapest adversarial model that gives each answer.

        The cost of a model is the sum of KL(given || model) over the training data: the
        log-likelihood they are expected to lose if the given network is right. A prior around the
        given network is added, half its precision times the squared distance of the weights. It is
        an upper bound: cheaper models may exist. A table in the documentation compares it with
        brute force on small networks.

        Parameters
        ----------
        refine : bool, default=True
            Minimise the cost on the training data, which takes a second or two for a sample. A
            network with millions of searched parameters is not refined. False returns the estimate
            on the path of the search: fast, much higher for networks with hidden layers, measured
            on fewer training samples, interpolated, and in penalty search without the prior.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Cost of making each class more likely than not, in nats of the whole training set: zero
            for the class that is so already, infinite for classes that were not searched for or not
            reached. Regressors have two columns for each output: move its mean up, and down, by a
            standard deviation. All are zero for samples beyond the range of the training data. The
            lowest of the other answers with ``refine=False`` is ``rival_cost`` in the diagnostics.

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
                "targets='untargeted' leads to no answer in particular: pass "
                "PenaltySearch(targets='all') for the cost of each."
            )
        costs = partial(refined_costs, models) if refine else models.answer_costs
        return self._searched(X, costs, np.zeros(models.problem.targets.n_answers))

    def _searched(
        self, X: Any, search: Callable[[Any, Any, Limits], np.ndarray], of_lost: np.ndarray
    ) -> np.ndarray:
        """Return results of searches, some samples at a time, and ``of_lost`` beyond the range."""
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
        """Attribute the cost of an adversarial model to the training samples.

        The first model on the path of a search that gives the answer is compared with the given
        network on every training sample. Samples that lose much are the evidence against the
        answer, ``X_train[table["row"][:5]]``; samples that gain are evidence for it.

        Parameters
        ----------
        x : array-like of shape (n_features,) or (1, ...)
            One sample like those of the training data.
        target : object, default=None
            The answer: a label, or "up" or "down" for regressors. None takes the cheapest one that
            the given network does not give itself.

        Returns
        -------
        DataFrame
            For each training sample, the one that loses most first: its number ``row`` in the X of
            ``fit``, its ``cost`` in nats, and its ``share`` of all losses (negative where it
            gains). ``table.attrs["target"]`` is the answer. Costs add up to that of the model on
            all samples that were passed to ``fit``.

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
        answers = getattr(self, "classes_", ("up", "down"))
        if target is not None and not any(np.array_equal(name, target) for name in answers):
            raise ValueError(
                f"target={shown(target)} is no answer of the network: choose one of {few(answers)}."
            )
        row, original, limits = self._few_rows(x if open_source(x) else one_row(x))
        if len(original) != 1:
            raise ValueError(f"explain_rival takes one row at a time, not {len(original)}: x[:1].")
        found = costs_of_rivals(self._fitted.models, row, original, limits)
        if target is None and found:
            target = min(found, key=lambda name: found[name].sum())
        asked = [name for name in found if np.array_equal(name, target)]
        if not asked:
            reached = few(list(found)) or "none"
            raise ValueError(
                f"No search has led to the answer {shown(target)}: the network gives it already, "
                "it is not among the targets, or it was not reached. There are models for: "
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
        """Return every step of the searches of a few samples.

        Parameters
        ----------
        x : array-like of shape (n_samples, ...)
            A few samples like those of the training data.

        Returns
        -------
        list of list of dict
            For each sample a list of searches; for each search its ``target``, and arrays with an
            entry for each of the n_steps + 1 models met, the given network first (next to it if
            ``targets="untargeted"``): ``prediction`` for the sample, ``divergence`` from the given
            network in nats, and ``loss_increase``: the mean increase to be expected on all training
            samples if the given network is right, or in penalty search the measured mean over the
            mini-batches of the last few steps. A search that ended early repeats its last model.
        """
        rows, original, limits = self._few_rows(x)
        traces = search_traces(self._fitted.models, rows, original, limits)
        return list(self._tracked(traces, len(original)))
