"""Deep ensembles: networks that were trained with different seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import numpy as np
from sklearn import config_context
from sklearn.utils.parallel import Parallel, delayed

from .._arguments import allowed, arguments, integer
from .._documented import CLASSIFIER, REGRESSOR, documented
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
from ..base._wrapping import N_JOBS
from ._method import ClassifierMethod, RegressorMethod
from .reference import GivenModel, ReferenceClassifier, ReferenceRegressor


@dataclass(frozen=True, eq=False)
class MemberRows:
    """Samples as the reference takes them, and as each member takes them."""

    reference: Any
    members: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.reference)

    def __getitem__(self, rows: Any) -> MemberRows:
        return MemberRows(self.reference[rows], tuple(part[rows] for part in self.members))


@dataclass(frozen=True)
class Members(Generic[AnyModels]):
    """The members of an ensemble, each a fitted method of its own with its own transformers."""

    methods: tuple[FittedMethod[AnyModels], ...]

    def sample(
        self,
        inputs: MemberRows,
        original: Any,  # noqa: ARG002
        posterior: Posterior,
        question: Question,
    ) -> dict[str, np.ndarray]:
        """Add the models of all members to the accumulator; see `Models`."""
        for method, own in zip(self.methods, inputs.members, strict=True):
            rows, predicted = method.given(own)
            method.models.sample(rows, predicted, posterior, question)
        return {}

    def rows_at_once(self, inputs: MemberRows, limits: Limits) -> int:
        """Return how many samples are worked on together."""
        return self.methods[0].models.rows_at_once(inputs.members[0], limits)


@arguments
class Ensemble(BaseUncertaintyEstimator):
    """Several networks, each judged by a method of its own."""

    n_estimators: int = integer(default=5)
    estimators: Any = allowed(list, tuple, None, default=None)
    n_jobs: int | None = allowed(*N_JOBS, None, default=None)

    _trains_again = True
    _member_type: ClassVar[Any]  # the method that judges a single network

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
        if self.estimators is None:
            self.estimators_ = [self.estimator_, *self._train_members(fit)]
        else:
            self.estimators_ = list(self.estimators)
        data = {name: getattr(fit.passed, name) for name in ("sample_weight", "X_val", "y_val")}
        X = fit.passed.X_checked if self._scales_inputs else fit.passed.X
        shared = set(self._member_type._get_param_names()) - {"estimator", "random_state"}
        arguments = {name: getattr(self, name) for name in shared}
        methods = []
        for number, net in enumerate(self.estimators_):
            member = self._member_type(net, random_state=fit.seed + number, **arguments)
            member._is_member = True
            member._scales_inputs = self._scales_inputs
            member.fit(X, fit.passed.y_checked, **data)
            self._check_member(member)
            methods.append(member._fitted)
        return Members(tuple(methods))

    def _train_members(self, fit: FitData) -> list[Any]:
        """Return all members but the first, trained as the first was, with seeds of their own."""
        if self.n_estimators == 1:
            return []
        estimator, passed = untrained(self._wrapped()), fit.passed
        # There is nothing to be routed to an estimator that was passed fitted.
        routing = {"enable_metadata_routing": False} if is_pretrained(self.estimator) else {}
        seeds = np.random.SeedSequence(fit.seed).generate_state(self.n_estimators - 1) // 2
        # The workers of scikit-learn's Parallel have the configuration that holds here.
        with config_context(**routing):
            options = {
                "task": self._task,
                "fit_params": self._route(estimator, passed.sample_weight, passed.fit_params),
                "anew": True,
            }
            X, y = passed.X_checked, passed.y_checked
            tasks = [delayed(train)(estimator, X, y, seed=int(own), **options) for own in seeds]
            trained = Parallel(n_jobs=self.n_jobs, return_as="generator")(tasks)
        return [net for net, _ in tracked(trained, "Training", self.verbose, "net", len(tasks))]

    def _check_member(self, member: Any) -> None:
        """Refuse a network that predicts something else than the reference."""
        for name in ("classes_", "n_outputs_"):
            own, other = getattr(self, name, ()), getattr(member, name, ())
            if not np.array_equal(own, other):
                raise ValueError(
                    f"The networks do not predict the same: {name} is {shown(own)} for the "
                    f"reference and {shown(other)} for {type(member.estimator).__name__}."
                )

    def _rows_asked(self, X: Any, inputs: StoredRows) -> MemberRows:
        methods = self._fitted.models.methods
        return MemberRows(inputs, tuple(self._check_rows(X, m.reference) for m in methods))


@documented(CLASSIFIER)
@arguments
class DeepEnsembleClassifier(ClassifierMethod, Ensemble):
    """Uncertainty of a network's classification by an ensemble of networks.

    Networks that were trained with different seeds are the plausible models.

    Parameters
    ----------
    n_estimators : int
        Networks, of which the given one (or the first that is trained) is one. The others are
        trained as it was, by its own ``fit``, with seeds of their own. A plain module cannot be:
        pass more of them as ``estimators``, or wrap it in skorch.
    estimators : list of estimators or torch.nn.Module
        Fitted networks that are the ensemble instead; ``n_estimators`` does not count then.
        ``estimator`` remains the reference of ``setting="given"``; if it is None, the first of the
        list is.
    n_jobs : int
        Networks that are trained at the same time, through joblib.

    Attributes
    ----------
    estimators_ : list
        The networks of the ensemble.

    References
    ----------
    B. Lakshminarayanan, A. Pritzel, C. Blundell, "Simple and Scalable Predictive Uncertainty
    Estimation using Deep Ensembles", NeurIPS 2017.
    """

    _fitted_kind = FittedMethod[Members[GivenModel]]
    _member_type = ReferenceClassifier


@documented(REGRESSOR, DeepEnsembleClassifier)
@arguments
class DeepEnsembleRegressor(RegressorMethod, Ensemble):
    """Uncertainty of a network's regression by an ensemble of networks."""

    _fitted_kind = FittedMethod[Members[GivenModel]]
    _member_type = ReferenceRegressor
