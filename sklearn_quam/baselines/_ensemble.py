"""Several networks: each is judged by a method of its own, and all of them are plausible."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Generic

import numpy as np
from sklearn import config_context
from sklearn.utils._param_validation import Interval
from sklearn.utils.parallel import Parallel, delayed

from .._messages import shown
from .._network.adapters import is_pretrained
from .._network.inputs.rows import StoredRows
from .._network.limits import Limits
from .._network.training import train, untrained
from .._posterior.accumulate import Posterior
from .._posterior.fitted import AnyModels, FittedMethod, Question
from .._posterior.progress import tracked
from ..base._data import FitData
from ..base._estimator import BaseUncertaintyEstimator
from ..base._regressor import BaseUncertaintyRegressor
from ..base._wrapping import N_JOBS


@dataclass(frozen=True, eq=False)
class MemberRows:
    """Rows as each of several networks takes them, each behind transformers of its own.

    Parameters
    ----------
    reference : StoredRows or Inputs
        As the reference takes them.
    members : tuple of StoredRows or Inputs
        As each of the members takes them.
    """

    reference: Any
    members: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.reference)

    def __getitem__(self, rows: Any) -> MemberRows:
        return MemberRows(self.reference[rows], tuple(part[rows] for part in self.members))


@dataclass(frozen=True)
class Members(Generic[AnyModels]):
    """The members of an ensemble, each a fitted method of its own with its own transformers.

    Parameters
    ----------
    methods : tuple of FittedMethod
        One for each network.
    """

    methods: tuple[FittedMethod[AnyModels], ...]

    def sample(
        self,
        inputs: MemberRows,
        original: Any,  # noqa: ARG002
        posterior: Posterior,
        question: Question,
    ) -> dict[str, np.ndarray]:
        """Hand the models of all members to the accumulator; see `Models`."""
        for method, own in zip(self.methods, inputs.members, strict=True):
            rows, predicted = method.given(own)
            method.models.sample(rows, predicted, posterior, question)
        return {}

    def rows_at_once(self, inputs: MemberRows, limits: Limits) -> int:
        """Return how many rows are worked on together."""
        return self.methods[0].models.rows_at_once(inputs.members[0], limits)


class Ensemble(BaseUncertaintyEstimator):
    """Trains or takes over several networks; shared by the methods that look at them."""

    _ensemble_constraints: ClassVar[dict] = {
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "estimators": [list, tuple, None],
        "n_jobs": [*N_JOBS, None],
    }
    _trains_again = True
    _counts_models = "n_estimators"
    # The method that judges a single member, and arguments that it shares with the ensemble.
    _member_type: ClassVar[Any]
    _member_arguments: ClassVar[tuple[str, ...]] = ("link", "output", "device", "measure")

    n_estimators: int
    estimators: Any

    # -- fitting ---------------------------------------------------------------------------

    def _remedies(self) -> tuple[str, ...]:
        if self.estimators is None:
            return super()._remedies()
        fewer = f"pass fewer than {len(self.estimators)} estimators: every row is run through all"
        return (fewer, super()._remedies()[-1])

    def _wrapped(self) -> Any:
        if self.estimators is None:
            return super()._wrapped()
        unfitted = [net for net in self.estimators if not is_pretrained(net)]
        if unfitted or not len(self.estimators):
            passed = shown(unfitted) if unfitted else "nothing"
            raise ValueError(
                f"estimators= takes fitted networks, but {passed} was passed. Pass "
                "an unfitted one as estimator= to have n_estimators of them trained."
            )
        return self.estimators[0] if self.estimator is None else self.estimator

    def _fit_models(self, fit: FitData) -> Any:
        passed = fit.passed
        self.estimators_ = self._all_networks(fit)
        X = passed["X_checked" if self._scales_inputs else "X"]
        data = {"X": X, "y": passed["y_checked"]}
        data |= {
            name: passed[name] for name in ("sample_weight", "X_val", "y_val") if name in passed
        }
        arguments = {name: getattr(self, name) for name in self._member_arguments}
        methods = []
        for number, net in enumerate(self.estimators_):
            member = self._member_type(net, random_state=fit.seed + number, **arguments)
            member._is_member = True
            member._scales_inputs = self._scales_inputs
            member.fit(**data)
            self._check_member(member)
            methods.append(member._fitted)
        return Members(tuple(methods))

    def _all_networks(self, fit: FitData) -> list[Any]:
        if self.estimators is not None:
            return list(self.estimators)
        passed = fit.passed
        more = self._train_members(
            passed["X_checked"],
            passed["y_checked"],
            passed["sample_weight"],
            passed["fit_params"],
            fit.seed,
        )
        return [self.estimator_, *more]

    def _train_members(
        self, X: Any, y: Any, sample_weight: Any, fit_params: dict, seed: int
    ) -> list[Any]:
        """Return all members but the first, trained as the first was, with seeds of their own."""
        if self.n_estimators == 1:
            return []
        estimator = untrained(self._wrapped())
        # There is nothing to be routed to an estimator that was passed fitted.
        routing = {"enable_metadata_routing": False} if is_pretrained(self.estimator) else {}
        seeds = np.random.SeedSequence(seed).generate_state(self.n_estimators - 1) // 2
        # The workers of scikit-learn's Parallel have the configuration that holds here.
        with config_context(**routing):
            routed = self._route(estimator, sample_weight, fit_params)
            tasks = [
                delayed(train)(
                    estimator, X, y, task=self._task, seed=int(own), fit_params=routed, anew=True
                )
                for own in seeds
            ]
            trained = Parallel(n_jobs=self.n_jobs, return_as="generator")(tasks)
        shown = tracked(trained, "Training", self.verbose, "net", len(tasks))
        return [net for net, _ in shown]

    def _check_member(self, member: Any) -> None:
        """Refuse a network that predicts something else than the reference."""
        for name in ("classes_", "n_outputs_"):
            own, other = getattr(self, name, ()), getattr(member, name, ())
            if not np.array_equal(own, other):
                raise ValueError(
                    f"The networks do not predict the same: {name} is {shown(own)} for the "
                    f"reference and {shown(other)} for {type(member.estimator).__name__}."
                )

    # -- predicting ------------------------------------------------------------------------

    def _rows_asked(self, X: Any, inputs: StoredRows) -> MemberRows:
        methods = self._fitted.models.methods
        return MemberRows(inputs, tuple(self._check_rows(X, m.reference) for m in methods))


class RegressionEnsemble(Ensemble, BaseUncertaintyRegressor):
    """Several networks for regression: each has a noise of its own."""

    _member_arguments = (*Ensemble._member_arguments, "noise_variance")
